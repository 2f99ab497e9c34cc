"""Groups of runs: runs that differ only in their seed form one group."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from tardygrad.core.method import without_addresses
from tardygrad.report.downsample import Sample
from tardygrad.report.loader import RunView, finite
from tardygrad.report.settings import differing_settings
from tardygrad.runs.history import printable
from tardygrad.runs.record import Row

SCORES = 6  # most scores that are drawn
NAME = 60  # most characters of a group's name


class SeedGroup(NamedTuple):
    """Runs with the same settings, except for the seed."""

    name: str  # the label, and the settings that distinguish it from other groups with this label
    label: str
    runs: list[RunView]

    @property
    def synchronous(self) -> bool:
        """Whether its rounds are synchronous."""
        return self.runs[0].history.setting("mode") == "sync" or self.label.startswith("sync-")

    @property
    def seeds(self) -> int:
        """How many seeds it ran with."""
        return len({run.seed for run in self.runs})


class Spread(NamedTuple):
    """A number over the runs of a group."""

    mean: float
    deviation: float | None  # None for a single run
    number: int  # of runs that have this number

    def text(self, *, percent: bool = False) -> str:
        """Mean ± standard deviation, with two digits of the deviation.

        >>> Spread(3936.2, 112.7, 5).text(), Spread(0.27812, 0.0234, 5).text()
        ('3,936 ±\xa0113', '0.278 ±\xa00.023')
        """
        if percent:
            more = "" if self.deviation is None else f" ±\u00a0{self.deviation:.1%}"
            return f"{self.mean:.1%}{more}"
        if not self.deviation:
            return f"{self.mean:,.4g}" + ("" if self.deviation is None else " ±\u00a00")
        size = math.floor(math.log10(max(abs(self.mean), self.deviation)))
        digits = max(min(1 - math.floor(math.log10(self.deviation)), 4 - size), 0)
        if not -5 < size < 7 or self.deviation < 10.0**-digits:
            return f"{self.mean:.4g} ±\u00a0{self.deviation:.1g}"
        return f"{self.mean:,.{digits}f} ±\u00a0{self.deviation:,.{digits}f}"


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Mean and standard deviation of the values that are not None."""
    known = [value for value in values if value is not None]
    return Spread(mean(known), stdev(known) if len(known) > 1 else None, len(known)) if known else None


def grouped(runs: Iterable[RunView]) -> list[SeedGroup]:
    """The runs by settings, in order of appearance."""
    by_settings: dict[str, list[RunView]] = {}
    for run in runs:
        key = _settings(run)
        while run.history.spec is None and run.seed in [other.seed for other in by_settings.get(key, ())]:
            key += ", again"  # the same seed twice: they differ in something that their records do not say
        by_settings.setdefault(key, []).append(run)
    by_label: dict[str, list[RunView]] = {}
    for first, *_ in by_settings.values():
        by_label.setdefault(first.history.label, []).append(first)
    differences: dict[Path, list[str]] = {}
    for same in by_label.values():
        known = {run.history.path: run.settings for run in same if run.history.spec or run.history.described}
        differences |= zip(known, differing_settings(list(known.values())), strict=True)
    groups: dict[str, SeedGroup] = {}
    for members in by_settings.values():
        label, path = members[0].history.label, members[0].history.path
        own = _joined(differences.get(path, []), NAME - len(label) - len(", ")) or path.name
        base = label if len(by_label[label]) == 1 else _shortened(f"{label}, {own}", NAME)
        name, number = base, 1
        while name in groups:
            number += 1
            name = f"{base} ({number})"
        groups[name] = SeedGroup(name, label, members)
    return list(groups.values())


def _shortened(value: str, limit: int) -> str:
    """Text shortened in the middle: names often differ at their ends.

    >>> _shortened("method.lr=0.1", 9)
    'meth…=0.1'
    """
    clean, end = printable(value, 10_000), limit // 2
    return clean if len(clean) <= limit else f"{clean[: limit - end - 1]}…{clean[-end:]}"


def _joined(pairs: list[str], limit: int) -> str:
    """As many of the pairs as fit into `limit` characters."""
    fitting: list[str] = []
    for pair in (printable(pair, 1000) for pair in pairs):
        if len(", ".join((*fitting, pair, "…"))) <= limit:
            fitting.append(pair)
    return ", ".join((*fitting, "…") if 0 < len(fitting) < len(pairs) else fitting)


def _settings(run: RunView) -> str:
    """A key that is equal for runs of one group.

    A run without a spec counts as what its record says of its objects; if that is not even the method, it is alone.
    """
    if run.history.spec is None and not run.history.method_settings:
        return str(run.history.path.resolve())
    known = {key: without_addresses(value) for key, value in run.settings.items() if key != "run.seed"}
    return json.dumps([run.history.spec is None, run.history.method, sorted(known.items())])


def same_arrivals(group: SeedGroup) -> bool:
    """Whether several seeds of a group had the same updates at the same times, as on a fleet without randomness."""
    rounds = [run.history.rounds for run in group.runs]
    least = min(map(len, rounds))
    if len(rounds) < 2 or not least:
        return False
    first = rounds[0]
    return all(
        np.array_equal(first.time[:least], other.time[:least])
        and np.array_equal(first.clients[:least], other.clients[:least])
        for other in rounds[1:]
    )


def seconds_of(runs: Iterable[RunView]) -> str:
    """What to call the seconds of these runs' clocks."""
    simulated = {run.history.simulated for run in runs}
    if True not in simulated:
        return "seconds"
    return "simulated seconds" if simulated == {True} else "seconds (simulated or real)"


def tasks(groups: list[SeedGroup]) -> list[str]:
    """The known tasks of the runs."""
    found = dict.fromkeys(
        " ".join(printable(settings[key].strip('"'), 40) for key in ("task.kind", "task.name") if key in settings)
        for group in groups
        if "task.kind" in (settings := group.runs[0].settings)
    )
    return list(found)


def score_names(groups: list[SeedGroup]) -> list[str]:
    """The scores that were evaluated, accuracy and loss first."""
    found = dict.fromkeys(
        name for group in groups for run in group.runs for row in run.scores.items for name in row["scores"]
    )
    return sorted(found, key=lambda name: {"accuracy": 0, "loss": 1}.get(name, 2))[:SCORES]


def mean_curve(
    group: SeedGroup, rows: Callable[[RunView], Sample[Row]], value: Callable[[Row], float | None]
) -> list[Row]:
    """Mean and deviation over the group's runs, for every round that all of them have."""
    by_round = [{row["round"]: row for row in rows(run).items if value(row) is not None} for run in group.runs]
    known = [run for run in by_round if run]
    points = []
    for number in sorted(set.intersection(*map(set, known))) if known else ():
        here = [run[number] for run in known]
        spread = spread_of(map(value, here))
        if spread:
            deviation = spread.deviation or 0.0
            levels = {"value": spread.mean, "low": spread.mean - deviation, "high": spread.mean + deviation}
            axes = {axis: spread_of(row[axis] for row in here) for axis in ("time", "seconds", "steps")}
            levels |= {axis: each.mean for axis, each in axes.items() if each}
            points.append({"group": group.name, "round": number} | {key: finite(x) for key, x in levels.items()})
    return points
