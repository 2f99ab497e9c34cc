"""Evaluations beside the training: their scores come late, and are told in order, of the right round, and once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.errors import Interrupted
from tardygrad.report.loader import read
from tardygrad.runs.events import read_metrics
from tardygrad.runs.record import read_json, read_lines
from tests.runs.test_record import FLEET, METHOD, task

ROUNDS, EVERY = 23, 5
SETTINGS: Any = {"rounds": ROUNDS, "evaluate_every": EVERY, "checkpoint_every": 2}
SCORED = [5, 10, 15, 20, 23]


class Beside(tg.SimPool):
    """A simulator that evaluates beside the training, so many messages late.

    Args:
        late: messages until there is an answer, if nobody waits for it.
        heard: called at every message with their number, and at every question whether there is an answer.
    """

    def __init__(self, late: int = 3, heard: Callable[[str, int], None] | None = None) -> None:
        super().__init__(task(), METHOD, FLEET)
        self.evaluator = self
        self.late, self.heard = late, heard or (lambda *_: None)
        self.turns = self.looks = 0
        self.asked: list[torch.Tensor] = []
        self.open = 0

    def next(self) -> Any:
        self.turns += 1
        self.heard("next", self.turns)
        return super().next()

    def ask(self, x: Any, module_buffers: Any) -> Any:
        self.open += 1
        assert self.open == 1, "one at a time"
        self.asked.append(x)
        return x, module_buffers, self.turns + self.late

    def answer(self, asked: Any, *, wait: bool) -> Any:
        self.looks += 1
        self.heard("answer", self.looks)
        x, module_buffers, due = asked
        if self.turns < due and not wait:
            return None
        self.open -= 1
        return task().evaluate(x, module_buffers), 0.25


def at(what: str, number: int, do: Callable[[], None]) -> Callable[[str, int], None]:
    """Do something then."""

    def heard(this: str, now: int) -> None:
        if (this, now) == (what, number):
            do()

    return heard


def going(out: Path | None, pool: Any = None) -> tg.Run:
    return tg.begin(METHOD, task(), pool or tg.SimPool(task(), METHOD, FLEET), **SETTINGS, out=out)


def gone(run: tg.Run) -> tg.Run:
    for _ in run.go():
        pass
    return run


def resumed(path: Path, late: int = 3) -> tuple[tg.Run, Beside]:
    pool = Beside(late)
    return gone(tg.resume(path, METHOD, task(), pool)), pool


def plain() -> list[dict[str, Any]]:
    """The rows of a run that evaluates between two messages."""
    return listed(gone(going(None)).metrics)


def listed(rows: Any) -> list[dict[str, Any]]:
    """As they are in a record."""
    return [{name: list(v) if isinstance(v, tuple) else v for name, v in row.items()} for row in rows]


def check(path: Path) -> None:
    """The record is that of a run which nothing has disturbed."""
    assert read_metrics(path / "events.jsonl") == plain()
    events = list(read_lines(path / "events.jsonl"))
    told = {row["round"]: row["loss"] for row in events if row["event"] == "evaluation"}
    assert list(told) == SCORED
    assert len([row for row in events if row["event"] == "evaluation"]) == len(SCORED)
    assert list(told.values()) == [row["test_loss"] for row in plain() if "test_loss" in row]
    assert read_json(path / "summary.json")["status"] == "finished"


@pytest.mark.parametrize("late", [0, 3, 14, 10**9])
def test_rows_come_in_order_and_complete_and_say_what_they_say_without(late: int, tmp_path: Path) -> None:
    pool = Beside(late)
    run = going(tmp_path / "run", pool)
    seen, held = [], [0]
    pool.heard = lambda *_: held.append(len(run.scores.models))
    for row in run.go():
        seen.append(dict(row))
        lines = read_metrics(tmp_path / "run/events.jsonl")  # nothing is in the record before its turn
        assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
    assert listed(seen) == listed(run.metrics) == plain()
    assert len(pool.asked) == len(SCORED)
    assert max(held) <= 2  # one that is evaluated, and one that waits for it and with it the run
    assert run.summary()._replace(seconds=0.0) == gone(going(None)).summary()._replace(seconds=0.0)
    check(tmp_path / "run")


def test_a_row_that_waits_for_its_scores_holds_up_those_after_it() -> None:
    run = going(None, Beside(late=5))
    made = [(row["round"], run.server.round) for row in run.go()]
    assert [round for round, _ in made] == list(range(1, ROUNDS + 1))
    assert made[3] == (4, 4)
    assert made[4][1] > 5
    assert made[5][1] == made[4][1]  # and come with it


def test_an_evaluation_has_the_time_at_which_it_came_and_the_report_that_of_its_round(tmp_path: Path) -> None:
    gone(going(tmp_path / "late", Beside(late=9)))
    gone(going(tmp_path / "plain"))
    events = [list(read_lines(tmp_path / name / "events.jsonl")) for name in ("late", "plain")]
    times = [[(row["round"], row["time"]) for row in each if row["event"] == "evaluation"] for each in events]
    assert [round for round, _ in times[0]] == [round for round, _ in times[1]] == SCORED
    assert all(a > b for (_, a), (_, b) in zip(times[0][:-1], times[1][:-1], strict=True))
    scores = [
        [(one["round"], one["time"], one["steps"], one["scores"]) for one in read(tmp_path / name).scores.items]
        for name in ("late", "plain")
    ]
    assert scores[0] == scores[1]
    assert [round for round, *_ in scores[0]] == SCORED


def test_a_run_killed_while_an_evaluation_is_pending_asks_again_and_has_the_same_rows(tmp_path: Path) -> None:
    """Killed at any message: what is on the disk then is copied, and gone on with."""
    late, waiting = 4, 0

    def copy(what: str, turn: int) -> None:
        if what == "next" and turn % 5 == 2:
            shutil.copytree(tmp_path / "run", tmp_path / str(turn))

    gone(going(tmp_path / "run", Beside(late, copy)))
    check(tmp_path / "run")
    copies = sorted(path for path in tmp_path.iterdir() if path.name != "run")
    assert len(copies) > 7
    for path in copies:
        begun = tg.resume(path, METHOD, task(), pool := Beside(late))
        models = dict(begun.scores.models)
        waiting += bool(models)
        assert [x is model[0] for x, model in zip(pool.asked, models.values(), strict=True)] == [True] * len(models)
        gone(begun)
        check(path)
    assert waiting > 1


@pytest.mark.parametrize("late", [4, 10**9])
def test_a_run_stopped_while_an_evaluation_is_pending_goes_on_to_the_same_rows(late: int, tmp_path: Path) -> None:
    for turn in (4, 11, 14, 22, 27, 41):
        run = going(tmp_path / str(turn), pool := Beside(late))
        pool.heard = at("next", turn, run.stop)
        assert gone(run).status == "stopped"
        assert run.server.round < ROUNDS
        resumed(tmp_path / str(turn), late)
        check(tmp_path / str(turn))


@pytest.mark.parametrize(("late", "looks"), [(4, range(1, 20, 4)), (10**9, range(8, 16))], ids=str)
def test_one_interrupted_while_it_waits_for_an_evaluation_loses_no_row(late: int, looks: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise Interrupted("now")

    for look in looks:
        run = gone(going(tmp_path / str(look), Beside(late, at("answer", look, interrupt))))
        assert run.status == "stopped"
        resumed(tmp_path / str(look), late)
        check(tmp_path / str(look))


def test_an_evaluation_that_fails_ends_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    def fail() -> None:
        raise tg.WorkFailed("the evaluation failed: RuntimeError: no scores today")

    run = going(tmp_path / "run", Beside(6, at("answer", 9, fail)))
    with pytest.raises(tg.WorkFailed, match="no scores today"):
        gone(run)
    assert run.status == "failed"
    assert read_json(tmp_path / "run/summary.json")["status"] == "failed"
    resumed(tmp_path / "run")
    check(tmp_path / "run")


def test_without_a_record_a_stopped_run_has_all_its_rows() -> None:
    run = going(None, pool := Beside(late=10**9))
    pool.heard = at("next", 24, run.stop)
    assert gone(run).status == "stopped"
    assert [row["round"] for row in run.metrics] == list(range(1, run.server.round + 1))
    assert [bare(row) for row in listed(run.metrics)] == [bare(row) for row in plain()[: run.server.round]]


def bare(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its scores, for which nobody waits any more."""
    return {name: value for name, value in row.items() if not name.startswith("test_")}


def test_nothing_is_asked_where_nothing_is_to_be_evaluated_or_an_engine_does_not_want_to() -> None:
    for settings, declared, asked in (({"evaluate_every": 0}, True, 0), ({}, False, 0), ({}, True, len(SCORED))):
        pool = Beside()
        pool.evaluator = pool if declared else None
        gone(tg.begin(METHOD, task(), pool, **(SETTINGS | settings)))
        assert len(pool.asked) == asked


def test_scores_that_were_pending_are_had_by_an_engine_that_evaluates_between_messages(tmp_path: Path) -> None:
    run = going(tmp_path / "run", pool := Beside(late=10**9))
    pool.heard = at("next", 14, run.stop)
    assert gone(run).scores.models
    again = tg.resume(tmp_path / "run", METHOD, task(), tg.SimPool(task(), METHOD, FLEET))
    gone(again)
    check(tmp_path / "run")


def test_the_last_score_of_a_run_that_was_made_longer_is_of_its_own_round_in_the_report(tmp_path: Path) -> None:
    def interrupt(what: str, _: int) -> None:
        if what == "answer" and run.server.round == ROUNDS:
            raise Interrupted("now")

    run = going(tmp_path / "run", Beside(4, interrupt))
    assert (gone(run).status, run.server.round) == ("stopped", ROUNDS)
    longer = gone(tg.resume(tmp_path / "run", METHOD, task(), Beside(4), rounds=29))
    told = [
        row["round"] for row in read_lines(tmp_path / "run/events.jsonl") if row["event"] in ("advance", "evaluation")
    ]
    assert told[told.index(24) :].count(23) == 1  # round 23 was made before, and its scores came after round 24
    times = {row["round"]: (row["time"], row["test_loss"]) for row in listed(longer.metrics) if "test_loss" in row}
    scores = read(tmp_path / "run").scores.items
    assert [one["round"] for one in scores] == [5, 10, 15, 20, 23, 25, 29]
    for one in scores:
        assert (one["time"], one["scores"]["loss"]) == pytest.approx(times[one["round"]], rel=1e-5)
    steps = [sum(row["steps"] for row in longer.metrics[: one["round"]]) for one in scores]
    assert [one["steps"] for one in scores] == steps


@pytest.mark.parametrize("name", ["round", "check"])
def test_a_score_cannot_have_the_name_of_another_key(name: str, tmp_path: Path) -> None:
    chosen = task()
    chosen.evaluate = lambda *_: {name: 1.0}  # type: ignore[method-assign]
    with pytest.raises(tg.Invalid, match=f"a score must not be named event, time, round, seconds, check, got '{name}'"):
        tg.simulate(METHOD, chosen, FLEET, rounds=2, out=tmp_path / "run")
    assert not [line for line in read_lines(tmp_path / "run/events.jsonl") if line["event"] == "evaluation"]
    beside = Beside()
    beside.answer = lambda *_, wait: ({name: 1.0}, 0.0)  # type: ignore[method-assign]
    with pytest.raises(tg.Invalid, match=f"got '{name}'"):
        gone(going(None, beside))


@pytest.mark.parametrize("value", [np.int64(1), torch.tensor([0.25])], ids=repr)
def test_scores_of_numpy_and_torch_are_recorded_as_numbers(value: Any, tmp_path: Path) -> None:
    chosen = task()
    chosen.evaluate = lambda *_: {"loss": value}  # type: ignore[method-assign]
    run = tg.simulate(METHOD, chosen, FLEET, rounds=2, out=tmp_path / "run")
    scores = [line["loss"] for line in read_lines(tmp_path / "run/events.jsonl") if line["event"] == "evaluation"]
    assert scores == [run.metrics[-1]["test_loss"]] == [float(value)]


@pytest.mark.parametrize("scores", [{"loss": torch.zeros(2)}, 0.5], ids=repr)
def test_a_score_that_is_no_number_is_refused(scores: Any) -> None:
    chosen = task()
    chosen.evaluate = lambda *_: scores  # type: ignore[method-assign]
    with pytest.raises(tg.Invalid, match="`evaluate` must return"):
        tg.simulate(METHOD, chosen, FLEET, rounds=2)
