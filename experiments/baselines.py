"""The baselines: every method tuned with the same number of trials on validation rows, then run with other seeds.

The first trials are random, the others TPE's, in batches. A trial's point follows from its number and the results of
the trials before its batch, so it is the same for any number of processes, and the finished runs alone tell how far
the tuning is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from math import inf
from statistics import mean
from typing import Literal, NamedTuple

from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, create_trial

from experiments.baseline_plan import BaselineCell, BaselinePlan, BaselineWorkload, Point
from experiments.progress import Progress, with_total
from experiments.trials import mean_spread
from tardygrad import streams
from tardygrad.results.statistics import paired
from tardygrad.runs.record import Row
from tardygrad.sweeps.store import PlannedRun, Store, StoredResult
from tardygrad.sweeps.study import draw, quiet

Curve = list[tuple[float, float]]
"""Simulated seconds and scores."""

Mark = Literal["best", "tied", ""]


class BaselineLine(NamedTuple):
    """A method over its seeds: a line of a table."""

    cell: BaselineCell
    settings: Point
    edges: list[str]  # settings near an end of a logarithmic range
    scores: list[float]  # after the last round, by seed
    times: list[float]  # simulated seconds to the end, of the seeds that finished
    times_to_target: list[float]  # simulated seconds, of the seeds that reached the workload's target
    curves: list[Curve]  # by seed
    mark: Mark = ""

    @property
    def score(self) -> float:
        """The mean over seeds."""
        return mean(self.scores)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None: a single one."""
        return mean_spread(self.scores)[1]

    @property
    def time(self) -> float | None:
        """The mean time to the end; None if no seed finished."""
        return mean(self.times) if self.times else None

    def score_at(self, time: float) -> float | None:
        """The score at the last evaluation until then, mean over seeds; None if a seed has none."""
        until = [[score for moment, score in curve if moment <= time] for curve in self.curves]
        return mean(scores[-1] for scores in until) if all(until) else None

    def plain(self) -> Row:
        """The same as JSON."""
        numbers = self._asdict() | {"score": self.score, "spread": self.spread, "time": self.time}
        del numbers["cell"]
        return {**self.cell._asdict(), **numbers}


def difference(
    workload: BaselineWorkload, first: BaselineLine, second: BaselineLine
) -> Literal["better", "worse", "tied"]:
    """Whether the second line's score is better or worse than the first one's, or the difference may be chance.

    The 95 % confidence interval of the differences by seed decides; with one seed, nothing does.
    """
    found, _ = paired(second.scores, first.scores)
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
        with quiet():
            return [self._point(number) for number in range(known, end)]

    def _point(self, number: int) -> Point:
        """A point with three significant digits, so that a table shows exactly what was run."""
        seed = streams.key(self.plan.tuning_seed, f"baselines of {self.cell.workload}, {self.cell.fleet}", number)
        sampler = TPESampler(n_startup_trials=self.plan.random_trials, multivariate=True, seed=seed % 2**32)
        drawn = draw(self.space, self.finished, sampler, "maximize")
        return {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in drawn.items()}


class Baselines:
    """A plan and its results.

    Args:
        folders: the data of workloads that need a folder.
        skip: workloads that cannot be run here; their stored runs are read.
    """

    def __init__(
        self, plan: BaselinePlan, store: Store, folders: dict[str, str] | None = None, skip: Iterable[str] = ()
    ) -> None:
        self.plan, self.store, self.folders, self.skip = plan, store, folders or {}, set(skip)
        self._tunings: dict[BaselineCell, Tuning] = {}
        self._runs: dict[tuple[BaselineCell, tuple[float, ...], int], PlannedRun] = {}

    def wanted(self) -> list[PlannedRun]:
        """The runs known so far, in order; their results decide which others follow."""
        cells = [cell for cell in self.plan.cells() if cell.workload not in self.skip]
        return [run for cell in cells for run in [*self._batch(cell), *self.runs(cell)]]

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

    def _batch(self, cell: BaselineCell) -> list[PlannedRun]:
        """The trials of a cell's current batch; none for a cell that is not tuned itself."""
        return [self._trial(cell, point) for point in self.tuning(cell).batch] if self.plan.has_trials(cell) else []

    def _trial(self, cell: BaselineCell, point: Point) -> PlannedRun:
        return self._run(cell, point, self.plan.tuning_seed)

    def _run(self, cell: BaselineCell, point: Point, seed: int) -> PlannedRun:
        key = (cell, tuple(point.values()), seed)
        if key not in self._runs:
            self._runs[key] = self.plan.run(cell, point, seed, data=self.folders.get(cell.workload))
        return self._runs[key]

    def summaries(self) -> list[Row]:
        """The finished runs, as `Store.row` has them."""
        runs = []
        for cell in self.plan.cells():
            if self.plan.has_trials(cell):
                runs += [self._trial(cell, trial.params) for trial in self.tuning(cell).finished]
            runs += [*self._batch(cell), *self.runs(cell)]
        return [self.store.row(run) for run in runs if self.store.result(run)]

    def progress(self) -> list[Progress]:
        """The progress of each workload and fleet, and of everything in the last row."""
        rows = []
        for (name, fleet), group in groupby(self.plan.cells(), key=lambda cell: cell[:2]):
            workload, cells = self.plan.workloads[name], list(group)
            trials, runs = len(cells) * workload.trials, len(cells) * len(self.plan.seeds)
            trials_done = sum(map(self._trials_done, cells))
            runs_done = sum(self._done(self.runs(cell)) for cell in cells)
            whole = workload.seconds * (trials * workload.trial_length + runs)
            left = workload.seconds * ((trials - trials_done) * workload.trial_length + runs - runs_done)
            rows.append(Progress(name, fleet, trials + runs, trials_done + runs_done, whole, left))
        return with_total(rows)

    def _trials_done(self, cell: BaselineCell) -> int:
        """The finished trials of a cell; none for a cell that is not tuned itself."""
        return len(self.tuning(cell).finished) + self._done(self._batch(cell)) if self.plan.has_trials(cell) else 0

    def _done(self, runs: list[PlannedRun]) -> int:
        return len(runs) - len(self.store.missing(runs))

    def tables(self) -> list[list[BaselineLine]]:
        """A table for each workload and fleet, with the methods that have all their runs; none without any."""
        groups = groupby(self.plan.cells(), key=lambda cell: cell[:2])
        tables = ([line for cell in cells if (line := self.line(cell))] for _, cells in groups)
        return [self.marked(lines) for lines in tables if lines]

    def line(self, cell: BaselineCell) -> BaselineLine | None:
        """The line of a cell; None while runs are missing."""
        runs, workload = self.runs(cell), self.plan.workloads[cell.workload]
        results = [result for run in runs if (result := self.store.result(run))]
        point = self.tuning(cell).best()
        if point is None or len(results) < len(runs):
            return None
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


if __name__ == "__main__":
    from experiments.options import main

    main("baselines")
