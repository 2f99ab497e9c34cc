"""The results of a sweep: its trials, which of them are workable, and a summary of each group.

A sweep's folder holds `sweep.json`, its configuration, and `study.jsonl`, the Optuna journal of the trials that have
ended. This module only reads, without the lock, so a sweep can be read while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from tardygrad.runs.record import Row, read_json, reading_record

Status = Literal["finished", "diverged", "starved", "pruned", "failed"]


class Trial(NamedTuple):
    """One point of the space that has been run; numbers are means over its seeds, None if a seed has no value."""

    number: int  # of the point
    params: dict[str, Any]  # key of the spec, such as method.lr, to its value
    group: str  # the method's label and other swept words, such as "SD-SGDClip, large"
    start: Row  # the scores of x_0: loss, accuracy and the sweep's own, where the task has them
    seeds: list[Row]  # a row each: seed, status, scores, time, curve of (round, time, loss, accuracy), ...
    status: Status = "finished"
    reason: str | None = None  # why it is not finished
    value: float | None = None  # the sweep's objective; None ranks last
    workable: bool | None = None  # None: pruned or failed
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
    trials: list[Trial]  # that have ended, ordered by number
    config: Row  # the whole sweep.json

    @property
    def score(self) -> str:
        """The test score of targets and `workable`."""
        return str(self.config.get("score", self.best))

    @property
    def higher(self) -> bool:
        """Whether a high value of what the best trial is best in is good."""
        return self.best != "time" and bool(self.config.get("higher"))


class GroupSummary(NamedTuple):
    """The trials of one method on one kind of fleet that have ended, counted."""

    name: str
    trials: int
    finished: int  # ended with a finite model
    diverged: int
    pruned: int
    other: int  # starved or failed
    workable: int
    judged: int  # neither pruned nor failed
    share: float | None  # workable / judged; None: nothing judged, or pruning was on
    best: Trial | None


def read(folder: str | Path) -> Sweep:
    """Read a sweep, finished or not."""
    from tardygrad.sweeps.study import ended_trials  # Optuna is slow to import

    path = Path(folder)
    config = read_json(path / "sweep.json")
    with reading_record(path):
        trials = [_trial(trial.user_attrs) for trial in ended_trials(path)]
        target, score = config["target"] is not None, config["score"]
        return Sweep(
            name=config["name"],
            space=config["space"],
            goal=goal(config),
            best=config["best"],
            total=config["trials"],
            trials=judged(trials, score, config["workable"], higher=config["higher"], target=target),
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
        if trial.status in ("pruned", "failed"):
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
    valued = [trial for trial in among if trial.value is not None]
    sign = -1.0 if sweep.higher else 1.0
    return min(valued, key=lambda trial: sign * (trial.value or 0.0), default=None)


def groups(sweep: Sweep) -> list[GroupSummary]:
    """A summary of each group, in order of appearance."""
    found = []
    for name in dict.fromkeys(trial.group for trial in sweep.trials):
        trials = [trial for trial in sweep.trials if trial.group == name]
        statuses = [trial.status for trial in trials]
        judged = [trial for trial in trials if trial.workable is not None]
        workable = sum(trial.workable is True for trial in judged)
        finished, diverged, pruned = (statuses.count(status) for status in ("finished", "diverged", "pruned"))
        share = workable / len(judged) if judged and not sweep.config.get("prune") else None
        ended = (finished, diverged, pruned, len(trials) - finished - diverged - pruned)
        best = best_of(sweep, trials)
        found.append(GroupSummary(name, len(trials), *ended, workable, len(judged), share, best))
    return found


def remark(sweep: Sweep) -> str | None:
    """A warning about the best trial of a finished sweep: it is no better than x_0, or at the edge of the space."""
    best = best_of(sweep)
    if len(sweep.trials) < sweep.total:
        return None
    known = sweep.best != "time" and any(sweep.best in trial.start for trial in sweep.trials)
    if known and not any(_beats(trial, sweep) for trial in sweep.trials):
        return "no trial is better than x_0"
    equals = [trial for trial in sweep.trials if best and trial.value == best.value]
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


def _trial(attrs: Row) -> Trial:
    result = attrs["result"]
    seeds = result["seeds"]
    starts = {name: _mean(row["start"].get(name) for row in seeds) for name in (seeds[0]["start"] if seeds else ())}
    facts: Row = {
        key: _mean(row[key] for row in seeds) for key in ("accuracy", "loss", "time", "clipped", "local_clipped")
    }
    facts |= {key: result[key] for key in ("status", "reason", "value")}
    return Trial(attrs["number"], attrs["params"], attrs["group"], starts, seeds, **facts)


def _mean(numbers: Iterable[float | None]) -> float | None:
    """The mean; None if a number is missing."""
    every = list(numbers)
    known = [number for number in every if number is not None]
    return mean(known) if known and len(known) == len(every) else None
