"""The workers of a `RayPool`: starting, assigning and replacing them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tardygrad.errors import WorkFailed, check_integer


@dataclass(eq=False)
class Worker:
    """A worker and its actor."""

    actor: Any
    leaving: bool = False  # ends after its job
    name: str = ""  # its process id, once it has answered
    node: str = ""  # the name of its machine


class Workers:
    """Workers: each is starting (its actor has not answered yet), free, or busy.

    A worker that fails in any way is killed and replaced: Ray restarts nothing by itself.

    Args:
        new_actor: starts an actor.
        wanted: how many workers there should be.
    """

    def __init__(self, ray: Any, new_actor: Callable[[], Any], wanted: int) -> None:
        check_integer("workers", wanted)
        self.wanted = wanted
        self.members: list[Worker] = []
        self.free: deque[Worker] = deque()
        self.starting: dict[Any, Worker] = {}  # by the reference of their first answer
        self._ray, self._new_actor = ray, new_actor

    def add(self) -> None:
        worker = Worker(self._new_actor())
        self.members.append(worker)
        self.starting[worker.actor.ping.remote()] = worker

    def answered(self, reference: Any) -> None:
        """A starting worker has answered, or failed."""
        worker = self.starting.pop(reference)
        try:
            process, worker.node = self._ray.get(reference)
            worker.name = str(process)
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                cause = str(error).strip().splitlines()[-1].rstrip(".")  # the last line of Ray's report
                raise WorkFailed(f"a worker could not load the task: {cause}.") from error
            self.replace(worker)
        else:
            self.release(worker)

    def take(self, preferred: Worker | None) -> Worker:
        """A free worker; the preferred one if it is free."""
        worker = preferred if preferred and preferred in self.free else self.free[0]
        self.free.remove(worker)
        return worker

    def release(self, worker: Worker) -> None:
        """A worker has finished its job."""
        if worker.leaving:
            self.replace(worker)
        else:
            self.free.append(worker)

    def replace(self, worker: Worker) -> None:
        """Kill a worker, and start another unless it was leaving."""
        self.members.remove(worker)
        if worker in self.free:
            self.free.remove(worker)
        self.kill(worker.actor)
        if not worker.leaving:
            self.add()

    def resize(self, wanted: int, busy: Collection[Worker]) -> None:
        """Change the number of workers. If there are too many, starting ones go first, then free ones, then busy ones
        after their job."""
        check_integer("workers", wanted)
        self.wanted = wanted
        order = sorted(self.members, key=lambda worker: (worker not in busy, worker not in self.free, worker.leaving))
        for worker in order:
            worker.leaving = False
        for worker in order[wanted:]:
            worker.leaving = True
            if worker not in busy:
                self.starting = {ref: other for ref, other in self.starting.items() if other is not worker}
                self.replace(worker)
        for _ in range(wanted - len(order)):
            self.add()

    def kill(self, actor: Any) -> None:
        """End an actor's process."""
        if self._ray.is_initialized():  # otherwise the call would start Ray
            with suppress(Exception):  # the actor or Ray may be dead already
                self._ray.kill(actor)

    def close(self) -> None:
        for worker in self.members:
            self.kill(worker.actor)
        for workers in (self.members, self.free, self.starting):
            workers.clear()
