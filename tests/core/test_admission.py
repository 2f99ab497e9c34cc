"""Updates that were refused on their way to the server: it hears of it, and gives the place again."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Reason, Refused, Reply
from tardygrad.runs.record import read_lines
from tests.core.test_algorithm import D, frozen, method_of, start, update
from tests.core.test_hierarchy import method as regional
from tests.core.test_hierarchy import served

REASONS = get_args(Reason)


@pytest.mark.parametrize(("reason", "mode"), zip(REASONS, cycle(["sync", "server", "client"])))
def test_a_job_that_is_out_is_over_and_its_place_is_given_again(reason: Any, mode: str) -> None:
    server, jobs = start(method_of(mode, compensate=True))
    job = jobs[min(jobs)]
    before = frozen(server)
    happened, (sent,) = server.receive(Refused(job.client, job.serial, job.round, reason))
    assert happened == Refused(job.client, job.serial, job.round, reason)
    assert frozen(server) == before
    if mode != "sync":  # there the place is drawn anew
        assert (sent.client, sent.serial, sent.round) == (job.client, job.serial + 1, 0)
    curved: Any = {"curvature": torch.ones(D)}
    late = server.receive(update(job, **curved))
    assert late == Reply(Refused(job.client, job.serial, 0, "finished job"), [])
    assert isinstance(server.receive(update(sent, **curved)).happened, tg.Taken)


@pytest.mark.parametrize(
    ("name", "mode"),
    [((0, 5), "sync"), ((0, -1), "server"), ((99, 0), "client"), ((-1, 0), "sync"), ((10**30, 0), "client")],
)
def test_of_a_job_that_is_not_out_nothing_changes(name: tuple[int, int], mode: str) -> None:
    server, jobs = start(method_of(mode, compensate=True))
    before, out, held = frozen(server), dict(server.roster.jobs), dict(server.roster.holders)
    message = Refused(*name, 0, "lost on the way")
    for _ in range(3):
        assert server.receive(message) == Reply(message, [])
    assert (frozen(server), server.roster.jobs, server.roster.holders) == (before, out, held)
    assert sorted(jobs) == sorted(server.roster.jobs)


def test_one_that_comes_twice_costs_one_job() -> None:
    server, _ = start(method_of("client"))
    message = Refused(0, 0, 0, "lost on the way")
    (new,) = server.receive(message).jobs
    assert server.receive(message) == Reply(message, [])
    assert server.roster.jobs[0] == 0
    assert isinstance(server.receive(update(new)).happened, tg.Taken)


def test_its_past_model_is_released() -> None:
    server, jobs = start(method_of("client", 1, compensate=True), clients=2)
    server.receive(update(jobs[0], curvature=torch.ones(D)))
    assert set(server.vectors.past) == {0, 1}
    server.receive(Refused(1, 0, 0, "not finite"))
    assert set(server.vectors.past) == {1}


def test_a_region_hears_of_its_own_clients_and_answers_with_their_own_names() -> None:
    server = served(regional(regions=(1, 2)), torch.zeros(1), 3)
    server.dispatch()
    happened, (job,) = server.receive(Refused(2, 0, 0, "not finite"), 1.0)
    assert happened == Refused(2, 0, 0, "not finite")
    assert (job.client, job.serial) == (2, 1)
    assert [region.roster.serials for region in server.regions] == [[1], [1, 2]]
    for nobody in (Refused(2, 7, 0, "not finite"), Refused(9, 0, 0, "too stale")):
        assert server.receive(nobody, 2.0) == Reply(nobody, [])
    assert sorted(server.roster.jobs) == [0, 1, 2]


def small_task() -> Any:
    return tg.tasks.quadratic(clients=3, dimension=4, heterogeneity=1.0)


def test_it_is_recorded_as_a_refusal_with_its_reason(tmp_path: Path) -> None:
    one = method_of("client", 2)
    script: list[Any] = [
        ("arrive", 0),
        Refused(1, 0, 0, "lost on the way"),
        ("arrive", 1),
        Refused(9, 0, 0, "too stale"),
    ]
    pool = tg.ScriptedPool([*script, ("arrive", 2), ("arrive", 0)], small_task(), one)
    run = tg.train(one, small_task(), pool, rounds=2, out=tmp_path / "run")
    events = list(read_lines(tmp_path / "run/events.jsonl"))
    assert [row for row in events if row["event"] == "refusal"] == [
        {"event": "refusal", "time": 2.0, "client": 1, "serial": 0, "round": 0, "reason": "lost on the way"},
        {"event": "refusal", "time": 4.0, "client": 9, "serial": 0, "round": 0, "reason": "too stale"},
    ]
    sent = [(row["client"], row["serial"]) for row in events if row["event"] == "dispatch" and row["time"] == 2.0]
    assert sent == [(1, 1)]
    assert run.summary().refused == {"lost on the way": 1, "too stale": 1}
    assert run.summary().updates == 4
    again = tg.replay(run)
    assert torch.equal(again.x, run.x)
    assert again.script == run.script


def test_a_run_whose_updates_never_get_there_starves() -> None:
    one = method_of("client", 2)
    script = [Refused(client, serial, 0, "lost on the way") for serial in range(9) for client in range(3)]
    with pytest.raises(tg.Starved, match=r"round 1: the last 12 updates were refused"):
        tg.train(one, small_task(), tg.ScriptedPool(script, small_task(), one), rounds=1)
