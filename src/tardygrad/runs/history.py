"""Load a record: the updates of every round, the jobs of every client, the evaluations, and how the run ended.

Records may be of runs that are still going or were killed. Missing numbers are NaN, and text is shortened and stripped
of characters that cannot be printed; only the names of classes are kept unchanged.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tardygrad.errors import RecordError
from tardygrad.own_code import is_own
from tardygrad.runs import events
from tardygrad.runs.directions import Directions
from tardygrad.runs.events import Arrival, ClientEvaluation, ClientEvent, Evaluation, RunEvent, read_events
from tardygrad.runs.kinds import is_simulated, resume_command
from tardygrad.runs.record import EVENTS, Row, read_spec, reading_record
from tardygrad.runs.record import is_locked as is_locked
from tardygrad.runs.record_values import printable
from tardygrad.runs.summary import MODEL, read_model, read_summary_row, run_length

NAME = 32  # most characters of a client's id that are shown
UNFINISHED = "not ended"  # the status of a run whose record does not say how it ended
MIN_JOBS = 3  # of a machine, below which its speed says nothing
State = Literal["awake", "finishing", "asleep", "lost"]
"""The state of a client; "finishing": its window has ended, and it is asleep after the job that it has."""


@dataclass(frozen=True)
class Rounds:
    """The rounds as arrays: T × M numbers of the updates, and T numbers of the rounds."""

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
    seconds: NDArray[np.float64]
    epsilon: NDArray[np.float64]  # spent so far; NaN: infinite, or the method is not private
    steps: NDArray[np.int64]
    snapshots: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time)

    @property
    def buffer(self) -> int:
        """M."""
        return int(self.delays.shape[1])


COLUMNS = tuple(column.name for column in fields(Rounds))
PER_UPDATE, COUNTS = COLUMNS[:4], ("clients", "delays", "steps", "snapshots")


class PastJob(NamedTuple):
    """A job of a client."""

    start: float
    end: float  # when its update arrived, its client was lost or cancelled it, or the record ends
    steps: int  # local steps of its update; 0: unknown
    returned: bool  # False: it was lost or cancelled, or is under way at the end of the record
    suspended: float = 0.0  # seconds of it in which the client was asleep

    @property
    def seconds(self) -> float:
        """How long the client had the job while it was awake."""
        return self.end - self.start - self.suspended


@dataclass
class ClientHistory:
    """What one client did."""

    jobs: list[PastJob] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)  # from when to when it was lost
    asleep: list[tuple[float, float]] = field(default_factory=list)  # from when to when it was asleep
    taken: int = 0  # updates accepted
    steps: int = 0  # their local steps
    loss_values: list[float] = field(default_factory=list)  # their losses; NaN: not finite
    refused: Counter[str] = field(default_factory=Counter)  # updates, by reason
    fault: str = ""  # why its first refused update was not finite: what is wrong, and what to do
    losses: int = 0
    lost: bool = False  # at the end of the record
    _state: State = "awake"
    _since: float = 0.0

    def change(self, state: State, now: float) -> None:
        """Note a change of the client's state."""
        if state == self._state:
            return
        if self._state in ("asleep", "lost"):
            (self.asleep if self._state == "asleep" else self.away).append((self._since, now))
        self._state, self._since = state, now

    def add_job(self, job: PastJob) -> None:
        """Add a job that ends now."""
        suspended = job.end - max(self._since, job.start) if self._state == "asleep" else 0.0
        for start, end in reversed(self.asleep):
            if end <= job.start:
                break
            suspended += end - max(start, job.start)
        self.jobs.append(job._replace(suspended=suspended))
        if self._state == "finishing":
            self.change("asleep", job.end)

    def end(self, now: float) -> None:
        """End the last state, at the end of the record."""
        self.lost = self._state == "lost"
        self.change("awake", now)

    @property
    def seconds(self) -> list[float]:
        """How long the jobs took that came back, each scaled to the largest number of local steps (see DyLU)."""
        most = max((job.steps for job in self.jobs), default=0)
        return [job.seconds * (most / job.steps if job.steps else 1) for job in self.jobs if job.returned]

    @property
    def unfinished_ages(self) -> list[float]:
        """Ages of the jobs that never came back."""
        return [job.seconds for job in self.jobs if not job.returned]

    @property
    def working_seconds(self) -> float:
        """Seconds with a job, without those asleep."""
        return sum(job.seconds for job in self.jobs)

    @property
    def lost_seconds(self) -> float:
        """Seconds lost."""
        return sum(end - start for start, end in self.away)

    @property
    def asleep_seconds(self) -> float:
        """Seconds asleep."""
        return sum(end - start for start, end in self.asleep)


class Machine(NamedTuple):
    """What a machine did."""

    name: str
    workers: int  # processes that have worked there
    updates: int  # accepted
    low: float  # seconds per local step: the 10 % quantile, the median and the 90 % quantile of its jobs
    median: float
    high: float


@dataclass
class MachineTimes:
    """Collects the jobs of workers.

    A job's work begins when it was sent, or when its worker delivered the job before, whichever was later: the time
    that it waited for a free worker is not the machine's.
    """

    _last: dict[tuple[str, str], float] = field(default_factory=dict)  # (node, worker) to its last arrival
    _seconds: dict[str, list[float]] = field(default_factory=dict)  # by node: seconds per local step of its jobs

    def add(self, node: str, worker: str, *, sent: float, arrived: float, steps: int) -> None:
        """Add a job."""
        began = max(sent, self._last.get((node, worker), 0.0))
        self._last[node, worker] = arrived
        self._seconds.setdefault(node, []).append((arrived - began) / max(steps, 1))

    def machines(self) -> list[Machine]:
        """The machines with enough jobs, slowest first."""
        found = []
        for node, seconds in self._seconds.items():
            if len(seconds) >= MIN_JOBS:
                workers = sum(known == node for known, _ in self._last)
                quantiles = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
                found.append(Machine(node, workers, len(seconds), *quantiles))
        return sorted(found, key=lambda machine: -machine.median)


@dataclass(frozen=True)
class History:
    """What a record says about a run so far."""

    path: Path
    label: str
    method: str
    spec: Row | None  # None: started in Python, with objects that cannot be made again
    described: Row  # what is known of their settings, in tables and texts
    ready_method: Row | None  # the table [method] of the ready method that a function of the user's returned
    run: Row  # its settings
    versions: dict[str, str]
    parameters: int | None
    classes: tuple[str, ...]  # of every client
    ids: tuple[str, ...]  # of every client; empty: they have only numbers
    status: str
    locked: bool | None  # whether a process holds the run's lock; None: unknown
    simulated: bool | None  # whether its clock is simulated; None: unknown
    reason: str | None
    time: float  # of its end or, so far, of the last event
    seconds: float | None  # of computing
    rounds: Rounds
    by_client: tuple[ClientHistory, ...]
    evaluations: list[Evaluation]
    client_evaluations: list[ClientEvaluation]
    machines: list[Machine]  # slowest first; empty if they are not known, or if jobs take a fleet's time
    tails: list[events.TailEstimate]
    random_fleet: bool | None  # whether the times of arrivals depend on the seed; None: no fleet

    @property
    def clients(self) -> int:
        """N."""
        return len(self.by_client)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every client's id, printable and short, or else its number; no two are the same."""
        short = [printable(name, NAME) for name in self.ids] or [str(client) for client in range(self.clients)]
        repeated = Counter(short)
        return tuple(f"{name} ({i})" if repeated[name] > 1 else name for i, name in enumerate(short))

    @property
    def taken(self) -> int:
        """The number of updates that were accepted."""
        return sum(client.taken for client in self.by_client)

    @property
    def refused(self) -> Counter[str]:
        """The refused updates, by reason."""
        return sum((client.refused for client in self.by_client), Counter())

    @property
    def ended(self) -> bool:
        """Whether the record says how the run ended."""
        return self.status != UNFINISHED

    @property
    def is_running(self) -> bool:
        """Whether a process is at work on the run."""
        return not self.ended and self.locked is True

    @property
    def was_killed(self) -> bool:
        """Whether the run's process is gone before it could say how the run ended."""
        return not self.ended and self.locked is False

    @property
    def state(self) -> str:
        """The status, or else whether the run is running or was killed, if the lock tells."""
        return "running" if self.is_running else "killed" if self.was_killed else self.status

    @property
    def resume_hint(self) -> str | None:
        """How to continue the run; None if it has finished, is running, or cannot be continued."""
        if self.status not in ("stopped", "failed") and not self.was_killed:
            return None
        folder = printable(self.path, 1000)
        if self.spec is None:
            return f"tardygrad.resume({folder!r}, ...) in Python"
        return resume_command(folder, self.spec)

    @property
    def requested(self) -> int | None:
        """How many rounds the run should have, if the record says so."""
        rounds = self.run.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def directions(self) -> Directions:
        """Which scores are good when they are low."""
        return Directions.of(self.run)

    @property
    def method_settings(self) -> Row | None:
        """The spec's table [method]; None if it is not known."""
        method = (self.spec or self.described).get("method")
        return method if isinstance(method, dict) and "kind" in method else None

    @property
    def knows_method(self) -> bool:
        """Whether the record says what the method does: a function of the user's may hide it."""
        own = self.method_settings is not None and is_own(self.method_settings.get("kind"))
        return self.ready_method is not None or (self.method_settings is not None and not own)

    @property
    def clients_clip(self) -> bool:
        """Whether the clients clip, as far as is known."""
        return not self.knows_method or self.setting("local_clip") not in (None, "inf")

    def can_set(self, key: str) -> bool:
        """Whether an override can change a setting of the method; a function of the user's has keys of its own."""
        table = self.method_settings or {}
        return key in table or not is_own(table.get("kind"))

    def setting(self, key: str) -> Any:
        """The value of a setting of the method; None if it is not known."""
        return (self.ready_method or self.method_settings or {}).get(key)


def read_history(path: Path) -> History:
    """Load a run's record."""
    recorded = read_spec(path)
    begun = (path / EVENTS).exists()
    if not begun and (path / "summary.json").exists():
        raise RecordError(f"the record in {str(path)!r} is damaged: events.jsonl is missing.")
    with reading_record(path):
        summary = read_summary_row(path) if (path / "summary.json").exists() else {}
        if MODEL in summary.get("checks", {}):
            read_model(path)
        classes = [(str(name).encode("utf-8", "replace").decode(), number) for name, number in recorded["classes"]]
        spec, run = recorded.get("spec"), dict(recorded["run"])
        ids = client_ids(recorded)
        clients = sum(number for _, number in classes) or len(ids) or (spec or {}).get("task", {}).get("clients") or 0
        reader = _Reader()
        if begun:
            for event in read_events(path / EVENTS):
                reader.add(event)
        current = bool(summary) and summary["rounds"] >= reader.completed  # otherwise it was resumed since
        status = printable(summary["status"]) if current else UNFINISHED
        rounds = reader.finish(run_length(run, status, reader.completed, reader.time))
        clients = clients or 1 + max((*reader.clients, rounds.clients.max(initial=-1)), default=-1)
        seconds = summary.get("seconds") if current else rounds.seconds[-1] if len(rounds) else None
        return History(
            path=path,
            label=printable(recorded.get("label") or str(recorded["method"]).partition(" (")[0], 40),
            method=printable(recorded["method"], 200),
            spec=spec,
            described=dict(recorded.get("described") or {}),
            ready_method=recorded.get("ready_method"),
            run=run,
            versions={printable(name): printable(value) for name, value in (recorded.get("versions") or {}).items()},
            parameters=recorded.get("parameters"),
            classes=tuple(name for name, number in classes for _ in range(number)) or ("clients",) * clients,
            ids=ids,
            status=status,
            locked=False if current else is_locked(path),
            simulated=is_simulated(recorded),
            reason=printable(summary["reason"], 400) if current and summary.get("reason") else None,
            time=reader.time,
            seconds=seconds,
            rounds=rounds,
            by_client=tuple(reader.clients[client] for client in range(clients)),
            evaluations=reader.evaluations,
            client_evaluations=reader.client_evaluations,
            machines=[] if classes else reader.machines.machines(),
            tails=reader.tails,
            random_fleet=recorded.get("random_fleet"),
        )


def client_ids(recorded: Row) -> tuple[str, ...]:
    """The ids of the clients in a spec.json, or else the names in its trace; names that are numbers are no ids."""
    fleet = (recorded.get("spec") or recorded.get("described") or {}).get("fleet")
    names = tuple(map(str, fleet.get("ids") or ())) if isinstance(fleet, dict) else ()
    return tuple(map(str, recorded.get("ids") or ())) or (() if all(map(str.isdecimal, names)) else names)


class _Reader:
    """Collects the events of a record."""

    def __init__(self) -> None:
        self.time = 0.0
        self.buffer = 0  # M, the same in all rounds
        self.clients = defaultdict[int, ClientHistory](ClientHistory)
        self.evaluations: list[Evaluation] = []
        self.client_evaluations: list[ClientEvaluation] = []
        self.machines = MachineTimes()
        self.tails: list[events.TailEstimate] = []
        self._columns: dict[str, array[Any]] = {name: array("q" if name in COUNTS else "d") for name in COLUMNS}
        self._out: dict[int, tuple[int, float]] = {}  # client to serial and time of its job

    def add(self, event: RunEvent) -> None:
        """Add the next event."""
        if not isinstance(event, Evaluation | ClientEvaluation):  # on a real clock, they end after their round
            self.time = event.time
        if isinstance(event, ClientEvent):
            self._add_message(event.client, event)
        match event:
            case events.Advance():
                self._add_round(event)
            case Evaluation():
                self.evaluations.append(event)
            case ClientEvaluation():
                known = {name: [*map(_number, values)] for name, values in event.by_client.items()}
                self.client_evaluations.append(event._replace(by_client=known))
            case events.TailEstimate():
                number = self.completed if event.round is None else event.round
                self.tails.append(event._replace(round=number))

    def _add_message(self, client: int, event: ClientEvent) -> None:
        own = self.clients[client]
        match event:
            case events.Dispatch():
                self._out[client] = (event.serial, self.time)
            case Arrival() | events.Refusal():
                steps = event.steps if isinstance(event, Arrival) else 0
                if self._out.get(client, (None,))[0] == event.serial:  # otherwise an earlier job's update, sent twice
                    if isinstance(event, Arrival) and event.node is not None:
                        names, sent = (printable(event.node, 60), printable(event.worker)), self._out[client][1]
                        self.machines.add(*names, sent=sent, arrived=self.time, steps=steps)
                    self._end_job(client, steps, returned=True)
                if isinstance(event, Arrival):
                    own.taken, own.steps = own.taken + 1, own.steps + steps
                    own.loss_values.append(_number(event.loss))
                else:
                    own.refused[printable(event.reason)] += 1
                    own.fault = own.fault or printable(event.fault or "", 300)
            case events.ClientLost():
                self._end_job(client)
                own.losses += 1
                own.change("lost", self.time)
            case events.Sleep():
                if event.job == "cancel":
                    self._end_job(client)
                own.change("finishing" if event.job == "finish" and client in self._out else "asleep", self.time)
            case events.Join() | events.Wake():
                own.change("awake", self.time)

    def _end_job(self, client: int, steps: int = 0, *, returned: bool = False) -> None:
        if client in self._out:
            _, start = self._out.pop(client)
            self.clients[client].add_job(PastJob(start, self.time, steps, returned))

    def _add_round(self, event: events.Advance) -> None:
        self.buffer = len(event.clients)
        for name, column in self._columns.items():
            values = getattr(event, name) if name in PER_UPDATE else (getattr(event, name),)
            column.extend(values if name in COUNTS else map(_number, values))

    @property
    def completed(self) -> int:
        """The number of rounds so far."""
        return len(self._columns["time"])

    def finish(self, time: float) -> Rounds:
        """End what is under way at this time, once the last event has been added, and return all rounds."""
        self.time = time
        for client in [*self._out]:
            self._end_job(client)
        for history in self.clients.values():
            history.end(self.time)
        rounds = self.completed
        arrays = {name: np.array(column) for name, column in self._columns.items()}
        arrays |= {name: arrays[name].reshape(rounds, self.buffer or 1) for name in PER_UPDATE}
        return Rounds(**arrays)


def _number(value: float | None) -> float:
    """A number of a record; NaN for null."""
    return math.nan if value is None else float(value)
