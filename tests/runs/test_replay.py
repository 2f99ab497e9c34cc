"""Replays: what was refused, lost or came twice is so again, and every bit is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.runs.events import (
    Advance,
    Arrival,
    ClientLost,
    Dispatch,
    Evaluation,
    Join,
    Refusal,
    Resume,
    read_events,
    script_line,
    to_row,
)
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad
from tests.engines.test_batcher import task
from tests.engines.test_faults import BOTH, FLEET, MODES, NAN, TWICE, method

FLEETS = {"crashes": FLEET, "nan": NAN, "twice": TWICE, "both": BOTH.crash(client=5, at=3.0)}


def told(run: tg.Run) -> Any:
    """All that a replay should say once more."""
    return run.x.tolist(), run.metrics, run.script, run.counts, run.server.roster.jobs, run.server.roster.serials  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fleet", FLEETS)
def test_a_run_in_which_things_go_wrong_replays_to_the_same_bits(fleet: str, mode: Any) -> None:
    run = tg.simulate(method(mode), task(), FLEETS[fleet], rounds=14, evaluate_every=4)
    assert run.counts["refusal"] == {"crashes": 0, "nan": 2, "twice": 2, "both": 4}[fleet]
    assert run.summary().lost >= 1
    assert told(tg.replay(run)) == told(run)


@pytest.mark.parametrize("mode", ["server", "client"])
def test_so_does_one_in_which_updates_are_too_stale(mode: Any) -> None:
    run = tg.simulate(method(mode, max_delay=2), task(), FLEETS["both"], rounds=20, evaluate_every=0)
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


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Arrival(1.5, client=3, serial=0, round=0, delay=1, steps=2, loss=0.1), ("arrive", 3, 1.5)),
        (Arrival(1.5, 3, 0, 0, 1, 2, 0.1, state_lost=True), ("arrive", 3, 1.5, "state lost")),
        (Refusal(1.5, 3, 2, 1, "too stale", True), ("refuse", 3, 1.5, 2, 1, "too stale", "state lost")),
        (ClientLost(1.5, client=3, round=0), ("lose", 3, 1.5)),
        (Join(1.5, client=3, round=0), ("join", 3, 1.5)),
        (Resume(1.5, round=0), ("forget", None, 1.5)),
        (Refusal(1.5, client=3, serial=2, round=1, reason="not finite"), ("refuse", 3, 1.5, 2, 1, "not finite")),
        (Dispatch(1.5, client=3, serial=0, round=0), None),
        (Evaluation(1.5, round=1, scores={}, seconds=0.1), None),
    ],
)
def test_every_message_of_a_record_is_a_line_of_the_script(event: Any, line: Any) -> None:
    assert script_line(event) == line


# By the command line.

FAULTS = (
    'fleet.faults=[{client=3, job=1, sends="nan"}, {client=0, job=0, sends="twice"}, {client=2, job=0, sends="nan"}]'
)
CRASH = "fleet.crashes=[{client=5, at=3, back=9}]"


@pytest.mark.parametrize("mode", MODES)
def test_the_command_finds_the_same_bits(mode: str, tardygrad: Command) -> None:
    stale = [] if mode == "sync" else ["method.max_delay=2"]
    how = ["run.rounds=25", f"method.mode={mode}", "method.compensate=true", *stale, FAULTS, CRASH]
    assert tardygrad("run", "small.toml", *how, "--out", "here").code == 0
    reasons = {event.reason for event in read_events(Path("here/events.jsonl")) if isinstance(event, Refusal)}
    assert {"not finite", "finished job"} <= reasons
    assert ("too stale" in reasons) == (mode != "sync")
    assert tardygrad("replay", "here") == (0, "the same bits after 25 rounds\n", "")


HOSTILE = {
    "no client": {"event": "refusal", "time": 1.0, "serial": 0, "round": 0, "reason": "not finite"},
    "no reason": {"event": "refusal", "time": 1.0, "client": 0, "serial": 0, "round": 0},
    "no time": {"event": "arrival", "client": 0},
    "no event": {"time": 1.0},
    "an event that is a list": {"event": ["arrival"], "client": 0, "time": 1.0},
    "a client that is a list": {"event": "refusal", "time": 1.0, "client": [0], "serial": 0, "round": 0, "reason": "x"},
    "an arrival of nobody": {"event": "arrival", "client": 99, "time": 1.0},
    "an arrival of a word": {"event": "arrival", "client": "[bold]x[/bold]", "time": 1.0},
    "an arrival of null": {"event": "arrival", "client": None, "time": 1.0},
    "a refusal of a job that was taken": {
        "event": "refusal", "time": 1.0, "client": 0, "serial": 0, "round": 0, "reason": "</script>",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_line_that_cannot_be_is_one_sentence(case: str, tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    path = Path("here/events.jsonl")
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if '"arrival"' in line)
    path.write_text("\n".join([*lines[:first], json.dumps(HOSTILE[case]), *lines[first:]]) + "\n")
    code, out, err = tardygrad("replay", "here")
    assert code in (1, 2)
    assert len((out + err).splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"event": "arrival", "time": 1.0, "client": 0}, "it has no `serial`"),
        ({"event": "sabotage"}, "it has no `time`"),
        ({"time": 1.0}, "it has no `event`"),
        ({"event": ["join"], "time": 1.0}, "`event` must be text"),
    ],
)
def test_a_line_without_a_field_is_named(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
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
