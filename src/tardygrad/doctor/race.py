"""Race settings: real runs to a target score on the virtual clock, with successive halving.

All settings run with one seed for an eighth of the time that a promising one needs, then the better half of them for
twice that time, and so on. Those that come close to the best time are repeated with more seeds, then the better half of
them with more again: times may vary much between seeds. Every run starts anew, so that only one is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from tardygrad.core.method import Method
from tardygrad.core.own_loop import check_local_work
from tardygrad.core.task import MayLackTest, Task
from tardygrad.errors import Diverged, Invalid, Starved, check_number
from tardygrad.fleet import Fleet
from tardygrad.runs.directions import Directions
from tardygrad.runs.loop import trained_rounds

PRECISION = 0.02  # of times to the target: a run is evaluated whenever its time has grown by this share
SHORTEST = 8  # the first runs have an eighth of the time
CLOSE = 2.0  # a setting is repeated with other seeds if it needs at most this many times the best time
FINALISTS = 8  # most settings that are repeated
STAGES = 3  # the better half is repeated again, then the better half of that
REPEAT_TIME = 2  # a run with another seed may take this many times as long as the first
LAST = 5  # evaluations in the last fifth of the current setting's rounds; their median is its score
GAIN = 0.98  # of the current setting's gain in score: the target, if none is given
LEAST_GAIN = 0.5  # of the same, if the score goes up and down at the end, so that the target is a worse one


class Training(NamedTuple):
    """What to train in a search.

    Args:
        target: the test accuracy to reach, or the test loss if the task has no accuracy; None is 98 % of the way from
            x_0's score to that of the current setting at its end; or, if its score goes up and down at the end, the
            worst that it falls back to: the time to a score that it does not hold would measure luck.
        seeds: runs of each setting that comes close to the best; with more than one, the best of these get up to three
            times as many.
    """

    task: Task
    target: float | None = None
    seeds: int = 3
    directions: Directions = Directions()


class Goal(NamedTuple):
    """The test score to reach."""

    score: str
    target: float
    start: float  # the score of x_0
    lower: bool  # whether a low value is good

    def reached(self, value: float) -> bool:
        """Whether a score is at least as good as the target."""
        return self.cost(value) <= self.cost(self.target)

    def cost(self, value: float) -> float:
        """The score as a number of which less is better."""
        return value if self.lower else -value

    def __str__(self) -> str:
        return f"test {self.score} {self.target:.4g}"


class RaceRun(NamedTuple):
    """One real run, up to the target or to the end of the time that it was given."""

    time: float | None  # simulated seconds to the target; None: not reached
    rounds: int
    value: float | None  # the last score; None: the run diverged or starved
    until: float  # simulated seconds that it was given


class Trained(NamedTuple):
    """The real runs of one setting, one for each seed; of a setting that was dropped, its longest run."""

    trials: tuple[RaceRun, ...]
    dropped: bool = True  # only the last finalists ran with all seeds

    @property
    def time(self) -> float:
        """The median of the simulated seconds to the target; inf if no run reached it.

        A run that did not counts as twice the time that it was given. Not the mean: a run that just misses the target
        may take many times as long as the others.
        """
        if not self.reached:
            return math.inf
        return median(2 * trial.until if trial.time is None else trial.time for trial in self.trials)

    @property
    def reached(self) -> int:
        """The number of runs that reached the target."""
        return sum(trial.time is not None for trial in self.trials)

    @property
    def rounds(self) -> int:
        """The most rounds that a run had."""
        return max(trial.rounds for trial in self.trials)

    def standing(self, goal: Goal) -> tuple[float, ...]:
        """A key that sorts the best first: finalists by time, then others by time, then those by their score."""
        if self.time < math.inf:
            return (float(self.dropped), self.time)
        last = self.trials[-1]
        return (2.0, -last.until, math.inf if last.value is None else goal.cost(last.value))


class Race:
    """Runs settings against each other.

    Args:
        method: the current setting, for the default target.
        rounds: the length of its run.
        seed: the first seed.
    """

    def __init__(self, method: Method, fleet: Fleet, training: Training, *, rounds: int, seed: int) -> None:
        self.task, self.fleet, self.directions = training.task, fleet, training.directions
        self.seeds = range(seed, seed + training.seeds)
        check_local_work(self.task, method)
        self.goal = self._goal(method, rounds, training.target)

    def run(self, method: Method, seed: int, until: float) -> RaceRun:
        """Train until the target is reached, or for `until` simulated seconds."""
        goal, done = self.goal, 0
        value, due = goal.start, 0.0
        try:
            for now, server in trained_rounds(method, self.task, self.fleet, seed=seed, until=until):
                done = server.round
                if now >= due:
                    value = self.task.evaluate(server.x, server.module_buffers)[goal.score]
                    if goal.reached(value):
                        return RaceRun(now, done, value, until)
                    due = now * (1 + PRECISION)
        except (Diverged, Starved):
            return RaceRun(None, done, None, until)
        return RaceRun(None, done, value if math.isfinite(value) else None, until)

    def most_runs(self, settings: int) -> int:
        """A bound on the number of runs, for a progress bar."""
        runs, field = 1 + settings, settings
        for _ in range(SHORTEST.bit_length() - 1):
            runs += (field := max(field // 2, min(FINALISTS, settings)))
        fields = [min(FINALISTS, settings) >> stage for stage in range(self.stages)]
        return runs + sum(fields) * len(self.seeds) - fields[0]

    @property
    def stages(self) -> int:
        """How often the finalists are halved and repeated; with one seed, each setting has one run."""
        return STAGES if len(self.seeds) > 1 else 1

    def of(self, settings: Sequence[Method], horizon: float, results: dict[int, Trained]) -> Iterator[RaceRun]:
        """Run the settings and yield every run; `results` gets those of each setting, by its position.

        Args:
            settings: the most promising first.
            horizon: simulated seconds in which the first setting has to reach the target, or any other if it does not.
        """
        first, best = self.seeds[0], math.inf

        def run(number: int, until: float) -> RaceRun:
            nonlocal best
            trial = self.run(settings[number], first, min(until, CLOSE * best))
            best = min(best, math.inf if trial.time is None else trial.time)
            results[number] = Trained((trial,))
            return trial

        field = list(range(len(settings)))
        yield run(0, horizon)
        until = min(horizon, CLOSE * best) / SHORTEST
        while True:
            for number in field:
                if number not in results or results[number].time == math.inf:
                    yield run(number, until)
            horizon = min(horizon, CLOSE * best)
            field.sort(key=lambda number: results[number].standing(self.goal))
            if until >= horizon:
                break
            field, until = field[: max(len(field) // 2, FINALISTS)], min(2 * until, horizon)
        field = [number for number in field[:FINALISTS] if results[number].time <= CLOSE * best]
        for stage in range(1, self.stages + 1):
            for number in field:
                trials = list(results[number].trials)
                for seed in range(first + len(trials), first + stage * len(self.seeds)):
                    trials.append(self.run(settings[number], seed, REPEAT_TIME * horizon))
                    yield trials[-1]
                results[number] = Trained(tuple(trials), dropped=stage < self.stages)
            field = sorted(field, key=lambda number: results[number].time)[: max(len(field) // 2, 1)]

    def _goal(self, method: Method, rounds: int, target: float | None) -> Goal:
        """The goal of the race; raises `Invalid` if there is none."""
        task, seed = self.task, self.seeds[0]
        x, buffers = task.init(seed), task.init_module_buffers()
        start = {} if isinstance(task, MayLackTest) and not task.can_evaluate else task.evaluate(x, buffers)
        score = self.directions.main(start)
        if score is None:
            raise Invalid("--train needs a task with test scores, and this one has none. Give it a test set.")
        lower = self.directions.prefers_lower(score)
        if target is None:
            last = {rounds - rounds * part // (4 * LAST) for part in range(LAST)}
            try:
                trained = trained_rounds(method, task, self.fleet, seed=seed, rounds=rounds)
                servers = (server for _, server in trained if server.round in last)
                ends = [task.evaluate(server.x, server.module_buffers)[score] for server in servers]
            except (Diverged, Starved) as error:
                raise Invalid(f"--train needs a --target, because the current setting fails: {error}") from error
            end, begin = median(ends), start[score]
            goal = Goal(score, begin + GAIN * (end - begin), begin, lower)
            setbacks = [value for before, value in pairwise(ends) if goal.cost(value) > goal.cost(before)]
            held = min(begin + LEAST_GAIN * (end - begin), max(setbacks, key=goal.cost, default=end), key=goal.cost)
            goal = goal._replace(target=max(goal.target, held, key=goal.cost))
            if goal.cost(end) >= goal.cost(start[score]):
                got = f"{start[score]:.4g} at x_0 and {end:.4g} after {rounds} rounds"
                raise Invalid(
                    f"--train needs a --target, because the current setting does not learn: its {score} is {got}."
                )
            return goal
        goal = Goal(score, target, start[score], lower)
        check_number("target", target, -math.inf)
        if score == "accuracy" and not 0 < target <= 1:
            fix = f" Did you mean {target / 100:g}?" if 1 < target <= 100 else ""
            raise Invalid(f"a target accuracy must be above 0 and at most 1, got {target!r}.{fix}")
        if goal.reached(goal.start):
            way = "lower" if lower else "higher"
            rule = f"x_0 already has a test {score} of {goal.start:.4g}, got the target {target:g}"
            raise Invalid(f"{rule}. Use a {way} target.")
        return goal
