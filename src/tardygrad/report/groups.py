"""Groups of runs: runs that differ only in their seed form one group."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from tardygrad.core.method import without_addresses
from tardygrad.report.loader import RunView, Sample, finite
from tardygrad.runs.directions import Directions
from tardygrad.runs.record import Row
from tardygrad.runs.record_values import printable

Rows = Callable[[RunView], Sample[Row]]
"""The rows of a run that are drawn: its rounds, or its evaluations."""

Value = Callable[[Row], float | None]
"""What is drawn of a row."""

SCORES = 6  # most scores that are drawn
WORDS = tuple('"tfn')  # first characters of JSON values that are not numbers
NAME, VALUE = 100, 40  # most characters of a group's name, and of a setting in it


class SeedGroup(NamedTuple):
    """Runs with the same settings, except for the seed."""

    name: str  # the label, and the settings that distinguish it from other groups with this label
    label: str
    runs: list[RunView]

    @property
    def synchronous(self) -> bool:
        """Whether its rounds are synchronous."""
        return self.runs[0].history.setting("mode") == "sync" or self.label.startswith("sync-")


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
        own = ", ".join(_shortened(pair, VALUE) for pair in differences.get(path, [])) or path.name
        base = label if len(by_label[label]) == 1 else _shortened(f"{label}, {own}", NAME)
        name, number = base, 1
        while name in groups:
            number += 1
            name = f"{base} ({number})"
        groups[name] = SeedGroup(name, label, members)
    return list(groups.values())


def differing_settings(specs: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The settings that tell each spec from the others, words before numbers: as few as tell all apart.

    Of tables of different kinds only the kind is named.

    >>> from tardygrad.report.loader import flat
    >>> weights = ({"kind": "hinge", "slope": 10.0}, {"kind": "polynomial", "exponent": 0.5}, {"kind": "hinge"})
    >>> specs = [dict(flat({"method": {"lr": 0.1 + (i == 2), "weight": weight}})) for i, weight in enumerate(weights)]
    >>> differing_settings(specs)
    [['weight.kind=hinge', 'lr=0.1'], ['weight.kind=polynomial', 'lr=0.1'], ['weight.kind=hinge', 'lr=1.1']]
    """
    keys = list(dict.fromkeys(key for spec in specs for key in spec))
    names = Counter(key.partition(".")[2] for key in keys)
    differing = [key for key in keys if key != "run.seed" and _differs(key, specs)]
    chosen: list[str] = []

    def told_apart(*more: str) -> int:
        return len({tuple(spec.get(key) for key in (*chosen, *more)) for spec in specs})

    while useful := [key for key in differing if told_apart(key) > told_apart()]:
        chosen.append(max(useful, key=lambda key: (all(key in spec for spec in specs), told_apart(key))))
    found = []
    for spec in specs:
        own = sorted((key for key in chosen if key in spec), key=lambda key: spec[key][:1] not in WORDS)
        found.append([_name(key, names) + "=" + spec[key].strip('"') for key in own])
    return found


def _name(key: str, names: Counter[str]) -> str:
    """The key without its table, unless another table has the same key."""
    rest = key.partition(".")[2]
    return rest if rest and names[rest] == 1 else key


def _differs(key: str, specs: Sequence[Mapping[str, str]]) -> bool:
    """Whether specs whose tables are of the same kinds have different values of a key."""
    kinds = [f"{table}.kind" for table in accumulate(key.split(".")[:-1], "{}.{}".format)]
    alike: dict[tuple[str | None, ...], set[str | None]] = {}
    for spec in specs:
        alike.setdefault(tuple(spec.get(kind) for kind in kinds if kind != key), set()).add(spec.get(key))
    return any(len(values) > 1 for values in alike.values())


def _shortened(value: str, limit: int) -> str:
    """Text shortened in the middle: names often differ at their ends.

    >>> _shortened("method.lr=0.1", 9)
    'meth…=0.1'
    """
    clean, end = printable(value, 10_000), limit // 2
    return clean if len(clean) <= limit else f"{clean[: limit - end - 1]}…{clean[-end:]}"


def _settings(run: RunView) -> str:
    """A key that is equal for runs of one group.

    A run without a spec counts as what its record says of its objects; if that is not even the method, it is alone.
    """
    if run.history.spec is None and not run.history.method_settings:
        return str(run.history.path.resolve())
    known = {key: without_addresses(value) for key, value in run.settings.items() if key != "run.seed"}
    return json.dumps([run.history.spec is None, run.history.method, sorted(known.items())])


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


def directions_of(groups: list[SeedGroup]) -> Directions:
    """Which scores of the runs are good when they are low."""
    return Directions.of(*(run.history.run for group in groups for run in group.runs))


def score_names(groups: list[SeedGroup]) -> list[str]:
    """The scores that were evaluated, the one by which models are compared first."""
    found = dict.fromkeys(
        name for group in groups for run in group.runs for row in run.scores.items for name in row["scores"]
    )
    main = directions_of(groups).main(found)
    return sorted(found, key=lambda name: {main: -1, "accuracy": 0, "loss": 1}.get(name, 2))[:SCORES]


def mean_curve(group: SeedGroup, axis: str, rows: Rows, value: Value) -> list[Row]:
    """The mean over the runs of a group, each a line through its points, wherever one of them has a point on this axis.

    Where it is the mean of several, `low` and `high` are one standard deviation away.
    Against time, a run that has finished keeps its last value, because its model does not change any more. Otherwise a
    run has no value after its last one, such as where it diverged, and the mean is over the other runs.
    """
    lines, finished_lines = list[dict[float, float]](), list[dict[float, float]]()
    ends = list[float]()
    for run in group.runs:
        places: dict[float, list[float]] = {}
        for row in rows(run).items:
            if (level := value(row)) is not None and row[axis] is not None:
                places.setdefault(row[axis], []).append(level)  # several rounds may end at the same time
        if places:
            lines.append({place: mean(levels) for place, levels in sorted(places.items())})
            ends.append(max(places))
            if axis == "time" and run.history.status == "finished":
                finished_lines.append(lines[-1])
                ends.append(finite(run.history.time) or 0.0)
    for line in finished_lines:
        line.setdefault(max(ends), [*line.values()][-1])
    first = max((min(line) for line in lines), default=0.0)
    every = sorted(place for place in set().union(*lines) if place >= first)
    levels = [np.interp(every, [*line], [*line.values()], left=math.nan, right=math.nan) for line in lines]
    points = []
    for place, *here in zip(every, *levels, strict=True):
        known = [level for level in here if not math.isnan(level)]
        if known:
            middle = mean(known)
            point = {"group": group.name, axis: place, "runs": len(known), "value": finite(middle)}
            if len(known) > 1:
                width = stdev(known)
                point |= {"low": finite(middle - width), "high": finite(middle + width)}
            points.append(point)
    return points
