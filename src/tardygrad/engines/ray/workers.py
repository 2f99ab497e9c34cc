"""The workers of a `RayPool`: starting, assigning and replacing them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tardygrad.errors import WorkFailed, check_integer, type_and_first_line

MAX_DEATHS = 5
"""How many workers in a row may die while they start."""


@dataclass(eq=False)
class Worker:
    """A worker and its actor."""

    actor: Any
    begun: Any  # reference of an answer that comes before the task is loaded
    place: str | None = None  # where it runs; None: anywhere
    leaving: bool = False  # ends after its job
    process: int | None = None  # its id, once it has answered
    node: str = ""  # the name of its machine

    @property
    def label(self) -> str:
        """Its name in records."""
        return f"{self.place}:{self.process}" if self.place else str(self.process)


class Workers:
    """Workers: each is starting (its actor has not answered yet), free, or busy.

    A worker that fails in any way is killed and replaced: Ray restarts nothing by itself.

    Args:
        new_actor: starts an actor at a place.
        spread: from the wanted number of workers to the number at each place; the sum may be larger.
        wanted: how many workers there should be.
    """

    def __init__(
        self,
        ray: Any,
        new_actor: Callable[[str | None], Any],
        spread: Callable[[int], Counter[str | None]],
        wanted: int,
    ) -> None:
        check_integer("workers", wanted)
        self.spread, self.shares = spread, spread(wanted)
        self.up: Counter[str | None] = Counter()  # place → how many of its workers have started
        self.members: list[Worker] = []
        self.free: deque[Worker] = deque()
        self.starting: dict[Any, Worker] = {}  # by the reference of their first answer
        self.deaths = 0  # of workers that were starting, since the last one that has started
        self._ray, self._new_actor = ray, new_actor

    @property
    def wanted(self) -> int:
        """How many workers there should be."""
        return self.shares.total()

    def start(self) -> None:
        """Add all workers."""
        for place in self.shares.elements():
            self.add(place)

    def add(self, place: str | None) -> None:
        actor = self._new_actor(place)
        worker = Worker(actor, actor.begun.remote(), place)
        self.members.append(worker)
        self.starting[worker.actor.ping.remote()] = worker

    def answered(self, reference: Any) -> None:
        """A starting worker has answered, or failed."""
        worker = self.starting.pop(reference)
        try:
            worker.process, worker.node, load_error = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self.deaths += 1
            if getattr(error, "actor_init_failed", False):  # not by the task, which `ping` reports
                cause = str(error).strip().splitlines()[-1].rstrip(".")  # the last line of Ray's report
                raise WorkFailed(f"a worker could not start: {cause}.") from error
            if self.deaths > MAX_DEATHS:
                rule = f"{self.deaths} workers in a row ended while they loaded the task"
                fix = "Its code may exit, or need more memory."
                raise WorkFailed(f"{rule}: {type_and_first_line(error)}. {fix}") from error
            self.replace(worker)
            return
        if load_error:
            raise WorkFailed(f"a worker could not load the task: {load_error.rstrip('.')}.")
        self.deaths = 0
        self.up[worker.place] += 1
        self.release(worker)

    def take(self, preferred: Worker | None, place: str | None) -> Worker | None:
        """A free worker at a place, the preferred one if it is free; None if all are busy."""
        worker = preferred if preferred in self.free else None
        if worker is None:
            worker = next((free_worker for free_worker in self.free if place in (None, free_worker.place)), None)
        if worker:
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
        self.up[worker.place] -= worker.process is not None
        if worker in self.free:
            self.free.remove(worker)
        self.kill(worker.actor)
        if not worker.leaving:
            self.add(worker.place)

    def resize(self, wanted: int, busy: Collection[Worker]) -> None:
        """Change the number of workers. If there are too many, starting ones go first, then free ones, then busy ones
        after their job."""
        check_integer("workers", wanted)
        self.shares = self.spread(wanted)
        order = sorted(self.members, key=lambda worker: (worker not in busy, worker not in self.free, worker.leaving))
        for place, number in self.shares.items():
            here = [worker for worker in order if worker.place == place]
            for worker in here:
                worker.leaving = False
            for worker in here[number:]:
                worker.leaving = True
                if worker not in busy:
                    self.starting = {ref: other for ref, other in self.starting.items() if other is not worker}
                    self.replace(worker)
            for _ in range(number - len(here)):
                self.add(place)

    def kill(self, actor: Any) -> None:
        """End an actor's process."""
        if self._ray.is_initialized():  # otherwise the call would start Ray
            with suppress(Exception):  # the actor or Ray may be dead already
                self._ray.kill(actor)

    def close(self) -> None:
        for worker in self.members:
            self.kill(worker.actor)
        for workers in (self.members, self.free, self.starting, self.up):
            workers.clear()
