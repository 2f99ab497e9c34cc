"""The engine on a Ray cluster, in real time: workers are actors that hold the task, and are replaced when they fail.

Ray retries nothing by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, Self, cast

from tardygrad.constructors import constructor
from tardygrad.core.algorithm import LocalVectors
from tardygrad.core.messages import Job, Parts, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task, check_task
from tardygrad.core.vectors import VectorStore
from tardygrad.engines.ray.connection import STOP_TIMEOUT
from tardygrad.engines.ray.evaluator import Evaluate, EvaluationWorker
from tardygrad.engines.ray.places import Places
from tardygrad.engines.ray.server_shards import ShardedVectors, bounds, check_shards
from tardygrad.engines.ray.session import Session
from tardygrad.engines.ray.transport import RunningJob, Transport
from tardygrad.engines.ray.workers import Workers
from tardygrad.engines.real_time import POLL, TIMEOUT, Answer, Deadlines, Gone, RealTimePool, Running
from tardygrad.engines.wire import Wire
from tardygrad.errors import Invalid, WorkFailed, check_choice, type_and_first_line
from tardygrad.fleet import Fleet


class RayPool(RealTimePool):
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
        fleet: runtimes that the workers keep in real time; see `slowed`.
        second: real seconds for each second of the fleet; 0 ignores the fleet.
        server_shards: processes that hold the server's vectors, a slice each; 1 keeps them in this process.
        wire: number format of updates in transit; a client's rounding error is added to its next update (error
            feedback).
        processes_per_worker: processes of a worker that do a job together under `torch.distributed`, for a task with a
            training loop of its own; they share the worker's CPUs and GPUs.
        place: client ids, or else numbers, and where each works: a Ray resource, "node:ADDRESS", a label "key=value".
            Only workers there do its jobs, at least one; while no machine is that place, the client is lost.
    """

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
        check_task(task)
        check_shards(method, task.parameters, server_shards)
        super().__init__(task, method, patience=patience, grace=grace, fleet=fleet, second=second)
        self.address, self.beside, self.wire = address, evaluate == "beside", wire
        self.shard_bounds = bounds(task.parameters, server_shards)
        self.session = Session(
            self.task, method, address, cpus_per_worker, gpus_per_worker, wire, self.shard_bounds, processes_per_worker
        )
        self._ray, self.places = self.session.ray, Places(task, place)
        new_actor = partial(self.session.new_worker, cpus_per_worker, processes=processes_per_worker)
        self.workers = Workers(self._ray, new_actor, self.places.spread, workers)
        self.parallel, self.processes, self.startup = workers, processes_per_worker, self.session.startup
        self.transport = Transport(self._ray, self.workers, self.places, wire, server_shards)
        self.shards: ShardedVectors | None = None
        self.evaluator: EvaluationWorker | None = None  # once the pool is open, if it evaluates beside the training

    def submit(self, job: Job) -> None:
        if isinstance(job.x, Parts) != (len(self.shard_bounds) > 2):
            raise Invalid("the server was not created with this pool's shards. Pass it vectors=pool.vectors.")
        super().submit(job)

    def _check(self) -> None:
        self.session.check()

    def _check_wait(self) -> None:
        self._check_interrupt()
        self._check()

    def _check_timeout(self, since: float) -> None:
        """Raise if the server shards have not answered for too long; no checkpoint is possible without them."""
        self.session.check()
        if time.monotonic() - since > (STOP_TIMEOUT if self._interrupted else TIMEOUT):
            raise WorkFailed("a server shard does not answer. Resume the run.")

    def _has_room(self) -> bool:
        return bool(self.workers.free)

    def _can_serve(self, client: int) -> bool:
        place = self.places.of(client)
        return place is None or bool(self.workers.up[place]) or not self.session.lacks(place)

    def _may_answer(self, idle: float) -> bool:
        return bool(self.running) or self.session.loading(self.workers.starting.values(), idle)

    def _start(self, job: Job) -> RunningJob | None:
        worker = self.transport.take_worker(job)
        return None if worker is None else self.transport.send(job, worker)

    def _poll(self, seconds: float) -> Iterator[tuple[RunningJob, Answer]]:
        refs = [*self.running, *self.workers.starting]
        if not refs:
            time.sleep(seconds)
        elif not (ready := self._ray.wait(refs, num_returns=len(refs), timeout=0)[0]):
            ready = self._ray.wait(refs, timeout=seconds)[0]
        for ref in ready if refs else ():
            if ref in self.running:
                running = cast(RunningJob, self.running[ref])
                yield running, self._answer(running)
            else:
                self.workers.answered(ref)

    def _answer(self, running: RunningJob) -> Answer:
        """The answer to a job, or the death of its worker."""
        try:
            header = self._ray.get(running.handle)
            message = self.transport.receive(header, running) if isinstance(header, Update) else header
        except self._ray.exceptions.RayError as error:
            if self.shards:
                self.shards.check()  # raises if a shard has died, and not the worker
            self.workers.replace(running.worker)
            return Gone(type_and_first_line(error))
        self.workers.release(running.worker)
        if isinstance(message, str):
            return WorkFailed(message)
        if not running.ignored:
            self.transport.remember(message, running)
        return cast(Answer, message)

    def _forget(self, client: int) -> None:
        self.transport.forget(client)

    def _give_up(self, running: Running) -> None:
        del self.running[running.handle]
        self.workers.replace(cast(RunningJob, running).worker)

    def resize(self, workers: int) -> None:
        """Change the number of workers; surplus workers that are busy leave after their job."""
        self.workers.resize(workers, {cast(RunningJob, running).worker for running in self.running.values()})
        self.parallel = self.workers.wanted

    def _clear(self) -> None:
        super()._clear()
        self.transport.clear()

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
                self.evaluator = EvaluationWorker(self.session, self.workers, limits, self._check_wait)
            until = time.monotonic() + TIMEOUT / 4
            while len(self.workers.free) < startable and time.monotonic() < until:  # then the clock starts
                self._check_wait()
                self._collect(POLL)
        except BaseException:
            self.close()
            raise
        self._began = self._last_sign = time.monotonic()
        return self

    def close(self) -> None:
        self.workers.close()
        if self.evaluator:
            self.workers.kill(self.evaluator.actor)
        self._drop_shards()
        super().close()
        self.evaluator = None
        self.session.close()
