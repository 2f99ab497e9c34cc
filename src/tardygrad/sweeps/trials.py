"""The results of a sweep: its trials, which of them are workable, a summary of each group, and a table of these.

A sweep's folder holds `sweep.json`, its configuration, and `study.jsonl`, the Optuna journal of the trials that have
ended. This module only reads, without the lock, so a sweep can be read while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from tardygrad.errors import Invalid
from tardygrad.results.table import ResultTable, data_frame, score_text
from tardygrad.runs.directions import LOWER_KEY, Directions
from tardygrad.runs.record import Row, read_json, reading_record
from tardygrad.runs.run import Run

Status = Literal["finished", "diverged", "starved", "pruned", "failed"]

MakeRun = Callable[..., Run]
"""A function of your own: `make_run(seed=…, **settings)` returns a run."""


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
    return next(iter(ranked(sweep, sweep.trials if trials is None else trials)), None)


def ranked(sweep: Sweep, trials: Iterable[Trial]) -> list[Trial]:
    """Those of a sweep's trials that have a value, the best first."""
    sign = -1.0 if sweep.higher else 1.0
    return sorted((trial for trial in trials if trial.value is not None), key=lambda trial: sign * (trial.value or 0.0))


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


class SweepResult:
    """The results of `tg.sweep`. Printed, it is a table with the best settings of every group.

    Attributes:
        trials: all trials, with their settings (`params`), scores and seeds.
        goal: what the best trial is best in.
    """

    def __init__(self, sweep: Sweep, make_run: MakeRun, seeds: list[int]) -> None:
        self.sweep, self.make_run, self.seeds = sweep, make_run, seeds
        self.trials, self.goal = sweep.trials, sweep.goal

    @property
    def best(self) -> dict[str, Any]:
        """The best settings, as arguments for `make_run`."""
        return arguments(self._best().params)

    @property
    def best_value(self) -> float:
        """The mean over seeds of what the sweep optimizes, with the best settings."""
        value = self._best().value
        assert value is not None
        return value

    @property
    def workable(self) -> float | None:
        """The share of workable settings among those that ran; None if none did."""
        judged = [trial.workable for trial in self.trials if trial.workable is not None]
        return sum(judged) / len(judged) if judged else None

    def run(self, seed: int) -> Run:
        """A run with the best settings."""
        return self.make_run(**self.best, seed=seed)

    def to_pandas(self) -> Any:
        """A data frame with a row for each trial: its settings, status and scores. Needs pandas."""
        names = {name: name for name in ("status", "value", "workable", "accuracy", "loss", "time")}
        if self.sweep.score not in ("accuracy", "loss"):
            names["accuracy"] = self.sweep.score
        rows = []
        for trial in self.trials:
            facts = {shown: getattr(trial, name) for name, shown in names.items()}
            rows.append({"trial": trial.number, **arguments(trial.params), **facts})
        return data_frame(rows)

    def to_latex(self, *, caption: str | None = None, label: str = "tab:sweep") -> str:
        """The table in LaTeX, for the packages booktabs and graphicx.

        Args:
            caption: None explains what the table shows.
        """
        return sweep_table(self.sweep).latex(caption, label)

    def __str__(self) -> str:
        return sweep_table(self.sweep).text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return sweep_table(self.sweep).html()

    def _best(self) -> Trial:
        best = best_of(self.sweep)
        if best is None:
            counts = ", ".join(f"{number} {status}" for status, number in _statuses(self.trials).items())
            raise Invalid(f"the sweep has no best settings, because no trial has a value ({counts}). Change the space.")
        return best


def arguments(params: Row) -> dict[str, Any]:
    """The settings of a point as arguments; the record has infinity as text."""
    return {key: float("inf") if value == "inf" else value for key, value in params.items()}


def _statuses(trials: list[Trial]) -> dict[str, int]:
    words = [trial.status for trial in trials]
    return {word: words.count(word) for word in dict.fromkeys(words)}


def sweep_table(sweep: Sweep) -> ResultTable:
    """A table with the best settings of every group."""
    found = groups(sweep)
    others = [name for name in ("pruned", "other") if any(getattr(group, name) for group in found)]
    counted = ("finished", "diverged", *others)
    rows = []
    for group in found:
        counts = (str(group.trials), *(str(getattr(group, name)) for name in counted))
        workable = "–" if group.share is None else f"{group.workable}/{group.judged} {group.share:6.1%}"
        rows.append([group.name, *counts, workable, _value(group, sweep), _setting(group.best)])
    warning = remark(sweep)
    left = [f"{len(sweep.trials)} of {sweep.total} trials so far"] if len(sweep.trials) < sweep.total else []
    notes = [*left, *([warning] if warning else []), f"best by {sweep.goal}{direction_note(sweep)}"]
    return ResultTable(["group", "trials", *counted, "workable", "best", "with"], rows, notes)


def direction_note(sweep: Sweep) -> str:
    """Which values of the score are good, where that is not obvious."""
    if sweep.best == "time" or sweep.score in ("accuracy", "loss"):
        return ""
    unsure = "" if Directions().known(sweep.score) or not sweep.higher else f", unless {LOWER_KEY} says otherwise"
    return f" ({'higher' if sweep.higher else 'lower'} is better{unsure})"


def _value(group: GroupSummary, sweep: Sweep) -> str:
    if group.best is None or group.best.value is None:
        return f"none reached {sweep.config['target']:g}" if sweep.best == "time" else ""
    return score_text(sweep.best, group.best.value)


def _setting(trial: Trial | None) -> str:
    """The numeric settings of a point."""
    if trial is None:
        return ""
    numbers = [(key, value) for key, value in trial.params.items() if type(value) in (int, float)]
    return " ".join(f"{key.rpartition('.')[2]}={value:.4g}" for key, value in numbers)
