"""The clock of a fleet: runtimes of jobs, losses and returns of clients, and corrupted or duplicated updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import torch

from tardygrad import streams
from tardygrad.core.messages import Job, Joined, Lost, Update, as_vector
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task
from tardygrad.errors import Invalid, is_number
from tardygrad.fleet import Available, Fleet, Slow

LOST, JOINED = -2, -1  # in place of a serial; negative, so that at equal times they come before the client's arrivals


def calendar(fleet: Fleet) -> list[tuple[float, int, int]]:
    """The losses and returns of a fleet's clients: a heap of (time, client, `LOST` or `JOINED`)."""
    entries = [(away.at, away.client, LOST) for away in fleet.absences]
    entries += [(away.back, away.client, JOINED) for away in fleet.absences if away.back is not None]
    heapify(entries)
    return entries


def finish(start: float, seconds: float, slow: Sequence[Slow], available: Available | None) -> float:
    """When a computation of `seconds` ends, given the client's slow-downs and availability windows; inf if never."""
    time, left = start, seconds
    if available and available.period and not slow:  # skip whole periods: a job may take millions of them
        open_seconds = sum(b - a for a, b in available.windows)
        periods = max(math.floor(left / open_seconds) - 1, 0)
        time, left = time + periods * available.period, left - periods * open_seconds
    while True:
        is_open, change = available.open_at(time) if available else (True, math.inf)
        until = min([change, *(edge for spell in slow for edge in (spell.at, spell.until) if edge > time)])
        speed = float(is_open)
        for spell in slow:
            if spell.at <= time < spell.until:
                speed /= spell.factor
        if speed > 0 and left <= (until - time) * speed:
            return time + left / speed
        if until == math.inf:
            return math.inf
        left -= (until - time) * speed
        time = until


class RoundTrips:
    """When jobs return: download, computation with slow-downs and availability windows, upload.

    Args:
        fleet: the clients.
        down, up: bytes of a job's message to its client, and of the client's answer.
        work: steps or epochs of a job that takes the drawn runtime; it is scaled for a job with another number.
    """

    def __init__(self, fleet: Fleet, down: int, up: int, work: int) -> None:
        self._draws = [draw for group in fleet.groups for draw in [group.runtime.draw] * group.clients]
        self._links: list[tuple[float, float]] = []
        for group in fleet.groups:
            link = (group.link.latency + down / group.link.down, group.link.latency + up / group.link.up)
            self._links += [link] * group.clients
        self._slow: dict[int, list[Slow]] = {}
        for spell in fleet.slow:
            self._slow.setdefault(spell.client, []).append(spell)
        self._available = {entry.client: entry for entry in fleet.available}
        self._irregular = self._slow.keys() | self._available.keys()
        self._work = work

    def due(self, client: int, serial: int, seed: int, work: int | None, now: float) -> float:
        """When a job sent now returns; inf if never. `work`: its steps or epochs; None is the usual number."""
        seconds = self._draws[client](streams.uniform(seed, "runtime", client, serial), serial)
        if work and work != self._work:
            seconds *= work / self._work  # DyLU gives clients different amounts of work
        down, up = self._links[client]
        if client in self._irregular:
            return finish(now + down, seconds, self._slow.get(client, ()), self._available.get(client)) + up
        return now + down + seconds + up

    def lost_at(self, client: int, now: float) -> float:
        """When a client whose job never returns is lost: when its last window closes, or now."""
        return max(now, self._available[client].last) if client in self._available else now


def corrupt(update: Update) -> Update:
    """An update as a faulty client sends it: all NaN. A clock-only run's empty vector becomes one NaN."""
    size = max(len(delta := as_vector(update.delta)), 1)
    curvature = None if update.curvature is None else torch.full_like(update.curvature, math.nan)
    return update._replace(delta=delta.new_full((size,), math.nan), curvature=curvature)


def round_trips(task: Task, method: Method, fleet: Fleet) -> RoundTrips:
    """The round trips of a method's jobs; raises `Invalid` if task and fleet differ in their number of clients."""
    check_method(method)
    check_task(task)
    if not isinstance(fleet, Fleet):
        raise Invalid(
            f"a fleet must be a tardygrad.Fleet, got {type(fleet).__name__}. Check the order of the arguments."
        )
    if task.clients != fleet.clients:
        counts = f"{task.clients} and {fleet.clients}"
        raise Invalid(f"task and fleet must have the same number of clients, got {counts}.")
    message, work = 4 * task.parameters, method.local_steps or method.local_epochs or 1
    return RoundTrips(fleet, message, message * (2 if method.compensate else 1), work)


class FleetClock:
    """Runtimes and failures of a fleet, scaled to real seconds.

    Args:
        second: real seconds for each second of the fleet; 0 ignores the fleet.
    """

    def __init__(self, task: Task, method: Method, fleet: Fleet | None, second: float) -> None:
        if not (is_number(second) and (second == 0 or 1e-6 <= second <= 86_400)):
            raise Invalid(f"`second` must be 0, or a number of seconds from 1e-6 to 86,400, got {second!r}.")
        self.second, self.server_time = second, 0.0
        self.calendar: list[tuple[float, int, int]] = []
        self.corrupted, self.duplicated = frozenset[tuple[int, int]](), frozenset[tuple[int, int]]()
        self._round_trips: RoundTrips | None = None
        if not second:
            if fleet and (fleet.crashes or fleet.slow or fleet.available or fleet.faults):
                raise Invalid(
                    "a fleet with failures or slow-downs needs real seconds, got second=0. Set engine.second."
                )
            return
        if fleet is None:
            raise Invalid(f"`second` needs a fleet, got second={second:g} without one.")
        self._round_trips, self.calendar = round_trips(task, method, fleet), calendar(fleet)
        self.server_time = fleet.server_time * second
        self.corrupted, self.duplicated = fleet.sending("nan"), fleet.sending("twice")

    def due(self, job: Job, now: float) -> float:
        """When a job sent now returns; 0 without a fleet. inf if never: then the client will be lost."""
        if self._round_trips is None:
            return 0.0
        sent = now / self.second
        due = self._round_trips.due(job.client, job.serial, job.seed, job.steps or job.epochs, sent)
        if due == math.inf:
            heappush(self.calendar, (self._round_trips.lost_at(job.client, sent), job.client, LOST))
        return due * self.second

    @property
    def next_at(self) -> float:
        """When the next client is lost or joins; inf if none does."""
        return self.calendar[0][0] * self.second if self.calendar else math.inf

    def pop(self) -> Lost | Joined:
        """Remove and return the next loss or return of a client."""
        _, client, what = heappop(self.calendar)
        return Joined(client) if what == JOINED else Lost(client)

    def resume(self, due: list[tuple[float, int, int]]) -> None:
        """Continue with the calendar of a checkpoint."""
        self.calendar = [entry for entry in due if entry[2] < 0 and self.second]
        heapify(self.calendar)
