"""Does `plan --search` recommend the setting that is fastest in truth?

Twenty random fleets (classes, one straggler, a spread of speeds, heavy tails, slow links, equal clients), each with a
quadratic of random noise and a method with random rates; drawn again if the current setting does not learn. Every
setting that the search tries is trained to the target with 15 seeds that the search has not seen; a setting is given up
once its median is 1.3 times the best. Prints the time of the recommended setting relative to the best one, and how
often it is within 15 %. The search was developed on fleets
below 400.

    python benchmarks/plan.py [--fleets 20] [--first 400] [--seeds 15] [--jobs 1]
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import count, pairwise
from multiprocessing import get_context
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np
import torch

import tardygrad as tg
from tardygrad.doctor.search import rank_settings, settings
from tardygrad.runs.loop import trained_rounds

ROUNDS = 60  # of the current setting, which is synchronous with half of the clients
WITHIN = 1.15
GIVE_UP = 1.3  # times the best
WORST = 10.0  # a recommended setting is given up here
UNSEEN = 1000  # the first seed of the runs that decide
NOISES = {"student": "Student", "stable": "Gauss"}  # the stable noise has tail index 2


class Problem(NamedTuple):
    """A fleet, a task and a method in its current setting."""

    kind: str
    fleet: tg.Fleet
    task: Any
    method: tg.Method


def random_fleet(rng: np.random.Generator) -> tuple[str, tg.Fleet]:
    """A fleet of 4 to 10 clients."""
    clients = int(rng.integers(4, 11))
    half = clients // 2
    kind = str(rng.choice(["classes", "one slow", "spread", "heavy tails", "equal", "links"]))
    if kind == "classes":
        slow = float(rng.uniform(5, 30))
        groups = [
            tg.Group("small", half, tg.Uniform(1.0, 2.0)),
            tg.Group("medium", clients - half - 1, tg.Uniform(3.0, 5.0)),
            tg.Group("large", 1, tg.Uniform(slow, 1.5 * slow)),
        ]
    elif kind == "one slow":
        slow = float(rng.uniform(4, 40))
        groups = [
            tg.Group("rack", clients - 1, tg.LogNormal(1.0, 0.1)),
            tg.Group("far", 1, tg.LogNormal(slow, 0.1)),
        ]
    elif kind == "spread":
        medians = np.exp(rng.uniform(0.3, 1.2) * rng.standard_normal(clients))
        groups = [tg.Group(f"client {i}", 1, tg.LogNormal(float(median), 0.2)) for i, median in enumerate(medians)]
    elif kind == "heavy tails":
        groups = [tg.Group("spot", clients, tg.Pareto(0.5, float(rng.uniform(1.1, 2.5))))]
    elif kind == "equal":
        groups = [tg.Group("rack", clients, tg.LogNormal(1.0, float(rng.uniform(0.02, 0.3))))]
    else:
        link = tg.Link(latency=float(rng.uniform(0.1, 1.0)), up=float(rng.uniform(20, 200)))
        groups = [
            tg.Group("rack", half, tg.LogNormal(1.0, 0.2)),
            tg.Group("phone", clients - half, tg.Exponential(float(rng.uniform(1, 5))), link),
        ]
    return kind, tg.Fleet(tuple(groups))


def problem(number: int, attempt: int = 0) -> Problem:
    """The problem of this number; another attempt draws another one."""
    rng = np.random.default_rng([number, attempt] if attempt else number)
    kind, fleet = random_fleet(rng)
    scale = float(rng.choice([0.0, 0.5, 2.0]))
    heavy = bool(rng.integers(2))
    noise = tg.Noise("student", 1.5, scale / 2) if heavy else tg.Noise("stable", 2.0, scale)
    task = tg.tasks.quadratic(
        clients=fleet.clients,
        dimension=10,
        heterogeneity=float(rng.choice([0.0, 0.2])),
        noise=noise if scale else None,
        seed=number,
    )
    how: dict[str, Any] = {
        "local_lr": float(rng.choice([0.1, 0.3, 0.8])),
        "local_clip": 1.0,
        "local_steps": 1,
        "lr": float(rng.choice([0.5, 1.0])),
        "downplay": bool(rng.integers(3) == 0),
        "mode": "sync",
        "buffer": max(fleet.clients // 2, 1),
    }
    return Problem(kind, fleet, task, tg.clip2(clip=0.1, **how) if rng.integers(2) else tg.sgdclip(**how))


class Untaught(Exception):
    """The current setting does not learn, so there is no score to reach."""


def target_of(problem: Problem) -> float:
    """98 % of the way from the loss of x_0 to that at the end of the current setting's run.

    If that goes up and down, the worst that it falls back to, but at least half of the way.
    """
    task = problem.task
    last = {ROUNDS - ROUNDS * part // 20 for part in range(5)}
    try:
        trained = trained_rounds(problem.method, task, problem.fleet, seed=0, rounds=ROUNDS)
        ends = [task.evaluate(server.x, None)["loss"] for _, server in trained if server.round in last]
    except (tg.Diverged, tg.Starved) as error:
        raise Untaught from error
    begin, end = task.evaluate(task.init(0), None)["loss"], median(ends)
    if not end < begin:
        raise Untaught
    setbacks = [value for before, value in pairwise(ends) if value > before]
    held = min(begin + 0.5 * (end - begin), max(setbacks, default=end))
    return max(begin + 0.98 * (end - begin), held)


class Truth:
    """Median times to the target of settings, over seeds that the search has not seen."""

    def __init__(self, problem: Problem, target: float, seeds: int) -> None:
        self.problem, self.target, self.best, self.known = problem, target, math.inf, dict[str, float]()
        self.seeds = range(UNSEEN, UNSEEN + seeds)

    def run(self, method: tg.Method, seed: int, until: float) -> float | None:
        """Simulated seconds to the target; None if it is not reached in `until` seconds."""
        task, due = self.problem.task, 0.0
        try:
            for now, server in trained_rounds(method, task, self.problem.fleet, seed=seed, until=until):
                if now >= due:
                    if task.evaluate(server.x, None)["loss"] <= self.target:
                        return now
                    due = now * 1.02
        except (tg.Diverged, tg.Starved):
            pass
        return None

    def time(self, method: tg.Method, limit: float, until: float) -> float:
        """The median time of a setting, to be run for `until` seconds; inf if it is above the limit."""
        key = in_words(method)
        if key not in self.known or (self.known[key] == math.inf and limit > GIVE_UP * self.best):
            times = list[float]()
            for seed in self.seeds:
                times.append(self.run(method, seed, min(until, limit)) or 2 * min(until, limit))
                if sum(time > limit for time in times) > len(self.seeds) / 2:
                    break
            self.known[key] = median(times) if len(times) == len(self.seeds) else math.inf
            self.best = min(self.best, self.known[key])
        return self.known[key]


def compare(number: int, seeds: int) -> tuple[str, float]:
    """A row of the table, and the time of the recommendation relative to the best."""
    torch.set_num_threads(1)
    for attempt in count():
        drawn = problem(number, attempt)
        try:
            target = target_of(drawn)
            break
        except Untaught:
            continue
    kind, fleet, task, method = drawn
    ranking = rank_settings(method, fleet, rounds=ROUNDS, parameters=task.parameters)
    assert ranking.best, ranking.answer()
    predicted, truth = ranking.best.method, Truth(drawn, target, seeds)
    until = 3 * ranking.current.seconds
    for each in [predicted, *settings(method, fleet.clients)]:
        truth.time(each, GIVE_UP * truth.best, until)
    best = truth.best
    winner = next(key for key, seconds in truth.known.items() if seconds == best)
    late = truth.time(predicted, GIVE_UP * best, until)
    if late == math.inf:
        late = truth.time(predicted, WORST * best, 2 * WORST * best)
    ratio = late / best
    cell = f"{min(ratio, WORST):.2f}{'+' if ratio > WORST else ''}"
    noise = f"{NOISES[task.noise.kind]} {task.noise.scale}" if task.noise else "no noise"
    facts = [str(number), kind, str(fleet.clients), f"{'SD-' * (method.weight is not None)}{method.name}, {noise}"]
    return f"| {' | '.join([*facts, winner, in_words(predicted), cell])} |", ratio


def in_words(method: tg.Method) -> str:
    working = f", {method.concurrency} work" if method.concurrency else ""
    return f"{method.mode}, M = {method.buffer}{working}"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--fleets", type=int, default=20)
    options.add_argument("--first", type=int, default=400)
    options.add_argument("--seeds", type=int, default=15)
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    began = time.perf_counter()
    print("| # | fleet | N | method, noise | best | `--search` | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    numbers = range(chosen.first, chosen.first + chosen.fleets)
    ratios = []
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        for row, ratio in pool.map(compare, numbers, [chosen.seeds] * len(numbers)):
            print(row, flush=True)
            ratios.append(ratio)
    good, mean = sum(ratio <= WITHIN for ratio in ratios), geometric_mean([min(ratio, WORST) for ratio in ratios])
    print(f"within 15 % of the best in {good} of {len(ratios)} fleets; {mean:.2f} times the best on average")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
