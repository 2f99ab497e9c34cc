"""Replays: what was refused, lost or came twice is so again, and every bit is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.runs.events import Advance, Join, Refusal, read_events, to_row
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad
from tests.engines.test_batcher import task
from tests.engines.test_faults import BOTH, MODES, NAN, method
from tests.records import empty_record

WRONG = BOTH.crash(client=5, at=3.0)


def told(run: tg.Run) -> Any:
    """All that a replay should say once more."""
    return run.x.tolist(), run.metrics, run.script, run.counts, run.server.roster.jobs, run.server.roster.serials  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_in_which_things_go_wrong_replays_to_the_same_bits(mode: Any) -> None:
    run = tg.simulate(method(mode), task(), WRONG, rounds=14, evaluate_every=4)
    assert run.counts["refusal"] == 4
    assert run.summary().lost >= 1
    assert told(tg.replay(run)) == told(run)


@pytest.mark.parametrize("mode", ["server", "client"])
def test_so_does_one_in_which_updates_are_too_stale(mode: Any) -> None:
    run = tg.simulate(method(mode, max_delay=2), task(), WRONG, rounds=20, evaluate_every=0)
    assert run.summary().refused["too stale"] > 2
    assert told(tg.replay(run)) == told(run)


def test_a_replay_of_a_replay_is_one_too() -> None:
    run = tg.simulate(method("client", max_delay=2), task(), BOTH, rounds=14, evaluate_every=0)
    assert told(tg.replay(tg.replay(run))) == told(run)


def test_a_run_without_a_round_cannot_be_replayed() -> None:
    run = tg.begin(method(), task(), BOTH, rounds=14)
    text = r"^a replay needs a run with at least one round, got Run\(.*: new, round 0 of 14\) with none\.$"
    with pytest.raises(tg.Invalid, match=text):
        tg.replay(run)


def test_one_that_was_stopped_and_resumed_replays_as_a_whole(tmp_path: Path) -> None:
    run = tg.begin(method(), task(), tg.SimPool(task(), method(), BOTH), rounds=14, out=tmp_path / "run")
    for row in run.go():
        if row["round"] == 6:
            run.stop()
    again = tg.resume(tmp_path / "run", method(), task(), tg.SimPool(task(), method(), BOTH))
    for _ in again.go():
        pass
    assert again.counts["refusal"] == 4
    replayed = tg.replay(again)
    assert torch.equal(replayed.x, again.x)
    assert replayed.script == again.script


def test_a_replay_does_no_work_for_what_was_refused() -> None:
    worked = []

    class Counted(type(tg.tasks.quadratic(clients=8))):  # type: ignore[misc]
        def batches(self, job: Any) -> Any:
            worked.append((job.client, job.serial))
            return super().batches(job)

    plain = tg.tasks.quadratic(clients=8, dimension=4)
    run = tg.simulate(method(), Counted(plain.h, plain.c, None), NAN, rounds=14, evaluate_every=0)
    assert {(3, 1), (0, 0)} <= set(worked)
    worked.clear()
    tg.replay(run)
    assert not {(3, 1), (0, 0)} & set(worked)


# By the command line.

FAULTS = (
    'fleet.faults=[{client=3, job=1, sends="nan"}, {client=0, job=0, sends="twice"}, {client=2, job=0, sends="nan"}]'
)
CRASH = "fleet.crashes=[{client=5, at=3, back=9}]"


@pytest.mark.parametrize("mode", ["sync", "client"])
def test_the_command_finds_the_same_bits(mode: str, tardygrad: Command) -> None:
    stale = [] if mode == "sync" else ["method.max_delay=2"]
    how = ["run.rounds=25", f"method.mode={mode}", "method.compensate=true", *stale, FAULTS, CRASH]
    assert tardygrad("run", "small.toml", *how, "--out", "here").code == 0
    reasons = {event.reason for event in read_events(Path("here/events.jsonl")) if isinstance(event, Refusal)}
    assert {"not finite", "finished job"} <= reasons
    assert ("too stale" in reasons) == (mode != "sync")
    assert tardygrad("replay", "here") == (0, "the same bits after 25 rounds\n", "")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"event": "arrival", "time": 1.0, "client": 0}, "its kind is unknown, or it has no 'serial'"),
        ({"event": ["join"], "time": 1.0}, "its kind is unknown, or it has no unhashable"),
    ],
)
def test_a_line_without_a_field_is_named(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = empty_record(tmp_path) / "events.jsonl"
    path.write_text(f"{json.dumps(to_row(Join(0.0, 0, 0)))}\n{json.dumps(row)}\n")
    with pytest.raises(tg.RecordError, match=f"line 2 of '{path}' is damaged: {why}"):
        list(read_events(path))


@pytest.mark.parametrize("engine", ["sim", "threads"])
def test_so_it_is_with_regions_and_after_a_resume(engine: str, tmp_path: Path) -> None:
    halos = tg.halos(regions=2, local_lr=0.1, local_steps=2, every=4, exchange=1.0)

    def pool() -> Any:
        return tg.SimPool(task(), halos, BOTH) if engine == "sim" else tg.ThreadPool(task(), halos, workers=2)

    with pool() as first:
        run = tg.begin(halos, task(), first, rounds=40, out=tmp_path / "run")
        for row in run.go():
            if row["round"] == 20:
                run.stop()
    with pool() as second:
        for _ in tg.resume(tmp_path / "run", halos, task(), second).go():
            pass
    events = read_events(tmp_path / "run/events.jsonl")
    assert sum(isinstance(event, Advance) for event in events) == 40
