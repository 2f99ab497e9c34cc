"""Groups of clients with their runtimes, links and events."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tardygrad.core.messages import AtEnd
from tardygrad.core.recipe import remembers_call
from tardygrad.errors import Invalid, check_choice, check_integer, checked_call
from tardygrad.fleet.events import Available, Crash, Fault, Sends, Slow
from tardygrad.fleet.runtimes import Integer, Runtime, Trace, Uniform, check_rule

Stragglers = Literal["mild", "large"]
"""The paper's two fleets: slow clients take 5 to 8 seconds, or 20 to 40."""


@dataclass(frozen=True)
class Link:
    """The network between a client and the server: latency in seconds each way, bytes per second down and up."""

    latency: float = 0.0
    down: float = math.inf
    up: float = math.inf

    def __post_init__(self) -> None:
        check_rule(
            0 <= self.latency < math.inf and self.down > 0 and self.up > 0, self, "latency >= 0, down > 0, up > 0"
        )


@dataclass(frozen=True)
class Group:
    """Clients of one class, with the same runtime and link."""

    name: str
    clients: int
    runtime: Runtime
    link: Link = Link()

    def __post_init__(self) -> None:
        check_rule(isinstance(self.clients, int) and self.clients >= 0, self, "a whole number of clients, 0 or more")
        if not isinstance(self.runtime, Runtime):
            fix = "Use Integer(1, 2) or Exponential(2.0), for example."
            raise Invalid(f"`runtime` of a group must be a distribution, got {self.runtime!r}. {fix}")


@dataclass(frozen=True)
class Fleet:
    """Groups of clients and their faults. Clients are numbered group by group, from 0.

    Args:
        groups: classes of clients, each with `name`, `clients`, `runtime` and optionally `link`.
        server_time: seconds the server spends on each update; updates that arrive meanwhile wait in line.
        crashes: when clients are lost, each with `client`, `at` and, if the client comes back, `back`.
        slow: slow-downs, each with `client`, `at`, `until` and `factor`; a factor of inf is a pause.
        available: when clients are available, each with `client`, `windows` (pairs of start and end) and, if they
            repeat, `period`; outside of its windows a client is asleep and gets no job. `at_end`, if given, replaces
            `at_window_end` for this client.
        faults: faulty jobs, each with `client`, `job` (its number, from 0) and `sends`: "nan" or "twice".
        at_window_end: what happens to a job that is unfinished when its client's window ends: "suspend" continues it in
            the next window, "cancel" loses it, "finish" lets the client finish it first.

    >>> Fleet.paper(clients=40, stragglers="large").classes[16:18]
    ('small', 'medium')
    """

    groups: tuple[Group, ...]
    server_time: float = 0.0
    crashes: tuple[Crash, ...] = ()
    slow: tuple[Slow, ...] = ()
    available: tuple[Available, ...] = ()
    faults: tuple[Fault, ...] = ()
    at_window_end: AtEnd = "suspend"

    def __post_init__(self) -> None:
        if not isinstance(self.groups, tuple | list) or not all(isinstance(group, Group) for group in self.groups):
            raise Invalid(f"`groups` must be a tuple of groups, got {self.groups!r}. Use Fleet((Group(...), ...)).")
        if self.clients < 1:
            raise Invalid("a fleet needs at least one client, got none.")
        if not 0 <= self.server_time < math.inf:
            raise Invalid(f"`server_time` must be finite and 0 or more, got {self.server_time:g}.")
        check_choice("at_window_end", self.at_window_end, AtEnd)
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

    def during(
        self,
        windows: Sequence[tuple[float, float]],
        *,
        client: int,
        period: float | None = None,
        at_end: AtEnd | None = None,
    ) -> Fleet:
        """The same fleet, where one client is available only inside the windows."""
        return replace(self, available=(*self.available, Available(client, tuple(windows), period, at_end)))

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


for _class in (Link, Group, Fleet):
    _class.__init__ = checked_call(_class.__init__)  # type: ignore[method-assign]
