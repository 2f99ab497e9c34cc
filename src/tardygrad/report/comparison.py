"""The comparison of runs: targets, speed-ups over a baseline, and the table, on a page and in LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from tardygrad.errors import Invalid, nearest
from tardygrad.report.groups import (
    SeedGroup,
    Spread,
    directions_of,
    same_arrivals,
    score_names,
    seconds_of,
    spread_of,
    tasks,
)
from tardygrad.report.loader import RunView
from tardygrad.results.blocks import Block, Note, Table
from tardygrad.results.latex import latex_table
from tardygrad.runs.record_values import rounded
from tardygrad.runs.run import plural

LISTED = 4  # most names in a sentence
USELESS = ("diverged", "starved", "failed")  # statuses of runs whose last score is no result


class Target(NamedTuple):
    """A score to reach."""

    name: str  # of the score
    value: float
    lower: bool  # whether a low value is good
    given: bool  # by the user

    def reached(self, value: float | None) -> bool:
        """Whether a score is good enough."""
        return value is not None and (value <= self.value if self.lower else value >= self.value)

    @property
    def text(self) -> str:
        """The value, as tables show it."""
        return f"{self.value:.1%}".replace(".0%", "%") if self.name == "accuracy" else f"{self.value:.4g}"


class Outcome(NamedTuple):
    """The results of a group."""

    group: SeedGroup
    scores: dict[str, Spread]  # of the last evaluation, where every run has one that counts: some would flatter
    time: Spread | None  # seconds of the whole run, by its engine's clock
    time_to_target: Spread | None
    speedup: float | None  # to the target; None unless all runs of the group and the baseline reached it
    round_speedup: float | None  # to the end; None unless all runs of both have equally many rounds
    mean_delay: float | None
    largest_delay: int

    @property
    def reached(self) -> float | None:
        """The mean time to the target, if all runs reached it: the mean of some would be too good."""
        time = self.time_to_target
        return time.mean if time and time.number == len(self.group.runs) else None


class ComparedRuns(NamedTuple):
    """Groups of runs and what they are compared by."""

    groups: list[SeedGroup]
    base: SeedGroup
    target: Target | None
    outcomes: list[Outcome]

    @property
    def seconds(self) -> str:
        """What to call the seconds of the runs' clocks."""
        return seconds_of(run for group in self.groups for run in group.runs)


def compare(groups: list[SeedGroup], *, baseline: str | None = None, target: float | None = None) -> ComparedRuns:
    """Compare groups.

    Args:
        baseline: name or label of the group that speed-ups are relative to; by default the first synchronous one.
        target: the score to reach; by default most of the way to the best one.
    """
    base = baseline_of(groups, baseline)
    goal = target_of(groups, base, target)
    return ComparedRuns(groups, base, goal, outcomes(groups, base, goal))


def target_of(groups: list[SeedGroup], base: SeedGroup, given: float | None) -> Target | None:
    """The target: as given, or 90 % of the way from the baseline's first score to the best that a group can hold.

    That is the score which every run of the group reached: the best of all runs may be one lucky seed's.
    """
    name, directions = next(iter(score_names(groups)), None), directions_of(groups)
    if name is None:
        return None
    lower = directions.prefers_lower(name)
    if given is not None:
        if name == "accuracy" and not 0 < given <= 1:
            fix = f"Did you mean {given / 100:g}?" if 1 < given <= 100 else "Use for example 0.9."
            raise Invalid(f"--target is an accuracy, above 0 and at most 1, got {given:g}. {fix}")
        if not math.isfinite(given):
            raise Invalid(f"--target must be a finite {name}, got {given:g}. Use for example 0.5.")
        return Target(name, given, lower, given=True)

    def known(run: RunView) -> list[float]:
        scores = [row["scores"].get(name) for row in run.scores.items]
        return [score for score in scores if score is not None]

    best, worst = (min, max) if lower else (max, min)
    reached = [[best(scores) for run in group.runs if (scores := known(run))] for group in groups]
    starts = [scores[0] for run in base.runs if (scores := known(run))]
    if not starts:
        return None
    start, end = mean(starts), best(worst(scores) for scores in reached if scores)
    return Target(name, start + 0.9 * (end - start), lower, given=False)


def baseline_of(groups: list[SeedGroup], given: str | None) -> SeedGroup:
    """The group to compare with: by name or label, or else the first synchronous one, or else the first."""
    if given is not None:
        for group in groups:
            if given in (group.name, group.label):
                return group
        known = [group.name for group in groups]
        raise Invalid(f"--baseline must be one of {', '.join(map(repr, known))}, got {given!r}.{nearest(given, known)}")
    return next((group for group in groups if group.synchronous), groups[0])


def outcomes(groups: list[SeedGroup], baseline: SeedGroup, target: Target | None) -> list[Outcome]:
    """The results of every group."""
    base_target, base_time = _time_to(baseline, target), spread_of(run.history.time for run in baseline.runs)
    found = []
    for group in groups:
        own_target, time = _time_to(group, target), spread_of(run.history.time for run in group.runs)
        delays = np.concatenate([run.history.rounds.delays.ravel() for run in group.runs])
        equal = len({len(run.history.rounds) for run in (*group.runs, *baseline.runs)}) == 1
        last = [run.scores.items[-1]["scores"] if run.scores.items else {} for run in group.runs]
        sound = not any(run.history.status in USELESS for run in group.runs)
        scores = {name: spread_of(row.get(name) for row in last) for name in score_names([group]) if sound}
        found.append(
            Outcome(
                group,
                scores={name: found for name, found in scores.items() if found and found.number == len(last)},
                time=time,
                time_to_target=own_target,
                speedup=_ratio((baseline, base_target), (group, own_target)),
                round_speedup=_ratio((baseline, base_time), (group, time)) if equal else None,
                mean_delay=float(delays.mean()) if delays.size else None,
                largest_delay=int(delays.max(initial=0)),
            )
        )
    return found


def _ratio(*times: tuple[SeedGroup, Spread | None]) -> float | None:
    """The ratio of two mean times, if every run of both groups has one and their clocks are of the same kind."""
    base, own = (spread.mean if spread and spread.number == len(group.runs) else None for group, spread in times)
    clocks = {run.history.simulated for group, _ in times for run in group.runs}
    return base / own if base is not None and own and len(clocks) == 1 else None


def _time_to(group: SeedGroup, target: Target | None) -> Spread | None:
    if target is None:
        return None
    return spread_of(
        next((row["time"] for row in run.scores.items if target.reached(row["scores"].get(target.name))), None)
        for run in group.runs
    )


def comparison_blocks(compared: ComparedRuns) -> Iterator[Block]:
    """Warnings, what is compared, and the table."""
    yield from map(Note, warnings(compared))
    groups, base, target, found = compared
    runs = [run for group in groups for run in group.runs]
    yield page_table(compared)
    notes = []
    if length := _common_length(compared):
        notes.append(f"All runs finished after {length}.")
    if len(runs) > len(groups):
        notes.append("Runs that differ only in their seed share a row: mean ± standard deviation.")
    if target:
        better = "less" if target.lower else "more"
        way = f": 90% of the way from the first score of {base.name} to the best that all runs of a method reached"
        origin = "" if target.given else way
        notes.append(f"The target is a test {target.name} of {target.text} or {better}{origin}.")
        if note := directions_of(groups).note(target.name):
            notes.append(f"{note[0].upper()}{note[1:]}.")
    others = [outcome for outcome in found if outcome.group is not base]
    ways = {"to the target": any(outcome.speedup for outcome in others)}
    ways["for all rounds"] = any(outcome.round_speedup for outcome in others)
    if any(ways.values()):
        known = " and ".join(way for way, holds in ways.items() if holds)
        notes.append(f"Speed-ups are over {base.name}, {known}, where every run of both got there.")
    if target and others and not ways["to the target"] and len({run.history.simulated for run in runs}) == 1:
        who = base.name if _reached(compared, base) is None else "every other method"
        notes.append(f"There is no speed-up to the target, because {who} missed it in some run.")
    yield " ".join(notes)


def _reached(compared: ComparedRuns, group: SeedGroup) -> float | None:
    return next(outcome.reached for outcome in compared.outcomes if outcome.group is group)


def _common_length(compared: ComparedRuns) -> str | None:
    """The rounds or else the time of all runs, if all have finished and it is the same for all."""
    histories = [run.history for group in compared.groups for run in group.runs]
    if any(history.status != "finished" for history in histories):
        return None
    if len(rounds := {len(history.rounds) for history in histories}) == 1:
        return plural(rounds.pop(), "round")
    return f"{rounded(histories[0].time)} {compared.seconds}" if len({h.time for h in histories}) == 1 else None


def warnings(compared: ComparedRuns) -> Iterator[str]:
    """What makes the comparison less than it seems."""
    groups = compared.groups
    if len(learned := tasks(groups)) > 1:
        yield f"These runs learn different tasks ({', '.join(learned)}): their losses cannot be compared."
    clocks = {run.history.simulated for group in groups for run in group.runs}
    if {True, False} <= clocks:
        real, simulated = (
            listed([group.name for group in groups if any(run.history.simulated is kind for run in group.runs)])
            for kind in (False, True)
        )
        yield (
            f"Some clocks are real ({real}) and some are simulated ({simulated}): their times cannot be compared, and "
            "there is no speed-up of one over the other."
        )
    if fixed := [group.name for group in groups if same_arrivals(group)]:
        whose = "" if len(fixed) == len(groups) else f" of {listed(fixed)}"
        yield (
            f"The seeds do not change the arrivals{whose}: the same updates came at the same times with every seed, as "
            "on a fleet without randomness. The spread over seeds is that of the training only."
        )


def page_table(compared: ComparedRuns) -> Table:
    """A row per group, without columns that say nothing; what matters most comes first, where a phone shows it."""
    target, names, found = compared.target, score_names(compared.groups), compared.outcomes
    groups, others = compared.groups, [outcome for outcome in found if outcome.group is not compared.base]
    runs = [run.history for group in groups for run in group.runs]
    columns: dict[str, list[str]] = {"run": [group.name for group in groups]}
    for name in names[:1]:
        columns[f"test {name}"] = [score_text(outcome, name) for outcome in found]
    if target and any(outcome.speedup for outcome in others):
        columns[f"speed-up to {target.text}"] = [_times(outcome.speedup) for outcome in found]
    if target:
        columns[f"{compared.seconds} to {target.text}"] = [reached_text(outcome) for outcome in found]
    for name in names[1:]:
        columns[f"test {name}"] = [score_text(outcome, name) for outcome in found]
    if any(outcome.round_speedup for outcome in others):
        columns["speed-up, all rounds"] = [_times(outcome.round_speedup) for outcome in found]
    if len({history.time for history in runs}) > 1:
        columns[f"{compared.seconds} in all"] = [each.time.text() if each.time else "–" for each in found]
    columns["runs"] = [str(len(group.runs)) for group in groups]
    if any(history.status != "finished" for history in runs):
        columns["status"] = [", ".join(dict.fromkeys(run.history.state for run in group.runs)) for group in groups]
    if len({len(history.rounds) for history in runs}) > 1:
        lengths = [dict.fromkeys(f"{len(run.history.rounds):,}" for run in group.runs) for group in groups]
        columns["rounds"] = [", ".join([*rounds][:LISTED]) for rounds in lengths]
    columns["mean delay"] = ["–" if each.mean_delay is None else f"{each.mean_delay:.1f}" for each in found]
    columns["largest delay"] = [f"{outcome.largest_delay:,}" for outcome in found]
    if any(run.privacy for group in groups for run in group.runs):
        spent = [dict.fromkeys(run.privacy or "none" for run in group.runs) for group in groups]
        columns["privacy"] = [", ".join(each) for each in spent]
    return Table(list(columns), list(zip(*columns.values(), strict=True)))


def paper_table(compared: ComparedRuns) -> str:
    """The comparison as a LaTeX table: scores, time to the target and speed-up, the best of each in bold."""
    target, names, directions = compared.target, score_names(compared.groups), directions_of(compared.groups)
    heads = ["method", *(f"test {name}" for name in names)]
    heads += [f"{compared.seconds} to {target.text}", "speed-up"] if target else []
    rows, columns = list[list[str]](), list[list[float | None]]()
    for outcome in compared.outcomes:
        scores = [outcome.scores.get(name) for name in names]
        own = [score and -directions.cost(name, score.mean) for name, score in zip(names, scores, strict=True)]
        reached = outcome.reached
        columns.append([*own, *([reached and -reached, outcome.speedup] if target else [])])
        rows.append([outcome.group.name, *(score_text(outcome, name) for name in names)])
        rows[-1] += [reached_text(outcome), _times(outcome.speedup)] if target else []
    bold = set()
    for column, values in enumerate(zip(*columns, strict=True), 1):
        known = [value for value in values if value is not None]
        bold |= {(row, column) for row, value in enumerate(values) if len(known) > 1 and value == max(known)}
    counts = sorted({group.seeds for group in compared.groups})
    seeds = plural(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    spread = f"Mean ± standard deviation over {seeds}" if counts[-1] > 1 else "One seed"
    speed = f"; speed-up over {compared.base.name} to a test {target.name} of {target.text}" if target else ""
    return latex_table(heads, rows, caption=f"{spread}{speed}.", label="tab:comparison", bold=bold)


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first few of many.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c", "d", "e", "f"])
    ('a, b and c', 'a, b, c and 3 others')
    """
    shown = list(names) if len(names) <= LISTED else [*names[: LISTED - 1], f"{len(names) - LISTED + 1} others"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def score_text(outcome: Outcome, name: str) -> str:
    """A score of the last evaluation, or why there is none."""
    if score := outcome.scores.get(name):
        return score.text(percent=name == "accuracy")
    runs = outcome.group.runs
    if useless := [run.history.status for run in runs if run.history.status in USELESS]:
        worst = max(useless, key=useless.count)
        return f"{len(useless)} of {len(runs)} {worst}" if len(runs) > 1 else worst
    known = sum(bool(run.scores.items) and run.scores.items[-1]["scores"].get(name) is not None for run in runs)
    return f"{known} of {len(runs)} runs" if known else "–"


def reached_text(outcome: Outcome) -> str:
    """The time to the target, or how many runs reached it."""
    time, runs = outcome.time_to_target, len(outcome.group.runs)
    if time is None:
        return "–"
    return time.text() if time.number == runs else f"{time.number} of {runs} reached"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3g}×"
