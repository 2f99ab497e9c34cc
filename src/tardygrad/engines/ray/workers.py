"""The workers of a pool on Ray: how many there are to be, who is there, and who comes in the place of whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tardygrad.engines.ray.settings import check_workers
from tardygrad.errors import WorkFailed


@dataclass(eq=False)
class Worker:
    """One of the pool's workers."""

    actor: Any
    leaving: bool = False  # after its job


class Staff:
    """Workers: each is coming (it was sent for and has not answered yet), free, or busy with what others know.

    Whatever goes wrong with one, its process is ended and another is sent for: Ray restarts nothing by itself.

    Args:
        hire: sends for an actor.
        wanted: how many workers there are to be.
    """

    def __init__(self, ray: Any, hire: Callable[[], Any], wanted: int) -> None:
        self.wanted = wanted
        self.workers: list[Worker] = []
        self.free: deque[Worker] = deque()
        self.coming: dict[Any, Worker] = {}  # by what Ray will answer
        self._ray, self._hire = ray, hire

    def hire(self) -> None:
        worker = Worker(self._hire())
        self.workers.append(worker)
        self.coming[worker.actor.ping.remote()] = worker

    def met(self, answer: Any) -> None:
        """A worker that was coming has answered, or will not."""
        worker = self.coming.pop(answer)
        try:
            self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise WorkFailed(f"a worker could not take the task: {_cause(error)}.") from error
            self.replace(worker)
        else:
            self.done(worker)

    def take(self, rather: Worker | None) -> Worker:
        """A free worker, this one if it can be."""
        worker = rather if rather and rather in self.free else self.free[0]
        self.free.remove(worker)
        return worker

    def done(self, worker: Worker) -> None:
        """A worker has nothing to do."""
        if worker.leaving:
            self.replace(worker)
        else:
            self.free.append(worker)

    def replace(self, worker: Worker) -> None:
        """End a worker, and send for another unless it was leaving."""
        self.workers.remove(worker)
        if worker in self.free:
            self.free.remove(worker)
        self.end(worker.actor)
        if not worker.leaving:
            self.hire()

    def resize(self, wanted: int, busy: Collection[Worker]) -> None:
        """Have so many from now on; of those too many the coming go first, then the free, busy ones after their job."""
        check_workers(wanted)
        self.wanted = wanted
        order = sorted(self.workers, key=lambda one: (one not in busy, one not in self.free, one.leaving))
        for worker in order:
            worker.leaving = False
        for worker in order[wanted:]:
            worker.leaving = True
            if worker not in busy:
                self.coming = {answer: one for answer, one in self.coming.items() if one is not worker}
                self.replace(worker)
        for _ in range(wanted - len(order)):
            self.hire()

    def end(self, actor: Any) -> None:
        """End a process."""
        if self._ray.is_initialized():  # else it would start
            with suppress(Exception):  # it may be dead, or Ray
                self._ray.kill(actor)

    def close(self) -> None:
        for worker in self.workers:
            self.end(worker.actor)
        for held in (self.workers, self.free, self.coming):
            held.clear()


def _cause(error: Exception) -> str:
    """The last line of what Ray says of an actor that could not begin: the error there."""
    return str(error).strip().splitlines()[-1].rstrip(".")
