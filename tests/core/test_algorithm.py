"""The server as a state machine: admission, lost clients, places, past models, and random scripts against all of it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tardygrad as tg
from tardygrad.core.messages import Reply
from tardygrad.core.transforms import Transform
from tests.golden.problem import Problem, Task

MODES = pytest.mark.parametrize("mode", ["sync", "server", "client"])
D = 3


def method_of(mode: str = "client", buffer: int = 2, **more: Any) -> tg.Method:
    return tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=buffer, local_steps=1, mode=mode, **more)


def start(method: tg.Method, clients: int = 4, seed: int = 0, **more: Any) -> tuple[tg.Server, dict[int, tg.Job]]:
    """A server that has sent its first jobs, and the jobs by client."""
    server = tg.Server(method, torch.arange(1.0, D + 1), clients=clients, seed=seed, **more)
    return server, {job.client: job for job in server.dispatch()}


def update(job: tg.Job, value: float = 1.0, **changes: Any) -> tg.Update:
    return tg.Update(job.client, job.serial, job.round, torch.full((D,), value), steps=1, loss=0.0)._replace(**changes)


def frozen(server: tg.Server) -> tuple[Any, ...]:
    """Everything that a refused update must leave as it is."""
    return (
        server.x.numpy().tobytes(), server.round, len(server.buffer), dict(server.vectors.state), server.module_buffers,
        list(server.roster.waiting), len(server.roster.idle), len(server.roster.jobs),
    )  # fmt: skip


# Admission checks.

NAN, INF = math.nan, math.inf
FLOATS, INTS = torch.ones(2), torch.ones(1, dtype=torch.int64)
CURVED = {"curvature": torch.ones(D)}
CARRIED = {"module_buffers": tg.ModuleBuffers(FLOATS, INTS)}

Change = dict[str, Any]

OUT: dict[str, tuple[str, Change, Change]] = {
    # what is wrong with it: (reason, what a good update has besides its delta, what is changed)
    "nan in delta": ("not finite", {}, {"delta": torch.tensor([1.0, NAN, 1.0])}),
    "nan in curvature": ("not finite", CURVED, {"curvature": torch.tensor([1.0, NAN, 1.0])}),
    "nan in buffers": ("not finite", CARRIED, {"module_buffers": tg.ModuleBuffers(torch.tensor([1.0, NAN]), INTS)}),
    "too long": ("wrong shape", {}, {"delta": torch.ones(D + 1)}),
    "too short": ("wrong shape", {}, {"delta": torch.ones(1)}),
    "a matrix": ("wrong shape", {}, {"delta": torch.ones(1, D)}),
    "float64": ("wrong shape", {}, {"delta": torch.ones(D, dtype=torch.float64)}),
    "no delta": ("wrong shape", {}, {"delta": None}),
    "missing curvature": ("wrong shape", CURVED, {"curvature": None}),
    "uncalled-for curvature": ("wrong shape", {}, CURVED),
    "missing buffers": ("wrong shape", CARRIED, {"module_buffers": None}),
    "uncalled-for buffers": ("wrong shape", {}, CARRIED),
    "integer buffers as floats": ("wrong shape", CARRIED, {"module_buffers": tg.ModuleBuffers(FLOATS, torch.ones(1))}),
    "fewer steps than none": ("wrong shape", {}, {"steps": -7}),
    "more steps than a record can have": ("wrong shape", {}, {"steps": 2**53}),
    "a larger loss than a record can have": ("wrong shape", {}, {"loss": 1.7e308}),
    "a larger share than a record can have": ("wrong shape", {}, {"clipped": -1e300}),
    "a round to come": ("from the future", {}, {"round": 1}),
    "another round": ("unknown job", {}, {"round": -1}),
}


@pytest.mark.parametrize(("case", "mode"), zip(OUT, cycle(["sync", "server", "client"])))
def test_a_bad_update_changes_nothing_and_its_place_is_given_again(case: str, mode: str) -> None:
    reason, good, change = OUT[case]
    method = method_of(mode, buffer=2, compensate="curvature" in good)
    server, jobs = start(method, module_buffers=good.get("module_buffers"))
    job = jobs[min(jobs)]
    before = frozen(server)

    happened, sent = server.receive(update(job, **good)._replace(**change))

    assert happened == tg.Refused(job.client, job.serial, change.get("round", 0), reason)
    assert frozen(server) == before
    assert len(sent) == 1
    if mode == "sync":  # the place is given at random among those who have not reported, the refused one included
        assert sent[0].serial == int(sent[0].client in jobs)
    else:
        assert (sent[0].client, sent[0].serial) == (job.client, job.serial + 1)
    assert sent[0].round == 0
    assert sent[0].x is server.x
    happened, _ = server.receive(update(sent[0], **good))  # the new work counts
    assert isinstance(happened, tg.Taken)
    again = update(job, **good)  # and the old job cannot come back
    assert server.receive(again) == Reply(tg.Refused(job.client, job.serial, 0, "finished job"), [])


NOT_OUT: dict[str, tuple[str, Callable[[tg.Job], tg.Update]]] = {
    "a client that does not exist": ("unknown job", lambda job: update(job, client=99)),
    "a negative client": ("unknown job", lambda job: update(job, client=-1)),
    "a job not yet given": ("unknown job", lambda job: update(job, serial=job.serial + 1)),
    "a negative job": ("unknown job", lambda job: update(job, serial=-1)),
    "a job to come from a round to come": ("from the future", lambda job: update(job, serial=5, round=1)),
    "an unknown client from a round to come": ("from the future", lambda job: update(job, client=9, round=1)),
}  # fmt: skip


@pytest.mark.parametrize(("case", "mode"), zip(NOT_OUT, cycle(["sync", "server", "client"])))
def test_an_update_for_a_job_that_is_not_out_changes_nothing_and_brings_no_work(case: str, mode: str) -> None:
    reason, forge = NOT_OUT[case]
    server, jobs = start(method_of(mode))
    job = jobs[min(jobs)]
    before, out = frozen(server), dict(server.roster.jobs)
    forged = forge(job)
    assert server.receive(forged) == Reply(tg.Refused(forged.client, forged.serial, forged.round, reason), [])
    assert frozen(server) == before
    assert server.roster.jobs == out
    assert isinstance(server.receive(update(job)).happened, tg.Taken)  # the client's own job is still good


@MODES
def test_a_duplicate_is_refused_and_does_not_cost_the_client_its_place(mode: str) -> None:
    server, jobs = start(method_of(mode, buffer=2), clients=2)
    first = update(jobs[0])
    server.receive(first)
    before, out = frozen(server), dict(server.roster.jobs)
    for _ in range(3):
        assert server.receive(first) == Reply(tg.Refused(0, 0, 0, "finished job"), [])
    assert frozen(server) == before
    assert server.roster.jobs == out
    server.receive(update(jobs[1]))
    assert server.round == 1
    assert server.receive(first) == Reply(tg.Refused(0, 0, 0, "finished job"), [])  # a replay from an older round
    assert server.round == 1


@MODES
def test_the_update_of_a_lost_client_comes_too_late(mode: str) -> None:
    server, jobs = start(method_of(mode, buffer=2), clients=2)
    server.receive(tg.Lost(0))
    assert server.receive(update(jobs[0])) == Reply(tg.Refused(0, 0, 0, "finished job"), [])


@pytest.mark.parametrize("mode", ["server", "client"])
def test_a_stale_update_is_refused_beyond_the_bound_and_taken_at_it(mode: str) -> None:
    server, jobs = start(method_of(mode, buffer=1, max_delay=2), clients=3)
    job = jobs[0]
    for t in (1, 2):
        happened, sent = server.receive(update(job))
        assert isinstance(happened, tg.Advanced)
        if t == 1:  # p = 2 − 0, at the bound
            happened, _ = server.receive(update(jobs[1]))
            assert isinstance(happened, tg.Advanced)
            assert happened.delays == (2,)
        job = sent[0]
    before = frozen(server)
    happened, sent = server.receive(update(jobs[2]))  # p = 4 − 0
    assert happened == tg.Refused(2, 0, 0, "too stale")
    assert frozen(server) == before
    assert [(new.client, new.serial, new.round) for new in sent] == [(2, 1, 3)]
    happened, _ = server.receive(update(sent[0]))
    assert isinstance(happened, tg.Advanced)
    assert happened.delays == (1,)


@pytest.mark.parametrize("norm", ["coordinate", "l2"])
def test_finite_updates_that_would_overflow_in_the_sum_are_refused(norm: Any) -> None:
    settings: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 100.0, "clip": 0.1, "local_steps": 1}
    method = tg.clip2(**settings, norm=norm, compensate=True, buffer=2, mode="client")
    server, jobs = start(method, clients=6)

    def arrives(client: int, delta: float, curvature: float) -> Any:
        return server.receive(update(jobs[client], delta, curvature=torch.full((D,), curvature))).happened

    arrives(0, 1.0, 0.0)
    assert isinstance(arrives(1, 1.0, 0.0), tg.Advanced)  # x has drifted by up to 10
    assert [arrives(2, 1.0, 3e38).reason, arrives(3, 3e38, 0.0).reason] == ["not finite"] * 2
    assert arrives(4, 1e18, 1e18).delay == 2
    assert arrives(5, -1e18, -1e18).delays == (2, 2)
    assert server.x.isfinite().all()
    assert server.x.abs().max() <= D + 20


def test_only_messages_are_received() -> None:
    server, _ = start(method_of())
    with pytest.raises(TypeError, match="a server receives messages such as Update or Lost, got str"):
        server.receive("hello")  # type: ignore[arg-type]


# One client that always computes NaN, in a whole run.


class Broken(Task):
    """A task on which the given client computes NaN."""

    def __init__(self, clients: int, broken: int) -> None:
        super().__init__(Problem(0, clients, D))
        self.broken = broken

    def gradient(self, x: Tensor, batch: Any, module_buffers: None) -> tuple[Tensor, Tensor]:
        value, g = super().gradient(x, batch, module_buffers)
        return value, g * NAN if batch[0] == self.broken else g


def fleet_of(*seconds: float) -> tg.Fleet:
    return tg.Fleet(tuple(tg.Group(f"c{i}", 1, tg.Trace((one,))) for i, one in enumerate(seconds)))


def simulate(method: tg.Method, task: Any, fleet: tg.Fleet, rounds: int) -> tg.Run:
    return tg.simulate(method, task, fleet, rounds=rounds, evaluate_every=0)


@pytest.mark.parametrize("mode", ["server", "client"])
def test_a_run_goes_on_around_a_broken_client(mode: str) -> None:
    run = simulate(method_of(mode, 2), Broken(4, broken=1), fleet_of(1.0, 1.0, 2.0, 3.0), rounds=20)
    assert run.server.round == 20
    assert torch.isfinite(run.x).all()
    assert run.summary().refused["not finite"] > 5
    assert all(1 not in row["clients"] for row in run.metrics)


@pytest.mark.parametrize(
    "how",
    [{"mode": "sync", "buffer": 2}, {"buffer": 1, "concurrency": 1, "dispatch": "random"}],
    ids=["sync", "random"],
)
def test_a_run_that_draws_its_clients_goes_on_around_a_broken_one(how: Change) -> None:
    for seed in range(12):
        task: Any = Broken(4, broken=1)
        fleet = fleet_of(1.0, 1.0, 2.0, 3.0)
        run = tg.simulate(method_of(**how), task, fleet, rounds=200, evaluate_every=0, seed=seed)
        assert run.server.round == 200


def test_duplicates_do_not_starve_a_run() -> None:
    task: Any = Task(Problem(0, 1, D))
    method = method_of("client", 1)
    script = [("arrive", 0), *[("repeat", 0)] * 9, ("arrive", 0)]
    server = tg.Server(method, task.init(0), clients=1, seed=0)
    assert len(list(tg.drive(server, tg.ScriptedPool(script, task, method), 2))) == 12
    assert server.round == 2


def test_a_fast_broken_client_does_not_starve_a_slow_good_one() -> None:
    run = simulate(method_of("client", 1), Broken(2, broken=0), fleet_of(1.0, 30.0), rounds=3)
    assert run.server.round == 3


@MODES
def test_a_run_whose_every_update_is_refused_starves_and_says_so(mode: str) -> None:
    class Hopeless(Task):
        def gradient(self, x: Tensor, batch: Any, module_buffers: None) -> tuple[Tensor, Tensor]:
            return x.sum(), x * NAN

    text = (
        r"the buffer cannot fill in round 1: the last \d+ updates were refused, most recently as 'not finite' "
        r"\(0 of 2 updates received; of 3 clients "
    )
    with pytest.raises(tg.Starved, match=text):
        simulate(method_of(mode, 2), Hopeless(Problem(0, 3, D)), fleet_of(1.0, 1.0, 2.0), rounds=1)


@pytest.mark.parametrize("mode", ["server", "client"])
def test_a_run_whose_model_is_no_longer_finite_has_diverged_and_says_so(mode: str) -> None:
    class Explosive(Task):
        def gradient(self, x: Tensor, batch: Any, module_buffers: None) -> tuple[Tensor, Tensor]:
            return x.sum(), -x.abs() - 1

    how: Any = {"local_lr": 1.0, "local_clip": INF, "lr": 1e38, "buffer": 1, "local_steps": 1, "mode": mode}
    with pytest.raises(tg.Diverged, match=r"^the model is not finite after round \d+\. Use a smaller lr, or clip\.$"):
        simulate(tg.sgdclip(**how), Explosive(Problem(0, 2, D)), fleet_of(1.0, 1.0), rounds=100)


@MODES
def test_a_run_whose_every_client_fails_now_and_then_goes_on(mode: str) -> None:
    class Moody(Task):
        def gradient(self, x: Tensor, batch: Any, module_buffers: None) -> tuple[Tensor, Tensor]:
            value, g = super().gradient(x, batch, module_buffers)
            return value, g * NAN if batch[1] % 3 else g  # two jobs of three fail

    run = simulate(method_of(mode, 2), Moody(Problem(0, 3, D)), fleet_of(1.0, 1.0, 2.0), rounds=30)
    assert run.server.round == 30
    assert run.summary().refused["not finite"] > 60


# Lost clients.


def test_one_that_has_reported_is_lost_and_comes_back_waits_for_the_rounds_end() -> None:
    server, jobs = start(method_of("server", buffer=2), clients=3)
    server.receive(update(jobs[0]))
    server.receive(tg.Lost(0))
    assert server.receive(tg.Joined(0)).jobs == []
    assert server.receive(tg.Lost(2)).jobs == []  # which leaves a slot, but not for client 0
    _, sent = server.receive(update(jobs[1]))
    assert {job.client for job in sent} == {0, 1}


def test_an_update_has_the_means_of_its_steps() -> None:
    class Counting(Task):
        def gradient(self, x: Tensor, batch: Any, module_buffers: None) -> tuple[Tensor, Tensor]:
            return torch.tensor(float(batch[2])), torch.tensor([9.0, 0.1, 0.1])

    task: Any = Counting(Problem(0, 1, D))
    job = tg.Job(0, 0, 0, task.init(0), 4, None, 0)
    assert tg.work(job, task, method_of())[6:9] == (4, 1.5, pytest.approx(1 / 3))  # steps 0 to 3; one of 3 is clipped


class Ticking(tg.Pool):
    """A pool without a deadline of its own: a second for each job."""

    now = 0.0

    def __init__(self) -> None:
        self.jobs: list[tg.Job] = []

    def submit(self, job: tg.Job) -> None:
        self.jobs.append(job)

    def next(self) -> tg.Update:
        self.now += 1.0
        return update(self.jobs.pop(0))


def test_time_is_up_on_a_pool_that_knows_no_deadline() -> None:
    server = tg.Server(method_of("client", 1), torch.zeros(D), clients=2, seed=0)
    assert [event.time for event in tg.drive(server, Ticking(), until=3.5)] == [0.0, 1.0, 2.0, 3.0]


@MODES
def test_losing_or_joining_twice_or_nobody_changes_nothing(mode: str) -> None:
    server, _ = start(method_of(mode, buffer=2), clients=4)
    server.receive(tg.Lost(1))
    before, out = server.roster.census(), dict(server.roster.jobs)
    for message in (tg.Lost(1), tg.Lost(9), tg.Lost(-1), tg.Joined(0), tg.Joined(9), tg.Joined(-1)):
        assert server.receive(message) == Reply(None, [])
        assert server.roster.census() == before
        assert server.roster.jobs == out
    server.receive(tg.Joined(1))
    server.receive(tg.Joined(1))
    assert server.roster.census().lost == 0


@MODES
def test_a_run_goes_on_while_the_buffer_can_fill(mode: str) -> None:
    """Three of five are lost, one of them while it works from x_0; M = 2 are left."""
    fleet = fleet_of(1.0, 2.0, 3.0, 4.0, 9.0).crash(client=0, at=5.5).crash(client=4, at=3.0).crash(client=2, at=8.0)
    run = simulate(method_of(mode, 2, compensate=True), Task(Problem(0, 5, D)), fleet, rounds=30)
    assert run.server.round == 30
    assert run.server.roster.census().lost == 3
    assert {client for row in run.metrics[-10:] for client in row["clients"]} == {1, 3}


@MODES
def test_a_run_starves_when_it_cannot_and_gives_the_counts(mode: str) -> None:
    fleet = fleet_of(1.0, 2.0, 3.0)
    for client in range(3):
        if client != 1 or mode == "client":
            fleet = fleet.crash(client=client, at=10.5 + client)
    with pytest.raises(tg.Starved) as caught:
        simulate(method_of(mode, 2), Task(Problem(0, 3, D)), fleet, rounds=1000)
    there, waiting, lost = ("[01]", 0, 3) if mode == "client" else (1, 1, 2)
    assert re.fullmatch(
        r"the buffer cannot fill in round \d+: no job is in flight "
        rf"\({there} of 2 updates received; of 3 clients 0 at work, {waiting} waiting, 0 idle, {lost} lost\)\.",
        str(caught.value),
    )


# Places.


def play(server: tg.Server, jobs: dict[int, tg.Job], messages: int, seed: int = 0) -> Iterator[Reply]:
    """Let the clients at work arrive in a random order."""
    rng = np.random.default_rng(seed)
    for _ in range(messages):
        assert set(jobs) == set(server.roster.jobs)
        reply = server.receive(update(jobs.pop(int(rng.choice(sorted(jobs)))), 0.01))
        jobs |= {job.client: job for job in reply.jobs}
        yield reply


@pytest.mark.parametrize(("mode", "buffer"), [("client", 2), ("server", 2)])
def test_the_same_clients_keep_their_places(mode: str, buffer: int) -> None:
    server, jobs = start(method_of(mode, buffer, concurrency=3), clients=8)
    given = {job.client for reply in play(server, jobs, 200) for job in reply.jobs}
    assert given == {0, 1, 2}


@pytest.mark.parametrize(("mode", "buffer"), [("client", 1), ("client", 4), ("server", 2)])
def test_random_dispatch_reaches_all_clients_about_equally_often(mode: str, buffer: int) -> None:
    counts: Counter[int] = Counter()
    for seed in range(4):
        server, jobs = start(method_of(mode, buffer, concurrency=3, dispatch="random"), clients=6, seed=seed)
        for reply in play(server, jobs, 900, seed):
            counts.update(job.client for job in reply.jobs)
    assert set(counts) == set(range(6))
    assert all(500 <= count <= 700 for count in counts.values()), counts  # 600 expected, four deviations are ~90


# What a round does and reports.


def test_a_round_by_hand() -> None:
    server, jobs = start(tg.clip2(local_lr=1.0, local_clip=1.0, lr=2.0, clip=3.0, buffer=2, local_steps=1), clients=3)
    x_0 = server.x
    first = update(jobs[1], 1.0, delta=torch.tensor([3.0, 4.0, 0.0]), steps=2, loss=1.0, clipped=0.5)
    assert server.receive(first).happened == tg.Taken(first, 1, 5.0)
    happened, _ = server.receive(update(jobs[2], 1.0, delta=torch.tensor([5.0, 0.0, 0.0]), steps=3, loss=3.0))
    # Δ = (4, 2, 0), clipped to (3, 2, 0), times 2
    assert server.x.tolist() == [1.0 + 6.0, 2.0 + 4.0, 3.0]
    assert x_0.tolist() == [1.0, 2.0, 3.0]
    assert isinstance(happened, tg.Advanced)
    assert happened._replace(norm=0, move=0, clipped=0) == tg.Advanced(
        round=1, clients=(1, 2), delays=(1, 1), weights=(1.0, 1.0), norms=(5.0, 5.0), norm=0, move=0, clipped=0,
        local_clipped=0.25, loss=2.0, steps=5, snapshots=0,
    )  # fmt: skip
    assert happened.norm == pytest.approx(math.sqrt(20))
    assert happened.move == pytest.approx(math.sqrt(52))
    assert happened.clipped == pytest.approx(1 / 3)


def test_module_buffers_are_averaged_and_integer_ones_rounded() -> None:
    server, jobs = start(method_of("server", 2), clients=3, module_buffers=tg.ModuleBuffers(FLOATS, INTS))
    assert jobs[0].module_buffers is server.module_buffers
    for client, value in ((2, 4.0), (0, 8.0)):
        carried = tg.ModuleBuffers(torch.full((2,), value), torch.tensor([int(value)]))
        _, sent = server.receive(update(jobs[client], module_buffers=carried))
    assert server.module_buffers is not None
    assert server.module_buffers.floats.tolist() == [6.0, 6.0]
    assert server.module_buffers.ints.tolist() == [6]
    assert all(job.module_buffers is server.module_buffers for job in sent)
    assert FLOATS.tolist() == [1.0, 1.0]


def test_the_server_keeps_its_own_copy_of_the_given_model() -> None:
    x = torch.ones(D)
    server = tg.Server(method_of("client", 1), x, clients=1, seed=0)
    x.zero_()
    assert server.x.tolist() == [1.0] * D


def test_the_outer_step_is_told_its_round_and_the_delays() -> None:
    told = []

    def spy(direction: Tensor, state: dict[str, Tensor], step: tg.Step) -> tuple[Tensor, dict[str, Tensor]]:
        told.append(step)
        return direction, state

    method = tg.Method(
        name="spy", inner=method_of().inner, outer=Transform(lambda x: {}, spy), buffer=2, local_steps=1, mode="client"
    )
    server, jobs = start(method, clients=3)
    _, (again,) = server.receive(update(jobs[0]))
    server.receive(update(again))
    server.receive(update(jobs[1]))
    server.receive(update(jobs[2]))
    assert [step[:2] for step in told] == [(1, (1, 1)), (2, (2, 2))]
    assert [step.x is not None for step in told] == [True, True]


# Past models.


# What a method must not be.

GOOD: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "buffer": 2, "local_steps": 1}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        *[
            ({name: value}, f"`{name}` must be a whole number, 1 or more, got {value!r}.")
            for name in ("buffer", "local_steps", "max_delay", "concurrency")
            for value in (0, -1)
        ],
        *[({"buffer": value}, f"`buffer` must be a whole number, got {value!r}.") for value in (1.5, True, "2", None)],
        ({"max_delay": 1.5}, "`max_delay` must be a whole number or None, got 1.5."),
        (
            {"local_steps": None, "local_epochs": 0},
            "`local_epochs` must be a whole number, 1 or more, got 0.",
        ),
        (
            {"local_epochs": 2},
            "set exactly one of `local_steps` and `local_epochs`, got local_steps=1, local_epochs=2.",
        ),
        (
            {"local_steps": None},
            "set exactly one of `local_steps` and `local_epochs`, got local_steps=None, local_epochs=None.",
        ),
        (
            {"mode": "async"},
            "`mode` must be one of sync, server, client, got 'async'. Use 'server' or 'client'.",
        ),
        ({"dispatch": "fair"}, "`dispatch` must be one of same, random, got 'fair'."),
        (
            {"mode": "sync", "concurrency": 3},
            "a sync round works with exactly `buffer` clients (2), got concurrency=3.",
        ),
        (
            {"mode": "server", "concurrency": 1},
            "`concurrency` must be at least `buffer` (2) in mode 'server', got 1: "
            "clients wait for the end of the round, so the buffer could never fill.",
        ),
    ],
)
def test_a_method_that_breaks_a_rule_is_refused_with_the_rule(change: Change, text: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        tg.sgdclip(**GOOD | change)
    assert str(caught.value) == text
    with pytest.raises(tg.Invalid) as caught:
        tg.clip2(**GOOD | change, clip=1.0)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("settings", "clients", "text"),
    [
        ({"buffer": 64}, 40, "`buffer` must be between 1 and the number of clients (40), got 64. "
                             "Use buffer=40 for full synchronisation."),
        ({"concurrency": 9}, 4, "`concurrency` must be between 1 and the number of clients (4), got 9. "
                                "Leave it out to let all clients work."),
        ({}, 0, "`clients` must be a whole number, 1 or more, got 0."),
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_is_refused(settings: Change, clients: Any, text: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        tg.Server(tg.sgdclip(**GOOD | settings), torch.zeros(D), clients=clients, seed=0)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "SGDClip (server-centric, M=2, K=1)"),
        ({"mode": "sync"}, "SGDClip (synchronous, M=2, K=1)"),
        ({"mode": "client", "downplay": True}, "SGDClip (client-centric, M=2, K=1, downplayed)"),
        ({"downplay": True, "compensate": True}, "SGDClip (server-centric, M=2, K=1, downplayed, compensated)"),
        ({"local_steps": None, "local_epochs": 5}, "SGDClip (server-centric, M=2, K=5 epochs)"),
    ],
    ids=str,
)
def test_a_method_reads_as_a_legend(change: Change, text: str) -> None:
    assert str(tg.sgdclip(**GOOD | change)) == text
    assert str(tg.clip2(**GOOD | change, clip=1.0)) == text.replace("SGDClip", "Clip²")


# Random scripts against the invariants.


class Witness:
    """Plays messages to a server and checks, after each, everything that must always hold."""

    def __init__(self, method: tg.Method, clients: int) -> None:
        self.method, self.N = method, clients
        self.server = tg.Server(method, torch.zeros(D), clients=clients, seed=3)
        self.xs = [np.zeros(D)]
        self.lost: set[int] = set()
        self.given = [0] * clients
        self.delivered: list[tg.Update] = []
        self.out: dict[int, tg.Job] = {}
        self.buffered: list[tg.Update] = []
        self.rejoined = False
        self.note(Reply(None, self.server.dispatch()))

    def update(self, job: tg.Job) -> tg.Update:
        rng = np.random.default_rng((job.client, job.serial))
        delta, curvature = torch.from_numpy(rng.standard_normal((2, D)).astype(np.float32))
        return update(job, delta=delta, curvature=curvature.abs() / 10 if self.method.compensate else None)

    def deliver(self, message: tg.Update) -> None:
        job, x, round = self.out.get(message.client), self.server.x, self.server.round
        job = job if job is not None and job.serial == message.serial else None
        reply = self.server.receive(message)
        if isinstance(reply.happened, tg.Refused):
            assert self.server.x is x
            assert len(reply.jobs) == (1 if job else 0)
            if job:
                del self.out[message.client]
                drawn = self.method.mode == "sync" or self.method.dispatch == "random"
                assert drawn or reply.jobs[0].client == message.client
        else:
            assert job is not None, "an update without a job was taken"
            assert torch.isfinite(message.delta).all()
            del self.out[message.client]
            self.buffered.append(message)
            self.delivered.append(message)
            if isinstance(reply.happened, tg.Advanced):
                self.advanced(reply.happened)
            else:
                assert isinstance(reply.happened, tg.Taken)
                assert reply.happened.delay == round + 1 - message.round >= 1
                assert self.server.x is x
                assert self.server.round == round
        self.note(reply)

    def advanced(self, done: tg.Advanced) -> None:
        t, M, m = len(self.xs), self.method.buffer, self.method
        assert done.round == self.server.round == t
        assert len(self.buffered) == M
        assert done.clients == tuple(one.client for one in self.buffered)
        assert done.delays == tuple(t - one.round for one in self.buffered)
        assert all(1 <= p <= (m.max_delay or t) for p in done.delays)
        if m.mode == "sync":
            assert set(done.delays) == {1}
        if m.mode != "client" and not self.rejoined:
            assert len(set(done.clients)) == M
        held = {job.round for job in self.out.values()}  # nobody has been sent the new model yet
        assert done.snapshots == (len(held) if m.compensate else 0)
        total = np.zeros(D)
        for one, p in zip(self.buffered, done.delays, strict=True):
            part = one.delta.double().numpy()
            if one.curvature is not None:
                part = part - one.curvature.double().numpy() * (self.xs[t - 1] - self.xs[one.round])
            total += part / p if m.weight else part
        expected = self.xs[t - 1] + total / M
        np.testing.assert_allclose(self.server.x.numpy(), expected, rtol=1e-4, atol=1e-4)
        self.xs.append(self.server.x.double().numpy())
        self.buffered = []

    def lose(self, client: int) -> None:
        self.lost.add(client)
        self.out.pop(client, None)
        self.quiet(tg.Lost(client))

    def join(self, client: int) -> None:
        self.rejoined |= client in self.lost
        self.lost.discard(client)
        self.quiet(tg.Joined(client))

    def quiet(self, message: tg.Lost | tg.Joined) -> None:
        x, round = self.server.x, self.server.round
        reply = self.server.receive(message)
        assert reply.happened is None
        assert self.server.x is x
        assert self.server.round == round
        self.note(reply)

    def note(self, reply: Reply) -> None:
        server, m = self.server, self.method
        for job in reply.jobs:
            assert job.client not in self.lost
            assert job.client not in self.out
            assert (job.serial, job.round) == (self.given[job.client], server.round)
            assert job.x is server.x
            self.given[job.client] += 1
            self.out[job.client] = job
        assert set(self.out) == set(server.roster.jobs)

        places = Counter([*server.roster.jobs, *server.roster.idle, *server.roster.waiting, *self.lost])
        assert places == Counter(range(self.N)), "a client is nowhere, or in two places"
        at = server.roster.census()
        assert at.lost == len(self.lost)
        assert at.at_work + at.waiting + at.idle + at.lost == at.clients == self.N
        assert len(server.buffer) == len(self.buffered) < m.buffer == at.buffer
        if m.mode == "client":
            assert not server.roster.waiting

        room = m.buffer if m.mode == "sync" else m.concurrency or self.N
        held = len(server.roster.jobs) + (len(server.buffer) if m.mode != "client" else 0)
        assert held <= room
        assert held == room or not server.roster.idle, "an idle client and a free slot"

        needed = Counter(job.round for job in self.out.values()) if m.compensate else Counter()
        assert server.roster.holders == needed
        assert set(server.vectors.past) == set(needed)
        assert len(server.vectors.past) <= min(self.N + 1, server.round + 1)
        for s, x in server.vectors.past.items():
            assert (x.double().numpy() == self.xs[s]).all()


@st.composite
def methods(draw: st.DrawFn) -> tuple[tg.Method, int]:
    N = draw(st.integers(1, 6))
    M = draw(st.integers(1, N))
    mode = draw(st.sampled_from(["sync", "server", "client"]))
    how: dict[str, Any] = {"max_delay": draw(st.none() | st.integers(1, 3)), "compensate": draw(st.booleans())}
    if mode != "sync":
        how["concurrency"] = draw(st.none() | st.integers(M if mode == "server" else 1, N))
        how["dispatch"] = draw(st.sampled_from(["same", "random"]))
    return method_of(mode, M, downplay=draw(st.booleans()), **how), N


ACTIONS = ["arrive"] * 6 + ["lose", "join", "repeat", "nan", "forge"]
scripts = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10**6)), min_size=10, max_size=60)


def follow(witness: Witness, script: list[tuple[str, int]]) -> None:
    for verb, number in script:
        at_work = sorted(witness.out)
        if verb == "lose":
            witness.lose(number % witness.N)
        elif verb == "join":
            witness.join(number % witness.N)
        elif verb == "repeat" and witness.delivered:
            witness.deliver(witness.delivered[number % len(witness.delivered)])
        elif at_work:
            good = witness.update(witness.out[at_work[number % len(at_work)]])
            if verb == "nan":
                good.delta[number % D] = NAN
            elif verb == "forge":
                good = good._replace(**[{"round": good.round + 1}, {"serial": 77}, {"client": 55}][number % 3])
            witness.deliver(good)


@settings(deadline=None, max_examples=250, derandomize=True)
@given(methods(), scripts)
def test_whatever_arrives_the_invariants_hold(case: tuple[tg.Method, int], script: list[tuple[str, int]]) -> None:
    follow(Witness(*case), script)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(methods(), scripts)
def test_the_same_messages_give_the_same_bits(case: tuple[tg.Method, int], script: list[tuple[str, int]]) -> None:
    ends = [Witness(*case), Witness(*case)]
    for witness in ends:
        follow(witness, script)
    a, b = (witness.server for witness in ends)
    assert torch.equal(a.x, b.x)
    assert ends[0].out.keys() == ends[1].out.keys()
    assert vars(a.roster) == vars(b.roster)


def test_random_scripts_reach_what_they_are_meant_to() -> None:
    """The scripts above would prove little if they never advanced: a long fixed one of each mode."""
    rng = np.random.default_rng(0)
    for mode in ("sync", "server", "client"):
        witness = Witness(method_of(mode, 2, compensate=True, downplay=True), 5)
        follow(witness, [(str(rng.choice(ACTIONS)), int(rng.integers(10**6))) for _ in range(600)])
        assert witness.server.round > 50
        assert witness.rejoined
        assert mode == "sync" or max(witness.xs[-1]) != 0


def test_a_model_that_is_changed_in_place_between_two_messages_ends_the_run() -> None:
    task = tg.tasks.quadratic(clients=3, dimension=4, heterogeneity=1.0)
    method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=2, local_steps=2, mode="client")
    run = tg.begin(method, task, tg.Fleet.paper(clients=3), rounds=9)
    going = run.go()
    next(going)
    run.x.mul_(0.5)
    with pytest.raises(tg.Invalid, match=r"the model must not be changed in place .* Use x\.clone\(\)"):
        next(going)


@pytest.mark.parametrize("wrong", [0.0, False, "0", None, []], ids=repr)
def test_a_message_that_names_no_job_is_refused_and_no_client_gets_its_name(wrong: Any) -> None:
    server, jobs = start(method_of("client"))
    for name in ((wrong, 0), (0, wrong)):
        refused = tg.Refused(*name, 0, "wrong shape")
        assert server.receive(tg.Update(*name, 0, torch.ones(D))) == Reply(refused, [])
        assert server.receive(refused) == Reply(refused, [])
    assert server.roster.jobs.keys() == jobs.keys()
    assert all(type(client) is int for client in server.roster.jobs)


@pytest.mark.parametrize(("client", "mode"), [(-7, "sync"), (99, "server"), (-7, "client")])
def test_the_sleep_of_an_unknown_client_changes_nothing(client: int, mode: str) -> None:
    server, _ = start(method_of(mode))
    before = server.roster.census()
    server.receive(tg.Asleep(client))
    assert server.roster.census() == before
