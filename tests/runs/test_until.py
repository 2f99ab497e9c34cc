"""`until`: a run ends when its time is up, with a last evaluation, and can be made longer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.runs.events import read_metrics
from tardygrad.runs.history import read_history
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad
from tests.engines.test_fake import FakePool

FLEET = tg.Fleet.paper(clients=6)
METHOD = tg.clip2(local_lr=0.05, local_clip=1.0, lr=1.0, clip=1.0, buffer=3, local_steps=3, mode="client")


def task() -> Any:
    return tg.tasks.quadratic(clients=6, dimension=8)


def times(rounds: int) -> list[float]:
    """When each round of the run ends."""
    return [row["time"] for row in tg.simulate(METHOD, task(), FLEET, rounds=rounds).metrics]


def test_a_run_ends_when_its_time_is_up_with_a_last_evaluation() -> None:
    ends = times(60)
    until = (ends[36] + ends[37]) / 2
    assert ends[36] < until < ends[37]
    run = tg.simulate(METHOD, task(), FLEET, until=until, evaluate_clients=10)
    same = tg.simulate(METHOD, task(), FLEET, rounds=37, evaluate_clients=10)
    assert run.status == "finished"
    assert torch.equal(run.x, same.x)
    assert run.metrics == same.metrics
    assert [row["round"] for row in run.metrics if "test_loss" in row] == [10, 20, 30, 37]
    assert run.client_evaluation
    assert run.client_evaluation.round == 37
    assert tg.simulate(METHOD, task(), FLEET, until=ends[36]).server.round == 37  # the last moment counts


def test_the_servers_own_time_counts() -> None:
    busy = tg.Fleet(groups=[tg.Group("all", clients=6, runtime=tg.Integer(1, 1))], server_time=0.25)
    assert tg.simulate(METHOD, task(), busy, until=1.74).server.round == 0
    assert tg.simulate(METHOD, task(), busy, until=1.75).server.round == 1  # the third update is processed at 1.75


@pytest.mark.parametrize(("rounds", "until", "made"), [(20, 1e6, 20), (10**6, 40.0, None)])
def test_whichever_comes_first_ends_the_run(rounds: int | None, until: float, made: int | None) -> None:
    run = tg.simulate(METHOD, task(), FLEET, rounds=rounds, until=until)
    assert run.status == "finished"
    assert run.server.round == (made or sum(end <= until for end in times(60)))


@pytest.mark.parametrize("stop", [None, 12])
def test_a_resumed_run_with_more_time_has_the_bits_of_one_longer_run(stop: int | None, tmp_path: Path) -> None:
    ends = times(60)
    run = tg.begin(METHOD, task(), FLEET, until=ends[36], out=tmp_path / "run")
    for row in run.go():
        if row["round"] == stop:
            run.stop()
    assert run.status == ("finished" if stop is None else "stopped")
    longer = tg.resume(tmp_path / "run", METHOD, task(), tg.SimPool(task(), METHOD, FLEET), until=ends[54])
    list(longer.go())
    whole = tg.simulate(METHOD, task(), FLEET, until=ends[54], out=tmp_path / "whole")
    assert torch.equal(longer.x, whole.x)
    rows = read_metrics(tmp_path / "run/events.jsonl")
    assert len(longer.metrics) == 55
    scores = {name: rows[36].pop(name) for name in list(rows[36]) if name.startswith("test_")}
    assert bool(scores) == (stop is None)  # the end of the shorter run was evaluated
    assert rows == read_metrics(tmp_path / "whole/events.jsonl")
    assert torch.equal(tg.replay(longer).x, longer.x)


def test_a_run_resumed_without_more_time_changes_nothing(tmp_path: Path) -> None:
    run = tg.simulate(METHOD, task(), FLEET, until=40.0, out=tmp_path / "run")
    before = read_metrics(tmp_path / "run/events.jsonl")
    again = tg.resume(tmp_path / "run", METHOD, task(), tg.SimPool(task(), METHOD, FLEET))
    assert list(again.go()) == []
    assert again.status == "finished"
    assert again.summary()._replace(seconds=0) == run.summary()._replace(seconds=0)
    assert read_metrics(tmp_path / "run/events.jsonl") == before


def test_too_little_time_for_a_round_is_said() -> None:
    run = tg.simulate(METHOD, task(), FLEET, until=0.5)
    assert run.status == "finished"
    assert run.summary().reason == "no round was complete within 0.5 s: use a larger `until`."


def test_a_run_must_end(tmp_path: Path) -> None:
    for settings, message in (
        ({}, "a run needs `rounds`, .* or `until`"),
        ({"until": 0}, "`until` must be a finite number, above 0, got 0"),
        ({"until": float("inf")}, "`until` must be a finite number, above 0, got inf"),
        ({"rounds": 0, "until": 3}, "`rounds` must be a whole number, 1 or more, got 0"),
    ):
        with pytest.raises(tg.Invalid, match=message):
            tg.simulate(METHOD, task(), FLEET, **settings)
    tg.simulate(METHOD, task(), FLEET, until=40.0, out=tmp_path / "run")
    with pytest.raises(tg.Invalid, match=r"`until` must be at least the seconds already simulated \(.*\), got 5"):
        tg.resume(tmp_path / "run", METHOD, task(), tg.SimPool(task(), METHOD, FLEET), until=5.0)


def test_an_engine_that_would_lose_a_message_is_refused() -> None:
    class NoDeadline(FakePool):
        def __init__(self) -> None:
            super().__init__(task(), METHOD)
            self.deadline = None  # type: ignore[assignment]

    with pytest.raises(tg.Invalid, match=r"`until` needs an engine that knows a `deadline`.*, got NoDeadline"):
        tg.begin(METHOD, task(), NoDeadline(), until=3.0)


def test_the_command_line_has_it_too(tardygrad: Command) -> None:
    by_time = ["run.rounds=", "run.until=8.5"]
    first = tardygrad("run", "small.toml", *by_time, "--json").json
    assert (first["status"], first["time"]) == ("finished", 8.0)
    done = tardygrad("resume", "runs/small-1")
    assert done.err == "the run in runs/small-1 has finished its 8.5 s; add run.until=SECONDS for more\n"
    longer = tardygrad("resume", "runs/small-1", "run.until=20", "--json").json
    whole = tardygrad("run", "small.toml", "run.rounds=", "run.until=20", "--json").json
    assert longer["rounds"] == whole["rounds"] > first["rounds"]
    assert Path("runs/small-1/model.safetensors").read_bytes() == Path("runs/small-2/model.safetensors").read_bytes()
    assert json.loads(Path("runs/small-1/spec.json").read_text())["spec"]["run"]["until"] == 20
    plan = tardygrad("plan", "small.toml", *by_time, "--json").json
    assert (plan["rounds"], plan["time"]) == (first["rounds"], first["time"])
    assert tardygrad("resume", "runs/small-1", "run.until=3").code == 2
    missing = tardygrad("run", "small.toml", "run.rounds=")
    assert (missing.code, "a run needs `rounds`" in missing.err) == (2, True)


def test_a_clock_may_run_for_longer_than_the_earth_has_been_there(tmp_path: Path) -> None:
    slow = tg.Fleet((tg.Group("slow", 6, tg.Trace((1e18,))),))
    tg.simulate(METHOD, task(), slow, rounds=3, out=tmp_path / "run")
    assert read_history(tmp_path / "run").time >= 1e18
