"""One trial: a point of the space, run in memory with each of its seeds. To diverge or to starve is a result."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean
from typing import Any, cast

from tardygrad.core.task import Task
from tardygrad.errors import Diverged, Starved
from tardygrad.runs.record import Row, plain
from tardygrad.runs.run import Settings, begin
from tardygrad.spec import spec
from tardygrad.sweep.config import Asked

Look = Callable[[int, float], bool]
"""Whether a run should end that has come to this round with this test loss."""


class Bench:
    """Where trials are made: it keeps the last task, and the scores of its x_0."""

    def __init__(self, asked: Asked, task: Task) -> None:
        self.asked = asked
        self._part = asked.at(asked.first()).task
        self._task = task
        self._starts: dict[int, Row] = {}

    def trial(self, params: Row, look: Look) -> Row:
        """What came of a point."""
        one = self.asked.at(params)
        if one.task != self._part:
            self._part, self._task, self._starts = one.task, one.build().task, {}
        seeds = [self._run(one, one.run.seed + i, look) for i in range(self.asked.seeds)]
        key = {"time": "to_target"}.get(self.asked.best, self.asked.best)
        values: list[Any] = [row[key] if row["status"] == "finished" else None for row in seeds]
        worst = next((row for row in seeds if row["status"] != "finished"), seeds[0])
        value = None if None in values else mean(map(float, values))
        return {"status": worst["status"], "reason": worst["reason"], "value": value, "seeds": seeds}

    def _start(self, seed: int) -> Row:
        """The scores of x_0."""
        if seed not in self._starts:
            scores = self._task.evaluate(self._task.init(seed), self._task.init_module_buffers())
            self._starts[seed] = {name: scores[name] for name in ("loss", "accuracy") if name in scores}
        return self._starts[seed]

    def _run(self, one: spec.Spec, seed: int, look: Look) -> Row:
        asked, built, start = self.asked, one.build(self._task), self._start(seed)
        budget, rows = asked.budget or math.inf, list[Row]()
        scored = {f"test_{name}": value for name, value in start.items()}
        curve = [(0, 0.0, start["loss"], start.get("accuracy"))]
        status = reached = None
        with built.pool() as pool:
            settings: Settings = {**one.run.settings(), "seed": seed}
            run = begin(built.method, self._task, pool, **settings)
            rounds = run.go()
            try:
                for row in rounds:
                    if row["time"] > budget:
                        break
                    rows.append(row)
                    if "test_loss" not in row:
                        continue
                    scored = row
                    curve.append((row["round"], row["time"], row["test_loss"], row.get("test_accuracy")))
                    if asked.target is not None and self._there(row, asked.target):
                        reached = row["time"]
                        break
                    if asked.prune and look(row["round"], row["test_loss"]):
                        status = "pruned"
                        break
            except (Diverged, Starved):
                status = run.status
            finally:
                rounds.close()
        ended = status is None
        scores = {name.removeprefix("test_"): value for name, value in scored.items() if name.startswith("test_")}
        loss, accuracy = scores.pop("loss"), scores.pop("accuracy", None)
        result = {
            "seed": seed,
            "status": status or "finished",
            "reason": run.reason,
            "accuracy": accuracy if ended else None,
            "loss": loss if ended else None,
            "scores": scores,
            "start": start,
            "time": rows[-1]["time"] if rows else 0.0,
            "rounds": len(rows),
            "to_target": reached,
            "clipped": mean(row["clipped"] for row in rows) if rows else 0.0,
            "local_clipped": mean(row["local_clipped"] for row in rows) if rows else 0.0,
            "curve": curve,
            "seconds": run.seconds,
        }
        return cast(Row, plain(result))

    def _there(self, row: Row, target: float) -> bool:
        score = row[f"test_{self.asked.score}"]
        return score is not None and bool(score >= target if self.asked.score == "accuracy" else score <= target)
