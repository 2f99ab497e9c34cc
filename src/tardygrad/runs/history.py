"""Load a record: the updates of every round, the jobs of every client, the evaluations, and how the run ended.

Records may come from older versions, from runs that are still going or were killed, and from strangers: missing numbers
are NaN, and text is shortened and stripped of characters that cannot be printed; only the names of classes are kept
unchanged. A record that contradicts itself raises `RecordError`.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tardygrad.errors import RecordError
from tardygrad.own_code import is_own
from tardygrad.runs import events
from tardygrad.runs.client_history import ClientHistory as ClientHistory
from tardygrad.runs.client_history import PastJob
from tardygrad.runs.directions import Directions
from tardygrad.runs.events import Arrival, ClientEvaluation, ClientEvent, Evaluation, RunEvent, read_events
from tardygrad.runs.kinds import is_simulated, resume_command
from tardygrad.runs.machines import Machine, MachineTimes
from tardygrad.runs.record import EVENTS, Row, read_spec, reading_record
from tardygrad.runs.record import is_locked as is_locked
from tardygrad.runs.record_values import printable, read_count, read_number, read_time
from tardygrad.runs.rounds import COLUMNS, COUNTS, PER_UPDATE
from tardygrad.runs.rounds import Rounds as Rounds
from tardygrad.runs.summary import MODEL, read_model, read_summary_row, run_length

MAX_CLIENTS = 10**6  # largest number of clients
NAME = 32  # most characters of a client's id that are shown
UNFINISHED = "not ended"  # the status of a run whose record does not say how it ended


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
        classes = [
            (str(name).encode("utf-8", "replace").decode(), read_count(n)) for name, n in recorded.get("classes") or ()
        ]
        spec, versions = recorded.get("spec"), dict(recorded.get("versions") or {})
        if spec is not None and not all(isinstance(table, dict) for table in spec.values()):
            raise TypeError("a spec is made of tables")
        ids = client_ids(recorded)
        clients = sum(number for _, number in classes) or len(ids)
        clients = clients or read_count((spec or {}).get("task", {}).get("clients") or 0)
        if ids and len(ids) != clients:
            raise ValueError(f"{len(ids)} ids of {clients} clients")
        reader = _Reader(clients or MAX_CLIENTS)
        if begun:
            for event in read_events(path / EVENTS):
                reader.add(event)
        run = dict(recorded.get("run") or {})
        if run.get("until") is not None:
            run["until"] = read_time(run["until"])
        current = bool(summary) and read_count(summary["rounds"]) >= reader.completed  # otherwise it was resumed since
        status = printable(summary["status"]) if current else UNFINISHED
        rounds = reader.finish(run_length(run, status, reader.completed, reader.time))
        clients = clients or 1 + max((*reader.clients, rounds.clients.max(initial=-1)), default=-1)
        if rounds.clients.max(initial=-1) >= clients or clients > MAX_CLIENTS:
            raise ValueError(f"client {rounds.clients.max(initial=-1)} of {clients}")
        seconds = summary.get("seconds") if current else rounds.seconds[-1] if len(rounds) else None
        return History(
            path=path,
            label=printable(recorded.get("label") or str(recorded["method"]).partition(" (")[0], 40),
            method=printable(recorded["method"], 200),
            spec=spec,
            described=dict(recorded.get("described") or {}),
            ready_method=recorded["ready_method"] if isinstance(recorded.get("ready_method"), dict) else None,
            run=run,
            versions={printable(name): printable(value) for name, value in versions.items()},
            parameters=None if recorded.get("parameters") is None else read_count(recorded["parameters"]),
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
            client_evaluations=[_checked_scores(scores, clients, len(rounds)) for scores in reader.client_evaluations],
            machines=[] if classes else reader.machines.machines(),
            tails=reader.tails,
            random_fleet=recorded["random_fleet"] if isinstance(recorded.get("random_fleet"), bool) else None,
        )


def client_ids(recorded: Row) -> tuple[str, ...]:
    """The ids of the clients in a spec.json, or else the names in its trace; names that are numbers are no ids."""
    fleet = (recorded.get("spec") or recorded.get("described") or {}).get("fleet")
    names = tuple(map(str, fleet.get("ids") or ())) if isinstance(fleet, dict) else ()
    return tuple(map(str, recorded.get("ids") or ())) or (() if all(map(str.isdecimal, names)) else names)


def _checked_scores(event: ClientEvaluation, clients: int, rounds: int) -> ClientEvaluation:
    """Scores by client with short names; missing ones are NaN."""
    if not 1 <= read_count(event.round) <= rounds:
        raise ValueError(f"scores of clients in round {event.round} of {rounds}")
    found = {printable(name, 40): [read_number(value) for value in values] for name, values in event.by_client.items()}
    if wrong := [name for name, values in found.items() if len(values) != clients]:
        raise ValueError(f"{len(found[wrong[0]])} scores of {clients} clients")
    return event._replace(on=printable(event.on, 20), by_client=found)


class _Reader:
    """Collects the events of a record."""

    def __init__(self, most: int) -> None:
        self.most, self.time = most, 0.0
        self.buffer: int | None = None
        self.clients = defaultdict[int, ClientHistory](ClientHistory)
        self.evaluations: list[Evaluation] = []
        self.client_evaluations: list[ClientEvaluation] = []
        self.machines = MachineTimes()
        self.tails: list[events.TailEstimate] = []
        self._columns: dict[str, array[Any]] = {name: array("q" if name in COUNTS else "d") for name in COLUMNS}
        self._out: dict[int, tuple[int, float]] = {}  # client to serial and time of its job

    def add(self, event: RunEvent) -> None:
        """Add the next event."""
        time = read_time(event.time)
        if not isinstance(event, Evaluation | ClientEvaluation):  # on a real clock, they end after their round
            self.time = time
        if isinstance(event, ClientEvent):
            if (client := read_count(event.client)) >= self.most:
                raise ValueError(f"client {client} of {self.most}")
            self._add_message(client, event)
        match event:
            case events.Advance():
                self._add_round(event)
            case Evaluation():
                self.evaluations.append(event)
            case ClientEvaluation():
                self.client_evaluations.append(event)
            case events.TailEstimate():
                number = self.completed if event.round is None else event.round
                self.tails.append(event._replace(round=read_count(number)))

    def _add_message(self, client: int, event: ClientEvent) -> None:
        own = self.clients[client]
        match event:
            case events.Dispatch():
                self._out[client] = (read_count(event.serial), self.time)
            case Arrival() | events.Refusal():
                steps = read_count(event.steps) if isinstance(event, Arrival) else 0
                if self._out.get(client, (None,))[0] == event.serial:  # otherwise an earlier job's update, sent twice
                    if isinstance(event, Arrival) and event.node is not None:
                        names, sent = (printable(event.node, 60), printable(event.worker)), self._out[client][1]
                        self.machines.add(*names, sent=sent, arrived=self.time, steps=steps)
                    self._end_job(client, steps, returned=True)
                if isinstance(event, Arrival):
                    own.taken, own.steps = own.taken + 1, own.steps + steps
                    own.loss_values.append(read_number(event.loss))
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
            if self.time < start:
                raise ValueError("a job that ended before it began")
            self.clients[client].add_job(PastJob(start, self.time, steps, returned))

    def _add_round(self, event: events.Advance) -> None:
        size = len(event.clients)
        if size < 1 or self.buffer not in (None, size):
            raise ValueError(f"a round of {size} updates after rounds of {self.buffer}")
        self.buffer = size
        for name, column in self._columns.items():
            values = getattr(event, name) if name in PER_UPDATE else (getattr(event, name),)
            column.extend(map(read_count, values) if name in COUNTS else map(read_number, values))

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
        found = Rounds(**arrays)
        if rounds and not 1 <= found.delays.min() <= found.delays.max() <= rounds:
            raise ValueError(f"delays of {found.delays.min()} to {found.delays.max()} in {rounds} rounds")
        for name in ("clipped", "local_clipped"):
            if ((arrays[name] < 0) | (arrays[name] > 1)).any():
                raise ValueError(f"a share in {name} that is not between 0 and 1")
        for evaluation in self.evaluations:
            if not 1 <= read_count(evaluation.round) <= rounds:
                raise ValueError(f"scores of round {evaluation.round} in {rounds} rounds")
        return found
