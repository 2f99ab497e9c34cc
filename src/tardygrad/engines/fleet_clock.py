"""A fleet in real time: how long jobs take, who is lost and back when, and whose updates are spoilt or come twice."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

from tardygrad.core.algorithm import Task
from tardygrad.core.messages import Job, Joined, Lost
from tardygrad.core.method import Method
from tardygrad.errors import Invalid
from tardygrad.fleet import Fleet, Journeys

LOST, JOINED = -2, -1  # in place of a serial: at equal times a client is lost or back before its job arrives


def calendar(fleet: Fleet) -> list[tuple[float, int, int]]:
    """Who is lost and back when: (the fleet's time, client, lost or joined), a heap."""
    made = [(away.at, away.client, LOST) for away in fleet.absences]
    made += [(away.back, away.client, JOINED) for away in fleet.absences if away.back is not None]
    heapify(made)
    return made


def journeys(task: Task, method: Method, fleet: Fleet) -> Journeys:
    """When a method's jobs on a task are back, for a fleet that fits."""
    if task.clients != fleet.clients:
        counts = f"{task.clients} and {fleet.clients}"
        raise Invalid(f"task and fleet must have the same number of clients, got {counts}.")
    message, whole = 4 * task.parameters, method.local_steps or method.local_epochs or 1
    return Journeys(fleet, message, message * (2 if method.compensate else 1), whole)


class Emulated:
    """The times and troubles of a fleet, for an engine with a real clock; all times here are real seconds.

    Args:
        second: real seconds for each of the fleet's; 0 leaves the fleet out.
    """

    def __init__(self, task: Task, method: Method, fleet: Fleet | None, second: float) -> None:
        self.second, self.server_time = second, 0.0
        self.calendar: list[tuple[float, int, int]] = []
        self.spoilt, self.twice = frozenset[tuple[int, int]](), frozenset[tuple[int, int]]()
        self._journeys: Journeys | None = None
        if not second:
            if fleet and (fleet.crashes or fleet.slow or fleet.available or fleet.faults):
                raise Invalid("a fleet in which things go wrong needs real seconds, got second=0. Set engine.second.")
            return
        if fleet is None:
            raise Invalid(f"`second` is for the times of a fleet, got {second:g} without one.")
        self._journeys, self.calendar = journeys(task, method, fleet), calendar(fleet)
        self.server_time = fleet.server_time * second
        self.spoilt, self.twice = fleet.sending("nan"), fleet.sending("twice")

    def due(self, job: Job, now: float) -> float:
        """When a job that is sent now is back; inf if it never is, and its client will be lost."""
        if self._journeys is None:
            return 0.0
        sent = now / self.second
        due = self._journeys.due(job.client, job.serial, job.seed, job.steps or job.epochs, sent)
        if due == math.inf:
            heappush(self.calendar, (self._journeys.gone(job.client, sent), job.client, LOST))
        return due * self.second

    @property
    def at(self) -> float:
        """When something happens next; inf if nothing does."""
        return self.calendar[0][0] * self.second if self.calendar else math.inf

    def strike(self) -> Lost | Joined:
        """What happens next."""
        _, client, what = heappop(self.calendar)
        return Joined(client) if what == JOINED else Lost(client)

    def resume(self, due: list[tuple[float, int, int]]) -> None:
        """Go on with the calendar that an earlier process had."""
        self.calendar = [one for one in due if one[2] < 0 and self.second]
        heapify(self.calendar)
