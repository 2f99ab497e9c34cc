"""Replays: what was refused, lost or came twice is so again, and every bit is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.record import read_lines
from tardygrad.run import script_line
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad
from tests.pools.test_faults import BOTH, FLEET, MODES, NAN, TWICE, method
from tests.pools.test_together import task

FLEETS = {"crashes": FLEET, "nan": NAN, "twice": TWICE, "both": BOTH.crash(client=5, at=3.0)}


def told(run: tg.Run) -> Any:
    """All that a replay should say once more."""
    return run.x.tolist(), run.metrics, run.script, run.counts, run.server.jobs, run.server.serials  # type: ignore[union-attr]


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
    ("row", "line"),
    [
        ({"event": "arrival", "client": 3, "time": 1.5, "serial": 0, "round": 0}, ("arrive", 3, 1.5)),
        ({"event": "loss", "client": 3, "time": 1.5, "round": 0}, ("lose", 3, 1.5)),
        ({"event": "join", "client": 3, "time": 1.5, "round": 0}, ("join", 3, 1.5)),
        ({"event": "resume", "time": 1.5, "round": 0}, ("forget", None, 1.5)),
        ({"event": "refusal", "client": 3, "time": 1.5, "serial": 2, "round": 1, "reason": "not finite"},
         ("refuse", 3, 1.5, 2, 1, "not finite")),
        ({"event": "dispatch", "client": 3, "time": 1.5}, None),
        ({"event": "advance", "time": 1.5}, None),
        ({"event": "evaluation", "time": 1.5}, None),
    ],
)  # fmt: skip
def test_every_message_of_a_record_is_a_line_of_the_script(row: Any, line: Any) -> None:
    assert script_line(row) == line


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
    reasons = [row["reason"] for row in read_lines(Path("here/events.jsonl")) if row["event"] == "refusal"]
    assert {"not finite", "finished job"} <= set(reasons)
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


PLAYED: dict[str, dict[str, Any]] = {
    "a word": {"event": "sabotage"},
    "a refusal of nobody": {},
    "a refusal of a job to come": {"client": 0, "serial": 77},
    "times that go back": {"time": -1e300},
}


@pytest.mark.parametrize("case", PLAYED)
def test_what_changes_nothing_is_played_along(case: str, tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    row: dict[str, Any] = {"event": "refusal", "client": 99, "serial": 0, "round": 0, "reason": "no reason at all"}
    row |= PLAYED[case]
    path = Path("here/events.jsonl")
    path.write_text(
        "".join(line + json.dumps({"time": 1.0, **row}) + "\n" for line in path.read_text().splitlines(keepends=True))
    )
    assert tardygrad("replay", "here").out == "the same bits after 12 rounds\n"
