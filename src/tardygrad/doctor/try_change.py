"""Try a change: train a recorded run's spec with some overrides, and compare the times to the run's last score.

Times are those of the simulator's clock. A run of the simulator is compared with its own record. If a run had a real
clock, the recorded setting and the changed one are both simulated, on the fleet fitted to the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple

from tardygrad.doctor.fit_runtimes import fit_fleet
from tardygrad.errors import Diverged, Invalid, Starved
from tardygrad.fleet import Fleet
from tardygrad.own_code import check_trust
from tardygrad.runs.directions import Directions
from tardygrad.runs.history import History
from tardygrad.runs.loop import trained_rounds
from tardygrad.runs.record import read_json
from tardygrad.runs.tables import why_no_spec
from tardygrad.spec import spec

EVALUATIONS = 50  # of a trial, up to the time at which the run reached its last score
LONGER = 1.5  # a trial lasts at most this many times as long as the run needed
SECONDS = 60.0  # of computing, after which a trial ends
LAST = 5  # evaluations whose median is the last score, if they are no more than a quarter of all
SAME = 1.05  # times that differ by a smaller factor are about the same

Curve = list[tuple[float, float]]
"""Evaluations: the time, and a number of which less is better: the score, or minus the score."""


class LastScore(NamedTuple):
    """A score to reach, and when the recorded setting reached it."""

    score: str
    lower: bool  # whether a low value is good
    cost: float  # the score, or minus the score
    time: float  # inf: the run diverged, starved or learned nothing, so its last score is no result

    def shown(self, cost: float) -> str:
        """A score as text."""
        value = cost if self.lower else -cost
        number = f"{value:.1%}" if self.score == "accuracy" else f"{value:.4g}"
        return f"test {self.score} {number}" if math.isfinite(cost) else "no finite score"


class TriedChange(NamedTuple):
    """What a changed setting achieved."""

    overrides: list[str]
    goal: LastScore
    time: float | None  # when it reached the goal; None: it did not
    until: float  # how long it ran, in seconds of the clock
    cost: float  # its last score
    before: float  # the score of the recorded setting at that time

    @property
    def faster(self) -> float | None:
        """How many times faster the goal was reached than in the run; None if it was not."""
        return self.goal.time / self.time if self.time else None

    @property
    def worse(self) -> bool:
        """Whether the change makes the run slower."""
        if self.time is None:
            return self.until > SAME * self.goal.time or not self.cost <= self.before
        return self.time > SAME * self.goal.time

    def __str__(self) -> str:
        goal, target = self.goal, self.goal.shown(self.goal.cost)
        run = "; the run did not hold it" if goal.time == math.inf else f"; the run needed {goal.time:.4g} s"
        if self.time is None:
            text = f"does not reach {target} in {self.until:.4g} s{run}. At that time it has {goal.shown(self.cost)}"
            text += f", the run had {goal.shown(self.before)}"
        else:
            text = f"reaches {target} after {self.time:.4g} s{run}"
            if goal.time < math.inf and self.faster:
                same = 1 / SAME <= self.faster <= SAME
                text += ": about the same" if same else f": {self.faster:.2g} times as fast"
        return f"{text}. Do not use this change" if self.worse else text


def try_change(history: History, overrides: Sequence[str], *, trust: bool = False) -> TriedChange:
    """Train the run's spec with some overrides until it reaches the run's last score, or clearly does not."""
    if history.spec is None:
        why = why_no_spec(read_json(history.path / "spec.json"))
        raise Invalid(f"--try needs a run with a spec, and the one in {str(history.path)!r} {why}")
    if not trust:
        check_trust(history.spec, str(history.path))
    recorded = spec.parse(history.spec, trust=trust)
    fleet = None if recorded.engine.simulated else fit_fleet(history).fleet
    score, curve = recorded_curve(history)
    if fleet or not curve:
        score, curve, _ = _simulated(recorded, fleet, until=history.time)
    task = recorded.build().task
    start = task.evaluate(task.init(recorded.run.seed), task.init_module_buffers()).get(score)
    goal = goal_of(history, score, [(0.0, cost_of(start, score, history.directions)), *curve])
    last = min(goal.time, history.time)
    tables = recorded.resolved()
    for text in overrides:
        spec.override(tables, text)
    _, tried, end = _simulated(spec.parse(tables, trust=trust), fleet, until=LONGER * last, every=last, goal=goal)
    until = tried[-1][0] if tried else end
    reached = next((time for time, cost in tried if cost <= goal.cost), None)
    before = [cost for time, cost in curve if time <= until]
    return TriedChange(
        overrides=list(overrides),
        goal=goal,
        time=reached,
        until=until,
        cost=tried[-1][1] if tried else math.inf,
        before=before[-1] if before else math.inf,
    )


def recorded_curve(history: History) -> tuple[str, Curve]:
    """The score that counts, and its recorded values."""
    scores = [(event.time, event.scores) for event in history.evaluations]
    name = history.directions.main(dict.fromkeys(name for _, values in scores for name in values)) or "loss"
    return name, [(time, cost_of(values.get(name), name, history.directions)) for time, values in scores]


def cost_of(value: float | None, score: str, directions: Directions) -> float:
    """A score as a number of which less is better; inf if it is not finite."""
    if value is None or not math.isfinite(value):
        return math.inf
    return directions.cost(score, value)


def goal_of(history: History, score: str, curve: Curve) -> LastScore:
    """The last score of a run, or the best one if the run has lost more than a tenth of what it had gained.

    The last score is the median of the last evaluations: a single one may be good or bad by chance.
    """
    finite = [(time, cost) for time, cost in curve if math.isfinite(cost)]
    if not finite:
        raise Invalid("--try needs a task with test scores. Give it a test set.")
    lower = history.directions.prefers_lower(score)
    first, best = finite[0][1], min(cost for _, cost in finite)
    last = median(cost for _, cost in curve[-max(min(LAST, len(curve) // 4), 1) :])
    if history.status in ("diverged", "starved") or not last <= best + 0.1 * (first - best) or last >= first:
        return LastScore(score, lower, best, math.inf)
    return LastScore(score, lower, last, next(time for time, cost in finite if cost <= last))


def _simulated(
    loaded: spec.Spec, fleet: Fleet | None, *, until: float, every: float | None = None, goal: LastScore | None = None
) -> tuple[str, Curve, float]:
    """Train on the simulator up to a time or a goal; evaluates `EVALUATIONS` times up to the time `every`."""
    built = loaded.build()
    task, seed = built.task, loaded.run.seed
    directions = Directions.for_task(task, loaded.run.settings())
    fleet = fleet or built.fleet
    if fleet is None:
        raise Invalid("--try needs a run with a [fleet], or one with finished jobs to fit a fleet to.")
    curve, due, score, began, now = Curve(), 0.0, "loss", perf_counter(), 0.0
    try:
        for now, server in trained_rounds(built.method, task, fleet, seed=seed, until=until):
            if perf_counter() - began > SECONDS:
                break
            if now >= due:
                values = task.evaluate(server.x, server.module_buffers)
                score = directions.main(values) or "loss"
                curve.append((now, cost_of(values.get(score), score, directions)))
                due = now + (every or until) / EVALUATIONS
                if goal and curve[-1][1] <= goal.cost:
                    break
    except (Diverged, Starved):
        curve.append((now, math.inf))
    return score, curve, now
