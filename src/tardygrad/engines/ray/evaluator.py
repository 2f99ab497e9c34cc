"""Evaluations on a worker of their own, beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tardygrad.engines.ray.connection import said
from tardygrad.engines.ray.deadlines import Deadlines
from tardygrad.errors import WorkFailed

TIMES = 5
"""Deaths of workers over one evaluation, after which it is the evaluation's fault."""


@dataclass(eq=False)
class Asked:
    """An evaluation under way."""

    model: Any
    actor: Any
    answer: Any
    since: float
    begun: float  # since the worker was there
    deaths: int = 0


class Evaluator:
    """One worker that evaluates what it is asked to, in order; replaced when it dies, and asked again.

    Args:
        hire: sends for a worker.
        end: ends one.
        deadlines: how long an evaluation may take.
    """

    def __init__(self, ray: Any, hire: Callable[[], Any], end: Callable[[Any], None], deadlines: Deadlines) -> None:
        self._ray, self._hire, self._end, self._deadlines = ray, hire, end, deadlines
        self._begin()

    def _begin(self) -> None:
        self.actor = self._hire()
        self.up = self.actor.ping.remote()

    def ask(self, x: Any, module_buffers: Any) -> Asked:
        model = module_buffers, self._ray.put(x)
        now = time.monotonic()
        return Asked(model, self.actor, self.actor.evaluate.remote(*model), now, now)

    def look(self, asked: Asked, seconds: float) -> tuple[dict[str, float], float] | None:
        """The answer, if it is there within so many seconds."""
        if not self._ray.wait([asked.answer], timeout=seconds)[0]:
            return None
        try:
            answer: tuple[dict[str, float], float] | str = self._ray.get(asked.answer)
        except self._ray.exceptions.RayTaskError as error:
            raise WorkFailed(f"the evaluation failed: {said(error)}.") from error
        except self._ray.exceptions.RayError as error:
            self._ask_again(asked, error)
            return None
        if isinstance(answer, str):
            raise WorkFailed(answer)
        self._deadlines.took(0, time.monotonic() - asked.begun)
        return answer

    def hurry(self, asked: Asked) -> None:
        """End a worker that takes far longer than ever, whose evaluation is then asked for again."""
        if not self._ray.wait([self.up], timeout=0)[0]:
            asked.begun = time.monotonic()
        elif asked.actor is self.actor and time.monotonic() - asked.begun > self._deadlines.limit(0):
            self._end(self.actor)

    def missing(self, asked: Asked, seconds: float) -> bool:
        """Whether the worker has not come up in so many seconds."""
        return time.monotonic() - asked.since > seconds and not self._ray.wait([self.up], timeout=0)[0]

    def _ask_again(self, asked: Asked, error: Exception) -> None:
        asked.deaths += 1
        if asked.deaths > TIMES or getattr(error, "actor_init_failed", False):
            raise WorkFailed(f"the evaluation failed: {asked.deaths} workers died over it, {said(error)}.") from error
        if asked.actor is self.actor:
            self._begin()
        asked.actor, asked.since = self.actor, time.monotonic()
        asked.begun = asked.since
        asked.answer = self.actor.evaluate.remote(*asked.model)
