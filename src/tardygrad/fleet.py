"""Fleets: groups of clients, the time their jobs take, and the faults they suffer. All times are virtual seconds."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from tardygrad.core.recipe import remembers_call
from tardygrad.errors import Invalid, check_choice, check_integer, checked_call

Sends = Literal["nan", "twice"]
"""What a faulty job returns: NaN, or the same update twice."""

Stragglers = Literal["mild", "large"]
"""The paper's two fleets: slow clients take 5 to 8 seconds, or 20 to 40."""


def _check(holds: bool, value: object, rule: str) -> None:
    if not holds:
        raise Invalid(f"{type(value).__name__} needs {rule}, got {value}.")


def _exp(power: float) -> float:
    """e^power, capped at the largest float: a draw from a very heavy tail may overflow."""
    return math.exp(min(power, 709.0))


@dataclass(frozen=True)
class Uniform:
    """Uniform between low and high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(0 <= self.low <= self.high < math.inf, self, "0 <= low <= high")

    def draw(self, u: float, serial: int) -> float:
        return self.low + u * (self.high - self.low)


@dataclass(frozen=True)
class Integer:
    """A whole number of seconds from low to high, both included: the paper's distribution."""

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
    """Exponential with the given mean."""

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
    """Measured times, used in order and repeated from the start."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        valid = bool(self.seconds) and all(0 <= s < math.inf for s in self.seconds)
        _check(valid, self, "at least one time, each finite and not negative")

    def draw(self, u: float, serial: int) -> float:
        return self.seconds[serial % len(self.seconds)]


Runtime = Uniform | Integer | LogNormal | Exponential | Pareto | Trace
"""How long a job takes. `draw(u, serial)` maps a uniform u in [0, 1) to seconds; `serial` counts the client's jobs."""


@dataclass(frozen=True)
class Link:
    """The network between a client and the server: latency in seconds each way, bytes per second down and up."""

    latency: float = 0.0
    down: float = math.inf
    up: float = math.inf

    def __post_init__(self) -> None:
        _check(0 <= self.latency < math.inf and self.down > 0 and self.up > 0, self, "latency >= 0, down > 0, up > 0")


@dataclass(frozen=True)
class Group:
    """Clients of one class, with the same runtime and link."""

    name: str
    clients: int
    runtime: Runtime
    link: Link = Link()

    def __post_init__(self) -> None:
        _check(isinstance(self.clients, int) and self.clients >= 0, self, "a whole number of clients, 0 or more")
        if not isinstance(self.runtime, Runtime):
            fix = "Use Integer(1, 2) or Exponential(2.0), for example."
            raise Invalid(f"`runtime` of a group must be a distribution, got {self.runtime!r}. {fix}")


@dataclass(frozen=True)
class Crash:
    """The client is lost at time `at`, and comes back at time `back`, or never."""

    client: int
    at: float
    back: float | None = None

    def __post_init__(self) -> None:
        valid = 0 <= self.at < math.inf and (self.back is None or self.at < self.back < math.inf)
        _check(valid, self, "0 <= at < back")


@dataclass(frozen=True)
class Slow:
    """The client computes `factor` times slower from `at` until `until`; factor inf is a pause."""

    client: int
    at: float
    until: float = math.inf
    factor: float = math.inf

    def __post_init__(self) -> None:
        _check(0 <= self.at < self.until and self.factor > 0, self, "0 <= at < until and factor > 0")
        finite = self.until < math.inf or self.factor < math.inf
        _check(finite, self, "a finite `until` for a pause (use a crash for an endless one)")


@dataclass(frozen=True)
class Available:
    """The client computes only inside these windows, repeated every `period` seconds if that is given."""

    client: int
    windows: tuple[tuple[float, float], ...]
    period: float | None = None

    def __post_init__(self) -> None:
        edges = [edge for window in self.windows for edge in window]
        valid = bool(edges) and edges[0] >= 0 and all(a < b for a, b in pairwise(edges))
        _check(valid, self, "windows (start, end) in ascending order")
        period_valid = self.period is None or edges[-1] <= self.period < math.inf
        _check(period_valid, self, "a finite period, at least the end of the last window")
        _check(all(b - a >= 1e-3 for a, b in self.windows), self, "windows of at least a millisecond")

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

    @property
    def last(self) -> float:
        """When the last window closes."""
        return math.inf if self.period else self.windows[-1][1]


@dataclass(frozen=True)
class Fault:
    """The client's job number `job`, counted from 0, returns NaN, or returns twice."""

    client: int
    job: int
    sends: Sends

    def __post_init__(self) -> None:
        valid = type(self.job) is int and self.job >= 0 and self.sends in ("nan", "twice")
        _check(valid, self, "an integer job >= 0 and sends 'nan' or 'twice'")


@dataclass(frozen=True)
class Fleet:
    """Groups of clients and their faults. Clients are numbered group by group, from 0.

    Args:
        groups: classes of clients, each with `name`, `clients`, `runtime` and optionally `link`.
        server_time: seconds the server spends on each update; updates that arrive meanwhile wait in line.
        crashes: when clients are lost, each with `client`, `at` and, if the client comes back, `back`.
        slow: slow-downs, each with `client`, `at`, `until` and `factor`; a factor of inf is a pause.
        available: when clients work, each with `client`, `windows` (pairs of start and end) and, if they repeat,
            `period`.
        faults: faulty jobs, each with `client`, `job` (its number, from 0) and `sends`: "nan" or "twice".

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
        if not isinstance(self.groups, tuple | list) or not all(isinstance(group, Group) for group in self.groups):
            raise Invalid(f"`groups` must be a tuple of groups, got {self.groups!r}. Use Fleet((Group(...), ...)).")
        if self.clients < 1:
            raise Invalid("a fleet needs at least one client, got none.")
        if not 0 <= self.server_time < math.inf:
            raise Invalid(f"`server_time` must be finite and 0 or more, got {self.server_time:g}.")
        events: list[Crash | Slow | Available | Fault] = [*self.crashes, *self.slow, *self.available, *self.faults]
        for event in events:
            if not 0 <= event.client < self.clients:
                raise Invalid(f"`client` must be between 0 and {self.clients - 1}, got {event}.")
        for client, count in Counter(entry.client for entry in self.available).items():
            if count > 1:
                raise Invalid(f"`available` needs one list of windows per client, got {count} for client {client}.")
        for fault, count in Counter(self.faults).items():
            if count > 1:
                raise Invalid(f"`faults` must not repeat a fault, got {count} times {fault}.")

    @classmethod
    @remembers_call
    @checked_call
    def paper(cls, *, clients: int = 40, stragglers: Stragglers = "large", continuous: bool = False) -> Fleet:
        """The paper's fleet: of 40 clients 17 small (1–2 s), 12 medium (3–5 s), 11 large (5–8 s or 20–40 s).

        Args:
            clients: number of clients.
            stragglers: runtime of the large clients: "mild" is 5–8 s, "large" 20–40 s.
            continuous: any runtime in these ranges, rather than whole seconds.
        """
        check_choice("stragglers", stragglers, Stragglers)
        check_integer("clients", clients)
        ranges = {"small": (1, 2), "medium": (3, 5), "large": (5, 8) if stragglers == "mild" else (20, 40)}
        draw = Uniform if continuous else Integer
        counts = _apportion(clients, (17, 12, 11))
        return cls(tuple(Group(n, c, draw(*r)) for (n, r), c in zip(ranges.items(), counts, strict=True)))

    @classmethod
    def trace(cls, path: str | Path) -> Fleet:
        """A fleet from measured times.

        Args:
            path: a CSV file with the columns `client`, `seconds` and optionally `class`.
        """
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
        """The crashes, with those of one client that overlap or touch merged into one."""
        merged: list[Crash] = []
        for crash in sorted(self.crashes, key=lambda crash: (crash.client, crash.at)):
            last = merged[-1] if merged else None
            if last and last.client == crash.client and (last.back is None or crash.at <= last.back):
                back = None if last.back is None or crash.back is None else max(last.back, crash.back)
                merged[-1] = Crash(last.client, last.at, back)
            else:
                merged.append(crash)
        return tuple(merged)

    def sending(self, kind: Sends) -> frozenset[tuple[int, int]]:
        """The jobs (client, serial) with this kind of fault."""
        return frozenset((fault.client, fault.job) for fault in self.faults if fault.sends == kind)

    def crash(self, *, client: int, at: float, back: float | None = None) -> Fleet:
        """The same fleet, with another crash."""
        return replace(self, crashes=(*self.crashes, Crash(client, at, back)))

    def slowed(self, *, client: int, at: float, until: float = math.inf, factor: float) -> Fleet:
        """The same fleet, with another slow-down."""
        return replace(self, slow=(*self.slow, Slow(client, at, until, factor)))

    def paused(self, *, client: int, at: float, until: float) -> Fleet:
        """The same fleet, with another pause."""
        return replace(self, slow=(*self.slow, Slow(client, at, until)))

    def during(self, windows: Sequence[tuple[float, float]], *, client: int, period: float | None = None) -> Fleet:
        """The same fleet, where one client computes only inside the windows."""
        return replace(self, available=(*self.available, Available(client, tuple(windows), period)))

    def faulty(self, *, client: int, job: int, sends: Sends) -> Fleet:
        """The same fleet, with another job that returns NaN, or returns twice."""
        return replace(self, faults=(*self.faults, Fault(client, job, sends)))

    def linked(self, link: Link) -> Fleet:
        """The same fleet, with every client behind the given link.

        Args:
            link: latency and bandwidth of every client.
        """
        return replace(self, groups=tuple(replace(group, link=link) for group in self.groups))


def _apportion(total: int, shares: tuple[int, ...]) -> list[int]:
    """Whole numbers that add up to `total` in the given proportions (largest remainders)."""
    exact = [total * share / sum(shares) for share in shares]
    counts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


for _class in (Uniform, Integer, LogNormal, Exponential, Pareto, Trace, Link, Group, Fleet):
    _class.__init__ = checked_call(_class.__init__)  # type: ignore[method-assign]
