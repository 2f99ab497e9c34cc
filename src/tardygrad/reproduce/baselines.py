"""The baselines: every contender tuned with as many trials on a seed of its own, then run with other seeds.

A trial's value is the test accuracy after the last round, 0 if the run diverged. With its best setting on the large
fleet a contender also learns Fashion-MNIST, where nothing is tuned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

from optuna.distributions import distribution_to_json

from tardygrad.errors import RecordError
from tardygrad.fleet import Stragglers
from tardygrad.reproduce.baseline_specs import CONTENDERS, LESSONS, Entry
from tardygrad.reproduce.results import Results
from tardygrad.reproduce.trials import TUNING
from tardygrad.reproduce.tuning import BATCH, RANDOM, Told, best, load, tell, trial, upcoming
from tardygrad.runs.record import exclusive

FLEETS: tuple[Stragglers, ...] = ("mild", "large")


class Line(NamedTuple):
    """An entry over its seeds: a line of a table."""

    entry: Entry
    accuracy: float  # in per cent, mean; a run that did not end counts as 0
    spread: float | None  # standard deviation; None: of a single seed
    time: float  # simulated seconds to the end, mean
    reached: int  # seeds that reached the lesson's target
    reach: float | None  # simulated seconds until then, mean; None if a seed did not
    mark: Literal["best", "tied", ""] = ""

    def plain(self) -> dict[str, Any]:
        """The same as JSON."""
        one, numbers = self.entry, self._asdict()
        del numbers["entry"]
        who = {"lesson": one.lesson, "stragglers": one.stragglers, "name": one.name, "method": one.label}
        return {**who, "settings": one.settings, "edges": one.edges(), **numbers}


class Contest:
    """Contenders, and the folder of their studies and finished runs.

    Args:
        fashion: whether Fashion-MNIST is learnt too.
        data: where its images are; None: where the task looks by itself.
    """

    def __init__(
        self, folder: Path, names: list[str], trials: int, seeds: int, *, fashion: bool, data: str | None = None
    ) -> None:
        self.folder, self.trials, self.seeds = folder, trials, range(1, seeds + 1)
        self.fashion, self.data = fashion, data
        self.entries = [Entry(name, fleet) for fleet in FLEETS for name in names]
        self.results = Results(folder / "runs")

    def __len__(self) -> int:
        """How many runs there are to make."""
        learnt = len(self.entries) + self.fashion * len(self.entries) // len(FLEETS)
        return len(self.entries) * self.trials + learnt * len(self.seeds)

    def go(self, jobs: int) -> Iterator[None]:
        """Make every run, in so many processes; those that are there pass at once."""
        with exclusive(self.folder):
            told = self.told()
            yield from (None for trials in told.values() for _ in trials)
            while asked := {one: points for one in told if (points := self._upcoming(one, told[one]))}:
                yield from self._make([(one, TUNING) for points in asked.values() for one in points], jobs)
                tell(self._path, {self._study(one): list(map(self._trial, points)) for one, points in asked.items()})
                told = self.told()
            yield from self._make([(one, seed) for one in self.chosen() for seed in self.seeds], jobs)

    def _make(self, asks: list[tuple[Entry, int]], jobs: int) -> Iterator[None]:
        missing = [ask for ask in asks if self.results.look(*ask) is None]
        yield from (None for _ in range(len(asks) - len(missing)))
        yield from (None for _ in self.results.make(missing, jobs))

    @property
    def _path(self) -> Path:
        return self.folder / "study.db"

    def told(self) -> dict[Entry, Told]:
        """The trials of every entry so far."""
        studies = load(self._path)
        told = {one: studies.get(self._study(one), [])[: self.trials] for one in self.entries}
        for one, trials in told.items():
            if any(each.distributions != CONTENDERS[one.name].space for each in trials):
                raise RecordError(f"{str(self._path)!r} is damaged: a trial of {one.name} is not of its study.")
        return told

    def _study(self, entry: Entry) -> str:
        """A study's name: a changed experiment has another, so it never takes an old one's trials."""
        ranges = {key: distribution_to_json(one) for key, one in CONTENDERS[entry.name].space.items()}
        text = json.dumps([ranges, RANDOM, BATCH])
        return f"{self.results.path(entry.lowest(), TUNING).stem}-{blake2b(text.encode(), digest_size=4).hexdigest()}"

    def _upcoming(self, entry: Entry, told: Told) -> list[Entry]:
        return [entry.at(point) for point in upcoming(CONTENDERS[entry.name].space, told, self.trials)]

    def _trial(self, entry: Entry) -> Any:
        result = self.results.look(entry, TUNING)
        value = result.accuracy if result and result.accuracy is not None else 0.0
        return trial(CONTENDERS[entry.name].space, entry.settings, value)

    def chosen(self) -> list[Entry]:
        """Every entry that is tuned, with its best setting; then what learns Fashion-MNIST."""
        tuned = [one.at(best(told)) for one, told in self.told().items() if len(told) == self.trials]
        large = [replace(one, lesson="fashion", data=self.data) for one in tuned if one.stragglers == "large"]
        return tuned + large * self.fashion

    def tables(self) -> list[list[Line]]:
        """A table for every fleet, and for Fashion-MNIST: the entries of which every run is there."""
        chosen = self.chosen()
        wanted = [("digits", fleet) for fleet in FLEETS] + [("fashion", "large")] * self.fashion
        found = [[one for one in chosen if (one.lesson, one.stragglers) == which] for which in wanted]
        return [marked([line for one in entries if (line := self._line(one))]) for entries in found]

    def left(self) -> int:
        """How many runs are not there yet, as far as it is known before there are all trials."""
        there = sum(self.results.look(one, seed) is not None for one in self.chosen() for seed in self.seeds)
        return len(self) - sum(map(len, self.told().values())) - there

    def missing(self) -> dict[tuple[int, int], list[str]]:
        """Trials and seeds that are too few, and whose on digits they are; on Fashion-MNIST anything may be missing."""
        found: dict[tuple[int, int], list[str]] = {}
        for one, told in self.told().items():
            chosen = one.at(best(told)) if told else one.lowest()
            seeds = sum(self.results.look(chosen, seed) is not None for seed in self.seeds) if told else 0
            if (len(told), seeds) != (self.trials, len(self.seeds)):
                found.setdefault((len(told), seeds), []).append(f"{one.name} ({one.stragglers})")
        return found

    def _line(self, entry: Entry) -> Line | None:
        rows = [row for seed in self.seeds if (row := self.results.look(entry, seed))]
        if len(rows) < len(self.seeds):
            return None
        scores, target = [row.accuracy or 0.0 for row in rows], LESSONS[entry.lesson].target
        reaching = [next((time for _, time, _, score in row.curve if (score or 0.0) >= target), None) for row in rows]
        times = [time for time in reaching if time is not None]
        spread = stdev(scores) if len(scores) > 1 else None
        reach = mean(times) if len(times) == len(rows) else None
        return Line(entry, mean(scores), spread, mean(row.time for row in rows), len(times), reach)


def marked(lines: list[Line]) -> list[Line]:
    """The line of the highest accuracy marked as the best, those behind it by no more than its spread as tied."""
    if not lines:
        return []
    top = max(lines, key=lambda one: one.accuracy)
    near = [one for one in lines if top.spread is not None and one.accuracy >= top.accuracy - top.spread]
    return [one._replace(mark="best" if one is top else "tied" if one in near else "") for one in lines]
