"""The baselines: every method tuned with the same number of trials on one seed, then run with other seeds.

The value of a trial is the test accuracy after the last round, 0 if the run diverged. The first trials are random, the
others TPE's, in batches. A trial's point follows from its number and the results of the trials before its batch, so it
is the same for any number of processes, and the finished runs alone tell how far the tuning is. With its best setting
on the large fleet a method also learns Fashion-MNIST, where nothing is tuned.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, create_trial

from tardygrad import streams
from tardygrad.reproduce.baseline_specs import BASELINES, LESSONS, BaselineTrial, Point
from tardygrad.reproduce.trials import FLEETS, TUNING, mean_spread
from tardygrad.sweeps.store import Run, Store
from tardygrad.sweeps.study import Space, draw, quiet

RANDOM, BATCH = 10, 5
"""The number of random trials, and the size of each batch after them."""


class BaselineLine(NamedTuple):
    """A baseline over its seeds: a line of a table."""

    trial: BaselineTrial
    accuracy: float  # in per cent, mean; a run that did not finish counts as 0
    spread: float | None  # standard deviation; None: a single seed
    time: float  # simulated seconds to the end, mean
    reached: int  # seeds that reached the lesson's target
    reach: float | None  # simulated seconds until then, mean; None if a seed did not
    mark: Literal["best", "tied", ""] = ""

    def plain(self) -> dict[str, Any]:
        """The same as JSON."""
        trial, numbers = self.trial, self._asdict()
        del numbers["trial"]
        name = {"lesson": trial.lesson, "stragglers": trial.stragglers, "name": trial.name, "method": trial.label}
        return {**name, "settings": trial.settings, "edges": trial.edges(), **numbers}


class Comparison:
    """Baselines and the store of their runs.

    Args:
        fashion: whether to learn Fashion-MNIST too.
        data: the folder of its images; None: the task finds them.
    """

    def __init__(
        self, folder: Path, names: list[str], trials: int, seeds: int, *, fashion: bool, data: str | None = None
    ) -> None:
        self.trials, self.seeds = trials, range(1, seeds + 1)
        self.fashion, self.data = fashion, data
        self.store = Store(folder)
        self._tuned: dict[BaselineTrial, list[FrozenTrial]] = {
            BaselineTrial(name, fleet): [] for fleet in FLEETS for name in names
        }

    def wanted(self) -> list[Run]:
        """The missing runs known so far: those of the next trials; when all are tuned, those of the best settings."""
        points = [point for trial, tuned in self.tuned().items() for point in self._next(trial, tuned)]
        return [point.run(TUNING) for point in points] or self.store.missing(self._final_runs())

    def _final_runs(self) -> list[Run]:
        return [trial.run(seed) for trial in self.chosen() for seed in self.seeds]

    def tuned(self) -> dict[BaselineTrial, list[FrozenTrial]]:
        """The finished tuning trials of every baseline."""
        for trial, tuned in self._tuned.items():
            space = BASELINES[trial.name].space
            while points := self._next(trial, tuned):
                results = [(point.settings, self.store.result(point.run(TUNING))) for point in points]
                done = list(takewhile(lambda pair: pair[1] is not None, results))
                tuned += [finished(space, point, (result and result.accuracy) or 0.0) for point, result in done]
                if len(done) < len(points):
                    break
        return self._tuned

    def _next(self, trial: BaselineTrial, tuned: list[FrozenTrial]) -> list[BaselineTrial]:
        return [trial.at(point) for point in upcoming(BASELINES[trial.name].space, tuned, self.trials)]

    def chosen(self) -> list[BaselineTrial]:
        """Every tuned baseline with its best setting, first on digits, then on Fashion-MNIST."""
        tuned = [trial.at(best(trials)) for trial, trials in self.tuned().items() if len(trials) == self.trials]
        large = [replace(trial, lesson="fashion", data=self.data) for trial in tuned if trial.stragglers == "large"]
        return tuned + large * self.fashion

    def tables(self) -> list[list[BaselineLine]]:
        """A table per fleet and one for Fashion-MNIST, with the baselines that have all their runs."""
        chosen = self.chosen()
        keys = [("digits", fleet) for fleet in FLEETS] + [("fashion", "large")] * self.fashion
        rows = [[trial for trial in chosen if (trial.lesson, trial.stragglers) == key] for key in keys]
        return [marked([line for trial in trials if (line := self._line(trial))]) for trials in rows]

    def missing_count(self) -> int:
        """The number of missing runs, those that are not known yet included."""
        tuned, final = self.tuned(), self._final_runs()
        baselines = len(tuned) + self.fashion * len(tuned) // len(FLEETS)
        done = sum(map(len, tuned.values())) + len(final) - len(self.store.missing(final))
        return len(tuned) * self.trials + baselines * len(self.seeds) - done

    def missing(self) -> dict[tuple[int, int], list[str]]:
        """The baselines on digits that lack runs, by the trials and seeds they have."""
        found: dict[tuple[int, int], list[str]] = {}
        for trial, tuned in self.tuned().items():
            final = [trial.at(best(tuned)).run(seed) for seed in self.seeds] if tuned else []
            done = (len(tuned), len(final) - len(self.store.missing(final)))
            if done != (self.trials, len(self.seeds)):
                found.setdefault(done, []).append(f"{trial.name} ({trial.stragglers})")
        return found

    def _line(self, trial: BaselineTrial) -> BaselineLine | None:
        results = [result for seed in self.seeds if (result := self.store.result(trial.run(seed)))]
        if len(results) < len(self.seeds):
            return None
        accuracy, spread = mean_spread([result.accuracy or 0.0 for result in results])
        target = LESSONS[trial.lesson].target
        curves = [[time for _, time, _, score in result.curve if (score or 0.0) >= target] for result in results]
        times = [times[0] for times in curves if times]
        reach = mean(times) if len(times) == len(results) else None
        return BaselineLine(trial, accuracy, spread, mean(result.time for result in results), len(times), reach)


def upcoming(space: Space, tuned: list[FrozenTrial], trials: int) -> list[Point]:
    """The points of the rest of the current batch; none when all trials are done."""
    first = len(tuned)
    known = 0 if first < RANDOM else first - (first - RANDOM) % BATCH  # trials before the batch
    end = known + (BATCH if known else RANDOM)
    with quiet():
        return [_draw(space, tuned[:known], number) for number in range(first, min(end, trials))]


def _draw(space: Space, known: list[FrozenTrial], number: int) -> Point:
    """A point with three significant digits, so that a table shows exactly what was run."""
    sampler = TPESampler(n_startup_trials=RANDOM, seed=streams.key(TUNING, "baselines", number) % 2**32)
    drawn = draw(space, known, sampler, "maximize")
    return {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in drawn.items()}


def finished(space: Space, point: Point, value: float) -> FrozenTrial:
    """A finished tuning trial."""
    return create_trial(params=point, distributions=dict(space), value=value)


def best(tuned: list[FrozenTrial]) -> Point:
    """The point with the highest value, the first of equals."""
    return max(tuned, key=lambda trial: trial.value or 0.0).params


def marked(lines: list[BaselineLine]) -> list[BaselineLine]:
    """The lines with the highest accuracy marked as best, and those within its spread as tied."""
    if not lines:
        return []
    top = max(lines, key=lambda line: line.accuracy)
    near = [line for line in lines if top.spread is not None and line.accuracy >= top.accuracy - top.spread]
    return [line._replace(mark="best" if line is top else "tied" if line in near else "") for line in lines]
