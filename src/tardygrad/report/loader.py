"""Find recorded runs and sweeps, and read a run as a report shows it: lists that are short enough to draw."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tardygrad.errors import Invalid
from tardygrad.runs.accountant import guarantee
from tardygrad.runs.history import ClientHistory, History, read_history
from tardygrad.runs.record import Row, reading_record
from tardygrad.runs.record_values import printable
from tardygrad.spec.toml import document
from tardygrad.tail.estimate import MIN_SAMPLES
from tardygrad.tail.hill import hill, survival

Item = TypeVar("Item")

POINTS = 400  # most points of a curve
CLIENTS, BARS, CLASSES = 64, 3000, 8  # most clients and bars of a timeline, most classes of a fleet
EVEN = 1000  # a larger tail index means that the norms are almost equal: there is no tail
SMALLEST, LARGEST = 1e-300, 1e150  # numbers that can be drawn and squared
SPEC = 20_000  # characters of a spec that are shown


class Found(NamedTuple):
    """The directories of runs and of sweeps."""

    runs: list[Path]
    sweeps: list[Path]


def find(paths: Sequence[str]) -> Found:
    """The runs and sweeps at the paths: each is a run, a sweep, or a folder that contains some at any depth."""
    runs: dict[Path, Path] = {}
    sweeps: dict[Path, Path] = {}
    for path in map(Path, paths):
        own = _below(path)
        if not own.runs and not own.sweeps:
            what = "contains no runs or sweeps" if path.is_dir() else "is not a directory"
            raise Invalid(f"{str(path)!r} {what}. Pass a run or sweep directory, such as runs/digits-1.")
        runs |= {found.resolve(): found for found in own.runs}
        sweeps |= {found.resolve(): found for found in own.sweeps}
    return Found(list(runs.values()), list(sweeps.values()))


def _below(folder: Path) -> Found:
    """The runs and sweeps in a folder, sorted, without those inside a run or a sweep."""
    runs, sweeps = list[Path](), list[Path]()
    for place, folders, files in os.walk(folder, onerror=_refuse):
        runs += [Path(place)] * ("spec.json" in files)
        sweeps += [Path(place)] * ("sweep.json" in files)
        if "spec.json" in files or "sweep.json" in files:
            folders.clear()
    return Found(sorted(runs), sorted(sweeps))


def _refuse(error: OSError) -> None:
    """Raise `Invalid` for a folder that nobody may list: a report without its runs would be wrong."""
    if isinstance(error, PermissionError):
        fix = "Make it readable, or pass only runs that are."
        raise Invalid(f"a folder of runs must be readable, got {error.filename!r} ({error.strerror}). {fix}") from error


class Sample(NamedTuple, Generic[Item]):
    """Every `step`-th item of a list, and the last one."""

    items: list[Item]
    step: int


def sample(items: Sequence[Item], limit: int) -> Sample[Item]:
    """At most `limit` items of a list, evenly spaced, and the last one.

    >>> sample(range(10), limit=4)
    Sample(items=[0, 4, 8, 9], step=4)
    """
    step = 1
    while len(items) > step * limit:
        step *= 2
    last = [items[-1]] if items and (len(items) - 1) % step else []
    return Sample([*items[::step], *last], step)


class Bar(NamedTuple):
    """A period in which a client was in one state."""

    client: int
    start: float
    end: float
    jobs: int  # merged into this bar


class ClientBars(NamedTuple):
    """What clients did over time, as a bounded number of bars."""

    working: list[Bar]  # without the time in which a client was asleep and its job suspended
    asleep: list[Bar]
    away: list[Bar]
    stride: int  # one in this many clients is drawn
    gap: float  # gaps of up to this many seconds are closed; negative: none are


def client_bars(clients: Sequence[ClientHistory], time: float, *, most: int, limit: int) -> ClientBars:
    """Bars of at most `most` clients, and at most `limit` bars: short gaps are closed if there are too many.

    Args:
        time: at the end of the record.
    """
    active = [number for number, client in enumerate(clients) if client.jobs or client.away or client.asleep]
    stride, gap = 1, -1.0
    while sum(number % stride == 0 for number in active) > most:
        stride *= 2
    drawn = [number for number in active if number % stride == 0]
    working = [bar for number in drawn for bar in _working(number, clients[number])]
    asleep = [Bar(number, start, end, 1) for number in drawn for start, end in clients[number].asleep]
    away = [Bar(number, start, end, 1) for number in drawn for start, end in clients[number].away]
    while len(working) + len(asleep) + len(away) > limit:
        gap = max(2 * gap, time / 1000, 1e-9)
        working, asleep, away = (_merged(bars, gap) for bars in (working, asleep, away))
    return ClientBars(working, asleep, away, stride, gap)


def _working(number: int, client: ClientHistory) -> Iterator[Bar]:
    """The jobs of a client, in pieces where it was asleep; the first piece counts the job."""
    spans = client.asleep
    first = 0
    for start, end, *_ in client.jobs:
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        begin, jobs = start, 1
        for sleep, wake in islice(spans, first, None):
            if sleep >= end:
                break
            if sleep > begin:
                yield Bar(number, begin, sleep, jobs)
                jobs = 0
            begin = max(begin, wake)
        if begin < end or jobs:
            yield Bar(number, min(begin, end), end, jobs)


def _merged(bars: Iterable[Bar], gap: float) -> list[Bar]:
    """The bars, without gaps up to this many seconds between those of one client."""
    found: list[Bar] = []
    for bar in bars:
        last = found[-1] if found else None
        if last and last.client == bar.client and bar.start - last.end <= gap:
            found[-1] = Bar(bar.client, last.start, max(bar.end, last.end), last.jobs + bar.jobs)
        else:
            found.append(bar)
    return found


class NormTail(NamedTuple):
    """Hill's estimate: P(‖δ‖ > r) falls like r to the power −tail."""

    tail: float
    error: float  # standard, tail / √number
    number: int  # of norms used
    edge: float  # where the tail begins
    share: float  # of the norms beyond the edge
    points: list[tuple[float, float]]  # r, and the share of norms beyond it


class ClassTotals(NamedTuple):
    """What the clients of a class did, in total."""

    clients: int
    working: float  # seconds
    asleep: float  # seconds
    lost: float  # seconds
    losses: int
    refused: Counter[str]  # updates, by reason
    used: NDArray[np.bool_]  # which of the rounds' updates are theirs, T × M
    delays: NDArray[np.int64]  # of these
    weight: float  # of these; NaN: not recorded


@dataclass(frozen=True)
class RunView:
    """What a report shows of a run."""

    history: History
    settings: dict[str, str]  # every key of the spec, or what is known of it
    toml: str  # the same

    @property
    def seed(self) -> int | None:
        """The run's seed, if its record says."""
        seed = self.history.run.get("seed")
        return seed if isinstance(seed, int) else None

    @cached_property
    def class_of(self) -> list[str]:
        """The class of each client, with a short name; the last of very many classes are merged."""
        shown = [printable(name, 40) for name in self.history.classes]
        names = list(dict.fromkeys(shown))
        merged = names[CLASSES - 1 :] if len(names) > CLASSES else []
        return ["all others" if name in merged else name for name in shown]

    @cached_property
    def classes(self) -> dict[str, ClassTotals]:
        """What each class did, in the order of the fleet."""
        rounds, found = self.history.rounds, dict[str, ClassTotals]()
        for name in dict.fromkeys(self.class_of):
            members = [client for client, own in enumerate(self.class_of) if own == name]
            clients = [self.history.by_client[client] for client in members]
            used = np.isin(rounds.clients, members)
            found[name] = ClassTotals(
                clients=len(clients),
                working=sum(client.working_seconds for client in clients),
                asleep=sum(client.asleep_seconds for client in clients),
                lost=sum(client.lost_seconds for client in clients),
                losses=sum(client.losses for client in clients),
                refused=sum((client.refused for client in clients), Counter()),
                used=used,
                delays=rounds.delays[used],
                weight=float(rounds.weights[used].sum()),
            )
        return found

    @cached_property
    def rounds(self) -> Sample[Row]:
        """Round, time, seconds, steps so far, loss, clipped, local_clipped, epsilon and snapshots."""
        rounds = self.history.rounds
        numbers, step = sample(range(1, len(rounds) + 1), POINTS)
        rows, names = [], ("loss", "clipped", "local_clipped", "epsilon")
        for number in numbers:
            facts = {name: finite(getattr(rounds, name)[number - 1]) for name in names}
            rows.append({**self._moment(number), **facts, "snapshots": int(rounds.snapshots[number - 1])})
        return Sample(rows, step)

    @cached_property
    def scores(self) -> Sample[Row]:
        """Round, time, seconds, steps so far, and the scores by name under `scores`."""
        evaluations, step = sample(self.history.evaluations, POINTS)
        rows = []
        for evaluation in evaluations:
            scores = {printable(name, 40): finite(value) for name, value in evaluation.scores.items()}
            rows.append({**self._moment(evaluation.round), "scores": scores})
        return Sample(rows, step)

    @cached_property
    def privacy(self) -> str | None:
        """The guarantee of a private run so far; None: it is not private."""
        settings, epsilons = self.history.setting("privacy"), self.history.rounds.epsilon
        if not isinstance(settings, dict) and not np.isfinite(epsilons).any():
            return None
        delta = finite(settings.get("delta")) if isinstance(settings, dict) else None  # else the record has no spec
        return guarantee(finite(epsilons[-1]) if len(epsilons) else 0.0, delta)

    def _moment(self, number: int) -> Row:
        """The end of a round."""
        rounds, at = self.history.rounds, number - 1
        moment = {"round": number, "time": finite(rounds.time[at]), "seconds": finite(rounds.seconds[at])}
        return moment | {"steps": int(self._steps[at])}

    @cached_property
    def _steps(self) -> NDArray[np.int64]:
        return self.history.rounds.steps.cumsum()

    @cached_property
    def bars(self) -> ClientBars:
        """When clients worked, were asleep and were lost."""
        return client_bars(self.history.by_client, self.history.time, most=CLIENTS, limit=BARS)

    @cached_property
    def tail(self) -> NormTail | None:
        """The tail of the updates' norms."""
        norms = self.history.rounds.norms
        return tail_of(norms[norms > 0])


def read(path: Path) -> RunView:
    """Load a run's record."""
    history = read_history(path)
    with reading_record(path):
        tables = history.spec or history.described or {"run": history.run}
        return RunView(history, dict(flat(tables)), toml(tables))


def finite(value: Any) -> float | None:
    """A number of a record, to six digits and within the range that can be drawn; None if it is not a finite number.

    >>> finite(1 / 3), finite(-1e308), finite(5e-324), finite(math.nan)
    (0.333333, -1e+150, 0.0, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return None
    return float(f"{max(-LARGEST, min(value, LARGEST)):.6g}") if abs(value) >= SMALLEST else 0.0


def tail_of(norms: NDArray[np.float64]) -> NormTail | None:
    """Hill's estimate of the norms' tail; None if they are too few or almost equal.

    >>> round(tail_of((1 - (np.arange(10_000) + 0.5) / 10_000) ** (-1 / 1.5)).tail, 2)
    1.5
    """
    if len(norms) < MIN_SAMPLES:
        return None
    found, number = hill(norms), len(norms)
    edge = float(np.partition(norms, number - found.k - 1)[number - found.k - 1])
    if found.index > EVEN or norms.max() > edge * LARGEST:
        return None
    points = [(float(f"{size:.6g}"), share) for size, share in survival(norms, 100)]
    return NormTail(found.index, found.index / math.sqrt(found.k), found.k, edge, found.k / number, points)


def flat(tables: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a spec with its value, both as in an override.

    >>> dict(flat({"run": {"rounds": 3, "seed": 0}}))
    {'run.rounds': '3', 'run.seed': '0'}
    """
    if not isinstance(tables, dict):
        yield prefix, json.dumps(tables, ensure_ascii=False)[:400]
        return
    for key, value in tables.items():
        yield from flat(value, f"{prefix}.{key}" if prefix else str(key))


def toml(tables: Any) -> str:
    """A spec as TOML, cut after `SPEC` characters."""
    whole = document(tables)
    rest = len(whole) - SPEC
    return whole if rest <= 0 else f"{whole[:SPEC]}…\n\n({rest:,} more characters are in spec.json)"
