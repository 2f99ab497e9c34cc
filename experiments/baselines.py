"""The baselines: every method tuned with the same number of trials on validation rows, then run with other seeds.

All methods of a workload get about the same number of local steps, and the same number of trials and of seeds; every
searched setting has the same range for all of them, unless baselines.toml says why not.

The first trials are random, the others TPE's, in batches. A trial's point follows from its number and the results of
the trials before its batch, so it is the same for any number of processes, and the finished runs alone tell how far
the tuning is.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from math import inf, log
from pathlib import Path
from statistics import mean
from typing import Literal, NamedTuple

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, create_trial

import tardygrad as tg
from experiments import lib
from experiments.lib import Cost, Values
from tardygrad import PlannedRun, Store, StoredResult, streams

Range = FloatDistribution | IntDistribution
Point = dict[str, float]
"""A value for every searched setting."""
Curve = list[tuple[float, float]]
"""Simulated seconds and scores."""


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

    text: str  # of the page
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
            **{
                name: raw[name]
                for name in ("text", "tuning_seed", "seeds", "random_trials", "trials_per_batch", "ranges")
            },
            fleets=raw["fleet"],
            workloads=workloads,
            methods={name: Baseline(**table) for name, table in raw["method"].items()},
            comparisons={title: [tuple(pair) for pair in pairs] for title, pairs in raw["comparison"].items()},
        )

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
            table, _, key = name.rpartition(".")
            (method[table] if table else method)[key] = value
        return PlannedRun(f"{cell}-seed{seed}", tables)


@cache
def plan() -> BaselinePlan:
    """The plan of the baselines."""
    return BaselinePlan.read((lib.FOLDER / "baselines.toml").read_text(encoding="utf-8"))


def _range(table: Values) -> Range:
    """The range of a setting; it is logarithmic unless it says otherwise."""
    kind = IntDistribution if isinstance(table["low"], int) and isinstance(table["high"], int) else FloatDistribution
    return kind(**{"log": True, **table})


def _is_near_end(value: float, range: Range) -> bool:
    return range.log and not 0.05 <= log(value / range.low) / log(range.high / range.low) <= 0.95


class BaselineLine(NamedTuple):
    """A method over its seeds: a line of a table."""

    cell: BaselineCell
    settings: Point
    edges: list[str]  # settings near an end of a logarithmic range
    scores: list[float]  # after the last round, by seed
    times: list[float]  # simulated seconds to the end, of the seeds that finished
    times_to_target: list[float]  # simulated seconds, of the seeds that reached the workload's target
    curves: list[Curve]  # by seed
    mark: Literal["best", "tied", ""] = ""

    @property
    def score(self) -> float:
        """The mean over seeds."""
        return mean(self.scores)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None: a single one."""
        return lib.mean_spread(self.scores)[1]

    @property
    def time(self) -> float | None:
        """The mean time to the end; None if no seed finished."""
        return mean(self.times) if self.times else None

    def score_at(self, time: float) -> float | None:
        """The score at the last evaluation until then, mean over seeds; None if a seed has none."""
        until = [[score for moment, score in curve if moment <= time] for curve in self.curves]
        return mean(scores[-1] for scores in until) if all(until) else None


def difference(
    workload: BaselineWorkload, first: BaselineLine, second: BaselineLine
) -> Literal["better", "worse", "tied"]:
    """Whether the second line's score is better or worse than the first one's, or the difference may be chance.

    The 95 % confidence interval of the differences by seed decides; with one seed, nothing does.
    """
    found, _ = tg.paired_difference(second.scores, first.scores)
    if found.half_width is None or abs(found.mean) <= found.half_width:
        return "tied"
    return "better" if workload.merit(found.mean) > 0 else "worse"


class Tuning:
    """The trials of a cell: those of finished batches, and the points of the current batch."""

    def __init__(self, plan: BaselinePlan, cell: BaselineCell) -> None:
        self.plan, self.cell, self.space = plan, cell, plan.space(cell)
        self.trials = plan.workloads[cell.workload].trials
        self.finished: list[FrozenTrial] = []
        self.batch = self._draw()

    def advance(self, value: Callable[[Point], float | None]) -> None:
        """Take the results of finished batches, and draw the next one."""
        while self.batch:
            values = [value(point) for point in self.batch]
            if None in values:
                break
            for point, number in zip(self.batch, values, strict=True):
                self.finished.append(create_trial(params=point, distributions=dict(self.space), value=number))
            self.batch = self._draw()

    def best(self) -> Point | None:
        """The point with the highest value, the first of equals; None while trials are missing."""
        if self.batch:
            return None
        return max(self.finished, key=lambda trial: -inf if trial.value is None else trial.value).params

    def _draw(self) -> list[Point]:
        """The points of the next batch; none when all trials are done."""
        known = len(self.finished)
        end = min(known + (self.plan.trials_per_batch if known else self.plan.random_trials), self.trials)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # multivariate TPE is experimental
            return [self._point(number) for number in range(known, end)]

    def _point(self, number: int) -> Point:
        """A point with three significant digits, so that a table shows exactly what was run."""
        seed = streams.key(self.plan.tuning_seed, f"baselines of {self.cell.workload}, {self.cell.fleet}", number)
        sampler = TPESampler(n_startup_trials=self.plan.random_trials, multivariate=True, seed=seed % 2**32)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.add_trials(self.finished)
        drawn = study.ask(dict(self.space)).params
        return {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in drawn.items()}


class Baselines:
    """A plan and its results.

    Args:
        images: the folder of Fashion-MNIST; None: the task finds it.
    """

    def __init__(self, plan: BaselinePlan, store: Store, images: Path | None = None) -> None:
        self.plan, self.store, self.images = plan, store, images
        self._tunings: dict[BaselineCell, Tuning] = {}
        self._runs: dict[tuple[BaselineCell, tuple[float, ...], int], PlannedRun] = {}

    def wanted(self) -> list[PlannedRun]:
        """The runs known so far, in order; their results decide which others follow."""
        return [run for cell in self.plan.cells() for run in [*self._trials(cell), *self.runs(cell)]]

    def runs(self, cell: BaselineCell) -> list[PlannedRun]:
        """The runs of a cell that are reported, one for each seed; none while its setting is not chosen."""
        point = self.tuning(cell).best()
        return [] if point is None else [self._run(cell, point, seed) for seed in self.plan.seeds]

    def tuning(self, cell: BaselineCell) -> Tuning:
        """The trials by which the setting of a cell is chosen, with all results in the store."""
        cell = self.plan.tuned_cell(cell)
        if cell not in self._tunings:
            self._tunings[cell] = Tuning(self.plan, cell)
        workload, tuning = self.plan.workloads[cell.workload], self._tunings[cell]

        def value(point: Point) -> float | None:
            result = self.store.result(self._trial(cell, point))
            return workload.merit(workload.final_score(result)) if result else None

        tuning.advance(value)
        return tuning

    def _trials(self, cell: BaselineCell) -> list[PlannedRun]:
        """The trials of a cell that are known so far; none for a cell that is not tuned itself."""
        tuning = self.tuning(cell)
        points = [*(trial.params for trial in tuning.finished), *tuning.batch] if self.plan.has_trials(cell) else []
        return [self._trial(cell, point) for point in points]

    def _trial(self, cell: BaselineCell, point: Point) -> PlannedRun:
        return self._run(cell, point, self.plan.tuning_seed)

    def _run(self, cell: BaselineCell, point: Point, seed: int) -> PlannedRun:
        key = (cell, tuple(point.values()), seed)
        if key not in self._runs:
            images = str(self.images.resolve()) if self.images and cell.workload == "fashion" else None
            self._runs[key] = self.plan.run(cell, point, seed, data=images)
        return self._runs[key]

    def costs(self) -> list[Cost]:
        """What each workload and fleet takes."""
        costs = []
        for (name, fleet), group in groupby(self.plan.cells(), key=lambda cell: cell[:2]):
            workload, cells = self.plan.workloads[name], len(list(group))
            trials, runs = cells * workload.trials, cells * len(self.plan.seeds)
            costs.append(Cost(name, fleet, trials + runs, workload.seconds * (trials * workload.trial_length + runs)))
        return costs

    def tables(self) -> list[list[BaselineLine]]:
        """A table for each workload and fleet; all runs must be done."""
        groups = groupby(self.plan.cells(), key=lambda cell: cell[:2])
        return [self.marked([self.line(cell) for cell in cells]) for _, cells in groups]

    def line(self, cell: BaselineCell) -> BaselineLine:
        """The line of a cell; all its runs must be done."""
        workload, point = self.plan.workloads[cell.workload], self.tuning(cell).best()
        results = [result for run in self.runs(cell) if (result := self.store.result(run))]
        assert point is not None
        curves = [_curve(result, workload) for result in results]
        reached = [time for curve in curves if (time := _time_to_target(curve, workload)) is not None]
        return BaselineLine(
            cell=cell,
            settings=point,
            edges=self.plan.edges(self.plan.tuned_cell(cell), point),
            scores=[workload.final_score(result) for result in results],
            times=[result.time for result in results if result.status == "finished"],
            times_to_target=reached,
            curves=curves,
        )

    def marked(self, lines: list[BaselineLine]) -> list[BaselineLine]:
        """The lines with the best score marked as best, and those that may be as good by chance as tied."""
        workload = self.plan.workloads[lines[0].cell.workload]
        best = max(lines, key=lambda line: workload.merit(line.score))
        tied = [line for line in lines if len(line.scores) > 1 and difference(workload, best, line) == "tied"]
        return [line._replace(mark="best" if line is best else "tied" if line in tied else "") for line in lines]


def _curve(result: StoredResult, workload: BaselineWorkload) -> Curve:
    """The scores of a run; a run that did not finish has the worst one at its end."""
    points = [(time, workload.score_of(*scores)) for _, time, *scores in result.curve]
    return points if result.status == "finished" else [*points, (result.time, workload.worst)]


def _time_to_target(curve: Curve, workload: BaselineWorkload) -> float | None:
    """When a curve reaches the workload's target; None if it does not."""
    good = (time for time, score in curve if workload.merit(score) >= workload.merit(workload.target))
    return next(good, None)


def main(argv: list[str] | None = None) -> None:
    """Tune and run what is missing of the baselines, and make the tables."""
    from experiments import baselines_page

    names = ("--page", "--data", "--only", "--jobs", "--read", "--save")
    given = lib.options(__doc__, argv, *names, out=lib.out("runs/baselines"))
    lib.check_page(given.page, "baselines")
    store = tg.Store(given.out, known=lib.stored_runs("baselines"))
    results = Baselines(plan(), store, given.data and given.data / "fashion")
    lib.do_missing(store, results.wanted, given)
    if given.save:
        lib.save_runs(given.save, store, results.wanted())
    lib.require_all(store, results.wanted)
    text = baselines_page.text(results, "python -m experiments.baselines")
    lib.publish(given.page, {"baselines": text}, lambda folder: baselines_page.draw(results, folder))


if __name__ == "__main__":
    lib.run_script(main)
