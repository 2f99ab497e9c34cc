"""The results of a sweep: its trials, which of them are workable, and a summary of each group.

A sweep's folder holds `sweep.json`, its configuration, and `study.db`, an Optuna study in SQLite. This module only
reads, with plain SQL and without the lock, so a sweep can be read while it runs.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from tardygrad.errors import RecordError
from tardygrad.runs.record import Row, read_json, reading_record

State = Literal["waiting", "running", "finished", "pruned"]

STATES: dict[str, State] = {
    "WAITING": "waiting",
    "RUNNING": "running",
    "COMPLETE": "finished",
    "FAIL": "finished",
    "PRUNED": "pruned",
}
"""Optuna's states and ours."""

FIX = "Restore it from a copy, or start the sweep again in another folder."
_STATUSES = ("finished", "diverged", "starved", "pruned", "failed")


class Trial(NamedTuple):
    """One point of the space; numbers are means over its seeds, None if a seed has no value."""

    number: int
    state: State
    params: dict[str, Any]  # key of the spec, such as method.lr, to its value
    group: str  # the method's label and other swept words, such as "SD-SGDClip, large"
    start: Row  # the scores of x_0: loss, accuracy and the sweep's own, where the task has them
    seeds: list[Row]  # a row each: seed, status, scores, time, curve of (round, time, loss, accuracy), ...
    status: str | None = None  # finished, diverged, starved, pruned or failed; None: not yet
    reason: str | None = None  # why it is not finished
    value: float | None = None  # the sweep's objective; None ranks last
    workable: bool | None = None  # None: not finished, or pruned
    accuracy: float | None = None  # or another score, if the sweep's is neither accuracy nor loss
    loss: float | None = None
    time: float | None = None  # simulated seconds
    clipped: float | None = None  # share of the coordinates of Δ_t, mean over rounds
    local_clipped: float | None = None  # share of those of gradients

    def score(self, name: str) -> float | None:
        """The sweep's score: the loss, or the one that is stored as the accuracy."""
        return self.loss if name == "loss" else self.accuracy


class Sweep(NamedTuple):
    """A sweep and its results so far."""

    name: str
    space: dict[str, Any]  # key of the spec to a list of values, or to a range (low, high, log)
    goal: str  # the objective in words, such as "test accuracy"
    best: str  # the score, or time
    total: int  # planned trials
    trials: list[Trial]  # ordered by number; those of random and tpe appear when they are drawn
    config: Row  # the whole sweep.json

    @property
    def score(self) -> str:
        """The test score of targets and `workable`."""
        return str(self.config.get("score", self.best))

    @property
    def higher(self) -> bool:
        """Whether a high value of what the best trial is best in is good."""
        return self.best != "time" and bool(self.config.get("higher", self.best == "accuracy"))


class GroupSummary(NamedTuple):
    """The trials of one method on one kind of fleet, counted."""

    name: str
    trials: int  # planned, or drawn so far
    done: int  # finished or pruned
    finished: int  # ended with a finite model
    diverged: int
    pruned: int
    other: int  # starved or failed
    workable: int
    judged: int  # done, but neither pruned nor failed
    share: float | None  # workable / judged; None: nothing judged, or pruning was on
    best: Trial | None


def read(folder: str | Path) -> Sweep:
    """Read a sweep, finished or not."""
    from tardygrad.sweeps.config import read_config  # it needs PyTorch, which is slow to import

    path = Path(folder)
    config = read_json(path / "sweep.json")
    read_config(config, path)  # checks it
    with reading_record(path):
        trials = _trials(path / "study.db")
        return Sweep(
            name=config["name"],
            space=config["space"],
            goal=goal(config),
            best=config["best"],
            total=config["trials"],
            trials=judged(
                trials,
                config["score"],
                config["workable"],
                higher=bool(config.get("higher", config["score"] == "accuracy")),
                target=config["target"] is not None,
            ),
            config=config,
        )


def goal(config: Row) -> str:
    """The objective in words."""
    if config["best"] == "time":
        return f"simulated seconds to a test {config['score'].replace('_', ' ')} of {config['target']:g}"
    at = "" if config["budget"] is None else f" after {config['budget']:g} simulated seconds"
    return f"test {config['best'].replace('_', ' ')}{at}"


def judged(trials: list[Trial], score: str, share: float, *, higher: bool, target: bool) -> list[Trial]:
    """The trials with `workable` filled in.

    A trial is workable if every seed finished and its score covers at least that share of the way
    from x_0's score to the best of all trials; with a target, if every seed reached it.
    """
    scores = [trial.score(score) for trial in trials if trial.status == "finished"]
    best = (max if higher else min)((value for value in scores if value is not None), default=None)

    def workable(trial: Trial) -> bool | None:
        if trial.state != "finished" or trial.status == "failed":
            return None
        ours, start = trial.score(score), trial.start.get(score)
        if trial.status != "finished" or ours is None or start is None or best is None:
            return False
        if target:
            return trial.value is not None
        way = best - start
        learned = way > 0 if higher else way < 0
        return learned and bool((ours - start) / way >= share)

    return [trial._replace(workable=workable(trial)) for trial in trials]


def best_of(sweep: Sweep, trials: Iterable[Trial] | None = None) -> Trial | None:
    """The trial with the best value, among all or some trials of a sweep; the first of equals."""
    among = sweep.trials if trials is None else trials
    valued = [trial for trial in among if trial.value is not None and trial.state == "finished"]
    sign = -1.0 if sweep.higher else 1.0
    return min(valued, key=lambda trial: sign * (trial.value or 0.0), default=None)


def groups(sweep: Sweep) -> list[GroupSummary]:
    """A summary of each group, in order of appearance."""
    found = []
    for name in dict.fromkeys(trial.group for trial in sweep.trials):
        trials = [trial for trial in sweep.trials if trial.group == name]
        done = [trial for trial in trials if trial.status is not None]
        statuses = [trial.status for trial in done]
        judged = [trial for trial in done if trial.workable is not None]
        workable = sum(trial.workable is True for trial in judged)
        finished, diverged, pruned = (statuses.count(status) for status in ("finished", "diverged", "pruned"))
        share = workable / len(judged) if judged and not sweep.config.get("prune") else None
        ended = (finished, diverged, pruned, len(done) - finished - diverged - pruned)
        best = best_of(sweep, trials)
        found.append(GroupSummary(name, len(trials), len(done), *ended, workable, len(judged), share, best))
    return found


def remark(sweep: Sweep) -> str | None:
    """A warning about the best trial of a finished sweep: it is no better than x_0, or at the edge of the space."""
    best = best_of(sweep)
    if sum(trial.status is not None for trial in sweep.trials) < sweep.total:
        return None
    known = sweep.best != "time" and any(sweep.best in trial.start for trial in sweep.trials)
    if known and not any(_beats(trial, sweep) for trial in sweep.trials):
        return "no trial is better than x_0"
    equals = [trial for trial in sweep.trials if best and trial.state == "finished" and trial.value == best.value]
    edges = [
        key for key, values in sweep.space.items() if equals and all(_edge(trial, key, values) for trial in equals)
    ]
    if not edges:
        return None
    names = ", ".join(key.removeprefix("method.") for key in edges)
    return f"best at the edge of {names}: better settings may lie beyond"


def _beats(trial: Trial, sweep: Sweep) -> bool:
    ours, start = trial.score(sweep.best), trial.start.get(sweep.best)
    return ours is not None and start is not None and bool(ours > start if sweep.higher else ours < start)


def _edge(trial: Trial, key: str, values: Any) -> bool:
    """Whether a trial has the smallest or the largest value of a numeric key; infinity is not an edge."""
    ends = [values.get("low"), values.get("high")] if isinstance(values, dict) else values
    numbers = [value for value in ends if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(ends) < 2 or not numbers or any(value not in numbers and value != "inf" for value in ends):
        return False
    return trial.params.get(key) in (min(numbers), *([max(numbers)] if "inf" not in ends else []))


def _trials(path: Path) -> list[Trial]:
    try:
        return [_trial(number, STATES[state], attrs) for number, state, attrs in _rows(path)]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RecordError(f"the study in {str(path)!r} is damaged: a trial in it is not complete. {FIX}") from error


def _rows(path: Path) -> list[tuple[int, str, Row]]:
    """Number, state and attributes of every trial."""
    if not path.exists():  # it is created when everything is ready
        return []
    uri = f"{path.resolve().as_uri()}?mode=rw"  # not ro: SQLite may have to roll back what a killed writer left
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=60)) as db:
            rows = db.execute(
                "SELECT number, state, key, value_json FROM trials LEFT JOIN trial_user_attributes USING (trial_id) "
                "ORDER BY number"
            ).fetchall()
    except sqlite3.Error as error:
        raise RecordError(f"the study in {str(path)!r} is damaged ({error}). {FIX}") from error
    found: dict[int, tuple[int, str, Row]] = {}
    for number, state, key, value in rows:
        found.setdefault(number, (number, state, {}))[2][key] = json.loads(value or "null")
    return list(found.values())


def _trial(number: int, state: State, attrs: Row) -> Trial:
    result = attrs.get("result") if state in ("finished", "pruned") else None
    known = (number, state, attrs["params"], attrs["group"])
    if not (isinstance(number, int) and isinstance(attrs["params"], dict) and isinstance(attrs["group"], str)):
        raise ValueError(f"trial {number!r}: params or group")
    if result is None:
        return Trial(*known, start={}, seeds=[])
    seeds, value, reason = result["seeds"], result["value"], result["reason"]
    if result["status"] not in _STATUSES or not (isinstance(reason, str | None) and isinstance(seeds, list)):
        raise ValueError(f"trial {number}: status, reason or seeds")
    if value is not None and not (type(value) in (int, float) and math.isfinite(value)):
        raise ValueError(f"trial {number}: value")
    starts = {name: _mean(row["start"].get(name) for row in seeds) for name in (seeds[0]["start"] if seeds else ())}
    facts: Row = {
        key: _mean(row[key] for row in seeds) for key in ("accuracy", "loss", "time", "clipped", "local_clipped")
    }
    facts |= {key: result[key] for key in ("status", "reason", "value")}
    return Trial(*known, starts, seeds, **facts)


def _mean(numbers: Iterable[float | None]) -> float | None:
    """The mean; None if a number is missing."""
    every = list(numbers)
    known = [number for number in every if number is not None]
    return mean(known) if known and len(known) == len(every) else None
