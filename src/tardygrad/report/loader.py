"""Load a record for a report: one pass over its events, into lists that are short enough to draw.

Records may come from older versions, from runs that are still going, and from strangers: missing values are None, and
text is shortened and stripped of characters that cannot be printed. The page escapes it.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tardygrad.report.downsample import Bar, ClientBars, DelaySpans, Downsampler
from tardygrad.report.settings import flat, toml
from tardygrad.runs import events
from tardygrad.runs.events import Advance, Arrival, Dispatch, Evaluation, Join, Loss, Refusal, RunEvent, read_events
from tardygrad.runs.record import Row, read_json, reading_record
from tardygrad.tail.estimate import FEWEST
from tardygrad.tail.hill import hill

POINTS, SPANS = 400, 120  # most points of a curve, most spans of delays
CLIENTS, BARS, CLASSES = 64, 3000, 8  # most clients and bars of a timeline, most classes of a fleet
EVEN = 1000  # a larger tail index means that the norms are almost equal: there is no tail
SMALLEST, LARGEST = 1e-300, 1e150  # numbers that can be drawn and squared


class Tail(NamedTuple):
    """Hill's estimate: P(‖δ‖ > r) falls like r to the power −tail."""

    tail: float
    error: float  # standard, tail / √number
    number: int  # of norms used
    edge: float  # where the tail begins
    share: float  # of the norms beyond the edge
    points: list[tuple[float, float]]  # r, and the share of norms beyond it


class Use(NamedTuple):
    """How the clients of a class spent their time, in total seconds."""

    clients: int
    working: float
    lost: float


@dataclass(frozen=True)
class RunView:
    """What a report shows of a run."""

    path: Path
    label: str
    method: str
    settings: dict[str, str] | None  # every key of the spec; None: started in Python
    toml: str  # the spec, or what is known of it
    run: Row
    versions: dict[str, str]
    parameters: int | None
    classes: dict[str, int]  # clients of each, as far as known
    status: str
    reason: str | None
    completed: int  # rounds
    time: float
    seconds: float | None
    rounds: list[Row]  # round, time, seconds, steps so far, loss, clipped, local_clipped, snapshots
    step: int  # one in this many rounds is kept
    scores: list[Row]  # round, time, seconds, steps so far, and the scores by name under `scores`
    score_step: int  # one in this many evaluations is kept
    tails: list[Row]  # round, time; index, low and high of the updates' tail; few: whether there were too few values
    tail_step: int  # one in this many estimates is kept
    delays: Counter[tuple[str, int]]  # of the updates used, by class
    delay_spans: list[tuple[str, int, float, float, int]]  # as `DelaySpans.rows`
    weights: dict[str, float] | None  # sums by class; None: not recorded
    refused: Counter[tuple[str, str]]  # by reason and class
    lost: Counter[str]
    arrived: int
    snapshots: int  # largest number of past models at once
    uses: dict[str, Use]
    working: list[Bar]
    away: list[Bar]
    stride: int  # one in this many clients is drawn
    gap: float  # gaps of up to this many seconds are closed; negative: none are
    jobs: int  # jobs that ended
    advances: list[float]
    tail: Tail | None

    @property
    def updates(self) -> Counter[str]:
        """The number of updates used, by class."""
        used: Counter[str] = Counter()
        for (name, _), number in self.delays.items():
            used[name] += number
        return used

    @property
    def ended(self) -> bool:
        """Whether the record says how the run ended."""
        return self.status != RUNNING

    def class_of(self, client: int) -> str:
        """A client's class."""
        return _class(list(self.classes), list(accumulate(self.classes.values())), client)


RUNNING = "not ended"


def read(path: Path) -> RunView:
    """Load a run's record."""
    spec = read_json(path / "spec.json")
    summary = read_json(path / "summary.json") if (path / "summary.json").exists() else {}
    with reading_record(path):
        reading = _read_events(path, spec)
        if reading.missed:  # the run was extended before the scores of its last rounds arrived
            reading = _read_events(path, spec, reading.missed)
        return reading.view(path, spec, summary)


def _read_events(path: Path, spec: Row, scored: Container[int] = ()) -> _Reading:
    """Read the events; `scored` are evaluated rounds besides every `evaluate_every`-th."""
    reading = _Reading(_classes(spec.get("classes") or []), dict(spec.get("run") or {}).get("evaluate_every"), scored)
    if (path / "events.jsonl").exists():
        for event in read_events(path / "events.jsonl"):
            reading.note(event)
    return reading


def text(value: Any, limit: int = 80) -> str:
    """Text of a record, printable and shortened.

    >>> text("one\\ntwo"), text("x" * 100, 5)
    ('one two', 'xxxx…')
    """
    clean = "".join(c if c.isprintable() else " " for c in str(value))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def short(value: Any, limit: int) -> str:
    """Text of a record, shortened in the middle: names often differ at their ends.

    >>> short("method.lr=0.1", 9)
    'meth…=0.1'
    """
    clean = text(value, 10_000)
    end = limit // 2
    return clean if len(clean) <= limit else f"{clean[: limit - end - 1]}…{clean[-end:]}"


def finite(value: Any) -> float | None:
    """A number of a record, to six digits and within the range that can be drawn; None if it is not a finite number.

    >>> finite(1 / 3), finite(-1e308), finite(5e-324), finite(math.nan)
    (0.333333, -1e+150, 0.0, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{max(-LARGEST, min(value, LARGEST)):.6g}") if abs(value) >= SMALLEST else 0.0


def whole(value: Any) -> int:
    """A count of a record; raises `ValueError` for anything else."""
    if not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError(f"{text(repr(value))} is not a count")
    return value


def _classes(recorded: Any) -> dict[str, int]:
    """The number of clients of each class, in order of the clients; the last of very many classes are merged."""
    found: dict[str, int] = {}
    for name, clients in recorded:
        shown = text(name, 40)
        if shown not in found and len(found) >= CLASSES - 1 and len(recorded) > CLASSES:
            shown = "all others"
        found[shown] = found.get(shown, 0) + whole(clients)
    return found


def _class(names: list[str], ends: list[int], client: int) -> str:
    return names[bisect_right(ends, client)] if names and 0 <= client < ends[-1] else "clients"


class _Reading:
    """What has been read of a record so far."""

    def __init__(self, classes: dict[str, int], every: Any, scored: Container[int]) -> None:
        self._every = every if isinstance(every, int) and every > 0 else None  # rounds between evaluations
        self._scored = scored  # other rounds that were evaluated
        self._moments: dict[int, Row] = {}  # rounds whose evaluation has not been read yet
        self.missed: set[int] = set()  # evaluated rounds that were not expected: to be passed as `scored`
        self.classes, self._names, self._ends = classes, list(classes), list(accumulate(classes.values()))
        self.completed, self.time, self.steps = 0, 0.0, 0
        self.seconds: float | None = None
        self.rounds, self.scores, self.tails = (Downsampler[Row](POINTS) for _ in range(3))
        self.advances, self.bars = Downsampler[float](POINTS), ClientBars(CLIENTS, BARS)
        self.delay_spans = DelaySpans(SPANS)
        self.delays: Counter[tuple[str, int]] = Counter()
        self.weights: dict[str, float] = {}
        self.weighed = True
        self.refused: Counter[tuple[str, str]] = Counter()
        self.lost: Counter[str] = Counter()
        self.jobs = self.arrived = self.snapshots = 0
        self.norms = array("d")
        self._out: dict[int, tuple[int, float]] = {}  # client to serial and time of its job
        self._away: dict[int, float] = {}
        self._spent: dict[int, list[float]] = {}  # client to seconds working and lost

    def of(self, client: int) -> str:
        return _class(self._names, self._ends, client)

    def note(self, event: RunEvent) -> None:
        """Add the next event."""
        self.time = float(event.time)
        if not math.isfinite(self.time):
            raise ValueError("a time that is not finite")
        match event:
            case Dispatch() | Arrival() | Refusal() | Loss() | Join():
                self._client(whole(event.client), event)
            case Advance():
                self._advance(event)
            case Evaluation():
                self._evaluation(event)
            case events.Tail():
                facts = {name: finite(getattr(event, name)) for name in ("index", "low", "high")}
                self.tails.add({**self._now(), **facts, "few": event.verdict == "too few to tell"})

    def _client(self, client: int, event: Dispatch | Arrival | Refusal | Loss | Join) -> None:
        match event:
            case Dispatch():
                self._out[client] = (whole(event.serial), self.time)
                self._spent.setdefault(client, [0.0, 0.0])
            case Arrival() | Refusal():
                if self._out.get(client, (None,))[0] == event.serial:
                    self._done(client)
                self.jobs += 1
                if isinstance(event, Arrival):
                    self.arrived += 1
                else:
                    self.refused[text(event.reason), self.of(client)] += 1
            case Loss():
                self._done(client)
                self.lost[self.of(client)] += 1
                self._away[client] = self.time
            case Join():
                self._back(client)

    def _done(self, client: int) -> None:
        if client in self._out:
            _, since = self._out.pop(client)
            self.bars.add("working", client, since, self.time)
            self._spent[client][0] += self.time - since

    def _back(self, client: int) -> None:
        if client in self._away:
            since = self._away.pop(client)
            self.bars.add("lost", client, since, self.time)
            self._spent.setdefault(client, [0.0, 0.0])[1] += self.time - since

    def _advance(self, event: Advance) -> None:
        self.completed, self.seconds = whole(event.round), finite(event.seconds)
        self.steps += whole(event.steps)
        self.snapshots = max(self.snapshots, whole(event.snapshots))
        for client, delay in zip(event.clients, event.delays, strict=True):
            name = self.of(client)
            self.delays[name, whole(delay)] += 1
            self.delay_spans.add(self.completed, name, self.time, delay)
        self.weighed &= event.weights is not None
        for client, weight in zip(event.clients, event.weights or (), strict=False):
            self.weights[self.of(client)] = self.weights.get(self.of(client), 0.0) + (finite(weight) or 0.0)
        self.norms.extend(norm for norm in event.norms if norm is not None and 0.0 < norm < math.inf)
        self.advances.add(self.time)
        if (self._every and self.completed % self._every == 0) or self.completed in self._scored:
            self._moments[self.completed] = self._now()
        facts = {name: finite(getattr(event, name)) for name in ("loss", "clipped", "local_clipped")}
        self.rounds.add({**self._now(), **facts, "snapshots": event.snapshots})

    def _evaluation(self, event: Evaluation) -> None:
        scores = {text(name, 40): finite(value) for name, value in event.scores.items()}
        round = whole(event.round)
        at = self._moments.pop(round, None)  # scores arrive later if evaluation runs in parallel with training
        if at is None and round != self.completed:
            self.missed.add(round)
        self.scores.add({**(at or self._now()), "scores": scores})

    def _now(self) -> Row:
        return {"round": self.completed, "time": finite(self.time), "seconds": self.seconds, "steps": self.steps}

    def view(self, path: Path, spec: Row, summary: Row) -> RunView:
        """The view, once the last event has been added."""
        for client in [*self._out]:
            self._done(client)
        for client in [*self._away]:
            self._back(client)
        current = bool(summary) and whole(summary["rounds"]) >= self.completed  # otherwise it was resumed since
        run = dict(spec.get("run") or {})
        return RunView(
            path=path,
            label=text(spec.get("label") or str(spec["method"]).partition(" (")[0], 40),
            method=text(spec["method"], 200),
            settings=None if spec.get("spec") is None else dict(flat(spec["spec"])),
            toml=toml(spec.get("spec") or {"run": run}),
            run=run,
            versions={text(name): text(value) for name, value in dict(spec.get("versions") or {}).items()},
            parameters=None if spec.get("parameters") is None else whole(spec["parameters"]),
            classes=self.classes,
            status=text(summary["status"]) if current else RUNNING,
            reason=text(summary["reason"], 400) if current and summary.get("reason") else None,
            completed=self.completed,
            time=self.time,
            seconds=finite(summary.get("seconds")) if current else self.seconds,
            rounds=self.rounds.items,
            step=self.rounds.step,
            scores=self.scores.items,
            score_step=self.scores.step,
            tails=self.tails.items,
            tail_step=self.tails.step,
            delays=self.delays,
            delay_spans=self.delay_spans.rows,
            weights=self.weights if self.weighed and self.weights else None,
            refused=self.refused,
            lost=self.lost,
            arrived=self.arrived,
            snapshots=self.snapshots,
            uses=dict(self._uses()),
            working=self.bars.of("working"),
            away=self.bars.of("lost"),
            stride=self.bars.stride,
            gap=self.bars.gap,
            jobs=self.jobs,
            advances=self.advances.items,
            tail=tail_of(self.norms),
        )

    def _uses(self) -> Iterator[tuple[str, Use]]:
        spent: dict[str, list[float]] = {}
        seen: Counter[str] = Counter()
        for client, (working, lost) in self._spent.items():
            totals = spent.setdefault(self.of(client), [0.0, 0.0])
            totals[0], totals[1] = totals[0] + working, totals[1] + lost
            seen[self.of(client)] += 1
        for name in [*self.classes, *(spent.keys() - self.classes.keys())]:
            working, lost = spent.get(name, (0.0, 0.0))
            yield name, Use(self.classes.get(name, seen[name]), working, lost)


def tail_of(norms: array[float]) -> Tail | None:
    """Hill's estimate of the norms' tail; None if they are too few or almost equal.

    >>> round(tail_of(array("d", [(1 - (i + 0.5) / 10_000) ** (-1 / 1.5) for i in range(10_000)])).tail, 2)
    1.5
    """
    if len(norms) < FEWEST:
        return None
    ordered = sorted(norms, reverse=True)
    found = hill(np.array(ordered))
    edge = ordered[found.k]
    if found.index > EVEN or ordered[0] / edge == math.inf:
        return None
    ranks = sorted({round(len(ordered) ** (i / 99)) for i in range(100)})
    points = [(float(f"{ordered[rank - 1]:.6g}"), rank / len(ordered)) for rank in ranks]
    return Tail(found.index, found.index / math.sqrt(found.k), found.k, edge, found.k / len(ordered), points)
