"""Fleets: groups of clients with their runtimes, links and events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from tardygrad.constructors import checked, constructor
from tardygrad.errors import Invalid, check_integer, nearest
from tardygrad.fleet.events import Available, Crash, Diurnal, Fault, Sends, Slow, SlowSpells
from tardygrad.fleet.runtimes import Distribution, Integer, Runtime, Trace, Uniform, check_rule, is_random
from tardygrad.fleet.table import fleet_table
from tardygrad.fleet.traces import AvailabilityFile, Columns, listed, read_devices, read_windows

E = TypeVar("E", Crash, Slow, Available, Fault)

FleetEvent = Crash | Slow | SlowSpells | Available | Diurnal | AvailabilityFile | Fault
"""What can happen to clients; see `Fleet.plus`."""

FIELDS = {Crash: "crashes", Slow: "slow", SlowSpells: "slow_spells", Available: "available", Fault: "faults"}
"""The field of a fleet that holds events of a type."""

AtWindowEnd = Literal["suspend", "cancel"]
"""What happens to a job that is unfinished when its client falls asleep."""

MOST_CLIENTS = 10**8
MOST_SHOWN = 8  # groups in the text of a fleet

Stragglers = Literal["mild", "large"]
"""The paper's two fleets: slow clients take 5 to 8 seconds, or 20 to 40."""


@checked
@dataclass(frozen=True)
class Link:
    """The network between a client and the server: latency in seconds each way, bytes per second down and up.

    With a `sigma` the bandwidth varies: each message has that of the link times exp(Normal(0, sigma²)).
    """

    latency: float = 0.0
    down: float = math.inf
    up: float = math.inf
    sigma: float = 0.0

    def __post_init__(self) -> None:
        valid = 0 <= self.latency < math.inf and self.down > 0 and self.up > 0
        check_rule(valid, self, "0 <= latency < inf, down > 0, up > 0")
        check_rule(0 <= self.sigma < math.inf, self, "0 <= sigma < inf")


@checked
@dataclass(frozen=True)
class Group:
    """Clients of one class, with the same runtime, link and dropout; None: that of the fleet."""

    name: str
    clients: int
    runtime: Distribution | Runtime
    link: Link = Link()
    dropout: float | None = None

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 0)
        if self.dropout is not None:
            check_dropout(self.dropout)


def check_dropout(value: float) -> None:
    """Raise `Invalid` unless the value can be a dropout."""
    if not 0 <= value < 1:
        raise Invalid(f"`dropout` must be a probability, 0 or more and below 1, got {value!r}.")


@checked
@dataclass(frozen=True)
class Fleet:
    """Groups of clients and their faults. Clients are numbered group by group, from 0.

    Args:
        groups: classes of clients, each with `name`, `clients`, `runtime` and optionally `link` and `dropout`.
        server_time: seconds the server spends on each update; updates that arrive meanwhile wait in line.
        crashes: when clients are lost, each with `client`, `at` and, if the client comes back, `back`.
        slow: slow-downs, each with `client` or `group`, `at`, `until` and `factor`; a factor of inf is a pause.
        available: when clients are available, each with `client` (its number, or its name), `windows` (pairs of start
            and end) and, if they repeat, `period`; outside of its windows a client is asleep and gets no job.
        faults: faulty jobs, each with `client`, `job` (its number, from 0) and `sends`: "nan" or "twice".
        at_window_end: what happens to a job that is unfinished when its client's window ends: "suspend" continues it in
            the next window, "cancel" loses it.
        dropout: probability that a job is lost, at a random time of its duration; its client is then free for another.
        slow_spells: slow-downs that the clients of a group share at random times, each with `group`, `every` (mean
            seconds between two), `lasts` (mean seconds) and `factor`.
        ids: names of the clients, in order; they are matched with the names of the task's clients.

    >>> Fleet.paper(clients=40, stragglers="large").classes[16:18]
    ('small', 'medium')
    """

    groups: tuple[Group, ...]
    server_time: float = 0.0
    crashes: tuple[Crash, ...] = ()
    slow: tuple[Slow, ...] = ()
    available: tuple[Available, ...] = ()
    faults: tuple[Fault, ...] = ()
    at_window_end: AtWindowEnd = "suspend"
    dropout: float = 0.0
    slow_spells: tuple[SlowSpells, ...] = ()
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clients = self.clients
        if clients < 1:
            raise Invalid("a fleet needs at least one client, got none.")
        if clients > MOST_CLIENTS:
            raise Invalid(f"a fleet has at most {MOST_CLIENTS:,} clients, each takes a kilobyte; got {clients:,}.")
        if not 0 <= self.server_time < math.inf:
            raise Invalid(f"`server_time` must be finite and 0 or more, got {self.server_time:g}.")
        events: list[Crash | Slow | Available | Fault] = [*self.crashes, *self.slow, *self.available, *self.faults]
        for event in events:
            if isinstance(event.client, int) and not 0 <= event.client < clients:
                raise Invalid(f"`client` must be between 0 and {clients - 1}, got {event}.")
        for name in {*(slow.group for slow in self.slow), *(spell.group for spell in self.slow_spells)} - {None}:
            self.members(name)
        check_dropout(self.dropout)
        if self.ids and (len(self.ids) != clients or len(set(self.ids)) < clients):
            rule = f"`ids` must be one name for each of the {clients} clients, all different"
            raise Invalid(f"{rule}, got {len(self.ids)} names, {len(set(self.ids))} of them different.")
        for client, count in Counter(entry.client for entry in self.available).items():
            if count > 1:
                raise Invalid(f"`available` needs one list of windows per client, got {count} for client {client}.")
        for fault, count in Counter(self.faults).items():
            if count > 1:
                raise Invalid(f"`faults` must not repeat a fault, got {count} times {fault}.")

    @classmethod
    @constructor
    def paper(cls, *, clients: int = 40, stragglers: Stragglers = "large", continuous: bool = False) -> Fleet:
        """The paper's fleet: of 40 clients 17 small (1–2 s), 12 medium (3–5 s), 11 large (5–8 s or 20–40 s).

        Args:
            clients: number of clients.
            stragglers: runtime of the large clients: "mild" is 5–8 s, "large" 20–40 s.
            continuous: any runtime in these ranges, rather than whole seconds.
        """
        check_integer("clients", clients)
        ranges = {"small": (1, 2), "medium": (3, 5), "large": (5, 8) if stragglers == "mild" else (20, 40)}
        draw = Uniform if continuous else Integer
        counts = _apportion(clients, (17, 12, 11))
        return cls(tuple(Group(n, c, draw(*r)) for (n, r), c in zip(ranges.items(), counts, strict=True)))

    @classmethod
    @checked
    def trace(
        cls,
        path: str | Path,
        *,
        client: str = "client",
        seconds: str = "seconds",
        group: str = "class",
        resample: bool = False,
        keep_ids: bool = True,
        computation: str = "computation",
        communication: str = "communication",
        samples: int | None = None,
    ) -> Fleet:
        """A fleet from measured times, or from the capacities of devices, one client for each name in the file.

        Args:
            path: a CSV file, or a JSON file with a list of rows or a table of them by client.
            client: its column with the names of clients.
            seconds: its column with the seconds of a job.
            group: its column with the classes of clients, if it has one.
            resample: draw a client's times at random, by the seed of the run, rather than in the order of the file.
            keep_ids: match the names with those of the task's clients; false numbers them in the order of the file.
            computation: its column with milliseconds per sample, if it has no seconds, as FedScale's traces of devices.
            communication: its column with kilobits per second, if it has one.
            samples: of a job, for a file with milliseconds per sample: a job takes three times as long as a forward
                pass over so many samples, as in FedScale.
        """
        columns = Columns(client, seconds, group, computation, communication)
        devices = read_devices(Path(path), columns, samples)
        groups = [
            Group(each.group, 1, Trace(tuple(each.seconds), resample), Link(down=each.speed, up=each.speed))
            for each in devices.values()
        ]
        return cls(tuple(groups), ids=tuple(devices) if keep_ids else ())

    def numbered(self, ids: Sequence[str] | None) -> Fleet:
        """The same fleet, with windows and other events by the numbers of clients rather than by their names.

        Args:
            ids: the names of the clients, in order; None: their numbers, or else, if every client has windows by
                another name, these names in the order of the windows.
        """
        events: list[Crash | Slow | Available | Fault] = [*self.crashes, *self.slow, *self.available, *self.faults]
        named = list(dict.fromkeys(event.client for event in events if isinstance(event.client, str)))
        if not named:
            return self
        windows = [entry.client for entry in self.available if isinstance(entry.client, str)]
        if ids is None and len(windows) == self.clients and not any(map(str.isdecimal, windows)):
            ids = windows
        numbers = {name: number for number, name in enumerate(ids or map(str, range(self.clients)))}
        if unknown := [name for name in named if name not in numbers]:
            rule = f"windows and other events must be of clients that the task has, {listed(list(numbers))}"
            raise Invalid(f"{rule}, got those of {listed(unknown)}.")
        in_order = sorted(
            self.available, key=lambda entry: numbers[entry.client] if isinstance(entry.client, str) else -1
        )
        fleet = replace(self, available=tuple(in_order))
        return fleet._renumbered(lambda client: numbers[client] if isinstance(client, str) else client)

    def _renumbered(self, number: Callable[[int | str], int | str]) -> Fleet:
        """The same fleet, with other numbers of clients in its events."""

        def moved(events: tuple[E, ...]) -> tuple[E, ...]:
            return tuple(
                event if event.client is None else replace(event, client=number(event.client)) for event in events
            )

        return replace(
            self, crashes=moved(self.crashes), slow=moved(self.slow), available=moved(self.available),
            faults=moved(self.faults),
        )  # fmt: skip

    def in_order_of(self, ids: Sequence[str]) -> Fleet:
        """The same fleet without names, its clients in the order of these names."""
        in_fleet, in_task = set(self.ids), set(ids)
        missing = [name for name in ids if name not in in_fleet]
        unknown = [name for name in self.ids if name not in in_task]
        if missing or unknown:
            parts = [f"{listed(missing)} of the task missing in the fleet"] * bool(missing)
            parts += [f"{listed(unknown)} of the fleet missing in the task"] * bool(unknown)
            fix = "To ignore the names of a trace, use keep_ids=False (fleet.keep_ids=false)."
            raise Invalid(f"task and fleet must have the same clients, got {' and '.join(parts)}. {fix}")
        place = {name: number for number, name in enumerate(ids)}
        new = [place[name] for name in self.ids]  # old number to new one
        each = [replace(group, clients=1) for group in self.groups for _ in range(group.clients)]
        by_number = sorted(zip(new, each, strict=True), key=lambda pair: pair[0])

        fleet = self._renumbered(lambda client: new[client] if isinstance(client, int) else client)
        return replace(fleet, groups=tuple(group for _, group in by_number), ids=())

    @property
    def clients(self) -> int:
        return sum(group.clients for group in self.groups)

    @property
    def windows(self) -> dict[int, Available]:
        """When clients are available, by their number."""
        return {entry.client: entry for entry in self.available if isinstance(entry.client, int)}

    @property
    def period(self) -> float:
        """Seconds after which all clients have been awake and asleep as often as they will be; 0 if none sleeps."""
        edges = [edge for entry in self.available for window in entry.windows for edge in window if edge < math.inf]
        return max((entry.period or max(edges) for entry in self.available), default=0.0)

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

    def members(self, group: str | None) -> list[int]:
        """The clients of a group; None: all clients."""
        found = [client for client, name in enumerate(self.classes) if group in (None, name)]
        if not found:
            rule = f"`group` must be one of {', '.join(dict.fromkeys(self.classes))}"
            raise Invalid(f"{rule}, got {group!r}.{nearest(str(group), self.classes)}")
        return found

    @property
    def dropouts(self) -> tuple[float, ...]:
        """The probability of each client to lose a job."""
        each = [(self.dropout if group.dropout is None else group.dropout, group.clients) for group in self.groups]
        return tuple(probability for probability, clients in each for _ in range(clients))

    @property
    def is_random(self) -> bool:
        """Whether the times of arrivals depend on the seed of the run; otherwise all seeds have the same."""
        groups = [group for group in self.groups if group.clients]
        varies = any(is_random(group.runtime) or group.link.sigma > 0 for group in groups)
        return varies or any(self.dropouts) or bool(self.slow_spells)

    def __str__(self) -> str:
        groups = ", ".join(f"{group.clients:,} {group.name}" for group in self.groups[:MOST_SHOWN])
        more = f" and {len(self.groups) - MOST_SHOWN:,} more" if len(self.groups) > MOST_SHOWN else ""
        also = ("server_time", "crashes", "slow", "available", "faults", "dropout", "slow_spells", "ids")
        given = ", ".join(name for name in also if getattr(self, name))
        return f"{self.clients:,} clients: {groups}{more}{'; with ' * bool(given)}{given}"

    def _repr_html_(self) -> str:
        return fleet_table(self)

    def sending(self, kind: Sends) -> frozenset[tuple[int, int]]:
        """The jobs (client, serial) with this kind of fault."""
        return frozenset((int(fault.client), fault.job) for fault in self.faults if fault.sends == kind)

    def plus(self, *events: FleetEvent) -> Fleet:
        """The same fleet, where these things happen too.

        >>> print(Fleet.paper().plus(Crash(3, at=10.0), Diurnal(awake=0.4)))
        40 clients: 17 small, 12 medium, 11 large; with crashes, available
        """
        fleet = self
        for event in events:
            if isinstance(event, AvailabilityFile):
                windows = read_windows(event).items()
                new = [Available(name, each, period or event.period) for name, (each, period) in windows]
                fleet = replace(fleet, available=(*fleet.available, *new))
                fleet = fleet.numbered(fleet.ids) if fleet.ids else fleet
            elif isinstance(event, Diurnal):
                members = fleet.members(event.group)
                fleet = fleet.plus(*(Available(client, event.windows(client), event.period) for client in members))
            elif not isinstance(event, tuple(FIELDS)):
                known = ", ".join(kind.__name__ for kind in (*FIELDS, Diurnal, AvailabilityFile))
                raise Invalid(f"an event of a fleet must be one of {known}, got {event!r}.")
            else:
                field = FIELDS[type(event)]
                changes: dict[str, Any] = {field: (*getattr(fleet, field), event)}
                fleet = replace(fleet, **changes)
        return fleet

    @checked
    def crash(self, *, client: int | str, at: float, back: float | None = None) -> Fleet:
        """The same fleet, with another crash."""
        return self.plus(Crash(client, at, back))

    @checked
    def slowed(
        self,
        *,
        client: int | str | None = None,
        group: str | None = None,
        at: float,
        until: float = math.inf,
        factor: float = math.inf,
    ) -> Fleet:
        """The same fleet, with another slow-down, of a client or of a whole group; a factor of inf is a pause."""
        return self.plus(Slow(client, at, until, factor, group))

    @checked
    def diurnal(
        self, *, period: float = 86_400.0, awake: float = 0.5, spread: float = 1.0, group: str | None = None
    ) -> Fleet:
        """The same fleet, with windows that repeat every day; see `Diurnal`."""
        return self.plus(Diurnal(period, awake, spread, group))

    @checked
    def during(
        self, windows: Sequence[tuple[float, float]], *, client: int | str, period: float | None = None
    ) -> Fleet:
        """The same fleet, where one client is available only inside the windows."""
        return self.plus(Available(client, tuple(windows), period))

    @checked
    def faulty(self, *, client: int | str, job: int, sends: Sends) -> Fleet:
        """The same fleet, with another job that returns NaN, or returns twice."""
        return self.plus(Fault(client, job, sends))

    @checked
    def dropping(self, dropout: float) -> Fleet:
        """The same fleet, where each job is lost with this probability."""
        return replace(self, dropout=dropout)

    @checked
    def linked(self, link: Link) -> Fleet:
        """The same fleet, with every client behind the given link."""
        return replace(self, groups=tuple(replace(group, link=link) for group in self.groups))


def _apportion(total: int, shares: tuple[int, ...]) -> list[int]:
    """Whole numbers that add up to `total` in the given proportions (largest remainders)."""
    exact = [total * share / sum(shares) for share in shares]
    counts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts
