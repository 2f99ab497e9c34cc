"""Runs side by side: those that differ only in their seed are one group, and groups are compared with a baseline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from tardygrad.errors import Invalid, nearest
from tardygrad.report.loader import RunView, finite, short, text
from tardygrad.report.settings import apart
from tardygrad.runs.record import Row

SCORES = 6  # names of scores that are drawn
NAME = 60  # characters of a group's name


class Group(NamedTuple):
    """Runs of one setting."""

    name: str  # its label, and what sets it apart from others with the same one
    label: str
    runs: list[RunView]


class Spread(NamedTuple):
    """A number over the runs of a group."""

    mean: float
    deviation: float | None  # None: of a single run
    number: int  # of runs that have it


class Line(NamedTuple):
    """What came of a group."""

    group: Group
    scores: dict[str, Spread]  # the last ones
    time: Spread | None  # simulated seconds
    there: Spread | None  # simulated seconds until the target was reached
    faster: float | None  # how many times, to the target, than the baseline; None unless all runs of both got there
    faster_rounds: float | None  # how many times, to the end; None unless all runs of both made as many rounds
    delay: float | None
    late: int


class Target(NamedTuple):
    """A score to be reached."""

    name: str  # accuracy or loss
    value: float
    given: bool  # else it is nine tenths of the way to the best

    def reached(self, value: float | None) -> bool:
        """Whether a score is good enough."""
        return value is not None and (value >= self.value if self.name == "accuracy" else value <= self.value)


def grouped(stories: Iterable[RunView]) -> list[Group]:
    """The runs by setting, in order of appearance."""
    found: dict[str, list[RunView]] = {}
    for story in stories:
        found.setdefault(_setting(story), []).append(story)
    sets = list(found.values())
    alike: dict[str, list[RunView]] = {}
    for first, *_ in sets:
        alike.setdefault(first.label, []).append(first)
    telling: dict[Path, list[str]] = {}
    for same in alike.values():
        known = {one.path: one.settings for one in same if one.settings}
        telling |= zip(known, apart(list(known.values())), strict=True)
    named: list[Group] = []
    for runs in sets:
        label, path = runs[0].label, runs[0].path
        own = _fitting(telling.get(path, []), NAME - len(label) - len(", ")) or path.name
        name = label if len(alike[label]) == 1 else short(f"{label}, {own}", NAME)
        taken = {group.name for group in named}
        number = next(n for n in range(1, len(sets) + 1) if (name if n == 1 else f"{name} ({n})") not in taken)
        named.append(Group(name if number == 1 else f"{name} ({number})", label, runs))
    return named


def _fitting(pairs: list[str], room: int) -> str:
    """As many whole ones as there is room for."""
    kept: list[str] = []
    for pair in (text(pair, 1000) for pair in pairs):
        if len(", ".join((*kept, pair, "…"))) <= room:
            kept.append(pair)
    return ", ".join((*kept, "…") if 0 < len(kept) < len(pairs) else kept)


def _setting(story: RunView) -> str:
    """What two runs that differ only in their seed have in common; one begun in Python is like no other."""
    if story.settings is None:
        return str(story.path.resolve())
    return json.dumps([[key, value] for key, value in sorted(story.settings.items()) if key != "run.seed"])


def tasks(groups: list[Group]) -> list[str]:
    """The tasks that the runs learn, as far as it is known."""
    found = dict.fromkeys(
        " ".join(text(settings[key].strip('"'), 40) for key in ("task.kind", "task.name") if key in settings)
        for group in groups
        if (settings := group.runs[0].settings) and "task.kind" in settings
    )
    return list(found)


def names(groups: list[Group]) -> list[str]:
    """The scores that were taken: accuracy and loss first."""
    found = dict.fromkeys(
        name for group in groups for run in group.runs for row in run.scores for name in row["scores"]
    )
    return sorted(found, key=lambda name: {"accuracy": 0, "loss": 1}.get(name, 2))[:SCORES]


def over(values: Iterable[float | None]) -> Spread | None:
    """Mean and standard deviation of those that there are."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    return Spread(mean(there), stdev(there) if len(there) > 1 else None, len(there))


def curve(group: Group, rows: Callable[[RunView], list[Row]], value: Callable[[Row], float | None]) -> list[Row]:
    """A group's curve: mean and deviation over its runs in every round that all of them have, at their mean times."""
    runs = [{row["round"]: row for row in rows(run) if value(row) is not None} for run in group.runs]
    held = [run for run in runs if run]
    points = []
    for number in sorted(set.intersection(*map(set, held))) if held else ():
        here = [run[number] for run in held]
        spread = over(map(value, here))
        if spread:
            means = {axis: over(row[axis] for row in here) for axis in ("time", "seconds", "steps")}
            low, high = ((spread.mean + sign * (spread.deviation or 0.0)) for sign in (-1, 1))
            levels = {"value": finite(spread.mean), "low": finite(low), "high": finite(high)}
            there = {axis: finite(each.mean) for axis, each in means.items() if each}
            points.append({"group": group.name, "round": number, **levels, **there})
    return points


def target_of(groups: list[Group], base: Group, given: float | None) -> Target | None:
    """What is to be reached: as given, or nine tenths of the way from the baseline's first score to the best of all."""
    name = next((name for name in names(groups) if name in ("accuracy", "loss")), None)
    if name is None:
        return None
    if given is not None:
        return Target(name, _possible(name, given), given=True)
    taken = [[row["scores"].get(name) for run in group.runs for row in run.scores] for group in (base, *groups)]
    own, *every = [[score for score in scores if score is not None] for scores in taken]
    scores = [score for each in every for score in each]
    if not own:
        return None
    best = max(scores) if name == "accuracy" else min(scores)
    return Target(name, own[0] + 0.9 * (best - own[0]), given=False)


def _possible(name: str, given: float) -> float:
    if name == "accuracy" and not 0 < given <= 1:
        fix = f"Did you mean {given / 100:g}?" if 1 < given <= 100 else "Use for example 0.9."
        raise Invalid(f"--target is an accuracy, above 0 and at most 1, got {given:g}. {fix}")
    if not math.isfinite(given):
        raise Invalid(f"--target must be a finite loss, got {given:g}. Use for example 0.5.")
    return given


def baseline_of(groups: list[Group], given: str | None) -> Group:
    """The group that others are compared with: by name or label, else the first synchronous one, else the first."""
    if given is not None:
        for group in groups:
            if given in (group.name, group.label):
                return group
        known = [group.name for group in groups]
        raise Invalid(f"--baseline must be one of {', '.join(map(repr, known))}, got {given!r}.{nearest(given, known)}")
    return next((group for group in groups if group.label.startswith("sync-")), groups[0])


def lines(groups: list[Group], baseline: Group, target: Target | None) -> list[Line]:
    """What came of every group."""
    base, base_time = _there(baseline, target), over(run.time for run in baseline.runs)
    found = []
    for group in groups:
        own, time = _there(group, target), over(run.time for run in group.runs)
        delays = [(d, n) for run in group.runs for (_, d), n in run.delays.items()]
        equal = len({run.made for run in (*group.runs, *baseline.runs)}) == 1
        scores = {
            name: over(run.scores[-1]["scores"].get(name) for run in group.runs if run.scores)
            for name in names([group])
        }
        found.append(
            Line(
                group=group,
                scores={name: spread for name, spread in scores.items() if spread},
                time=time,
                there=own,
                faster=_ratio(_of_all(baseline, base), _of_all(group, own)),
                faster_rounds=_ratio(_of_all(baseline, base_time), _of_all(group, time)) if equal else None,
                delay=sum(d * n for d, n in delays) / sum(n for _, n in delays) if delays else None,
                late=max((d for d, _ in delays), default=0),
            )
        )
    return found


def _of_all(group: Group, spread: Spread | None) -> float | None:
    """The mean, if every run has that number: of those that do it would flatter."""
    return spread.mean if spread and spread.number == len(group.runs) else None


def _ratio(base: float | None, own: float | None) -> float | None:
    return base / own if base is not None and own else None


def _there(group: Group, target: Target | None) -> Spread | None:
    if target is None:
        return None
    firsts = (
        next((row["time"] for row in run.scores if target.reached(row["scores"].get(target.name))), None)
        for run in group.runs
    )
    return over(firsts)
