"""The rows of a run's metrics and their scores, evaluated between two messages or beside the training."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.core.task import Task
from tardygrad.engines.contract import Evaluator, Pool
from tardygrad.errors import Invalid, WorkFailed, described_error
from tardygrad.runs.events import ClientEvaluation
from tardygrad.runs.record import Row
from tardygrad.tasks.scores import checked

Model = tuple[Vector, ModuleBuffers | None]
Answer = tuple[dict[str, float], float]
"""Scores, and the seconds they took."""


class ClientEvaluations:
    """Evaluates models on the data of each client, in the run's process, between two messages.

    Args:
        every: rounds between evaluations; 0 is never.
        pool: the engine.
    """

    def __init__(self, task: Task, every: int, pool: Pool) -> None:
        self.task, self.every = task, every
        if not every:
            return
        self.on = task.evaluates_on()
        if self.on == "training" and not pool.opens_data:
            fix = "Give the task client_test=..., which the run's process reads, or use evaluate_clients=0."
            raise Invalid(f"`evaluate_clients` cannot read training data: on this engine only workers do. {fix}")

    def due(self, round: int, rounds: int | None) -> bool:
        """Whether the model of this round is to be evaluated; that of the last round always is."""
        return bool(self.every) and (round % self.every == 0 or round == rounds)

    def evaluate(self, now: float, round: int, model: Model) -> ClientEvaluation:
        """The scores of each client."""
        began = time.perf_counter()
        found = [self._client(client, model) for client in range(self.task.clients)]
        names = dict.fromkeys(name for scores in found for name in scores)
        by_client = {name: [scores.get(name) for scores in found] for name in names}
        return ClientEvaluation(now, round, self.on, by_client, time.perf_counter() - began)

    def _client(self, client: int, model: Model) -> dict[str, float]:
        try:
            return checked(self.task.evaluate_client(client, *model), "evaluate_client")
        except Invalid:
            raise
        except (Exception, SystemExit) as error:
            raise WorkFailed(f"the evaluation of client {client} failed: {described_error(error)}") from error


class ScoredRows:
    """A queue of rows: a row leaves it when its scores are complete and all rows before it have left.

    Args:
        evaluator: evaluates while training continues; None evaluates in this process, between two messages.
    """

    def __init__(self, task: Task, evaluator: Evaluator | None) -> None:
        self.task, self.evaluator = task, evaluator
        self.hold_last = False  # whether the newest row without scores stays: it may be the last, which is evaluated
        self.rows: deque[Row] = deque()
        self.done: dict[int, Answer] = {}  # by round
        self.models: dict[int, Model] = {}  # still to be evaluated, by round; the first one is in progress
        self._request: Any = None  # the evaluation in progress

    def add(self, row: Row, model: Model | None) -> None:
        """Add the row of a round, with its model if that is to be evaluated."""
        if model is not None and self.evaluator is not None:
            self.rows.append(row)  # before waiting, which may be interrupted
            self.models[row["round"]] = model
            if len(self.models) > 1:
                self._receive(wait=True)  # one evaluation at a time
            self._start()
            return
        if model is not None:
            began = time.perf_counter()
            try:
                scores = checked(self.task.evaluate(*model), "evaluate")
            except Invalid:
                raise
            except (Exception, SystemExit) as error:
                raise WorkFailed(f"the evaluation failed: {described_error(error)}") from error
            self.done[row["round"]] = scores, time.perf_counter() - began
        self.rows.append(row)

    def evaluate_last(self, model: Model) -> None:
        """Evaluate the last row, if it is still here and was not to be evaluated."""
        if self.hold_last and self.rows and self.rows[-1]["round"] not in (*self.models, *self.done):
            self.add(self.rows.pop(), model)

    def completed(self, *, wait: bool) -> Iterator[tuple[Row, dict[str, float] | None, float]]:
        """Remove and yield complete rows, with their scores (None if not evaluated) and the seconds these took."""
        while True:
            while self.rows and self.rows[0]["round"] not in self.models:
                if self.hold_last and not wait and len(self.rows) == 1 and self.rows[0]["round"] not in self.done:
                    return
                row = self.rows.popleft()
                yield row, *self.done.pop(row["round"], (None, 0.0))
            self._start()
            if not self._receive(wait=wait):
                return

    def _start(self) -> None:
        """Start the next evaluation, unless one is in progress."""
        if self.evaluator is not None and self.models and self._request is None:
            self._request = self.evaluator.ask(*next(iter(self.models.values())))

    def _receive(self, *, wait: bool) -> bool:
        """Store the scores of the evaluation in progress; returns whether they were ready."""
        if self.evaluator is None or self._request is None:
            return False
        answer = self.evaluator.answer(self._request, wait=wait)
        if answer is not None:
            round = next(iter(self.models))
            self.done[round], self._request = (checked(answer[0], "evaluate"), answer[1]), None
            del self.models[round]
        return answer is not None

    def cancel(self) -> None:
        """Cancel all evaluations; their rows are then complete without scores."""
        self.models, self._request, self.hold_last = {}, None, False

    def restore(self, rows: list[Row], models: dict[int, Model]) -> None:
        """Continue with the rows of a checkpoint, and the models of rows whose scores are missing."""
        for row in rows:
            self.add(row, models.get(row["round"]))
