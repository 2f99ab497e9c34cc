"""The simulator: a virtual clock and a calendar of arrivals."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

from tardygrad import streams
from tardygrad.algorithm import Method, Task
from tardygrad.errors import Invalid
from tardygrad.fleet import Fleet, Slow, finish
from tardygrad.messages import Job, Joined, Lost
from tardygrad.pools.pool import Message, Pending, perform

_LOST, _JOINED = -2, -1  # in place of a serial: at equal times a client is lost or back before its job arrives


class SimPool:
    """Jobs on a virtual clock. Arrivals are totally ordered by (time, client, serial); work is done when it arrives,
    so what no round needs is never computed.

    Args:
        task: what to learn; one with as many clients as the fleet.
        method: how.
        fleet: how long it takes.
    """

    def __init__(self, task: Task, method: Method, fleet: Fleet) -> None:
        if task.clients != fleet.clients:
            raise Invalid(
                f"task and fleet must have the same number of clients, got {task.clients} and {fleet.clients}."
            )
        self.task, self.method, self.fleet = task, method, fleet
        self.now = 0.0
        self.jobs: dict[int, Job] = {}
        self.due: list[tuple[float, int, int]] = [(one.at, one.client, _LOST) for one in fleet.absences]
        self.due += [(one.back, one.client, _JOINED) for one in fleet.absences if one.back is not None]
        heapify(self.due)
        self._runtimes = [group.runtime.draw for group in fleet.groups for _ in range(group.clients)]
        message = 4 * task.parameters
        self._links = [
            (group.link.latency + message / group.link.down,
             group.link.latency + message * (2 if method.compensate else 1) / group.link.up)
            for group in fleet.groups for _ in range(group.clients)
        ]  # fmt: skip
        self._slow: dict[int, list[Slow]] = {}
        for one in fleet.slow:
            self._slow.setdefault(one.client, []).append(one)
        self._available = {one.client: one for one in fleet.available}
        self._troubled = self._slow.keys() | self._available.keys()
        self._steps = method.local_steps

    def submit(self, job: Job) -> None:
        client, serial = job.client, job.serial
        seconds = self._runtimes[client](streams.uniform(job.seed, "runtime", client, serial), serial)
        if job.steps != self._steps and job.steps and self._steps:
            seconds *= job.steps / self._steps  # a method that varies the work varies the time
        down, up = self._links[client]
        done = self.now + down + seconds
        if client in self._troubled:
            done = finish(self.now + down, seconds, self._slow.get(client, ()), self._available.get(client))
        self.jobs[client] = job
        if done + up < math.inf:
            heappush(self.due, (done + up, client, serial))
        else:  # its windows have closed for good
            heappush(self.due, (max(self.now, self._available[client].last), client, _LOST))

    def next(self) -> Message | None:
        while self.due:
            time, client, serial = heappop(self.due)
            job = self.jobs.get(client)
            if serial >= 0 and (job is None or job.serial != serial):
                continue  # the client was lost on the way
            if time > self.now:
                self.now = time
            if serial == _JOINED:
                return Joined(client)
            self.jobs.pop(client, None)
            if serial == _LOST or job is None:
                return Lost(client)
            self.now += self.fleet.server_time
            return perform(job, self.task, self.method)
        return None

    def pending(self) -> Pending:
        return Pending(self.now, list(self.jobs.values()), list(self.due))

    def restore(self, pending: Pending) -> None:
        self.now = pending.now
        self.jobs = {job.client: job for job in pending.jobs}
        self.due = list(pending.due)
