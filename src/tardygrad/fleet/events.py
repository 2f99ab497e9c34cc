"""What happens to clients, and when: crashes, slow-downs, hours of availability, faulty updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tardygrad.constructors import checked
from tardygrad.fleet.runtimes import check_rule

Sends = Literal["nan", "twice"]
"""What a faulty job returns: NaN, or the same update twice."""

GOLDEN = (math.sqrt(5) - 1) / 2


@checked
@dataclass(frozen=True)
class Crash:
    """The client, given by its number or name, is lost at time `at`, and comes back at time `back`, or never."""

    client: int | str
    at: float
    back: float | None = None

    def __post_init__(self) -> None:
        valid = 0 <= self.at < math.inf and (self.back is None or self.at < self.back < math.inf)
        check_rule(valid, self, "0 <= at < back < inf")


@checked
@dataclass(frozen=True)
class Slow:
    """A client, given by its number or name, or every client of a group, computes `factor` times slower from `at` until
    `until`.

    A factor of inf is a pause.
    """

    client: int | str | None = None
    at: float = 0.0
    until: float = math.inf
    factor: float = math.inf
    group: str | None = None

    def __post_init__(self) -> None:
        check_rule((self.client is None) != (self.group is None), self, "either `client` or `group`")
        check_rule(0 <= self.at < self.until and self.factor > 0, self, "0 <= at < until and factor > 0")
        finite = self.until < math.inf or self.factor < math.inf
        check_rule(finite, self, "a finite `until` for a pause (use a crash for an endless one)")


@checked
@dataclass(frozen=True)
class SlowSpells:
    """All clients of a group are slow together, at random times: spells of `lasts` seconds in the mean, `every` seconds
    in the mean after the end of the last one (both exponential), in which they compute `factor` times slower."""

    group: str
    every: float
    lasts: float
    factor: float

    def __post_init__(self) -> None:
        valid = 0 < self.every < math.inf and 0 < self.lasts < math.inf and self.factor > 0
        check_rule(valid, self, "0 < every < inf, 0 < lasts < inf and factor > 0")


@checked
@dataclass(frozen=True)
class Diurnal:
    """Windows that repeat every `period` seconds: each client is awake for the share `awake` of it.

    The windows of different clients begin at times that are spread evenly over the share `spread` of the period: 0 is
    the same time for all, 1 any time of the day. `group`: only these clients.
    """

    period: float = 86_400.0
    awake: float = 0.5
    spread: float = 1.0
    group: str | None = None

    def __post_init__(self) -> None:
        valid = 0 < self.period < math.inf and 0 < self.awake <= 1 and 0 <= self.spread <= 1
        check_rule(valid, self, "0 < period < inf, 0 < awake <= 1 and 0 <= spread <= 1")

    def windows(self, number: int) -> tuple[tuple[float, float], ...]:
        """The windows of a client, by its number among those of the fleet."""
        start = number * GOLDEN % 1.0 * self.spread * self.period  # evenly spread for any number of clients
        end = start + self.awake * self.period
        if self.awake == 1:
            return ((0.0, self.period),)
        if end <= self.period:
            return ((start, end),)
        return tuple((a, b) for a, b in ((0.0, end - self.period), (start, self.period)) if b - a >= 1e-3)


@checked
@dataclass(frozen=True)
class Available:
    """The client, given by its number or name, is available only inside these windows, repeated every `period` seconds
    if that is given.

    Outside of them it is asleep: it gets no job.
    """

    client: int | str
    windows: tuple[tuple[float, float], ...]
    period: float | None = None

    def __post_init__(self) -> None:
        edges = [edge for window in self.windows for edge in window]
        valid = bool(edges) and edges[0] >= 0 and all(a < b for a, b in pairwise(edges))
        check_rule(valid, self, "at least one window (start, end), in ascending order")
        period_valid = self.period is None or edges[-1] <= self.period < math.inf
        check_rule(period_valid, self, "a finite period, at least the end of the last window")
        check_rule(all(b - a >= 1e-3 for a, b in self.windows), self, "windows of at least a millisecond")

    @property
    def open_seconds(self) -> float:
        """Of all windows, in a period if they repeat."""
        return sum(end - start for start, end in self.windows)

    def open_at(self, time: float) -> tuple[bool, float]:
        """Whether a window is open at a time, and when that changes next: inf if never."""
        period = math.floor(time / self.period) if self.period else 0
        for number in (period, period + 1, period + 2) if self.period else (0,):  # rounding may give one too few
            begin = number * (self.period or 0.0)
            for start, end in self.windows:
                if time < begin + start:
                    return False, begin + start
                if time < begin + end:
                    return True, begin + end
        return False, math.inf

    def next_change(self, time: float) -> tuple[bool, float]:
        """Whether a window is open at a time, and when that ends: windows without a gap are one. inf: never."""
        is_open, change = self.open_at(time)
        if is_open and self.windows == ((0, self.period),):
            return True, math.inf
        if is_open and change < math.inf and self.open_at(change)[0]:  # the first window of the next period follows
            change = self.open_at(change)[1]
        return is_open, change


@checked
@dataclass(frozen=True)
class Fault:
    """The client's job number `job`, counted from 0, returns NaN, or returns twice."""

    client: int | str
    job: int
    sends: Sends

    def __post_init__(self) -> None:
        check_rule(self.job >= 0, self, "job >= 0")
