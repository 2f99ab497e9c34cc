"""The engine on a Ray cluster, in real time: workers are actors that hold the task, and are replaced when they fail.

A job waits for a free worker, is then a `RunningJob`, and comes back as a message: its update, or the loss of its
client. Ray retries nothing by itself.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Self

from tardygrad.constructors import constructor
from tardygrad.core.algorithm import LocalVectors
from tardygrad.core.messages import Asleep, Job, Lost, Message, Parts, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.core.vectors import VectorStore
from tardygrad.engines.contract import Pending, Pool
from tardygrad.engines.deadlines import Deadlines, Losses
from tardygrad.engines.fleet_clock import FleetClock, matched
from tardygrad.engines.ray.connection import POLL, STOP_TIMEOUT, TIMEOUT
from tardygrad.engines.ray.evaluator import Evaluate, EvaluationWorker
from tardygrad.engines.ray.jobs import Ready, RunningJob
from tardygrad.engines.ray.places import Places
from tardygrad.engines.ray.server_shards import ShardedVectors, bounds, check_shards
from tardygrad.engines.ray.session import Session
from tardygrad.engines.ray.transport import Transport
from tardygrad.engines.ray.workers import Workers
from tardygrad.engines.wire import Wire
from tardygrad.errors import Interrupted, Invalid, TimeUp, WorkFailed, check_choice, type_and_first_line
from tardygrad.fleet import Fleet


class RayPool(Pool):
    """Jobs on a Ray cluster, in a `with` statement. A run can be repeated from its record (`tardygrad.replay`).

    If a worker dies, only its job is lost: the job's client is lost and joins again at once. The same happens if a job
    takes too long: the server refuses its late update; if none arrives in the same time again, its worker is killed.

    Args:
        workers: how many to ask for; clients share them, first come, first served. Workers for which the cluster has
            no room start when it has.
        address: of a cluster to join, "auto" or host:port; None starts Ray here, on loopback, and stops it at the end.
            If this process is already connected to a cluster, that one is used and left running.
        cpus_per_worker: CPUs of a cluster that a worker takes; not counted on one machine.
        gpus_per_worker: GPUs that a worker takes; with some, the task is moved there.
        evaluate: "beside" the training on a worker of its own, or "between" rounds in this process.
        patience: a job times out after the median of its client's own times plus `patience` of their median absolute
            deviations; inf: never.
        grace: seconds that every job has before it can time out.
        fleet: emulated runtimes and failures, if `second` is set.
        second: real seconds for each second of the fleet; 0 ignores the fleet.
        server_shards: processes that hold the server's vectors, a slice each; 1 keeps them in this process.
        wire: number format of updates in transit; a client's rounding error is added to its next update (error
            feedback).
        processes_per_worker: processes of a worker that do a job together under `torch.distributed`, for a task with a
            training loop of its own; they share the worker's CPUs and GPUs.
        place: client ids, or else numbers, and where each works: a Ray resource, "node:ADDRESS", a label "key=value".
            Only workers there do its jobs, at least one; while no machine is that place, the client is lost.
    """

    task: Task
    method: Method
    deadline: float = math.inf
    opens_data = False
    resume_keys: ClassVar[tuple[str, ...]] = ("workers", "address", "cpus_per_worker", "gpus_per_worker", "place")

    @constructor
    def __init__(
        self,
        task: Task,
        method: Method,
        *,
        workers: int = 2,
        address: str | None = None,
        cpus_per_worker: float = 1.0,
        gpus_per_worker: float = 0.0,
        evaluate: Evaluate = "beside",
        patience: float = 10.0,
        grace: float = 30.0,
        fleet: Fleet | None = None,
        second: float = 0.0,
        server_shards: int = 1,
        wire: Wire = "float32",
        place: Mapping[int | str, str] | None = None,
        processes_per_worker: int = 1,
    ) -> None:
        check_choice("evaluate", evaluate, Evaluate)
        check_shards(method, task.parameters, server_shards)
        self.task, self.method, self.address = task, method, address
        self.beside, self.wire, self.shard_bounds = evaluate == "beside", wire, bounds(task.parameters, server_shards)
        self.fleet = matched(fleet, task) if fleet and second else None
        self.fleet_clock = FleetClock(task, method, fleet, second)
        self.session = Session(
            task, method, address, cpus_per_worker, gpus_per_worker, wire, self.shard_bounds, processes_per_worker
        )
        self._ray = self.session.ray
        self.places = Places(task, place)
        new_actor = partial(self.session.new_worker, cpus_per_worker, processes=processes_per_worker)
        self.workers = Workers(self._ray, new_actor, self.places.spread, workers)
        self.parallel, self.processes = self.workers.wanted, processes_per_worker
        self.startup, self.asleep = self.session.startup, self.fleet_clock.asleep
        self.transport = Transport(self._ray, self.workers, self.places, wire, server_shards)
        self.deadlines = Deadlines(patience, grace)
        self.waiting: deque[Job] = deque()
        self.absent: set[int] = set()  # clients that are lost until their place is back
        self.running: dict[Any, RunningJob] = {}  # by the reference of their answers
        self.ready: list[Ready] = []  # in order of the fleet's times, or of arrival
        self.shards: ShardedVectors | None = None
        self.losses = Losses()
        self._began: float | None = None
        self.evaluator: EvaluationWorker | None = None  # once the pool is open, if it evaluates beside the training
        self._interrupted, self._last_worker, self._last_check = False, 0.0, 0.0

    @property
    def now(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def submit(self, job: Job) -> None:
        self.session.check()
        if isinstance(job.x, Parts) != (len(self.shard_bounds) > 2):
            raise Invalid("the server was not created with this pool's shards. Pass it vectors=pool.vectors.")
        if not self.waiting:
            self._last_worker = time.monotonic()  # the pool may have been idle
        self.waiting.append(job)
        self._start_jobs()

    def next(self) -> Message | None:
        while True:
            self._check()
            if self.now >= self.deadline:
                raise TimeUp(f"the run's {self.deadline:g} s are over.")
            if due := self.fleet_clock.next_at <= self.now:
                self._collect(0.0)  # earlier messages come first
            if self.ready and not (due and self.fleet_clock.next_at <= self.ready[0].due):
                return self._deliver()
            if due and not self._one_is_late():
                return self._fleet_event()
            self._start_jobs()
            if self.ready and not due:
                continue
            if not (self.waiting or self.running or self.absent) and self.fleet_clock.is_over:
                return None
            self._collect(POLL)
            self._time_out()
            idle = time.monotonic() - self._last_worker
            if self.running or not (self.waiting or self.absent):
                self._last_worker = time.monotonic()
            elif idle > TIMEOUT and not self.session.loading(self.workers.starting.values(), idle):
                raise WorkFailed(f"no worker has answered for {TIMEOUT:g} s. {self.status()}")

    def _deliver(self) -> Message:
        if isinstance(self.ready[0].message, Update):
            self._wait(self.fleet_clock.server_time)
        return self.ready.pop(0).message

    def _one_is_late(self) -> bool:
        """Whether a job was due before the fleet event that is due now, and is late by less than `POLL`."""
        at, jobs = self.fleet_clock.next_at, self.running.values()
        return self.now - at < POLL and any(running.due < at and running.kill_at is None for running in jobs)

    def interrupt(self, on: bool = True) -> None:
        """Make the present or next call of `next` raise `Interrupted`, or withdraw that; callable from any thread."""
        self._interrupted = on

    def _check(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise Interrupted("interrupted while waiting for a message.")
        self.session.check()

    def _wait(self, seconds: float) -> None:
        """Emulate the server's own time for an update."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(POLL, left))

    def _check_timeout(self, since: float) -> None:
        """Raise if the server shards have not answered for too long; no checkpoint is possible without them."""
        self.session.check()
        if time.monotonic() - since > (STOP_TIMEOUT if self._interrupted else TIMEOUT):
            raise WorkFailed("a server shard does not answer. Resume the run.")

    def _start_jobs(self) -> None:
        """Assign waiting jobs to free workers: at their clients' places, and where their inner states are."""
        self._lose_absent()
        skipped: list[Job] = []
        while self.waiting and self.workers.free:
            job = self.waiting.popleft()
            if (worker := self.transport.take_worker(job)) is None:
                skipped.append(job)
                continue
            if (due := self.fleet_clock.due(job, now := self.now)) == math.inf:
                self.workers.release(worker)
                continue
            corrupted = (job.client, job.serial) in self.fleet_clock.corrupted
            answer, running = self.transport.send(job, worker, now, due, corrupted)
            self.running[answer], self._last_worker = running, running.began
        self.waiting.extendleft(reversed(skipped))

    def _lose_absent(self) -> None:
        """Lose clients with waiting jobs whose place has left the cluster; they join again when it is back."""
        gone = {place for place in self.places if not self.workers.up[place] and self.session.lacks(place)}
        if not gone and not self.absent:
            return
        for client in sorted(client for client in self.absent if self.places.of(client) not in gone):
            self.absent.remove(client)
            self._queue(Ready(0.0, self.fleet_clock.returns(client, self.now)))
        lost = [job for job in self.waiting if self.places.of(job.client) in gone]
        self.waiting = deque(job for job in self.waiting if self.places.of(job.client) not in gone)
        for job in lost:
            self._lose_client(job.client)

    def _collect(self, seconds: float) -> None:
        """Handle the answers that are ready, or wait for one: `seconds`, or until a fleet event or the run's end."""
        pause = min(seconds, max(min(self.fleet_clock.next_at, self.deadline) - self.now, POLL / 10))
        refs = [*self.running, *self.workers.starting]
        if not refs:
            time.sleep(pause)
            return
        for ref in self._ray.wait(refs, num_returns=len(refs), timeout=0)[0] or self._ray.wait(refs, timeout=pause)[0]:
            if ref in self.running:
                self._finish(ref)
            else:
                self.workers.answered(ref)

    def _finish(self, ref: Any) -> None:
        """Handle the answer of a job, or the death of its worker."""
        running = self.running.pop(ref)
        job = running.job
        try:
            header = self._ray.get(ref)
            message = self.transport.receive(header, running) if isinstance(header, Update) else header
        except self._ray.exceptions.RayError as error:
            if self.shards:
                self.shards.check()  # raises if a shard has died, and not the worker
            self.workers.replace(running.worker)
            if running.kill_at is None:
                self._lose(job, type_and_first_line(error))
            return
        self.workers.release(running.worker)
        if running.ignored:
            return
        if isinstance(message, str):
            raise WorkFailed(message)
        self.transport.remember(message, running)
        self.deadlines.took(job.client, time.monotonic() - running.began)
        self.losses.pop(job.client, None)
        for _ in range(2 if (job.client, job.serial) in self.fleet_clock.duplicated else 1):
            self._queue(Ready(running.due, message))

    def _lose(self, job: Job, why: str) -> None:
        """Lose a job whose worker died or which timed out; its client gets another one."""
        self.losses.add(job, why)
        self._lose_client(job.client)

    def _lose_client(self, client: int) -> None:
        """Report a client as lost, and as back unless its place is gone; its compression errors are lost."""
        self.transport.forget(client)
        self._queue(Ready(0.0, Lost(client)))
        if self.session.lacks(self.places.of(client)):
            self.absent.add(client)
        else:
            self._queue(Ready(0.0, self.fleet_clock.returns(client, self.now)))

    def _queue(self, ready: Ready) -> None:
        insort(self.ready, ready, key=lambda queued: queued.due)

    def _time_out(self) -> None:
        """Lose jobs that have timed out; kill a worker that has not answered for as long again."""
        now = time.monotonic()  # not `self.now`, which starts again with each run
        if now - self._last_check < POLL:
            return
        self._last_check = now
        for ref, running in list(self.running.items()):
            limit = self.deadlines.limit(running.job.client)
            if running.kill_at is None and now - running.began > limit:
                running.kill_at = now + limit
                self._lose(running.job, f"it took longer than {limit:.3g} s")
            elif running.kill_at is not None and now > running.kill_at:
                del self.running[ref]
                self.workers.replace(running.worker)

    def _fleet_event(self) -> Message:
        """The fleet event that is due: a client falls asleep, is back, or is lost with its job and its worker."""
        message = self.fleet_clock.pop()
        client, lost = message.client, isinstance(message, Lost)
        if lost or message == Asleep(client, "cancel"):
            if not lost and any(each.job.client == client for each in self.running.values()):
                return Asleep(client, "finish")  # its update is late: jobs due after now were never started
            self.waiting = deque(job for job in self.waiting if job.client != client)
        if not lost:
            return message
        self.transport.forget(client)
        self.absent.discard(client)
        for ref, running in list(self.running.items()):
            if running.job.client == client and running.kill_at is None:
                del self.running[ref]
                self.workers.replace(running.worker)
        self.ready = [
            queued for queued in self.ready if queued.message.client != client or not isinstance(queued.message, Update)
        ]
        return message

    def pending(self) -> Pending:
        """The fleet's calendar, and the clients with jobs in flight: these jobs are lost when the run is resumed."""
        at_work = [running.job for running in self.running.values() if running.kill_at is None]
        out = {job.client: job.serial for job in (*self.waiting, *at_work)}
        others = (*self.absent, *(message.client for _, message in self.ready))
        out |= {client: 0 for client in others if client not in out}
        return Pending(self.now, [], [(self.now, *pair) for pair in out.items()] + self.fleet_clock.calendar)

    def restore(self, pending: Pending) -> None:
        self._began = time.monotonic() - pending.now
        self.fleet_clock.resume(pending.due, pending.now)
        self.asleep = ()
        for client in (client for _, client, serial in pending.due if serial >= 0):
            self._lose_client(client)

    def resize(self, workers: int) -> None:
        """Change the number of workers; surplus workers that are busy leave after their job."""
        self.workers.resize(workers, {running.worker for running in self.running.values()})
        self.parallel = self.workers.wanted

    def begin(self) -> None:
        """Prepare for a run; updates for the run before will be ignored."""
        self.session.check()
        for running in self.running.values():
            running.ignored, running.kill_at = True, time.monotonic() + self.deadlines.limit(running.job.client)
        for state in (self.waiting, self.absent, self.ready, self.transport, self.losses):
            state.clear()
        self.fleet_clock = FleetClock(self.task, self.method, self.fleet, self.fleet_clock.second)
        self.asleep = self.fleet_clock.asleep
        self._began = time.monotonic()

    def _drop_shards(self) -> None:
        """End the server shards; x is copied to this process first."""
        if self.shards:
            with suppress(Exception):  # Ray or a shard may be dead
                self.session.check()
                self.shards.close()
            for actor in self.shards.actors:
                self.workers.kill(actor)
            self.shards = None

    def vectors(self, method: Method, x: Vector) -> VectorStore:
        """Create the store of a server's vectors; one that was created before is closed."""
        self.session.check()
        self._drop_shards()
        if len(self.shard_bounds) == 2:
            return LocalVectors(method, x)
        new_actor, shards = self.session.shard_maker(method), len(self.shard_bounds) - 1
        self.shards = ShardedVectors(self._ray, new_actor, method, x, shards, self._check_timeout)
        self._began = time.monotonic()  # the shards have started
        return self.shards

    def status(self) -> str:
        """How many workers are missing and a likely reason; empty if none are."""
        present, wanted = len(self.workers.free) + len(self.running), self.workers.wanted
        if present >= wanted:
            return ""
        why = self.session.why_missing([place for place in self.places if not self.workers.up[place]])
        return f"{present} of {wanted} workers have started: {why}"

    def __enter__(self) -> Self:
        self.session.open(self.workers.wanted)
        try:
            startable = self.session.startable_workers(self.workers.shares)
            self.workers.start()
            if self.beside:
                limits = Deadlines(self.deadlines.patience, self.deadlines.grace)
                self.evaluator = EvaluationWorker(self.session, self.workers, limits, self._check)
            until = time.monotonic() + TIMEOUT / 4
            while len(self.workers.free) < startable and time.monotonic() < until:  # then the clock starts
                self._check()
                self._collect(POLL)
        except BaseException:
            self.close()
            raise
        self._began = self._last_worker = time.monotonic()
        return self

    def close(self) -> None:
        self.workers.close()
        if self.evaluator:
            self.workers.kill(self.evaluator.actor)
        self._drop_shards()
        for state in (self.running, self.waiting, self.absent, self.ready, self.transport):
            state.clear()
        self.evaluator = self._began = None
        self.session.close()
