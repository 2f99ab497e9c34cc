"""The clock of a fleet: when jobs return and clients come and go, and corrupted or duplicated updates."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import NormalDist

import torch

from tardygrad import streams
from tardygrad.core.messages import Job, Update, as_vector
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task, ids_of
from tardygrad.engines.attendance import Attendance
from tardygrad.errors import Invalid, is_number
from tardygrad.fleet import Available, Distribution, Fleet, Link, Runtime, Slow, SlowSpells
from tardygrad.fleet.runtimes import capped_exp

CHANGES = 1000  # of a job's speed that are followed one by one, and messages about sleep in a row
SPELL_EDGES = 100_000  # random beginnings and ends of slow spells; later on, clients have the mean speed


class Spells:
    """The random spells of a group, in which its clients are slow; the same for all of them, given the seed."""

    def __init__(self, law: SlowSpells, number: int, seed: int) -> None:
        self._law, self._number, self._seed = law, number, seed
        self._edges: list[float] = []  # the beginning and the end of each spell, as far as they are drawn

    def at(self, time: float) -> tuple[float, float]:
        """The factor at a time, and when that changes next."""
        while not self._edges or self._edges[-1] <= time:
            if (count := len(self._edges)) == SPELL_EDGES:
                return 1 / self.mean_speed, math.inf
            mean = self._law.lasts if count % 2 else self._law.every
            u = streams.uniform(self._seed, "slow spell", self._number, count)
            self._edges.append((self._edges[-1] if self._edges else 0.0) + max(-mean * math.log1p(-u), 1e-3))
        after = bisect_right(self._edges, time)
        return self._law.factor if after % 2 else 1.0, self._edges[after]

    @property
    def mean_speed(self) -> float:
        """The mean over a long time; 1 without spells."""
        share = 1 / (1 + self._law.every / self._law.lasts)
        return 1 - share + _slowed(share, self._law.factor)


def finish(
    start: float, seconds: float, slow: Sequence[Slow], available: Available | None, spells: Sequence[Spells] = ()
) -> float:
    """When a computation of `seconds` ends, given the client's slow-downs and availability windows; inf if never.

    A computation that outlasts `CHANGES` changes of its speed goes on at the mean speed of the random spells, and skips
    whole periods of the windows.
    """
    time, left, mean_speed, changes = start, seconds, 1.0, 0
    while left < math.inf:
        until = min((edge for spell in slow for edge in (spell.at, spell.until) if edge > time), default=math.inf)
        if changes == CHANGES:
            mean_speed, spells = math.prod(random_spells.mean_speed for random_spells in spells), ()
        speed = mean_speed
        for spell in slow:
            if spell.at <= time < spell.until:
                speed = _slowed(speed, spell.factor)
        work = available.open_seconds * speed if available else 0.0  # of a period
        if available and available.period and work and (changes >= CHANGES or not (slow or spells)):
            periods = max(math.floor(min(left / work, (until - time) / available.period, 1e300)) - 1, 0)
            time, left = time + periods * available.period, left - periods * work
            if until == math.inf and available.open_seconds < 1000 * math.ulp(time):  # rounding swallows the windows
                return time + left / work * available.period
        if available and speed:
            is_open, edge = available.open_at(time)
            speed, until = speed if is_open else 0.0, min(until, edge)
        for random_spells in spells if speed else ():
            factor, edge = random_spells.at(time)
            speed, until = _slowed(speed, factor), min(until, edge)
        if speed and left <= (until - time) * speed:
            return time + left / speed
        if until == math.inf:
            break
        left -= (until - time) * speed
        time, changes = until, changes + 1
    return math.inf


def _slowed(speed: float, factor: float) -> float:
    return 0.0 if factor == math.inf else speed / factor


def _draw_of(runtime: Runtime) -> Callable[[float, int], float]:
    """`draw` of a runtime; of one that is not tardygrad's own, with a check of what it returns."""
    if isinstance(runtime, Distribution):
        return runtime.draw

    def draw(u: float, serial: int) -> float:
        seconds = runtime.draw(u, serial)
        if not is_number(seconds) or not seconds >= 0 or torch.finfo(torch.float64).max < seconds < math.inf:
            rule = f"`draw` of a runtime must return seconds, 0 or more, got {seconds!r}"
            raise Invalid(f"{rule} from {runtime!r}.")
        return float(seconds)

    return draw


class RoundTrips:
    """When jobs return: download, computation with slow-downs and availability windows, upload.

    Args:
        fleet: the clients.
        down, up: bytes of a job's message to its client, and of the client's answer.
        work: steps or epochs of a job that takes the drawn runtime; it is scaled for a job with another number.
    """

    def __init__(self, fleet: Fleet, down: int, up: int, work: int) -> None:
        self.attendance = Attendance(fleet)
        self._draws = [draw for group in fleet.groups for draw in [_draw_of(group.runtime)] * group.clients]
        self._links: list[tuple[float, float]] = []
        self._varying: dict[int, tuple[Link, float, float]] = {}  # by client: seconds of its messages at its bandwidth
        for group in fleet.groups:
            seconds = down / group.link.down, up / group.link.up
            if group.link.sigma:
                first = len(self._links)
                self._varying |= dict.fromkeys(range(first, first + group.clients), (group.link, *seconds))
            self._links += [(group.link.latency + seconds[0], group.link.latency + seconds[1])] * group.clients
        self._slow: dict[int, list[Slow]] = {}
        for spell in fleet.slow:
            for client in fleet.members(spell.group) if spell.client is None else [spell.client]:
                self._slow.setdefault(int(client), []).append(spell)
        self._laws = fleet.slow_spells
        self._spells: dict[int, list[Spells]] = {}  # by seed
        self._shared: dict[int, list[int]] = {}  # client to the spells of its group, by number
        for number, law in enumerate(fleet.slow_spells):
            for client in fleet.members(law.group):
                self._shared.setdefault(client, []).append(number)
        self._dropouts = fleet.dropouts if any(fleet.dropouts) else ()
        self._irregular = self._slow.keys() | self.attendance.available.keys() | self._shared.keys()
        self._work = work

    def due(self, client: int, serial: int, seed: int, work: int | None, now: float) -> float:
        """When a job sent now returns; inf if never, as if it is cancelled when its client falls asleep.

        Args:
            work: its steps or epochs; None is the usual number.
        """
        seconds = self._draws[client](streams.uniform(seed, "runtime", client, serial), serial)
        if work and work != self._work:
            seconds *= work / self._work  # DyLU gives clients different amounts of work
        down, up = self._varied(client, serial, seed) if client in self._varying else self._links[client]
        if client not in self._irregular:
            return now + down + seconds + up
        slow, windows = self._slow.get(client, ()), self.attendance.available.get(client)
        spells = self._spells_of(client, seed) if client in self._shared else ()
        if windows is None or self.attendance.at_end == "suspend":
            return finish(now + down, seconds, slow, windows, spells) + up
        due = finish(now + down, seconds, slow, None, spells) + up
        is_open, change = windows.next_change(now)
        return due if is_open and due <= change else math.inf

    def _varied(self, client: int, serial: int, seed: int) -> tuple[float, float]:
        """The seconds of a job's two messages on a link whose bandwidth varies."""
        link, *seconds = self._varying[client]
        us = [streams.uniform(seed, way, client, serial) for way in ("download", "upload")]
        normals = [NormalDist().inv_cdf(max(u, 2.0**-53)) for u in us]
        down, up = (each * capped_exp(-link.sigma * z) for each, z in zip(seconds, normals, strict=True))
        return link.latency + down, link.latency + up

    def _spells_of(self, client: int, seed: int) -> list[Spells]:
        if seed not in self._spells:
            self._spells[seed] = [Spells(law, number, seed) for number, law in enumerate(self._laws)]
        return [self._spells[seed][number] for number in self._shared[client]]

    def drops_at(self, job: Job, now: float, due: float) -> float | None:
        """When a job is lost that would return at `due`; None if it is not lost."""
        if not self._dropouts or due == math.inf:
            return None
        u, dropout = streams.uniform(job.seed, "dropped job", job.client, job.serial), self._dropouts[job.client]
        return now + (due - now) * (u / dropout) if u < dropout else None  # given u < p, u / p is uniform

    def loses_client(self, client: int, now: float) -> bool:
        """Whether a client is lost because its job never returns. Otherwise it cancels the job when it falls asleep."""
        windows = self.attendance.available.get(client)
        if windows is None or windows.next_change(now)[1] == math.inf:
            return True
        return self.attendance.at_end == "suspend" and windows.period is not None


def corrupt(update: Update) -> Update:
    """An update as a faulty client sends it: all NaN. A clock-only run's empty vector becomes one NaN."""
    size = max(len(delta := as_vector(update.delta)), 1)
    curvature = None if update.curvature is None else torch.full_like(update.curvature, math.nan)
    return update._replace(delta=delta.new_full((size,), math.nan), curvature=curvature)


def matched(fleet: Fleet, task: Task) -> Fleet:
    """The fleet with its clients in the order of the task's, if it names them; raises `Invalid` if the names differ."""
    return in_order(fleet, ids_of(task), task.clients) if isinstance(fleet, Fleet) else fleet


def in_order(fleet: Fleet, ids: Sequence[str] | None, clients: int) -> Fleet:
    """The fleet with its clients in the order of a task's; raises `Invalid` if their names differ.

    Args:
        ids: the names of the task's clients. None: they have only numbers. Then a fleet whose names are numbers is
            ordered by them, and any other fleet keeps its order.
        clients: the number of the task's clients.
    """
    if not fleet.ids:
        return fleet.numbered(ids)
    fleet = fleet.numbered(fleet.ids)
    if ids is None and not all(map(str.isdecimal, fleet.ids)):
        return fleet
    return fleet.in_order_of(ids or tuple(map(str, range(clients))))


def round_trips(task: Task, method: Method, fleet: Fleet) -> RoundTrips:
    """The round trips of a method's jobs; raises `Invalid` if task and fleet differ in their number of clients."""
    check_method(method)
    check_task(task)
    if not isinstance(fleet, Fleet):
        raise Invalid(
            f"a fleet must be a tardygrad.Fleet, got {type(fleet).__name__}. Check the order of the arguments."
        )
    fleet = matched(fleet, task)
    if task.clients != fleet.clients:
        counts = f"{task.clients} and {fleet.clients}"
        raise Invalid(f"task and fleet must have the same number of clients, got {counts}.")
    message, work = 4 * task.parameters, method.local_steps or method.local_epochs or 1
    return RoundTrips(fleet, message, message * (2 if method.compensate else 1), work)
