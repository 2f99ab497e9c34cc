"""Evaluations on a separate worker, while training continues."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.utils._pytree import tree_map_only

from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.engines.ray.session import Session
from tardygrad.engines.ray.workers import Worker, Workers
from tardygrad.engines.real_time import POLL, TIMEOUT, Deadlines
from tardygrad.errors import WorkFailed, type_and_first_line

Evaluate = Literal["beside", "between"]
"""Where a run evaluates: on a worker of its own, or in its own process between rounds."""

RETRIES = 5
"""How often an evaluation is repeated after its worker died, before the run fails."""


@dataclass(eq=False)
class EvaluationRequest:
    """An evaluation in progress."""

    model: Any
    actor: Any
    reference: Any  # of the answer
    since: float
    started: float  # not before the worker was up
    deaths: int = 0


class EvaluationWorker:
    """A worker that evaluates models in the order of requests. If it dies, a new worker repeats the evaluation.

    Args:
        workers: of the pool; an actor is ended as they are.
        deadlines: timeouts of evaluations.
        check: called while waiting; raises if the wait should end.
    """

    def __init__(self, session: Session, workers: Workers, deadlines: Deadlines, check: Callable[[], None]) -> None:
        self._ray, self._session, self._workers = session.ray, session, workers
        self._deadlines, self._check = deadlines, check
        self._start()

    def _start(self) -> None:
        self.actor = self._session.new_worker(0.0)  # no CPUs, so that it need not wait for those of the workers
        self._worker = Worker(self.actor, self.actor.begun.remote())
        self.up = self.actor.ping.remote()

    def ask(self, x: Vector, module_buffers: ModuleBuffers | None) -> EvaluationRequest:
        self._session.check()
        arrays = tree_map_only(Tensor, Tensor.numpy, module_buffers)
        model, now = (arrays, self._ray.put(x.numpy())), time.monotonic()
        return EvaluationRequest(model, self.actor, self.actor.evaluate.remote(*model), now, now)

    def answer(self, request: EvaluationRequest, *, wait: bool) -> tuple[dict[str, float], float] | None:
        self._check()
        while (answer := self._poll(request, POLL if wait else 0.0)) is None and wait:
            self._check()
            up = bool(self._ray.wait([self.up], timeout=0)[0])
            now = time.monotonic()
            if not up:
                request.started = now
                if (idle := now - request.since) > TIMEOUT and not self._session.loading([self._worker], idle):
                    fix = "Leave a worker for evaluations, or use evaluate='between'."
                    raise WorkFailed(f"no worker has evaluated for {TIMEOUT:g} s: {self._session.resources()} {fix}")
            elif request.actor is self.actor and now - request.started > self._deadlines.limit(0):
                self._workers.kill(self.actor)  # it timed out; a new worker will repeat it
        return answer

    def _poll(self, request: EvaluationRequest, seconds: float) -> tuple[dict[str, float], float] | None:
        """The answer; None if it does not arrive within `seconds`."""
        if not self._ray.wait([request.reference], timeout=seconds)[0]:
            return None
        try:
            answer: tuple[dict[str, float], float] | str = self._ray.get(request.reference)
        except self._ray.exceptions.RayTaskError as error:
            raise WorkFailed(f"the evaluation failed: {type_and_first_line(error)}.") from error
        except self._ray.exceptions.RayError as error:
            self._retry(request, error)
            return None
        if isinstance(answer, str):
            raise WorkFailed(answer)
        self._deadlines.took(0, time.monotonic() - request.started)
        return answer

    def _retry(self, request: EvaluationRequest, error: Exception) -> None:
        request.deaths += 1
        if request.deaths > RETRIES or getattr(error, "actor_init_failed", False):
            cause = f"{request.deaths} workers died while computing it, {type_and_first_line(error)}"
            raise WorkFailed(f"the evaluation failed: {cause}.") from error
        if request.actor is self.actor:
            self._start()
        request.actor, request.since = self.actor, time.monotonic()
        request.started = request.since
        request.reference = self.actor.evaluate.remote(*request.model)
