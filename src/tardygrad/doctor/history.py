"""Load a record for the doctor: how long every client's jobs took, and the updates of every round.

Records may come from runs that are still going or were killed, and from strangers: missing values are None or NaN, and
text is shortened and stripped of characters that cannot be printed; only the names of classes are kept unchanged.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tardygrad.report.discover import going
from tardygrad.report.loader import RUNNING, text, whole
from tardygrad.runs.events import Advance, Arrival, Dispatch, Join, Loss, Refusal, RunEvent, Tail, read_events
from tardygrad.runs.record import Row, read_json, reading_record

MOST = 10**6  # clients of a record that does not say how many there are
LONGEST = 1e15  # seconds, 30 million years: no time is later
LARGEST = 1e100  # no number of a round is larger


class Jobs(NamedTuple):
    """The jobs of one client."""

    seconds: tuple[float, ...]  # from dispatch to arrival, scaled to the client's largest number of local steps
    open: tuple[float, ...]  # ages of the jobs that never came back: under way at the end, or lost
    sent: int
    taken: int  # updates accepted
    refused: int
    lost: int  # how often the client was lost
    away: bool  # lost and not back
    busy: float  # seconds with a job
    gone: float  # seconds lost
    steps: int  # local steps of the accepted updates


class Rounds(NamedTuple):
    """What every round was made of: T × M numbers of its updates, and T of its own. Null is not a number."""

    clients: NDArray[np.int64]
    delays: NDArray[np.int64]
    weights: NDArray[np.float64]
    norms: NDArray[np.float64]
    time: NDArray[np.float64]
    norm: NDArray[np.float64]
    move: NDArray[np.float64]
    clipped: NDArray[np.float64]
    local_clipped: NDArray[np.float64]
    loss: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.time)

    @property
    def buffer(self) -> int:
        """M."""
        return int(self.delays.shape[1])


@dataclass(frozen=True)
class History:
    """What a record holds of a run, so far."""

    path: Path
    label: str
    method: str
    spec: Row | None  # None: begun in Python
    parameters: int | None
    classes: tuple[str, ...]  # of every client
    asked: int | None  # rounds
    status: str
    going: bool  # a process is seen to hold it
    reason: str | None
    time: float
    rounds: Rounds
    jobs: tuple[Jobs, ...]  # of every client
    refused: Counter[str]  # by reason
    tails: list[Tail]

    @property
    def clients(self) -> int:
        """N."""
        return len(self.jobs)

    def setting(self, key: str) -> Any:
        """A key of the spec's [method]; None if there is none, or no spec."""
        return (self.spec or {}).get("method", {}).get(key)


def read(path: Path) -> History:
    """Load a run's record."""
    asked = read_json(path / "spec.json")
    ended = read_json(path / "summary.json") if (path / "summary.json").exists() else {}
    with reading_record(path):
        named = [(_name(name), whole(number)) for name, number in asked.get("classes") or []]
        known = sum(number for _, number in named)
        if known > MOST:
            raise ValueError(f"{known} clients")
        reading = _Reading(known or MOST)
        if (path / "events.jsonl").exists():
            for event in read_events(path / "events.jsonl"):
                reading.note(event)
        clients = known or _clients(asked.get("spec")) or 1 + max(reading.at, default=-1)
        if max(reading.at, default=-1) >= clients or clients > MOST:
            raise ValueError(f"client {max(reading.at, default=-1)} of {clients}")
        made = len(reading.alone["time"])
        current = bool(ended) and whole(ended["rounds"]) >= made  # else it has been resumed since
        rounds = (asked.get("run") or {}).get("rounds")
        return History(
            path=path,
            label=text(asked.get("label") or str(asked["method"]).partition(" (")[0], 40),
            method=text(asked["method"], 200),
            spec=None if asked.get("spec") is None else _tables(asked["spec"]),
            parameters=None if asked.get("parameters") is None else whole(asked["parameters"]),
            classes=tuple(name for name, number in named for _ in range(number)) or ("clients",) * clients,
            asked=None if rounds is None else whole(rounds),
            status=text(ended["status"]) if current else RUNNING,
            going=not current and going(path),
            reason=text(ended["reason"], 400) if current and ended.get("reason") else None,
            time=reading.time,
            rounds=reading.rounds(),
            jobs=tuple(reading.jobs(client) for client in range(clients)),
            refused=reading.refused,
            tails=reading.tails,
        )


def _name(given: Any) -> str:
    """A class, in what can be written."""
    return str(given).encode("utf-8", "replace").decode()


def _clients(spec: Any) -> int:
    return whole(spec["task"].get("clients") or 0) if spec else 0


def _tables(spec: Any) -> Row:
    if not isinstance(spec, dict) or not all(isinstance(table, dict) for table in spec.values()):
        raise TypeError("a spec is made of tables")
    return spec


def _number(value: Any) -> float:
    """A number of a record; NaN for null."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{text(repr(value))} is not a number")
    if abs(value) > LARGEST:
        raise ValueError(f"{value:.3g} is too large")
    return float(value)


@dataclass
class _Client:
    """What has been read of a client so far."""

    done: list[tuple[float, int]] = field(default_factory=list)  # seconds and local steps; 0: not known
    open: list[float] = field(default_factory=list)
    out: tuple[int, float] | None = None  # serial and time of its job
    sent: int = 0
    refused: int = 0
    lost: int = 0
    away: bool = False
    since: float = 0.0  # when it was lost
    busy: float = 0.0
    gone: float = 0.0
    taken: int = 0
    steps: int = 0


class _Reading:
    """What has been read of a record so far."""

    def __init__(self, most: int) -> None:
        self.most, self.time = most, 0.0
        self.at: dict[int, _Client] = {}
        self.refused: Counter[str] = Counter()
        self.tails: list[Tail] = []
        self.buffer: int | None = None
        self.whole = {name: array("q") for name in ("clients", "delays")}
        self.each = {name: array("d") for name in ("weights", "norms")}
        self.alone = {name: array("d") for name in Rounds._fields[4:]}

    def note(self, event: RunEvent) -> None:
        """Add the next event."""
        self.time = _number(event.time)
        if not 0 <= self.time <= LONGEST:
            raise ValueError(f"a time of {self.time:.3g} s")
        match event:
            case Dispatch() | Arrival() | Refusal() | Loss() | Join():
                if (client := whole(event.client)) >= self.most:
                    raise ValueError(f"client {client} of {self.most}")
                self._note_client(self.at.setdefault(client, _Client()), event)
            case Advance():
                self._advance(event)
            case Tail():
                self.tails.append(event)

    def _note_client(self, client: _Client, event: Dispatch | Arrival | Refusal | Loss | Join) -> None:
        match event:
            case Dispatch():
                client.out, client.sent = (whole(event.serial), self.time), client.sent + 1
            case Arrival():
                steps = whole(event.steps)
                self._end_job(client, event.serial, steps)
                client.taken, client.steps = client.taken + 1, client.steps + steps
            case Refusal():
                self._end_job(client, event.serial, 0)
                client.refused += 1
                self.refused[text(event.reason)] += 1
            case Loss():
                if client.out:
                    client.open.append(self._back(client))
                if not client.away:
                    client.since = self.time
                client.lost, client.away = client.lost + 1, True
            case Join():
                self._join(client)

    def _end_job(self, client: _Client, serial: int, steps: int) -> None:
        """The update of a job came; it may be that of an earlier one, sent twice."""
        if client.out and client.out[0] == serial:
            client.done.append((self._back(client), steps))

    def _join(self, one: _Client) -> None:
        if one.away:
            one.gone, one.away = one.gone + self.time - one.since, False

    def _back(self, one: _Client) -> float:
        """End the client's job, and return how long it took."""
        if one.out is None:
            return 0.0
        seconds = self.time - one.out[1]
        if seconds < 0:
            raise ValueError("a job that ended before it began")
        one.busy, one.out = one.busy + seconds, None
        return seconds

    def _advance(self, event: Advance) -> None:
        size = len(event.clients)
        if size < 1 or self.buffer not in (None, size):
            raise ValueError(f"a round of {size} updates after rounds of {self.buffer}")
        self.buffer = size
        for name, integers in self.whole.items():
            integers.extend(map(whole, getattr(event, name)))
        self.each["weights"].extend(map(_number, event.weights or [1.0] * size))
        self.each["norms"].extend(map(_number, event.norms))
        for name, numbers in self.alone.items():
            numbers.append(_number(getattr(event, name)))

    def rounds(self) -> Rounds:
        """All of them, as arrays."""
        made, many = len(self.alone["time"]), self.buffer or 1
        clients, delays = (np.array(numbers, dtype=np.int64).reshape(made, many) for numbers in self.whole.values())
        if made and not 1 <= delays.min() <= delays.max() <= made:
            raise ValueError(f"delays of {delays.min()} to {delays.max()} in {made} rounds")
        weights, norms = (np.array(values, dtype=np.float64).reshape(made, many) for values in self.each.values())
        alone = {name: np.array(values, dtype=np.float64) for name, values in self.alone.items()}
        for name in ("clipped", "local_clipped"):
            if ((alone[name] < 0) | (alone[name] > 1)).any():
                raise ValueError(f"a share in {name} that is not between 0 and 1")
        return Rounds(clients, delays, weights, norms, **alone)

    def jobs(self, client: int) -> Jobs:
        """A client's, when the last event has been read."""
        one = self.at.get(client, _Client())
        if one.out:
            one.open.append(self._back(one))
        most = max((steps for _, steps in one.done), default=0)  # DyLU gives less work to some jobs, and K to the first
        seconds = tuple(taken * most / steps if steps else taken for taken, steps in one.done)
        counts = (one.sent, one.taken, one.refused, one.lost, one.away)
        self._join(one)
        return Jobs(seconds, tuple(one.open), *counts, one.busy, one.gone, one.steps)
