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

MOST = 10**6  # largest number of clients
LONGEST = 1e15  # largest time, in seconds (30 million years)
LARGEST = 1e100  # largest number of a round


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
    """The rounds as arrays: T × M numbers of the updates, and T numbers of the rounds. Null becomes NaN."""

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
    """What a record says about a run so far."""

    path: Path
    label: str
    method: str
    spec: Row | None  # None: started from Python
    parameters: int | None
    classes: tuple[str, ...]  # of every client
    requested: int | None  # rounds
    status: str
    going: bool  # a process holds the run's lock
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
        """The value of a key of the spec's [method]; None if it is missing, or there is no spec."""
        return (self.spec or {}).get("method", {}).get(key)


def read(path: Path) -> History:
    """Load a run's record."""
    recorded = read_json(path / "spec.json")
    summary = read_json(path / "summary.json") if (path / "summary.json").exists() else {}
    with reading_record(path):
        named = [(_name(name), whole(number)) for name, number in recorded.get("classes") or []]
        known = sum(number for _, number in named)
        if known > MOST:
            raise ValueError(f"{known} clients")
        reading = _Reading(known or MOST)
        if (path / "events.jsonl").exists():
            for event in read_events(path / "events.jsonl"):
                reading.note(event)
        clients = known or _clients(recorded.get("spec")) or 1 + max(reading.at, default=-1)
        if max(reading.at, default=-1) >= clients or clients > MOST:
            raise ValueError(f"client {max(reading.at, default=-1)} of {clients}")
        completed = len(reading.per_round["time"])
        current = bool(summary) and whole(summary["rounds"]) >= completed  # otherwise it was resumed since
        rounds = (recorded.get("run") or {}).get("rounds")
        return History(
            path=path,
            label=text(recorded.get("label") or str(recorded["method"]).partition(" (")[0], 40),
            method=text(recorded["method"], 200),
            spec=None if recorded.get("spec") is None else _tables(recorded["spec"]),
            parameters=None if recorded.get("parameters") is None else whole(recorded["parameters"]),
            classes=tuple(name for name, number in named for _ in range(number)) or ("clients",) * clients,
            requested=None if rounds is None else whole(rounds),
            status=text(summary["status"]) if current else RUNNING,
            going=not current and going(path),
            reason=text(summary["reason"], 400) if current and summary.get("reason") else None,
            time=reading.time,
            rounds=reading.rounds(),
            jobs=tuple(reading.jobs(client) for client in range(clients)),
            refused=reading.refused,
            tails=reading.tails,
        )


def _name(value: Any) -> str:
    """The name of a class, without characters that UTF-8 cannot encode."""
    return str(value).encode("utf-8", "replace").decode()


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
        self.per_update_integers = {name: array("q") for name in ("clients", "delays")}
        self.per_update_numbers = {name: array("d") for name in ("weights", "norms")}
        self.per_round = {name: array("d") for name in Rounds._fields[4:]}

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
                    client.open.append(self._stop(client))
                if not client.away:
                    client.since = self.time
                client.lost, client.away = client.lost + 1, True
            case Join():
                self._join(client)

    def _end_job(self, client: _Client, serial: int, steps: int) -> None:
        """End the client's job, unless the update belongs to an earlier one and was sent twice."""
        if client.out and client.out[0] == serial:
            client.done.append((self._stop(client), steps))

    def _join(self, client: _Client) -> None:
        if client.away:
            client.gone, client.away = client.gone + self.time - client.since, False

    def _stop(self, client: _Client) -> float:
        """Clear the client's job and return its age."""
        if client.out is None:
            return 0.0
        seconds = self.time - client.out[1]
        if seconds < 0:
            raise ValueError("a job that ended before it began")
        client.busy, client.out = client.busy + seconds, None
        return seconds

    def _advance(self, event: Advance) -> None:
        size = len(event.clients)
        if size < 1 or self.buffer not in (None, size):
            raise ValueError(f"a round of {size} updates after rounds of {self.buffer}")
        self.buffer = size
        for name, integers in self.per_update_integers.items():
            integers.extend(map(whole, getattr(event, name)))
        self.per_update_numbers["weights"].extend(map(_number, event.weights or [1.0] * size))
        self.per_update_numbers["norms"].extend(map(_number, event.norms))
        for name, numbers in self.per_round.items():
            numbers.append(_number(getattr(event, name)))

    def rounds(self) -> Rounds:
        """All rounds, as arrays."""
        shape = (len(self.per_round["time"]), self.buffer or 1)
        clients, delays = (
            np.array(numbers, dtype=np.int64).reshape(shape) for numbers in self.per_update_integers.values()
        )
        if shape[0] and not 1 <= delays.min() <= delays.max() <= shape[0]:
            raise ValueError(f"delays of {delays.min()} to {delays.max()} in {shape[0]} rounds")
        weights, norms = (
            np.array(values, dtype=np.float64).reshape(shape) for values in self.per_update_numbers.values()
        )
        per_round = {name: np.array(values, dtype=np.float64) for name, values in self.per_round.items()}
        for name in ("clipped", "local_clipped"):
            if ((per_round[name] < 0) | (per_round[name] > 1)).any():
                raise ValueError(f"a share in {name} that is not between 0 and 1")
        return Rounds(clients, delays, weights, norms, **per_round)

    def jobs(self, number: int) -> Jobs:
        """The jobs of a client, once the last event has been read."""
        client = self.at.get(number, _Client())
        if client.out:
            client.open.append(self._stop(client))
        most = max((steps for _, steps in client.done), default=0)  # DyLU gives some jobs fewer steps
        seconds = tuple(taken * most / steps if steps else taken for taken, steps in client.done)
        counts = (client.sent, client.taken, client.refused, client.lost, client.away)
        self._join(client)
        return Jobs(seconds, tuple(client.open), *counts, client.busy, client.gone, client.steps)
