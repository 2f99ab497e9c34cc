"""The rows of a run and their scores, evaluated between two messages or beside the training."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.core.task import Task
from tardygrad.engines.pool import Evaluator
from tardygrad.runs.record import Row

Model = tuple[Vector, ModuleBuffers | None]
Answer = tuple[dict[str, float], float]
"""Scores, and the seconds they took."""


class Scores:
    """Rows in their order, each with its scores: one that is still being evaluated holds up those after it.

    Args:
        evaluator: evaluates while the training goes on; None evaluates here, between two messages.
    """

    def __init__(self, task: Task, evaluator: Evaluator | None) -> None:
        self.task, self.evaluator = task, evaluator
        self.rows: deque[Row] = deque()
        self.done: dict[int, Answer] = {}  # by round
        self.models: dict[int, Model] = {}  # to be evaluated beside the training, by round; the first is under way
        self._asked: Any = None

    def add(self, row: Row, model: Model | None) -> None:
        """A round was made; with its model, if that is to be evaluated."""
        if model is not None and self.evaluator is not None:
            self.rows.append(row)  # first of all: whoever waits may be interrupted
            self.models[row["round"]] = model
            if len(self.models) > 1:
                self._hear(wait=True)  # one at a time
            self._ask()
            return
        if model is not None:
            began = time.perf_counter()
            scores = self.task.evaluate(*model)
            self.done[row["round"]] = scores, time.perf_counter() - began
        self.rows.append(row)

    def settled(self, *, wait: bool) -> Iterator[tuple[Row, dict[str, float] | None, float]]:
        """The rows that lack nothing, with their scores, if they were to have any, and the seconds these took."""
        while True:
            while self.rows and self.rows[0]["round"] not in self.models:
                row = self.rows.popleft()
                yield row, *self.done.pop(row["round"], (None, 0.0))
            self._ask()
            if not self._hear(wait=wait):
                return

    def _ask(self) -> None:
        if self.evaluator is not None and self.models and self._asked is None:
            self._asked = self.evaluator.ask(*next(iter(self.models.values())))

    def _hear(self, *, wait: bool) -> bool:
        """Whether there was an answer."""
        if self.evaluator is None or self._asked is None:
            return False
        answer = self.evaluator.answer(self._asked, wait=wait)
        if answer is not None:
            heard = next(iter(self.models))
            self.done[heard], self._asked = answer, None
            del self.models[heard]
        return answer is not None

    def give_up(self) -> None:
        """Wait for no scores any more."""
        self.models, self._asked = {}, None

    def restore(self, rows: list[Row], models: dict[int, Model]) -> None:
        """Go on with the rows of a checkpoint, and the models of those that lack their scores."""
        for row in rows:
            self.add(row, models.get(row["round"]))
