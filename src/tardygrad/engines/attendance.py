"""Attendance: when the clients of a fleet are lost, return, fall asleep and wake up, as entries of a calendar."""

from __future__ import annotations

import math
from collections.abc import Collection
from heapq import heapify

from tardygrad.core.messages import Asleep, Awake, Joined, Lost, Message
from tardygrad.fleet import Crash, Fleet

DROPS, SLEEPS, WAKES, LOST, JOINED = -5, -4, -3, -2, -1
"""In place of a serial; negative, so that at equal times they come before the client's arrivals. DROPS: the client's
job is lost, and not the client."""
SLEEP = (SLEEPS, WAKES)

Entry = tuple[float, int, int]
"""Of a calendar: time, client, and the serial of the job that is due or one of the numbers above."""


class Attendance:
    """When the clients of a fleet are lost, return, fall asleep and wake up."""

    def __init__(self, fleet: Fleet) -> None:
        self.available = fleet.windows
        self.at_end = fleet.at_window_end
        self._away: dict[int, list[Crash]] = {}
        for away in fleet.absences:
            self._away.setdefault(int(away.client), []).append(away)
        self._woken: set[int] | None = (
            None  # clients that have woken up since only sleep is left; None: more than that is left
        )

    def calendar(self) -> list[Entry]:
        """The entries at the beginning of a run: a heap."""
        absences = [(client, away) for client, crashes in self._away.items() for away in crashes]
        entries = [(away.at, client, LOST) for client, away in absences]
        entries += [(away.back, client, JOINED) for client, away in absences if away.back is not None]
        entries += [entry for client in self.available for entry in self._next(client, 0.0)]
        heapify(entries)
        return entries

    def asleep(self) -> tuple[int, ...]:
        """The clients that are asleep when a run begins."""
        return tuple(client for client, windows in self.available.items() if not windows.open_at(0.0)[0])

    def resumed(self, entries: list[Entry], now: float) -> list[Entry]:
        """The calendar of a checkpoint. Older versions did not put sleep into it: then it begins now."""
        known = {client for _, client, code in entries if code in SLEEP}
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
        away = self._away.get(client, ()) if code in SLEEP else ()
        return any(each.at <= time and (each.back is None or time <= each.back) for each in away)

    def following(self, entry: Entry) -> list[Entry]:
        """The entries that take the place of an entry without a job."""
        time, client, code = entry
        if code == DROPS:
            return [(time, client, JOINED)]
        gone = any(away.at <= time and away.back is None for away in self._away.get(client, ()))
        return self._next(client, time) if code in SLEEP and not gone else []

    def knows(self, client: int, code: int) -> bool:
        """Whether an entry of this client can have this code without a job."""
        return code in (DROPS, LOST, JOINED) or (code in SLEEP and client in self.available)

    def message(self, entry: Entry) -> Message:
        """What an entry without a job tells the server."""
        time, client, code = entry
        if code in (LOST, DROPS):
            return Lost(client)
        if code == JOINED:
            return self.returns(client, time)
        if code == WAKES:
            if self._woken is not None:
                self._woken.add(client)
            return Awake(client)
        last = not self.following(entry)  # no window in which the job could go on
        return Asleep(client, "cancel" if last else self.at_end)

    def returns(self, client: int, time: float) -> Joined | Asleep:
        """How a client comes back that was lost: ready for jobs, or asleep."""
        awake = client not in self.available or self.available[client].open_at(time)[0]
        return Joined(client) if awake else Asleep(client)

    def submitted(self) -> None:
        """Note that a client got a job."""
        self._woken = None

    def is_over(self, calendar: Collection[tuple[float, int, int, *tuple[object, ...]]]) -> bool:
        """Whether no client will get a job again: only sleep is left in the calendar, and every client in it has woken
        up since and got none."""
        if any(code not in SLEEP for _, _, code, *_ in calendar):
            return False
        if self._woken is None:
            self._woken = set()  # from now on, `message` adds the clients that wake up
        return {client for _, client, *_ in calendar} <= self._woken

    def skipped(self, entry: Entry, until: float) -> Entry:
        """An entry about sleep, moved by whole periods to the last two before a time, if it is earlier."""
        time, client, code = entry
        period = self.available[client].period
        if period is None or time > until - 2 * period:
            return entry
        found = self._next(client, until - 2 * period)
        if found and found[0][2] != code:
            found = self._next(client, found[0][0])
        return found[0] if found else (until, client, code)  # none: rounding swallows the windows
