"""The plan of the baselines: workloads, methods, search spaces and rules, read from baselines.toml.

All methods of a workload get about the same number of local steps, and the same number of trials and of seeds; every
searched setting has the same range for all of them, unless baselines.toml says why not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any, Literal, NamedTuple

from optuna.distributions import FloatDistribution, IntDistribution

from tardygrad.errors import Invalid
from tardygrad.spec.spec import override
from tardygrad.sweeps.store import PlannedRun, StoredResult
from tardygrad.sweeps.study import distribution

Values = dict[str, Any]
"""Settings of a table of a spec, by name."""

Range = FloatDistribution | IntDistribution
Point = dict[str, float]
"""A value for every searched setting."""


class BaselineCell(NamedTuple):
    """A method on a workload and a fleet: what is tuned, and a line of a table."""

    workload: str
    fleet: str
    method: str

    def __str__(self) -> str:
        return "-".join(self)


@dataclass(frozen=True)
class BaselineWorkload:
    """A task, the fleets on which it is learnt, and how it is scored."""

    name: str
    heading: str  # of its tables
    title: str
    task: Values
    fleets: list[str]
    updates: int  # of all clients together
    method: Values  # the settings that all methods share
    evaluations: int  # of a run that is reported; a trial is evaluated once
    score: Literal["accuracy", "loss"]  # in per cent, or in nats
    worst: float  # the score of a run that did not finish
    target: float  # the score to which the time is measured
    seconds: float  # CPU seconds of a run, measured with one thread
    methods: list[str] = field(default_factory=list)
    trials: int = 0  # of each method on each fleet
    trial_length: float = 1.0  # as a share of that of a run
    settings_from: str = ""  # another workload, whose chosen settings are taken; this one has no trials
    updates_of: dict[str, int] = field(default_factory=dict)  # of kinds of methods that shorten jobs
    settings_of: dict[str, Values] = field(default_factory=dict)  # of methods, in place of their own
    ranges: dict[str, Values] = field(default_factory=dict)  # in place of those of the plan

    def score_of(self, loss: float | None, accuracy: float | None) -> float:
        """The score of an evaluation; the worst one if the evaluation has none, or a larger loss than that."""
        if self.score == "loss":
            return self.worst if loss is None else min(loss, self.worst)
        return self.worst if accuracy is None else accuracy

    def final_score(self, result: StoredResult) -> float:
        """The score after the last round."""
        return self.score_of(result.loss, result.accuracy)

    def merit(self, score: float) -> float:
        """What tuning maximises: the score, or the negative loss."""
        return -score if self.score == "loss" else score


@dataclass(frozen=True)
class Baseline:
    """A method and the settings that are searched."""

    label: str
    settings: Values  # those that are given
    search: list[str]  # a name may be dotted, such as `weight.exponent`
    ranges: dict[str, Values] = field(default_factory=dict)  # in place of those of workloads and of the plan

    @property
    def is_synchronous(self) -> bool:
        """Whether its rounds wait for all clients that were asked."""
        return bool(self.settings["mode"] == "sync")


@dataclass(frozen=True)
class BaselinePlan:
    """Everything that is tuned and run."""

    tuning_seed: int
    seeds: list[int]  # of the results
    random_trials: int  # before those of TPE
    trials_per_batch: int  # that TPE draws at a time
    ranges: dict[str, Values]
    fleets: dict[str, Values]
    workloads: dict[str, BaselineWorkload]
    methods: dict[str, Baseline]
    comparisons: dict[str, list[tuple[str, str]]]  # pairs of methods, by what the second one has

    @classmethod
    def read(cls, text: str) -> BaselinePlan:
        """A plan from TOML."""
        raw = tomllib.loads(text)
        workloads = {name: BaselineWorkload(name, **table) for name, table in raw["workload"].items()}
        for name, workload in workloads.items():
            if workload.settings_from:
                workloads[name] = replace(workload, methods=workloads[workload.settings_from].methods)
        return cls(
            **{name: raw[name] for name in ("tuning_seed", "seeds", "random_trials", "trials_per_batch", "ranges")},
            fleets=raw["fleet"],
            workloads=workloads,
            methods={name: Baseline(**table) for name, table in raw["method"].items()},
            comparisons={title: [tuple(pair) for pair in pairs] for title, pairs in raw["comparison"].items()},
        )

    def only(self, names: list[str]) -> BaselinePlan:
        """The plan with these workloads, these methods, or these methods of these workloads.

        A workload comes with the one whose settings it takes, on its own fleets.
        """
        named = set(names) & self.workloads.keys() or set(self.workloads)
        methods = set(names) & self.methods.keys() or set(self.methods)
        fleets = {name: set(self.workloads[name].fleets) for name in named}
        for each in (self.workloads[name] for name in named):
            fleets.setdefault(each.settings_from, set()).update(each.fleets)
        chosen = {
            name: replace(
                each,
                fleets=[fleet for fleet in each.fleets if fleet in fleets[name]],
                methods=[method for method in each.methods if method in methods],
            )
            for name, each in self.workloads.items()
            if name in fleets
        }
        if not any(workload.methods for workload in chosen.values()):
            raise Invalid(f"--only must name methods of its workloads, got {', '.join(names)}. Leave one of them out.")
        return replace(self, workloads=chosen)

    def resized(self, trials: int | None, seeds: int | None) -> BaselinePlan:
        """The plan with another number of trials or seeds."""
        workloads = {
            name: workload if trials is None or not workload.trials else replace(workload, trials=trials)
            for name, workload in self.workloads.items()
        }
        return replace(self, workloads=workloads, seeds=self.seeds if seeds is None else list(range(1, seeds + 1)))

    def cells(self) -> Iterator[BaselineCell]:
        """Every method on every workload and fleet."""
        for workload in self.workloads.values():
            for fleet in workload.fleets:
                for method in workload.methods:
                    yield BaselineCell(workload.name, fleet, method)

    def tuned_cell(self, cell: BaselineCell) -> BaselineCell:
        """The cell whose trials decide the setting of this one."""
        return cell._replace(workload=self.workloads[cell.workload].settings_from or cell.workload)

    def has_trials(self, cell: BaselineCell) -> bool:
        """Whether a cell is tuned itself."""
        return cell == self.tuned_cell(cell)

    def space(self, cell: BaselineCell) -> dict[str, Range]:
        """The search space of a cell."""
        method = self.methods[cell.method]
        ranges = {**self.ranges, **self.workloads[cell.workload].ranges, **method.ranges}
        return {name: _range(ranges[name]) for name in method.search}

    def lowest(self, cell: BaselineCell) -> Point:
        """The point with the lowest value of every setting."""
        return {name: range.low for name, range in self.space(cell).items()}

    def edges(self, cell: BaselineCell, point: Point) -> list[str]:
        """The settings in the first or last twentieth of a logarithmic range, which could be made wider."""
        return [name for name, range in self.space(cell).items() if _is_near_end(point[name], range)]

    def run(self, cell: BaselineCell, point: Point, seed: int, *, data: str | None = None) -> PlannedRun:
        """The run of a cell's method at a point: a trial with the tuning seed, and else one that is reported.

        Args:
            data: the folder of the workload's data.
        """
        workload, given = self.workloads[cell.workload], deepcopy(self.methods[cell.method].settings)
        method = {**workload.method, **given, **workload.settings_of.get(cell.method, {})}
        trial, updates = seed == self.tuning_seed, workload.updates_of.get(given["kind"], workload.updates)
        rounds = round(updates * (workload.trial_length if trial else 1)) // method.get("buffer", 1)
        task = workload.task | ({} if data is None else {"data": data}) | ({"score_on": "validation"} if trial else {})
        tables = {
            "task": task,
            "fleet": self.fleets[cell.fleet],
            "method": method,
            "engine": {"kind": "sim", "batch": workload.task["clients"]},  # faster, with other last bits
            "run": {
                "rounds": rounds,
                "evaluate_every": rounds if trial else max(rounds // workload.evaluations, 1),
                "seed": seed,
            },
        }
        for name, value in point.items():
            override(tables, f"method.{name}={value!r}")
        return PlannedRun(f"{cell}-seed{seed}", tables)


@cache
def plan() -> BaselinePlan:
    """The plan of the baselines."""
    return BaselinePlan.read(Path(__file__).with_name("baselines.toml").read_text(encoding="utf-8"))


def _range(table: Values) -> Range:
    found = distribution({"log": True, **table})
    assert isinstance(found, FloatDistribution | IntDistribution)
    return found


def _is_near_end(value: float, range: Range) -> bool:
    return range.log and not 0.05 <= log(value / range.low) / log(range.high / range.low) <= 0.95
