"""The comparison of runs: targets, speed-ups over a baseline, and the table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tardygrad.errors import Invalid, nearest
from tardygrad.report.blocks import Block, Note, Table
from tardygrad.report.figure import CLOCK
from tardygrad.report.groups import SeedGroup, Spread, score_names, spread_of, tasks


class Target(NamedTuple):
    """A score to reach."""

    name: str  # accuracy or loss
    value: float
    given: bool  # by the user

    def reached(self, value: float | None) -> bool:
        """Whether a score is good enough."""
        return value is not None and (value >= self.value if self.name == "accuracy" else value <= self.value)


class Outcome(NamedTuple):
    """The results of a group."""

    group: SeedGroup
    scores: dict[str, Spread]  # of the last evaluation
    time: Spread | None  # simulated seconds of the whole run
    time_to_target: Spread | None
    speedup: float | None  # to the target; None unless all runs of the group and the baseline reached it
    round_speedup: float | None  # to the end; None unless all runs of both have equally many rounds
    mean_delay: float | None
    largest_delay: int


def target_of(groups: list[SeedGroup], base: SeedGroup, given: float | None) -> Target | None:
    """The target: as given, or 90 % of the way from the baseline's first score to the best score of all runs."""
    name = next((name for name in score_names(groups) if name in ("accuracy", "loss")), None)
    if name is None:
        return None
    if given is not None:
        if name == "accuracy" and not 0 < given <= 1:
            fix = f"Did you mean {given / 100:g}?" if 1 < given <= 100 else "Use for example 0.9."
            raise Invalid(f"--target is an accuracy, above 0 and at most 1, got {given:g}. {fix}")
        if not math.isfinite(given):
            raise Invalid(f"--target must be a finite loss, got {given:g}. Use for example 0.5.")
        return Target(name, given, given=True)

    def known(group: SeedGroup) -> list[float]:
        scores = [row["scores"].get(name) for run in group.runs for row in run.scores.items]
        return [score for score in scores if score is not None]

    own = known(base)
    if not own:
        return None
    best = (max if name == "accuracy" else min)(score for group in groups for score in known(group))
    return Target(name, own[0] + 0.9 * (best - own[0]), given=False)


def baseline_of(groups: list[SeedGroup], given: str | None) -> SeedGroup:
    """The group to compare with: by name or label, or else the first synchronous one, or else the first."""
    if given is not None:
        for group in groups:
            if given in (group.name, group.label):
                return group
        known = [group.name for group in groups]
        raise Invalid(f"--baseline must be one of {', '.join(map(repr, known))}, got {given!r}.{nearest(given, known)}")
    return next((group for group in groups if group.label.startswith("sync-")), groups[0])


def outcomes(groups: list[SeedGroup], baseline: SeedGroup, target: Target | None) -> list[Outcome]:
    """The results of every group."""
    base_target, base_time = _time_to(baseline, target), spread_of(run.history.time for run in baseline.runs)
    found = []
    for group in groups:
        own_target, time = _time_to(group, target), spread_of(run.history.time for run in group.runs)
        delays = np.concatenate([run.history.rounds.delays.ravel() for run in group.runs])
        equal = len({len(run.history.rounds) for run in (*group.runs, *baseline.runs)}) == 1
        last = [run.scores.items[-1]["scores"] for run in group.runs if run.scores.items]
        scores = {name: spread_of(row.get(name) for row in last) for name in score_names([group])}
        found.append(
            Outcome(
                group,
                scores={name: spread for name, spread in scores.items() if spread},
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
    """The ratio of two mean times, if every run of both groups has one: the mean of some would be too good."""
    base, own = (spread.mean if spread and spread.number == len(group.runs) else None for group, spread in times)
    return base / own if base is not None and own else None


def _time_to(group: SeedGroup, target: Target | None) -> Spread | None:
    if target is None:
        return None
    return spread_of(
        next((row["time"] for row in run.scores.items if target.reached(row["scores"].get(target.name))), None)
        for run in group.runs
    )


def comparison(groups: list[SeedGroup], base: SeedGroup, target: Target | None) -> Iterator[Block]:
    """What is compared, and the table."""
    if len(learned := tasks(groups)) > 1:
        yield Note(f"These runs learn different tasks ({', '.join(learned)}): their losses cannot be compared.")
    goal, to_goal, reached = "", list[str](), ""
    if target:
        goal = _amount(target.name, target.value)
        better = "more" if target.name == "accuracy" else "less"
        origin = "" if target.given else f": 90% of the way from the first score of {base.name} to the best of all runs"
        yield f"The target is a test {target.name} of {goal} or {better}{origin}."
        to_goal, reached = [f"time to {goal} (s)", f"speed-up to {goal}"], ", and to the target if all reached it"
    yield (
        f"Speed-ups are relative to {base.name}. They are given for all rounds, if all runs of both have equally many"
        f"{reached}."
    )
    if any(len(group.runs) > 1 for group in groups):
        yield "Runs that differ only in their seed share a row: mean ± standard deviation."
    names = score_names(groups)
    shown = [name for name in names if name in ("accuracy", "loss")] or names[:1]
    heads = ("run", "runs", "status", "rounds", *(f"test {name}" for name in shown), CLOCK, "speed-up of the rounds")
    rows = [_row(outcome, shown, target) for outcome in outcomes(groups, base, target)]
    yield Table((*heads, *to_goal, "mean delay", "largest delay"), rows)


def _row(outcome: Outcome, shown: list[str], target: Target | None) -> tuple[str, ...]:
    runs, reached = outcome.group.runs, outcome.time_to_target
    statuses = dict.fromkeys(run.history.status for run in runs)
    rounds = dict.fromkeys(f"{len(run.history.rounds):,}" for run in runs)
    some = f"{reached.number} of {len(runs)} runs" if reached and reached.number < len(runs) else _spread(reached)
    return (
        outcome.group.name,
        str(len(runs)),
        ", ".join(statuses),
        ", ".join([*rounds][:4]),
        *(_spread(outcome.scores.get(name), percent=name == "accuracy") for name in shown),
        _spread(outcome.time),
        _times(outcome.round_speedup),
        *([some, _times(outcome.speedup)] if target else []),
        "–" if outcome.mean_delay is None else f"{outcome.mean_delay:.1f}",
        f"{outcome.largest_delay:,}",
    )


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3g}×"


def _spread(spread: Spread | None, *, percent: bool = False) -> str:
    if spread is None:
        return "–"
    form = "{:.1%}" if percent else "{:,.4g}"
    more = "" if spread.deviation is None else f" ±\u00a0{(form if percent else '{:.2g}').format(spread.deviation)}"
    return form.format(spread.mean) + more


def _amount(name: str, value: float) -> str:
    return f"{value:.4g}" if name != "accuracy" else f"{value:.1%}".replace(".0%", "%")
