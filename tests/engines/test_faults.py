"""Jobs that come back as NaN, or twice: refused at the gate, and nothing else changes."""

from __future__ import annotations

import copy
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import NOTHING, Advanced, Job, Refused
from tardygrad.engines.fleet_clock import corrupt
from tardygrad.engines.sim import pool as sim
from tardygrad.runs import checkpoint
from tests.engines.test_batcher import task

MODES = ["sync", "server", "client"]
ENGINES: list[dict[str, int]] = [{}, {"workers": 2}, {"batch": 3}]
ROTATED = pytest.mark.parametrize(("mode", "engine"), [*zip(MODES, ENGINES, strict=True), ("client", {})], ids=str)
ROUNDS = 14
FLEET = tg.Fleet.paper(clients=8).crash(client=2, at=7.0, back=20.0)
TWICE = FLEET.faulty(client=3, job=1, sends="twice").faulty(client=0, job=0, sends="twice")
NAN = FLEET.faulty(client=3, job=1, sends="nan").faulty(client=0, job=0, sends="nan")
BOTH = TWICE.faulty(client=3, job=1, sends="nan").faulty(client=1, job=2, sends="nan")


def method(mode: Any = "client", **how: Any) -> tg.Method:
    settings = {"local_lr": 0.3, "local_clip": 0.5, "lr": 1.0, "clip": 0.1, "buffer": 3, "local_steps": 2}
    return tg.clip2(mode=mode, **({"compensate": True} | settings | how))


def simulated(fleet: tg.Fleet, mode: Any = "client", here: Any = None, **engine: int) -> tg.Run:
    return tg.simulate(method(mode), here or task(), fleet, rounds=ROUNDS, evaluate_every=0, **engine)


def same(one: tg.Run, other: tg.Run) -> bool:
    return torch.equal(one.x, other.x) and one.metrics == other.metrics


def poisoned(jobs: frozenset[tuple[int, int]]) -> Any:
    """The task, which computes NaN itself where the fleet's faults say so."""

    class Poisoned(tg.TorchTask):
        def batches(self, job: Any) -> Any:
            factor = math.nan if (job.client, job.serial) in jobs else 1.0
            return ((factor, batch) for batch in super().batches(job))

        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            value, g = super().gradient(x, batch[1], module_buffers)
            return value, g * batch[0]

        def gradients(self, asked: Any) -> Any:
            made = super().gradients([(x, batch[1], module_buffers) for x, batch, module_buffers in asked])
            return [(value, g * batch[0]) for (value, g), (_, batch, _) in zip(made, asked, strict=True)]

    other: Any = copy.copy(task())
    other.__class__ = Poisoned
    return other


class Counted(tg.TorchTask):
    """A task that counts how often each job is computed."""

    times: Counter[tuple[int, int]]

    def batches(self, job: Any) -> Any:
        self.times[job.client, job.serial] += 1
        return super().batches(job)


def counting() -> Any:
    other: Any = copy.copy(task())
    other.__class__, other.times = Counted, Counter()
    return other


@ROTATED
def test_an_update_that_comes_twice_is_refused_once_and_changes_no_bit(mode: Any, engine: Any) -> None:
    run = simulated(TWICE, mode, **engine)
    assert run.summary().refused == {"finished job": 2}
    assert same(run, simulated(FLEET, mode, **engine))


@ROTATED
def test_a_fault_of_nan_is_what_a_client_that_computes_nan_does(mode: Any, engine: Any) -> None:
    run = simulated(NAN, mode, **engine)
    assert run.summary().refused == {"not finite": 2}
    assert same(run, simulated(FLEET, mode, poisoned(NAN.sending("nan")), **engine))
    assert not torch.equal(run.x, simulated(FLEET, mode, **engine).x)


@pytest.mark.parametrize("mode", ["server", "client"])
def test_a_job_that_comes_as_nan_is_worth_a_client_lost_before_and_back_at_that_time(mode: Any) -> None:
    """Not sync: there another client is drawn in the place of one that is lost, and a refused one may be again."""
    fleet = tg.Fleet.paper(clients=8)
    (at,) = (when for when, *name in arrivals(fleet, mode) if name == [3, 1])
    lost = simulated(fleet.crash(client=3, at=math.nextafter(at, 0.0), back=at), mode)
    assert same(simulated(fleet.faulty(client=3, job=1, sends="nan"), mode), lost)
    assert lost.summary().lost == 1


def test_processes_change_no_bit_of_a_faulty_run() -> None:
    runs = [simulated(BOTH, "client", workers=workers) for workers in (1, 2)]
    assert same(*runs)
    for run in runs:
        assert run.summary().refused == {"not finite": 2, "finished job": 2}  # the second of two NaNs is one of these


def arrivals(fleet: tg.Fleet, mode: Any = "client") -> list[tuple[float, int, int]]:
    server = tg.Server(method(mode), task().init(0), clients=8, seed=0)
    return [
        (event.time, event.message.client, event.message.serial)
        for event in tg.drive(server, tg.SimPool(task(), method(mode), fleet), ROUNDS)
        if isinstance(event.message, tg.Update)
    ]


def test_both_come_at_the_same_time_and_cost_the_server_its_time_each() -> None:
    fleet = tg.Fleet((tg.Group("one", 8, tg.Trace((2.0,))),)).faulty(client=1, job=0, sends="twice")
    assert arrivals(fleet)[:4] == [(2.0, 0, 0), (2.0, 1, 0), (2.0, 1, 0), (2.0, 2, 0)]
    slow = tg.Fleet(fleet.groups, server_time=0.5, faults=fleet.faults)
    assert arrivals(slow)[:4] == [(2.5, 0, 0), (3.0, 1, 0), (3.5, 1, 0), (4.0, 2, 0)]


def test_a_client_that_is_lost_before_its_job_is_back_sends_nothing() -> None:
    fleet = tg.Fleet.paper(clients=8).faulty(client=7, job=0, sends="twice").faulty(client=7, job=0, sends="nan")
    run = simulated(fleet.crash(client=7, at=1.5))
    assert run.summary().refused == {}
    assert same(run, simulated(tg.Fleet.paper(clients=8).crash(client=7, at=1.5)))


def test_a_client_that_is_lost_between_the_two_sends_no_second() -> None:
    """Its second job never returns, so that it is lost at the very time at which its first is back."""
    groups = (tg.Group("one", 1, tg.Trace((2.0, 1.7e308))), tg.Group("others", 7, tg.Trace((2.0,))))
    fleet = tg.Fleet(groups).slowed(client=0, at=2, factor=10)
    pool = tg.SimPool(task(), method(), fleet.faulty(client=0, job=0, sends="twice"))
    run = tg.train(method(), task(), pool, rounds=ROUNDS, evaluate_every=0)
    assert (run.summary().refused, run.summary().lost, pool._repeats) == ({}, 1, {})
    assert same(run, simulated(fleet))


def test_jobs_that_come_between_the_two_are_computed_with_the_same_others() -> None:
    """Client 2 ends the round, and client 0's next job, which takes no time, comes before client 2's update again."""
    traces = [(1.0, 0.0, 3.0), (1.0, 2.0), (1.0, 2.0), *[(2.0, 3.0)] * 5]
    fleet = tg.Fleet(tuple(tg.Group("one", 1, tg.Trace(times)) for times in traces))
    faulty = fleet.faulty(client=2, job=0, sends="twice")
    names = [name for _, *name in arrivals(faulty, "server")]
    assert names[2:5] == [[2, 0], [0, 1], [2, 0]]
    run = simulated(faulty, "server", batch=4)
    assert run.summary().refused == {"finished job": 1}
    assert same(run, simulated(fleet, "server", batch=4))
    counted = counting()
    simulated(faulty, "server", counted, batch=4)
    assert set(counted.times.values()) == {1}


def test_the_update_that_comes_again_is_the_very_same() -> None:
    pool = tg.SimPool(task(), method(), BOTH)
    server = tg.Server(method(), task().init(0), clients=8, seed=0)
    seen: dict[tuple[int, int], list[Any]] = {}
    for event in tg.drive(server, pool, ROUNDS):
        if isinstance(event.message, tg.Update):
            seen.setdefault((event.message.client, event.message.serial), []).append(event.message)
    assert {name for name, updates in seen.items() if len(updates) > 1} == BOTH.sending("twice")
    assert all(updates[0] is updates[-1] for updates in seen.values())
    assert pool.pending().done == ()


@pytest.mark.parametrize(("engine", "keep"), [({}, True), *((engine, False) for engine in ENGINES[1:])], ids=str)
def test_a_run_stopped_between_the_two_goes_on_to_the_same_bits(engine: Any, keep: bool, tmp_path: Path) -> None:
    def how() -> tg.Method:
        steps: Any = {"local_lr": 0.1, "buffer": 3, "local_steps": 2, "mode": "client"}
        return tg.diloco(**steps, keep=True) if keep else method()

    def pool() -> tg.SimPool:
        return tg.SimPool(task(), how(), BOTH, rounds=ROUNDS, **engine)

    def server() -> tg.Server:
        return tg.Server(how(), task().init(0), clients=8, seed=0)

    whole = server()
    with pool() as one:
        events = list(tg.drive(whole, one, ROUNDS))
    names = [(e.message.client, e.message.serial) if isinstance(e.message, tg.Update) else None for e in events]
    first = {name: names.index(name) for name in BOTH.sending("twice")}
    for number, at in enumerate(sorted(spot for when in first.values() for spot in (when - 1, when))):
        begun = server()
        with pool() as one:
            for seen, _ in enumerate(tg.drive(begun, one, ROUNDS)):
                if seen == at:
                    break
            between = at in first.values()
            assert len(one._repeats) == between
            (tmp_path / str(number)).mkdir()
            checkpoint.save(tmp_path / str(number), checkpoint.capture(begun, one.pending()))
        saved = checkpoint.read(tmp_path / str(number))
        assert saved is not None
        again = server()
        with pool() as one:
            one.restore(checkpoint.apply(saved, again))
            assert len(one._repeats) == between
            if one._prefetcher:  # each job is given to the processes once
                assert len(one._prefetcher.todo) + one._prefetcher.processes.assigned == len(one._prefetcher.scheduled)
            rest = list(tg.drive(again, one, ROUNDS))
            if one._prefetcher:
                assert not one._prefetcher.scheduled & BOTH.sending("twice")
        assert one._repeats == {}
        assert torch.equal(again.x, whole.x)
        assert [told(event) for event in rest] == [told(event) for event in events[at + 1 :]]


def told(event: tg.Event) -> tuple[Any, ...]:
    """What came, to the bit, and what happened."""
    message, happened = event.message, event.happened
    name: Any = message
    if isinstance(message, tg.Update):
        name = message.client, message.serial, message.delta.view(torch.int32).tolist()
    shown = happened if isinstance(happened, Refused | Advanced) else type(happened)
    return event.time, name, shown, [(job.client, job.serial, job.round) for job in event.jobs]


def test_the_clock_alone_foresees_what_faults_make_of_a_run() -> None:
    run = simulated(BOTH)
    arrived = {(client, serial) for _, client, serial in arrivals(BOTH)}
    lookahead = sim.Lookahead(task(), method(), BOTH, ROUNDS, 0)
    jobs = [Job(client, serial, 0, NOTHING, 1, None, 0) for client in range(8) for serial in range(ROUNDS)]
    assert {job[:2] for job in jobs if lookahead.arrives(job)} == arrived
    still = tg.simulate(method(), tg.tasks.clock(clients=8), BOTH, rounds=ROUNDS, evaluate_every=0)
    assert [row["time"] for row in still.metrics] == [row["time"] for row in run.metrics]
    assert sum(still.summary().refused.values()) == sum(run.summary().refused.values())


@pytest.mark.parametrize("engine", [{}, {"batch": 3}], ids=str)
def test_every_job_is_computed_once_and_only_if_a_round_needs_it(engine: Any) -> None:
    counted = counting()
    simulated(BOTH, "client", counted, **engine)
    assert counted.times == Counter({(client, serial): 1 for _, client, serial in arrivals(BOTH)})


def test_a_spoilt_update_is_nan_all_over_and_otherwise_the_same() -> None:
    update = tg.Update(1, 2, 3, torch.ones(4), torch.ones(4), steps=5, loss=0.5)
    spoilt = corrupt(update)
    assert spoilt.curvature is not None
    assert spoilt.delta.isnan().tolist() == spoilt.curvature.isnan().tolist() == [True] * 4
    assert (spoilt.delta.dtype, update.delta.tolist()) == (torch.float32, [1.0] * 4)
    assert spoilt._replace(delta=update.delta, curvature=update.curvature) == update
    assert corrupt(update._replace(curvature=None)).curvature is None
