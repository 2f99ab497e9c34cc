"""One run of a trial, which is recorded only if it has a folder. Diverging and starving are results too."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Protocol, cast

from tardygrad.constructors import call
from tardygrad.core.task import Task
from tardygrad.errors import Diverged, Starved
from tardygrad.runs.record import Row, to_json_value
from tardygrad.runs.run import Run, begin
from tardygrad.runs.settings import Settings
from tardygrad.runs.summary import run_length
from tardygrad.spec.spec import Spec

if TYPE_CHECKING:
    from tardygrad.sweeps.config import Config

Stop = Callable[[Row], str | None]
"""Why a run should end after this evaluated round: `reached` (the target), `pruned`, or None to continue."""

Watch = Callable[[Run], None]
"""Called with a run before its first round and after every round."""


class Source(Protocol):
    """Where the runs of a sweep come from."""

    def run_seed(self, config: Config, params: Row, number: int, stop: Stop) -> Row:
        """Run a point with one of its seeds and return what to store of it."""


class TaskCache:
    """Makes the runs of a sweep's spec. Keeps the last task and the scores of its x_0, since most trials share them."""

    def __init__(self) -> None:
        self._key: Any = None
        self._task: Task | None = None
        self._starts: dict[int, Row] = {}

    def task(self, spec: Spec) -> Task:
        """The task of a spec."""
        if self._task is None or spec.task != self._key:
            self._key, self._task, self._starts = spec.task, call(spec.task.make, spec.task.arguments, "task"), {}
        return self._task

    def start(self, spec: Spec, seed: int) -> Row:
        """The test scores of x_0."""
        task = self.task(spec)
        if seed not in self._starts:
            self._starts[seed] = start_scores(task, seed)
        return self._starts[seed]

    def run_seed(self, config: Config, params: Row, number: int, stop: Stop) -> Row:
        spec = config.at(params)
        score = "accuracy" if config.score == "loss" else config.score
        return run_seed(spec, self, spec.run.seed + number, score=score, budget=config.budget, stop=stop)


def start_scores(task: Task, seed: int) -> Row:
    """The test scores of a task's x_0."""
    return task.evaluate(task.init(seed), task.init_module_buffers())


def run_seed(
    spec: Spec,
    tasks: TaskCache,
    seed: int,
    *,
    score: str = "accuracy",
    budget: float | None = None,
    stop: Stop | None = None,
    watch: Watch | None = None,
    out: Path | None = None,
) -> Row:
    """Run a spec with one seed, to its end or to where it diverges, and return what to store of it.

    Args:
        score: the test score that is stored as the accuracy.
        budget: simulated seconds after which the run ends.
        out: the folder for its record; None keeps none.
    """
    built = spec.build(tasks.task(spec))
    with built.pool() as pool:
        settings: Settings = {**spec.run.settings(), "seed": seed}
        if out is not None:
            settings |= {"out": out}
        run = begin(built.method, built.task, pool, spec=spec.resolved() if out else None, **settings)
        return score_run(run, tasks.start(spec, seed), score=score, budget=budget, stop=stop, watch=watch)


def score_run(
    run: Run,
    start: Row,
    *,
    score: str,
    budget: float | None,
    stop: Stop | None = None,
    watch: Watch | None = None,
) -> Row:
    """Run to the end, or to where the run diverges, and return what to store of it.

    Args:
        run: one that has ended is scored by its metrics.
        start: the scores of x_0.
        score: the test score that is stored as the accuracy.
        budget: seconds of the engine's clock after which the run ends.
    """
    rows = list[Row]()
    scored = {f"test_{name}": value for name, value in start.items()}
    curve = [(0, 0.0, start.get("loss"), start.get(score))]
    ended = None
    if run.status == "new" and budget is not None:
        run.limit(budget)
    if watch:
        watch(run)
    rounds = run.go() if run.status == "new" else (row for row in run.metrics)
    try:
        for row in rounds:
            if watch:
                watch(run)
            # a run that had ended before may be longer than the budget
            if row["time"] > (math.inf if budget is None else budget):
                break
            rows.append(row)
            if any(name.startswith("test_") for name in row):
                scored = row
                curve.append((row["round"], row["time"], row.get("test_loss"), row.get(f"test_{score}")))
                if ended := stop and stop(row):
                    break
        else:
            ended = run.status if run.status in ("diverged", "starved") else None
    except (Diverged, Starved):
        ended = run.status
    finally:
        rounds.close()
    complete = ended in (None, "reached")
    scores = {name.removeprefix("test_"): value for name, value in scored.items() if name.startswith("test_")}
    loss, accuracy = scores.pop("loss", None), scores.pop(score, None)
    time = rows[-1]["time"] if rows else 0.0
    if ended is None:
        last = run.metrics[-1]["time"] if run.metrics else 0.0
        time = min(run_length(run.settings, run.status, run.server.round, last), math.inf if budget is None else budget)
    result = {
        "seed": run.settings["seed"],
        "status": "finished" if complete else ended,
        "reason": run.reason,
        "accuracy": accuracy if complete else None,
        "loss": loss if complete else None,
        "scores": scores,
        "start": {name: start[name] for name in ("loss", score) if name in start},
        "time": time,
        "rounds": len(rows),
        "to_target": rows[-1]["time"] if ended == "reached" else None,
        "clipped": mean(row["clipped"] for row in rows) if rows else 0.0,
        "local_clipped": mean(row["local_clipped"] for row in rows) if rows else 0.0,
        "delay": mean(delays) if (delays := [delay for row in rows for delay in row["delays"]]) else None,
        "curve": curve,
        "seconds": run.seconds,
    }
    return cast(Row, to_json_value(result))
