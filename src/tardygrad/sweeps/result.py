"""The results of a sweep in Python: its best settings, the share of workable ones, and all trials as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tardygrad.errors import Invalid
from tardygrad.results.table import ResultTable, data_frame
from tardygrad.runs.directions import LOWER_KEY, Directions
from tardygrad.runs.record import Row
from tardygrad.runs.run import Run
from tardygrad.sweeps.trials import GroupSummary, Sweep, Trial, best_of, groups, remark

MakeRun = Callable[..., Run]
"""A function of your own: `make_run(seed=…, **settings)` returns a run."""


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
    return f"{group.best.value:.1%}" if sweep.best == "accuracy" else f"{group.best.value:.4g}"


def _setting(trial: Trial | None) -> str:
    """The numeric settings of a point."""
    if trial is None:
        return ""
    numbers = [(key, value) for key, value in trial.params.items() if type(value) in (int, float)]
    return " ".join(f"{key.rpartition('.')[2]}={value:.4g}" for key, value in numbers)
