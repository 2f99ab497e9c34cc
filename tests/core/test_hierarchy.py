"""HALoS's two levels: who reports to whom, messages that take time, and what an engine and a checkpoint see of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.hierarchy import HierarchicalServer
from tardygrad.core.method import Regions
from tardygrad.core.transforms import Scale
from tardygrad.runs import memory
from tardygrad.tasks import clock
from tests.runs.test_resume import fleet


def method(**changes: Any) -> tg.Method:
    """Plain steps everywhere, unless told."""
    how: dict[str, Any] = {
        "regions": 2, "local_lr": 0.5, "region_lr": 1.0, "region_momentum": 0.0, "region_period": 1, "every": 1,
        "lr": 0.5, "momentum": 0.0, "period": 1, "blend": 0.5, "optimizer": "SGD", "keep": False,
        "local_clip": math.inf, "local_steps": 1, "dylu": False,
    }  # fmt: skip
    return tg.halos(**(how | changes))


def served(one: tg.Method, x: torch.Tensor, clients: int) -> HierarchicalServer:
    server = tg.serve(one, x, clients=clients, seed=0)
    assert isinstance(server, HierarchicalServer)
    return server


@pytest.mark.parametrize(
    ("sizes", "members"),
    [
        (1, [[0, 1, 2, 3, 4]]),
        (2, [[0, 2, 4], [1, 3]]),
        (5, [[0], [1], [2], [3], [4]]),
        ((2, 3), [[0, 1], [2, 3, 4]]),
        ((4, 1), [[0, 1, 2, 3], [4]]),
    ],
)
def test_clients_are_dealt_in_turn_or_in_order(sizes: Any, members: list[list[int]]) -> None:
    assert Regions(sizes=sizes, every=1, blend=0.5, outer=Scale(lambda round: 1.0)).members(5) == members


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"regions": 6}, "`regions` must be at most the number of clients (5), got 6."),
        ({"regions": (2, 2)}, "`regions` must have 5 clients in total, got 4: (2, 2)."),
        ({"regions": (2, 3), "buffer": 3}, "`buffer` must be at most the number of clients of the smallest region (2), "
                                           "got 3."),
    ],
)  # fmt: skip
def test_regions_that_do_not_fit_the_clients_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        tg.serve(method(**changes), torch.zeros(1), clients=5, seed=0)
    assert str(caught.value) == said


def test_what_does_not_go_with_regions_is_refused() -> None:
    with pytest.raises(tg.Invalid, match=r"HALoS has regions, and needs a server for each: use `tardygrad.serve`\."):
        tg.Server(method(), torch.zeros(1), clients=4, seed=0)
    parts: dict[str, Any] = {
        "name": "", "inner": Scale(lambda round: 1.0), "outer": Scale(lambda round: 1.0), "buffer": 1, "local_steps": 1,
        "regions": Regions(sizes=1, every=1, blend=0.5, outer=Scale(lambda round: 1.0)),
    }  # fmt: skip
    for drifting in ({"compensate": True}, {"pull": True}):
        with pytest.raises(tg.Invalid, match="a method with regions can neither compensate an update nor pull"):
            tg.Method(**parts, **drifting)
    del parts["regions"]
    with pytest.raises(tg.Invalid, match="`compensate` and `pull` cannot both be True"):
        tg.Method(**parts, compensate=True, pull=True)


@pytest.mark.parametrize(
    ("exchange", "path"), [(0.0, [[6, 5], [5, 4], [4.25, 3.375]]), (0.75, [[8, 4], [6, 2], [6, 3]])]
)  # fmt: skip
def test_messages_between_servers_arrive_when_they_are_due(exchange: float, path: list[list[float]]) -> None:
    """The run that tests/golden works out by hand, with a script for a clock."""

    class Identity(type(tg.tasks.quadratic(clients=1))):  # type: ignore[misc]
        """g = x, from 8."""

        def init(self, seed: int) -> torch.Tensor:
            return torch.tensor([8.0])

    task = Identity(torch.ones(1), torch.zeros(1, 1), None)
    one = method(regions=1, exchange=exchange)
    server = served(one, task.init(0), 1)
    pool = tg.ScriptedPool([("arrive", 0, float(t)) for t in (1, 2, 3)], task, one)
    seen = [[level.x.item() for level in server.levels] for event in tg.drive(server, pool, 3) if event.message]
    assert seen == path


def test_a_region_reports_once_and_not_again_before_the_global_model_arrives() -> None:
    server = served(method(exchange=10.0, every=2), torch.zeros(1), 2)
    job, _ = server.dispatch()
    posted = []
    for now in range(1, 40):
        _, (job,) = server.receive(tg.Update(0, job.serial, job.round, torch.ones(1)), float(now))
        posted += [message.due for *_, message in server.transit if message.up and message.due == now + 10.0]
    assert posted == [12.0, 33.0]  # sent in second 2, answered in 22 before round 22 is made; round 23 is the second
    assert server.levels[0].round == 2


def test_messages_go_to_the_clients_own_region_and_come_back_by_the_clients_own_name() -> None:
    server = served(method(regions=(1, 2)), torch.zeros(1), 3)
    jobs = server.dispatch()
    assert [job.client for job in jobs] == [0, 1, 2]
    happened, (job,) = server.receive(tg.Update(2, 0, 0, torch.ones(1)), 1.0)
    assert isinstance(happened, tg.Advanced)
    assert (happened.round, happened.clients, job.client, job.serial) == (1, (2,), 2, 1)
    assert [level.round for level in server.levels] == [1, 0, 1]  # messages take no time: the report is there
    happened, _ = server.receive(tg.Update(0, 0, 0, torch.ones(1)), 2.0)
    assert isinstance(happened, tg.Advanced)
    assert (happened.round, server.round) == (2, 2)
    happened, _ = server.receive(tg.Update(2, 0, 0, torch.ones(1)), 3.0)
    assert happened == tg.Refused(2, 0, 0, "finished job")
    happened, _ = server.receive(tg.Update(9, 0, 0, torch.ones(1)), 3.0)
    assert happened == tg.Refused(9, 0, 0, "unknown job")
    server.receive(tg.Lost(1), 4.0)
    assert (sorted(server.roster.jobs), server.roster.census().lost) == ([0, 2], 1)
    assert [job.client for job in server.receive(tg.Joined(1), 5.0).jobs] == [1]
    assert server.receive(tg.Joined(9), 5.0).jobs == []
    assert server.roster.slots == 3


@pytest.mark.parametrize("client", [True, 1.0, "1", [1], None])
def test_a_client_that_is_no_whole_number_is_unknown(client: Any) -> None:
    server = served(method(), torch.zeros(1), 4)
    server.dispatch()
    happened, jobs = server.receive(tg.Update(client, 0, 0, torch.ones(1)), 1.0)
    assert (happened, jobs, server.round) == (tg.Refused(client, 0, 0, "unknown job"), [], 0)
    server.receive(tg.Lost(client), 2.0)
    assert server.roster.census().lost == 0


def with_batchnorm() -> tg.TorchTask:
    def module() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    x = torch.linspace(-1, 1, 360).reshape(120, 3)
    data = (x, (x.sum(1) > 0).long())
    return tg.TorchTask(module, loss=torch.nn.functional.cross_entropy, data=tg.shard(data, clients=12), test=data)


def test_buffers_travel_with_messages_and_through_checkpoints(tmp_path: Path) -> None:
    one = method(exchange=1.5, every=2, optimizer="AdamW", keep=True, local_lr=0.01, local_steps=2, dylu=True)
    whole = tg.simulate(one, with_batchnorm(), fleet(), rounds=40, evaluate_every=0)
    assert whole.server.module_buffers is not None
    assert float(whole.server.module_buffers.floats.abs().max()) > 0
    for cut in (6, 17, 29):
        run = tg.begin(
            one, with_batchnorm(), fleet(), rounds=40, evaluate_every=0,
            out=tmp_path / str(cut),
        )  # fmt: skip
        for row in run.go():
            if row["round"] == cut:
                run.stop()
        again = tg.resume(tmp_path / str(cut), one, with_batchnorm(), fleet())
        for _ in again.go():
            pass
        for ours, theirs in zip(again.server.levels, whole.server.levels, strict=True):
            assert torch.equal(ours.x, theirs.x)
            assert ours.module_buffers is not None
            assert theirs.module_buffers is not None
            assert torch.equal(ours.module_buffers.floats, theirs.module_buffers.floats)
            assert torch.equal(ours.module_buffers.ints, theirs.module_buffers.ints)


def alive(one: tg.Method) -> list[int]:
    """After every event of a true run: the distinct models that servers, messages and jobs in flight hold."""
    task = tg.tasks.quadratic(clients=12, dimension=50)
    pool, server, found = tg.SimPool(task, one, fleet()), served(one, task.init(0), 12), []
    for _ in tg.drive(server, pool, 60):
        in_flight = [job.x for *_, job in pool.due if job is not None]
        held = (*server.models(), *in_flight)
        found.append(len({x.data_ptr() for x in held}))
    return found


@pytest.mark.parametrize("exchange", [0.0, 2.5])
@pytest.mark.parametrize("every", [1, 4])
def test_the_models_of_all_levels_are_foreseen(exchange: float, every: int) -> None:
    one = method(regions=3, exchange=exchange, every=every)
    still = clock(clients=12, parameters=50)
    meter = memory.Meter(one, still)
    server = served(one, still.init(0), 12)
    events = tg.drive(server, tg.SimPool(still, one, fleet()), 60)
    assert [len(meter.alive) for _ in meter.follow(server, events)] == alive(one)


def test_a_run_whose_global_model_never_moved_says_so() -> None:
    task, fleet = tg.tasks.quadratic(clients=4, dimension=3), tg.Fleet.paper(clients=4)
    for every, said in ((100, True), (2, False)):
        method = tg.halos(regions=2, local_lr=0.1, local_steps=1, every=every)
        run = tg.simulate(method, task, fleet, rounds=30)
        assert ("whose model is still x_0" in str(run.summary())) == said
        assert torch.equal(run.x, task.init(0)) == said
