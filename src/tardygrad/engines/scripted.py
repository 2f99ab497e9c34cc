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
from tardygrad.engines.wire import Wire, unpack
from tardygrad.errors import Invalid, check_choice

_VERBS = ("arrive", "lose", "join", "sleep", "wake", "repeat", "refuse", "forget")


def asleep_at_start(script: Iterable[tuple[Any, ...]]) -> tuple[tuple[int, ...], Iterator[tuple[Any, ...]]]:
    """The clients that are asleep before the first jobs, and the rest of a script."""
    lines, asleep = iter(script), list[int]()
    for line in lines:
        if line[:1] != ("sleep",) or line[2:3] != (0.0,):
            return tuple(asleep), chain([line], lines)
        asleep.append(line[1])
    return tuple(asleep), lines


class ScriptedPool(Pool):
    """Delivers messages in the order of a script.

    A line of the script is one of these tuples, or a message to deliver as it is:

        ("arrive", client)  deliver the update of the client's job
        ("repeat", client)  deliver its last update once more
        ("lose", client)    the client is lost, and its job with it
        ("join", client)    the client is back
        ("sleep", client)   the client is asleep; its job is suspended, or what the fourth item says: "cancel", "finish"
        ("wake", client)    the client is awake again
        ("refuse", client, time, serial, round, reason)    the client's update was refused
        ("forget", None)    the run was resumed here, without compression errors

    The third item is the time; a line without it comes one second after the last. Clients that a list puts to sleep at
    time 0 in its first lines are asleep before the first jobs. "arrive" and "refuse" have "state lost" as their last
    item if the job began with a new inner state.

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
        script: Iterable[tuple[Any, ...]],
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
        verb, client = (*line, None, None)[:2]
        if verb not in _VERBS:
            raise Invalid(f"a script's verb must be one of {', '.join(_VERBS)}, got {verb!r}.")
        if state_lost := line[-1] == "state lost":
            line = line[:-1]
        if verb == "refuse" and len(line) != 6:
            raise Invalid(f"a refusal in a script has client, time, serial, round and reason, got {line!r}.")
        self.now = line[2] if len(line) > 2 else self.now + 1.0
        if verb in ("join", "wake"):
            return Joined(client) if verb == "join" else Awake(client)
        if verb == "sleep":
            job: Any = line[3] if len(line) > 3 else "suspend"
            check_choice("sleep", job, AtEnd)
            if job == "cancel":
                self.jobs.pop(client, None)
            return Asleep(client, job)
        if verb == "lose":
            self.jobs.pop(client, None)
            self.errors.pop(client, None)
            return Lost(client)
        if verb == "forget":
            self.errors.clear()
            return self.next()
        if verb == "refuse":
            if self.wire != "float32" and line[5] == "too stale" and client in self.jobs:  # it changed the errors
                self._work(client, state_lost)
            return Refused(client, *line[3:])
        if client not in (self.jobs if verb == "arrive" else self.last):
            raise Invalid(f"the script says {line!r}, but client {client} has nothing to deliver.")
        if verb == "arrive":
            self.last[client] = self._work(client, state_lost)
        return self.last[client]

    def _work(self, client: int, state_lost: bool) -> Update:
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
