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
        self.due: list[tuple[float, int, int, Job | None]] = []  # (time, client, serial, job), a heap
        for away in fleet.absences:
            self.due.append((away.at, away.client, _LOST, None))
            if away.back is not None:
                self.due.append((away.back, away.client, _JOINED, None))
        heapify(self.due)
        self._runtimes = [draw for group in fleet.groups for draw in [group.runtime.draw] * group.clients]
        message = 4 * task.parameters
        answer = message * (2 if method.compensate else 1)
        self._links: list[tuple[float, float]] = []
        for group in fleet.groups:
            link = (group.link.latency + message / group.link.down, group.link.latency + answer / group.link.up)
            self._links += [link] * group.clients
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
        if done + up < math.inf:
            heappush(self.due, (done + up, client, serial, job))
        else:  # its windows have closed for good, or a heavy tail has run off the end of the numbers
            closes = self._available[client].last if client in self._available else self.now
            heappush(self.due, (max(self.now, closes), client, _LOST, None))

    def next(self) -> Message | None:
        if not self.due:
            return None
        time, client, serial, job = heappop(self.due)
        if time > self.now:
            self.now = time
        if job is not None:
            self.now += self.fleet.server_time
            return perform(job, self.task, self.method)
        if serial == _JOINED:
            return Joined(client)
        self.due = [one for one in self.due if one[1] != client or one[3] is None]  # its job is lost with it
        heapify(self.due)
        return Lost(client)

    def pending(self) -> Pending:
        jobs = [job for *_, job in self.due if job is not None]
        return Pending(self.now, jobs, [(time, client, serial) for time, client, serial, _ in self.due])

    def restore(self, pending: Pending) -> None:
        self.now = pending.now
        jobs = {(job.client, job.serial): job for job in pending.jobs}
        self.due = [(time, client, serial, jobs.get((client, serial))) for time, client, serial in pending.due]
