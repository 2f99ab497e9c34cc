"""The engine with a scripted order of messages, for replays and tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from tardygrad.core.messages import (
    Asleep,
    AtEnd,
    Awake,
    Job,
    Joined,
    Lost,
    Message,
    Refused,
    StateReference,
    Update,
)
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.contract import Pool, Residuals, pack, perform
from tardygrad.engines.recorded import (
    Arrival,
    ClientLost,
    Join,
    RecordedMessage,
    Refusal,
    Resume,
    Sleep,
    Wake,
)
from tardygrad.engines.wire import Wire, unpack
from tardygrad.errors import Invalid, check_choice

Line = tuple[Any, ...] | Message | RecordedMessage
_VERBS: dict[str, type[Arrival | ClientLost | Join | Sleep | Wake]] = {
    "arrive": Arrival, "lose": ClientLost, "join": Join, "sleep": Sleep, "wake": Wake,
}  # fmt: skip


def asleep_at_start(script: Iterable[Line]) -> tuple[tuple[int, ...], Iterator[Line]]:
    """The clients that are asleep before the first jobs, and the rest of a script."""
    lines, asleep = iter(script), list[int]()
    for line in lines:
        event = _event(line, 0.0) if line[:1] == ("sleep",) else line
        if not isinstance(event, Sleep) or event.time:
            return tuple(asleep), chain([line], lines)
        asleep.append(event.client)
    return tuple(asleep), lines


def _event(line: tuple[Any, ...], now: float) -> RecordedMessage:
    """A line of a script as a record would have it."""
    verb, client, time, job = (*line, *[None] * 4)[:4]
    if verb not in tuple(_VERBS):
        raise Invalid(f"a script's verb must be one of {', '.join(_VERBS)}, repeat, got {verb!r}.")
    event = _VERBS[verb](now + 1.0 if time is None else time, client)
    return event._replace(job="suspend" if job is None else job) if isinstance(event, Sleep) else event


class ScriptedPool(Pool):
    """Delivers messages in the order of a script.

    A line of the script is an event of a record, or one of these tuples, or a message to deliver as it is:

        ("arrive", client)  deliver the update of the client's job
        ("repeat", client)  deliver its last update once more
        ("lose", client)    the client is lost, and its job with it
        ("join", client)    the client is back
        ("sleep", client)   the client is asleep; its job is suspended, or what the fourth item says: "cancel", "finish"
        ("wake", client)    the client is awake again

    The third item is the time; a line without it comes one second after the last. Clients that a list puts to sleep at
    time 0 in its first lines are asleep before the first jobs.

    Args:
        script: the lines, as a list or an iterator.
        wire: number format of updates in transit; see wire.py.
        asleep: if the script is an iterator, which may depend on the run: the clients asleep before the first jobs.

    >>> pool = ScriptedPool([("arrive", 3), ("lose", 5, 7.5)], task=None, method=None)
    """

    task: Task
    method: Method
    now = 0.0

    def __init__(
        self,
        script: Iterable[Line],
        task: Task,
        method: Method,
        *,
        wire: Wire = "float32",
        asleep: tuple[int, ...] = (),
    ) -> None:
        if not isinstance(script, Iterable):
            raise Invalid(f"`script` must be a list of lines such as ('arrive', 3), got {script!r}.")
        self.asleep, self.script = asleep_at_start(script) if isinstance(script, Sequence) else (asleep, iter(script))
        self.task, self.method = task, method
        self.jobs: dict[int, Job] = {}
        self.last: dict[int, Update] = {}
        self.wire = wire
        self.errors: dict[int, Residuals] = {}  # compression errors, by client

    def submit(self, job: Job) -> None:
        self.jobs[job.client] = job

    def next(self) -> Message | None:
        line = next(self.script, None)
        if line is None:
            return None
        if isinstance(line, Message):
            self.now += 1.0
            return line
        repeats = line[:1] == ("repeat",)
        event = (
            line if isinstance(line, RecordedMessage) else _event(("arrive", *line[1:]) if repeats else line, self.now)
        )
        self.now = event.time
        match event:
            case Join():
                return Joined(event.client)
            case Wake():
                return Awake(event.client)
            case Sleep():
                check_choice("sleep", event.job, AtEnd)
                if event.job == "cancel":
                    self.jobs.pop(event.client, None)
                return Asleep(event.client, event.job)
            case ClientLost():
                self.jobs.pop(event.client, None)
                self.errors.pop(event.client, None)
                return Lost(event.client)
            case Resume():
                self.errors.clear()
                return self.next()
            case Refusal():
                if self.wire != "float32" and event.reason == "too stale" and event.client in self.jobs:
                    self._work(event.client, event.state_lost)  # it changed the errors
                return Refused(event.client, event.serial, event.round, event.reason, event.fault or "")
            case Arrival():
                if event.client not in (self.last if repeats else self.jobs):
                    raise Invalid(f"the script says {line!r}, but client {event.client} has nothing to deliver.")
                if not repeats:
                    self.last[event.client] = self._work(event.client, event.state_lost)
                return self.last[event.client]

    def _work(self, client: int, state_lost: bool | None) -> Update:
        job = self.jobs.pop(client)
        if state_lost:
            job = job._replace(state=StateReference("lost", job.serial))
        update = perform(job, self.task, self.method)
        packed, self.errors[client] = pack(update, self.errors.get(client, {}), self.wire)
        vectors = {name: unpack(vector) for name, vector in packed.items()}
        return update._replace(delta=vectors["delta"], curvature=vectors.get("curvature"))


def check_replayable(processes: int, no_replay: str = "") -> None:
    """Raise `Invalid` if a replay cannot do the jobs of a run as its workers did."""
    if no_replay:
        raise Invalid(f"the run cannot be replayed: {no_replay}.")
    if processes > 1:
        rule = "a replay does each job in one process"
        raise Invalid(f"{rule}, and the workers of this run are groups of {processes} (`processes_per_worker`).")
