"""One run of a trial, in memory. Diverging and starving are results too."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any, cast

from tardygrad.core.task import Task
from tardygrad.errors import Diverged, Starved
from tardygrad.runs.record import Row, to_json_value
from tardygrad.runs.run import begin
from tardygrad.runs.settings import Settings
from tardygrad.runs.signature import call
from tardygrad.spec.spec import Spec

Stop = Callable[[Row], str | None]
"""Why a run should end after this evaluated round: `reached` (the target), `pruned`, or None to continue."""


class TaskCache:
    """The task that was built last and the scores of its x_0, since most trials share them."""

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
            self._starts[seed] = task.evaluate(task.init(seed), task.init_module_buffers())
        return self._starts[seed]


def run_seed(
    spec: Spec,
    tasks: TaskCache,
    seed: int,
    *,
    score: str = "accuracy",
    budget: float | None = None,
    stop: Stop = lambda row: None,
) -> Row:
    """Run a spec with one seed, to its end or to where it diverges, and return what to store of it.

    Args:
        score: the test score that is stored as the accuracy.
        budget: simulated seconds after which the run ends.
    """
    start, built, rows = tasks.start(spec, seed), spec.build(tasks.task(spec)), list[Row]()
    scored = {f"test_{name}": value for name, value in start.items()}
    curve = [(0, 0.0, start["loss"], start.get(score))]
    ended = None
    with built.pool() as pool:
        settings: Settings = {**spec.run.settings(), "seed": seed}
        limits = [limit for limit in (budget, spec.run.until) if limit is not None]
        settings["until"] = min(limits, default=None)
        run = begin(built.method, built.task, pool, **settings)
        rounds = run.go()
        try:
            for row in rounds:
                rows.append(row)
                if "test_loss" in row:
                    scored = row
                    curve.append((row["round"], row["time"], row["test_loss"], row.get(f"test_{score}")))
                    if ended := stop(row):
                        break
        except (Diverged, Starved):
            ended = run.status
        finally:
            rounds.close()
    whole = ended in (None, "reached")
    scores = {name.removeprefix("test_"): value for name, value in scored.items() if name.startswith("test_")}
    loss, accuracy = scores.pop("loss"), scores.pop(score, None)
    result = {
        "seed": seed,
        "status": "finished" if whole else ended,
        "reason": run.reason,
        "accuracy": accuracy if whole else None,
        "loss": loss if whole else None,
        "scores": scores,
        "start": {name: start[name] for name in ("loss", score) if name in start},
        "time": rows[-1]["time"] if rows else 0.0,
        "rounds": len(rows),
        "to_target": rows[-1]["time"] if ended == "reached" else None,
        "clipped": mean(row["clipped"] for row in rows) if rows else 0.0,
        "local_clipped": mean(row["local_clipped"] for row in rows) if rows else 0.0,
        "curve": curve,
        "seconds": run.seconds,
    }
    return cast(Row, to_json_value(result))
