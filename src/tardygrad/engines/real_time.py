"""What engines in real time share: the queue of jobs, the clock, time-outs, lost clients, and what a checkpoint holds.

A job waits until a worker is free, then runs, and comes back as a message: its update, or the loss of its client, which
joins again as soon as someone can do its jobs. An engine writes three hooks: `_start(job)`, `_poll(seconds)` and
`_can_serve(client)`.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from tardygrad.core.messages import Job, Joined, Lost, Message, Refused, Update
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.contract import Pending, Pool
from tardygrad.engines.slowed import check_plain, slowed
from tardygrad.errors import Interrupted, Invalid, TimeUp, WorkFailed, check_number, is_number
from tardygrad.fleet import Fleet

POLL = 0.1
"""Seconds between checks for interrupts, time-outs and lost clients while waiting for workers."""

TIMEOUT = 120.0
"""Seconds without any worker after which a run fails."""

OWN = 50
"""How many of a client's last times are kept."""

LOSSES = 10
"""Losses of one client in a row after which the run fails, because its job must be the cause."""


class Deadlines:
    """The timeout of a client's job: max(grace, median + patience · MAD) of its last times.

    A client with fewer than three times gets the timeout of all clients' times, or none if there are fewer than five.

    Args:
        patience: number of MADs (median absolute deviations); inf: jobs never time out.
        grace: the smallest timeout, in seconds.

    >>> deadlines = Deadlines(patience=10.0, grace=1.0)
    >>> for seconds in (2.0, 2.5, 3.0):
    ...     deadlines.took(7, seconds)
    >>> deadlines.limit(7), deadlines.limit(8)
    (7.5, inf)
    """

    def __init__(self, patience: float, grace: float) -> None:
        check_number("grace", grace)
        if not (is_number(patience) and patience >= 0):
            raise Invalid(f"`patience` must be a number, 0 or more, got {patience!r}.")
        self.patience, self.grace = patience, grace
        self._own: dict[int, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=10 * OWN)
        self._limits: dict[int | None, float] = {}  # by client, None: of all; cached until the next time is added

    def took(self, client: int, seconds: float) -> None:
        """Record how long a client's job took."""
        if self.patience == math.inf:
            return
        self._own.setdefault(client, deque(maxlen=OWN)).append(seconds)
        self._all.append(seconds)
        self._limits.pop(client, None)
        self._limits.pop(None, None)

    def limit(self, client: int) -> float:
        """The timeout of a client's job, in seconds."""
        if self.patience == math.inf:
            return math.inf
        key = client if len(self._own.get(client, ())) >= 3 else None
        if key is None and len(self._all) < 5:
            return math.inf
        if key not in self._limits:
            times = self._all if key is None else self._own[key]
            center = median(times)
            mad = median(abs(seconds - center) for seconds in times)
            self._limits[key] = max(self.grace, center + self.patience * mad)
        return self._limits[key]


class Losses(Counter[int]):
    """How often the jobs of each client were lost in a row."""

    def add(self, job: Job, why: str) -> None:
        """Count the loss of a job; raises `WorkFailed` if it is one too many."""
        self[job.client] += 1
        if self[job.client] >= LOSSES:
            raise WorkFailed(f"the work of {job} failed: lost {LOSSES} times in a row, {why}.")


@dataclass(eq=False)
class Running:
    """A job that a worker does."""

    job: Job
    handle: Hashable  # the engine's name for it
    began: float = field(default_factory=time.monotonic)  # not by the run's clock, which starts again with each run
    late_at: float | None = None  # when it timed out, and its client was lost
    ignored: bool = False  # its run has ended


class Gone(NamedTuple):
    """In place of an update: there will be none, because of the worker."""

    why: str


Answer = Update | Refused | Gone | WorkFailed


class RealTimePool(Pool):
    """An engine in real time: write `_start`, `_poll` and `_can_serve`.

    Args:
        patience, grace: see `Deadlines`; by default, jobs never time out.
        fleet, second: see `slowed`; with second=0 the fleet is ignored.
    """

    task: Task
    method: Method
    deadline: float = math.inf
    poll = POLL
    """Seconds of a wait between two looks at everything else."""
    keeps_jobs = False
    """Whether a checkpoint holds the jobs in flight. Otherwise they are lost when the run is resumed."""

    def __init__(
        self,
        task: Task,
        method: Method,
        *,
        patience: float = math.inf,
        grace: float = 0.0,
        fleet: Fleet | None = None,
        second: float = 0.0,
    ) -> None:
        if second != 0 and fleet is None:
            raise Invalid(f"`second` needs a fleet, got second={second!r} without one.")
        if fleet is not None:
            check_plain(fleet)
        self.task = slowed(task, fleet, second=second) if fleet is not None and second != 0 else task
        self.method, self.fleet = method, fleet if second else None
        self.deadlines, self.losses = Deadlines(patience, grace), Losses()
        self.waiting: deque[Job] = deque()
        self.running: dict[Hashable, Running] = {}
        self.ready: deque[Message] = deque()
        self.done: deque[Job] = deque()  # those whose updates are ready, in the same order
        self.absent: set[int] = set()  # clients that are lost until someone can do their jobs
        self._began: float | None = None  # None: outside the `with` block
        self._interrupted, self._last_sign, self._last_look = False, time.monotonic(), 0.0

    @abstractmethod
    def _start(self, job: Job) -> Running | None:
        """Let a worker start a job; None: no worker is free that could do it now."""

    @abstractmethod
    def _poll(self, seconds: float) -> Iterable[tuple[Running, Answer]]:
        """Wait at most so long for an answer; returns the jobs that have one."""

    @abstractmethod
    def _can_serve(self, client: int) -> bool:
        """Whether there are workers for a client's jobs, free or not."""

    def _has_room(self) -> bool:
        """Whether any worker is free."""
        return True

    def _check(self) -> None:
        """Raise an error if the engine cannot be used; called before each wait."""
        if self._began is None:
            raise Invalid(f"use a {type(self).__name__} inside its `with` block.")

    def _may_answer(self, idle: float) -> bool:
        """Whether to go on waiting, though no job has been running for so long."""
        return False

    def _forget(self, client: int) -> None:
        """Drop what workers remember of a lost client."""

    def _give_up(self, running: Running) -> None:
        """A job has timed out, and did not come back in the same time again."""

    @property
    def now(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def submit(self, job: Job) -> None:
        self._check()
        if not self.waiting:
            self._last_sign = time.monotonic()  # the pool may have been idle
        self.waiting.append(job)
        self._start_jobs()

    def next(self) -> Message | None:
        while True:
            self._check_interrupt()
            self._check()
            if self.now >= self.deadline:
                raise TimeUp(f"the run's {self.deadline:g} s are over.")
            if self.ready:
                if isinstance(self.ready[0], Update | Refused):
                    self.done.popleft()
                return self.ready.popleft()
            if not (self.waiting or self.absent or any(not running.ignored for running in self.running.values())):
                return None
            self._collect(self.poll)
            self._look()
            self._start_jobs()
            if self.ready or any(running.late_at is None for running in self.running.values()):
                self._last_sign = time.monotonic()
            elif (idle := time.monotonic() - self._last_sign) > TIMEOUT and not self._may_answer(idle):
                raise WorkFailed(f"no worker has answered for {TIMEOUT:g} s. {self.status()}")

    def interrupt(self, on: bool = True) -> None:
        self._interrupted = on

    def _check_interrupt(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise Interrupted("interrupted while waiting for a message.")

    def _start_jobs(self) -> None:
        skipped: list[Job] = []
        while self.waiting and self._has_room():
            job = self.waiting.popleft()
            if (running := self._start(job)) is None:
                skipped.append(job)
            else:
                self.running[running.handle] = running
        self.waiting.extendleft(reversed(skipped))

    def _collect(self, seconds: float) -> None:
        """Handle the answers that have come, or wait for one, at most until the run's end."""
        failed: WorkFailed | None = None
        for running, answer in self._poll(max(min(seconds, self.deadline - self.now), 0.0)):
            self.running.pop(running.handle, None)
            if running.ignored:
                continue
            if isinstance(answer, WorkFailed):
                failed = failed or answer  # after the others, which come only once
            elif not isinstance(answer, Gone):
                self.deadlines.took(running.job.client, time.monotonic() - running.began)
                self.losses.pop(running.job.client, None)
                self.ready.append(answer)
                self.done.append(running.job)
            elif running.late_at is None:
                self._lose(running.job, answer.why)
        if failed:
            raise failed

    def _look(self) -> None:
        """Look for jobs that have timed out and for clients that nobody can serve, or can serve again."""
        now = time.monotonic()
        if now - self._last_look < POLL:
            return
        self._last_look = now
        for running in list(self.running.values()) if self.deadlines.patience < math.inf else ():
            limit = self.deadlines.limit(running.job.client)
            if running.late_at is not None:
                if now - running.late_at > limit:
                    self._give_up(running)
            elif now - running.began > limit and not running.ignored:
                running.late_at = now
                self._lose(running.job, f"it took longer than {limit:.3g} s")
        for job in [job for job in self.waiting if not self._can_serve(job.client)]:
            self.waiting.remove(job)
            self._lose_client(job.client)
        for client in sorted(filter(self._can_serve, self.absent)):
            self.absent.remove(client)
            self.ready.append(Joined(client))

    def _lose(self, job: Job, why: str) -> None:
        """Lose a job with its client, which gets another one."""
        self.losses.add(job, why)
        self._lose_client(job.client)

    def _lose_client(self, client: int) -> None:
        self._forget(client)
        self.ready.append(Lost(client))
        if self._can_serve(client):
            self.ready.append(Joined(client))
        else:
            self.absent.add(client)

    def pending(self) -> Pending:
        """The jobs in flight, or else the clients that have some."""
        at_work = [running.job for running in self.running.values() if running.late_at is None and not running.ignored]
        jobs = [*self.waiting, *at_work]
        if self.keeps_jobs:
            return Pending(self.now, [*self.done, *jobs], [])
        out = {job.client: job.serial for job in jobs}
        others = (*self.absent, *(message.client for message in self.ready))
        out |= {client: 0 for client in others if client not in out}
        return Pending(self.now, [], [(self.now, client, serial) for client, serial in out.items()])

    def restore(self, pending: Pending) -> None:
        self._began = time.monotonic() - pending.now
        for job in pending.jobs:
            self.submit(job)
        for _, client, _ in pending.due:
            self._lose_client(client)

    def begin(self) -> None:
        self._check()
        for running in self.running.values():
            running.ignored, running.late_at = True, running.late_at or time.monotonic()
        self._clear()
        self._began = time.monotonic()

    def _clear(self) -> None:
        for state in (self.waiting, self.ready, self.done, self.absent, self.losses):
            state.clear()

    def close(self) -> None:
        self._clear()
        self.running.clear()
        self._began = None
