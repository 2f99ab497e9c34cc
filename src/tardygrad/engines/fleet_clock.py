"""The clock of a fleet: runtimes of jobs, when clients are lost or asleep, and corrupted or duplicated updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

import torch

from tardygrad import streams
from tardygrad.core.messages import Asleep, AtEnd, Awake, Job, Joined, Lost, Message, Update, as_vector
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task
from tardygrad.errors import Invalid, is_number
from tardygrad.fleet import Available, Crash, Fleet, Slow

SLEEPS, WAKES, LOST, JOINED = -4, -3, -2, -1
"""In place of a serial; negative, so that at equal times they come before the client's arrivals."""

Entry = tuple[float, int, int]
"""Of a calendar: time, client, and the serial of the job that is due or one of the numbers above."""


class Attendance:
    """When the clients of a fleet are lost, return, fall asleep and wake up."""

    def __init__(self, fleet: Fleet) -> None:
        self.available = {entry.client: entry for entry in fleet.available}
        self.at_end: dict[int, AtEnd] = {one.client: one.at_end or fleet.at_window_end for one in fleet.available}
        self._away: dict[int, list[Crash]] = {}
        for away in fleet.absences:
            self._away.setdefault(away.client, []).append(away)
        self._woken: set[int] = set()  # clients that woke up since a job was last submitted

    def calendar(self) -> list[Entry]:
        """The entries at the beginning of a run: a heap."""
        absences = [away for client in self._away.values() for away in client]
        entries = [(away.at, away.client, LOST) for away in absences]
        entries += [(away.back, away.client, JOINED) for away in absences if away.back is not None]
        entries += [entry for client in self.available for entry in self._next(client, 0.0)]
        heapify(entries)
        return entries

    def asleep(self) -> tuple[int, ...]:
        """The clients that are asleep when a run begins."""
        return tuple(client for client, windows in self.available.items() if not windows.open_at(0.0)[0])

    def resumed(self, entries: list[Entry], now: float) -> list[Entry]:
        """The calendar of a checkpoint. Older versions did not put sleep into it: then it begins now."""
        known = {client for _, client, code in entries if code in (SLEEPS, WAKES)}
        for client in self.available.keys() - known:
            if following := self._next(client, now):
                entries += following if following[0][2] == SLEEPS else [(now, client, SLEEPS)]
        return entries

    def _next(self, client: int, time: float) -> list[Entry]:
        is_open, change = self.available[client].next_change(time)
        return [(change, client, SLEEPS if is_open else WAKES)] if change < math.inf else []

    def is_silent(self, entry: Entry) -> bool:
        """Whether an entry has no message: a lost client neither falls asleep nor wakes up."""
        time, client, code = entry
        away = self._away.get(client, ()) if code <= WAKES else ()
        return any(each.at <= time and (each.back is None or time <= each.back) for each in away)

    def following(self, entry: Entry) -> list[Entry]:
        """The entries that take the place of an entry without a job."""
        time, client, code = entry
        gone = any(away.at <= time and away.back is None for away in self._away.get(client, ()))
        return self._next(client, time) if code <= WAKES and not gone else []

    def message(self, entry: Entry) -> Message:
        """What an entry without a job tells the server."""
        time, client, code = entry
        if code == LOST:
            return Lost(client)
        if code == JOINED:
            return self.returns(client, time)
        if code == WAKES:
            self._woken.add(client)
            return Awake(client)
        at_end = self.at_end[client]
        last = at_end == "suspend" and not self.following(entry)  # no window in which the job could go on
        return Asleep(client, "cancel" if last else at_end)

    def returns(self, client: int, time: float) -> Joined | Asleep:
        """How a client comes back that was lost: ready for jobs, or asleep."""
        awake = client not in self.available or self.available[client].open_at(time)[0]
        return Joined(client) if awake else Asleep(client)

    def submitted(self) -> None:
        """Note that a client got a job."""
        self._woken.clear()

    def is_over(self, calendar: Iterable[Entry]) -> bool:
        """Whether nothing but sleep is left in a calendar, and all who wake up in it were awake without getting a job:
        then no client will ever get one."""
        return bool(self._woken) and all(code <= WAKES and client in self._woken for _, client, code in calendar)


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
        self.attendance = Attendance(fleet)
        self._draws = [draw for group in fleet.groups for draw in [group.runtime.draw] * group.clients]
        self._links: list[tuple[float, float]] = []
        for group in fleet.groups:
            link = (group.link.latency + down / group.link.down, group.link.latency + up / group.link.up)
            self._links += [link] * group.clients
        self._slow: dict[int, list[Slow]] = {}
        for spell in fleet.slow:
            self._slow.setdefault(spell.client, []).append(spell)
        self._irregular = self._slow.keys() | self.attendance.available.keys()
        self._work = work

    def due(self, client: int, serial: int, seed: int, work: int | None, now: float) -> float:
        """When a job sent now returns; inf if never, as if it is cancelled when its client falls asleep.

        Args:
            work: its steps or epochs; None is the usual number.
        """
        seconds = self._draws[client](streams.uniform(seed, "runtime", client, serial), serial)
        if work and work != self._work:
            seconds *= work / self._work  # DyLU gives clients different amounts of work
        down, up = self._links[client]
        if client not in self._irregular:
            return now + down + seconds + up
        slow, windows = self._slow.get(client, ()), self.attendance.available.get(client)
        if windows is None or self.attendance.at_end[client] == "suspend":
            return finish(now + down, seconds, slow, windows) + up
        due = finish(now + down, seconds, slow, None) + up
        is_open, change = windows.next_change(now)
        in_time = (is_open and due <= change) or self.attendance.at_end[client] == "finish"
        return due if in_time else math.inf

    def loses_client(self, client: int, now: float) -> bool:
        """Whether a client is lost because its job never returns. Otherwise it cancels the job when it falls asleep."""
        windows = self.attendance.available.get(client)
        if windows is None or windows.next_change(now)[1] == math.inf:
            return True
        at_end = self.attendance.at_end[client]
        return at_end == "finish" or (at_end == "suspend" and windows.period is not None)


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
        self.calendar: list[Entry] = []
        self.asleep: tuple[int, ...] = ()  # when the run begins
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
        self._round_trips = round_trips(task, method, fleet)
        self.attendance = self._round_trips.attendance
        self.calendar, self.asleep = self.attendance.calendar(), self.attendance.asleep()
        self.server_time = fleet.server_time * second
        self.corrupted, self.duplicated = fleet.sending("nan"), fleet.sending("twice")

    def due(self, job: Job, now: float) -> float:
        """When a job sent now returns; 0 without a fleet. inf if never: it is lost with its client, or cancelled."""
        if self._round_trips is None:
            return 0.0
        sent = now / self.second
        due = self._round_trips.due(job.client, job.serial, job.seed, job.steps or job.epochs, sent)
        if due == math.inf and self._round_trips.loses_client(job.client, sent):
            heappush(self.calendar, (sent, job.client, LOST))
        self.attendance.submitted()
        return due * self.second

    @property
    def next_at(self) -> float:
        """When the next client is lost, returns, falls asleep or wakes up; inf if none does."""
        while self.calendar and self.attendance.is_silent(self.calendar[0]):
            self._pop()
        return self.calendar[0][0] * self.second if self.calendar else math.inf

    def pop(self) -> Message:
        """Remove the next entry, and return its message; only if `next_at` is not inf."""
        return self.attendance.message(self._pop())

    def _pop(self) -> Entry:
        entry = heappop(self.calendar)
        for following in self.attendance.following(entry):
            heappush(self.calendar, following)
        return entry

    @property
    def is_over(self) -> bool:
        """Whether no message of the calendar will ever give a client a job."""
        return not self.calendar or self.attendance.is_over(self.calendar)

    def returns(self, client: int, now: float) -> Joined | Asleep:
        """How a client comes back that was lost: ready for jobs, or asleep."""
        return self.attendance.returns(client, now / self.second if self.second else 0.0)

    def resume(self, due: list[Entry], now: float) -> None:
        """Continue with the calendar of a checkpoint."""
        self.asleep = ()
        if self.second:
            self.calendar = self.attendance.resumed([entry for entry in due if entry[2] < 0], now / self.second)
            heapify(self.calendar)
