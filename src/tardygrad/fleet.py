"""Fleets: who the clients are, how long they take, and what goes wrong when. Virtual seconds throughout."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Literal, Protocol

import torch

from tardygrad import streams
from tardygrad.core.messages import Update
from tardygrad.errors import Invalid

Sends = Literal["nan", "twice"]
"""How a faulty job comes back: as NaN, or once more than it should."""

Stragglers = Literal["mild", "large"]
"""The paper's two fleets: slow clients take 5 to 8 seconds, or 20 to 40."""


def _check(holds: bool, what: object, rule: str) -> None:
    if not holds:
        raise Invalid(f"{type(what).__name__} needs {rule}, got {what}.")


def _exp(power: float) -> float:
    """e^power, or the largest number there is: a draw from a very heavy tail may not fit."""
    return math.exp(min(power, 709.0))


class Runtime(Protocol):
    """How long one job takes: a distribution, by its quantile function."""

    def draw(self, u: float, serial: int) -> float:
        """The runtime for a uniform number u in [0, 1); `serial` counts the client's jobs."""


@dataclass(frozen=True)
class Uniform:
    """Any time between low and high, equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(0 <= self.low <= self.high < math.inf, self, "0 <= low <= high")

    def draw(self, u: float, serial: int) -> float:
        return self.low + u * (self.high - self.low)


@dataclass(frozen=True)
class Integer:
    """A whole number of seconds between low and high, both ends included: the paper's draw."""

    low: int
    high: int

    def __post_init__(self) -> None:
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        _check(whole and 0 <= self.low <= self.high < 2**53, self, "whole numbers with 0 <= low <= high < 2^53")

    def draw(self, u: float, serial: int) -> float:
        return float(self.low + int(u * (self.high - self.low + 1)))


@dataclass(frozen=True)
class LogNormal:
    """exp(Normal(log median, sigma²))."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        _check(0 < self.median < math.inf and 0 <= self.sigma < math.inf, self, "median > 0 and sigma >= 0")

    def draw(self, u: float, serial: int) -> float:
        return _exp(math.log(self.median) + self.sigma * NormalDist().inv_cdf(max(u, 2.0**-53)))


@dataclass(frozen=True)
class Exponential:
    """Memoryless, with the given mean."""

    mean: float

    def __post_init__(self) -> None:
        _check(0 < self.mean < math.inf, self, "mean > 0")

    def draw(self, u: float, serial: int) -> float:
        return -self.mean * math.log1p(-u)


@dataclass(frozen=True)
class Pareto:
    """At least `minimum`; P(longer than r) = (minimum / r)^tail, so the mean is infinite for tail <= 1."""

    minimum: float
    tail: float

    def __post_init__(self) -> None:
        _check(0 < self.minimum < math.inf and 0 < self.tail < math.inf, self, "minimum > 0 and tail > 0")

    def draw(self, u: float, serial: int) -> float:
        return _exp(math.log(self.minimum) - math.log1p(-u) / self.tail)


@dataclass(frozen=True)
class Trace:
    """Measured times, taken in order and from the start again when they run out."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        fine = bool(self.seconds) and all(0 <= s < math.inf for s in self.seconds)
        _check(fine, self, "at least one time, each finite and not negative")

    def draw(self, u: float, serial: int) -> float:
        return self.seconds[serial % len(self.seconds)]


@dataclass(frozen=True)
class Link:
    """The way between a client and the server: seconds each way, and bytes per second down and up."""

    latency: float = 0.0
    down: float = math.inf
    up: float = math.inf

    def __post_init__(self) -> None:
        _check(0 <= self.latency < math.inf and self.down > 0 and self.up > 0, self, "latency >= 0, down > 0, up > 0")


@dataclass(frozen=True)
class Group:
    """So many clients of one class."""

    name: str
    clients: int
    runtime: Uniform | Integer | LogNormal | Exponential | Pareto | Trace
    link: Link = Link()

    def __post_init__(self) -> None:
        _check(self.clients >= 0, self, "clients >= 0")


@dataclass(frozen=True)
class Crash:
    """The client is lost at a virtual time, and back later or never."""

    client: int
    at: float
    back: float | None = None

    def __post_init__(self) -> None:
        fine = 0 <= self.at < math.inf and (self.back is None or self.at < self.back < math.inf)
        _check(fine, self, "0 <= at < back")


@dataclass(frozen=True)
class Slow:
    """The client computes `factor` times slower from `at` until `until`; factor inf is a pause."""

    client: int
    at: float
    until: float = math.inf
    factor: float = math.inf

    def __post_init__(self) -> None:
        _check(0 <= self.at < self.until and self.factor > 0, self, "0 <= at < until and factor > 0")
        _check(
            self.until < math.inf or self.factor < math.inf, self, "an end of the pause (use a crash for one without)"
        )


@dataclass(frozen=True)
class Available:
    """The client computes only inside these windows, repeated every `period` seconds if one is given."""

    client: int
    windows: tuple[tuple[float, float], ...]
    period: float | None = None

    def __post_init__(self) -> None:
        edges = [edge for window in self.windows for edge in window]
        fine = bool(edges) and edges[0] >= 0 and all(a < b for a, b in pairwise(edges))
        _check(fine, self, "windows (start, end) in rising order")
        _check(self.period is None or edges[-1] <= self.period < math.inf, self, "a period no shorter than the windows")
        _check(all(b - a >= 1e-3 for a, b in self.windows), self, "windows of at least a millisecond")

    def open_at(self, time: float) -> tuple[bool, float]:
        """Whether a window is open at a time, and when that changes next; never again is inf."""
        lap = math.floor(time / self.period) if self.period else 0
        for number in (lap, lap + 1, lap + 2) if self.period else (0,):  # rounding may put the time a lap too early
            begun = number * (self.period or 0.0)
            for start, end in self.windows:
                if time < begun + start:
                    return False, begun + start
                if time < begun + end:
                    return True, begun + end
        return False, math.inf

    @property
    def last(self) -> float:
        """When the last window closes."""
        return math.inf if self.period else self.windows[-1][1]


@dataclass(frozen=True)
class Fault:
    """The client's job number `job`, counted from 0, comes back as NaN, or twice."""

    client: int
    job: int
    sends: Sends

    def __post_init__(self) -> None:
        fine = type(self.job) is int and self.job >= 0 and self.sends in ("nan", "twice")
        _check(fine, self, "a whole job >= 0 and sends 'nan' or 'twice'")


@dataclass(frozen=True)
class Fleet:
    """Clients in groups, in order: the first group's clients have the lowest numbers.

    Args:
        groups: the classes of clients.
        server_time: seconds that the server spends on each arriving update, one after the other.
        crashes, slow, available, faults: what goes wrong when.

    >>> Fleet.paper(clients=40, stragglers="large").classes[16:18]
    ('small', 'medium')
    """

    groups: tuple[Group, ...]
    server_time: float = 0.0
    crashes: tuple[Crash, ...] = ()
    slow: tuple[Slow, ...] = ()
    available: tuple[Available, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise Invalid("a fleet needs at least one client, got none.")
        if not 0 <= self.server_time < math.inf:
            raise Invalid(f"`server_time` must be finite, zero or more, got {self.server_time:g}.")
        wrong: tuple[Crash | Slow | Available | Fault, ...]
        wrong = (*self.crashes, *self.slow, *self.available, *self.faults)
        for fault in wrong:
            if not 0 <= fault.client < self.clients:
                raise Invalid(f"a fault's client must be between 0 and {self.clients - 1}, got {fault}.")
        windowed = [one.client for one in self.available]
        if twice := [client for client, times in Counter(windowed).items() if times > 1]:
            raise Invalid(f"`available` needs one list of windows per client, got several for client {twice[0]}.")
        if again := [fault for fault, times in Counter(self.faults).items() if times > 1]:
            raise Invalid(f"`faults` needs each fault once, got several times {again[0]}.")

    @classmethod
    def paper(cls, *, clients: int = 40, stragglers: Stragglers = "large", continuous: bool = False) -> Fleet:
        """The paper's fleet: of 40 clients 17 small (1–2 s), 12 medium (3–5 s), 11 large (5–8 s or 20–40 s)."""
        if stragglers not in ("mild", "large"):
            raise Invalid(f"`stragglers` must be 'mild' or 'large', got {stragglers!r}.")
        if clients < 1:
            raise Invalid(f"`clients` must be 1 or more, got {clients}.")
        ranges = {"small": (1, 2), "medium": (3, 5), "large": (5, 8) if stragglers == "mild" else (20, 40)}
        draw = Uniform if continuous else Integer
        counts = _apportion(clients, (17, 12, 11))
        return cls(tuple(Group(n, c, draw(*r)) for (n, r), c in zip(ranges.items(), counts, strict=True)))

    @classmethod
    def trace(cls, path: str | Path) -> Fleet:
        """A fleet from measured times: a CSV file with the columns `client`, `seconds` and, if you like, `class`."""
        times: dict[str, list[float]] = {}
        names: dict[str, str] = {}
        try:
            with Path(path).open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    times.setdefault(row["client"], []).append(float(row["seconds"]))
                    names[row["client"]] = row.get("class") or "traced"
        except OSError as error:
            raise Invalid(f"a trace must be a readable CSV file, got {str(path)!r}: {error.strerror}.") from error
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            fix = "Give it the columns client,seconds with a number of seconds in each row."
            raise Invalid(f"the trace {str(path)!r} cannot be read ({error}). {fix}") from error
        return cls(tuple(Group(names[c], 1, Trace(tuple(seconds))) for c, seconds in times.items()))

    @property
    def clients(self) -> int:
        return sum(group.clients for group in self.groups)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class of each client."""
        return tuple(group.name for group in self.groups for _ in range(group.clients))

    @property
    def absences(self) -> tuple[Crash, ...]:
        """The crashes, those of one client that touch each other joined into one."""
        joined: list[Crash] = []
        for one in sorted(self.crashes, key=lambda crash: (crash.client, crash.at)):
            last = joined[-1] if joined else None
            if last and last.client == one.client and (last.back is None or one.at <= last.back):
                back = None if last.back is None or one.back is None else max(last.back, one.back)
                joined[-1] = Crash(last.client, last.at, back)
            else:
                joined.append(one)
        return tuple(joined)

    def sending(self, what: Sends) -> frozenset[tuple[int, int]]:
        """The jobs, each named (client, serial), that come back so."""
        return frozenset((fault.client, fault.job) for fault in self.faults if fault.sends == what)

    def crash(self, *, client: int, at: float, back: float | None = None) -> Fleet:
        """The same fleet, with one more crash."""
        return replace(self, crashes=(*self.crashes, Crash(client, at, back)))

    def slowed(self, *, client: int, at: float, until: float = math.inf, factor: float) -> Fleet:
        """The same fleet, with one more slow-down."""
        return replace(self, slow=(*self.slow, Slow(client, at, until, factor)))

    def paused(self, *, client: int, at: float, until: float) -> Fleet:
        """The same fleet, with one more pause."""
        return replace(self, slow=(*self.slow, Slow(client, at, until)))

    def during(self, windows: Sequence[tuple[float, float]], *, client: int, period: float | None = None) -> Fleet:
        """The same fleet, with a client that computes only inside the windows."""
        return replace(self, available=(*self.available, Available(client, tuple(windows), period)))

    def faulty(self, *, client: int, job: int, sends: Sends) -> Fleet:
        """The same fleet, with one more job that comes back as NaN, or twice."""
        return replace(self, faults=(*self.faults, Fault(client, job, sends)))

    def linked(self, link: Link) -> Fleet:
        """The same fleet, every client behind the given link."""
        return replace(self, groups=tuple(replace(group, link=link) for group in self.groups))


def _apportion(total: int, shares: tuple[int, ...]) -> list[int]:
    """Whole numbers that add up to `total` in the given proportions (largest remainders)."""
    exact = [total * share / sum(shares) for share in shares]
    counts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def finish(start: float, seconds: float, slow: Sequence[Slow], available: Available | None) -> float:
    """When `seconds` of computing that begin at `start` are done, given one client's slow-downs and windows."""
    time, left = start, seconds
    if available and available.period and not slow:  # whole laps at once: a job may last for millions of them
        laps = max(math.floor(left / sum(b - a for a, b in available.windows)) - 1, 0)
        time, left = time + laps * available.period, left - laps * sum(b - a for a, b in available.windows)
    while True:
        is_open, change = available.open_at(time) if available else (True, math.inf)
        until = min([change, *(edge for one in slow for edge in (one.at, one.until) if edge > time)])
        speed = float(is_open)
        for one in slow:
            if one.at <= time < one.until:
                speed /= one.factor
        if speed > 0 and left <= (until - time) * speed:
            return time + left / speed
        if until == math.inf:
            return math.inf
        left -= (until - time) * speed
        time = until


class Journeys:
    """When jobs are back: the way down, the work with its slow-downs and windows, and the way up.

    Args:
        fleet: whose jobs.
        down, up: bytes of a job's message to its client, and of the client's answer.
        whole: the work that a runtime is for, in steps or epochs; a job of more takes longer in proportion.
    """

    def __init__(self, fleet: Fleet, down: int, up: int, whole: int) -> None:
        self._draws = [draw for group in fleet.groups for draw in [group.runtime.draw] * group.clients]
        self._links: list[tuple[float, float]] = []
        for group in fleet.groups:
            link = (group.link.latency + down / group.link.down, group.link.latency + up / group.link.up)
            self._links += [link] * group.clients
        self._slow: dict[int, list[Slow]] = {}
        for one in fleet.slow:
            self._slow.setdefault(one.client, []).append(one)
        self._available = {one.client: one for one in fleet.available}
        self._troubled = self._slow.keys() | self._available.keys()
        self._whole = whole

    def due(self, client: int, serial: int, seed: int, work: int | None, now: float) -> float:
        """When a job that is sent now is back, and inf if never; work None is as much as a runtime is for."""
        seconds = self._draws[client](streams.uniform(seed, "runtime", client, serial), serial)
        if work and work != self._whole:
            seconds *= work / self._whole  # a method that varies the work varies the time
        down, up = self._links[client]
        if client in self._troubled:
            return finish(now + down, seconds, self._slow.get(client, ()), self._available.get(client)) + up
        return now + down + seconds + up

    def gone(self, client: int, now: float) -> float:
        """When a client is lost whose job will never be back: as its last window closes, or now if that is over."""
        return max(now, self._available[client].last) if client in self._available else now


def corrupt(update: Update) -> Update:
    """An update as a faulty client sends it: all NaN, and one even where the vector is empty, on the clock alone."""
    delta = update.delta.new_full((max(len(update.delta), 1),), math.nan)
    curvature = None if update.curvature is None else torch.full_like(update.curvature, math.nan)
    return update._replace(delta=delta, curvature=curvature)
