"""The real clock on a Ray cluster: workers are actors that have the task, and are replaced when they fail.

A job waits for a free worker, is then a `Flight`, and comes back as a message, of its update or of its loss. Ray tries
nothing again by itself.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch

from tardygrad.core.messages import Job, Joined, Lost, ModuleBuffers, Parts, Update, Vector, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.core.vectors import LocalVectors, VectorStore
from tardygrad.engines.fleet_clock import Emulated
from tardygrad.engines.pool import Features, Message, Pending, Pool
from tardygrad.engines.ray.connection import Watch, join, ray_module, said, start, store
from tardygrad.engines.ray.deadlines import Deadlines
from tardygrad.engines.ray.evaluator import Asked, Evaluator
from tardygrad.engines.ray.settings import check
from tardygrad.engines.ray.shards import ServerShard, ShardedVectors, bounds
from tardygrad.engines.ray.shards import check as check_slices
from tardygrad.engines.ray.worker import Hand, bare, received
from tardygrad.engines.ray.workers import Staff, Worker
from tardygrad.engines.wire import Wire
from tardygrad.errors import Interrupted, Invalid, WorkFailed, checked_call
from tardygrad.fleet import Fleet

SLICE = 0.1  # seconds between two looks at what does not come from Ray
QUIET = 120.0  # seconds without any worker, or without an answer of a slice, after which a run ends
STOPPING = 5.0  # the same of a slice, for a run that was told to stop
LOSSES = 10  # of one client in a row, after which it is the job's fault


@dataclass
class Model:
    """A start vector on the cluster."""

    slices: list[Any]  # references to it, once it is there
    jobs: int = 0  # that need it


@dataclass(eq=False)
class Flight:
    """A job and who has it."""

    job: Job
    worker: Worker
    parts: list[Any]  # references to its update's vectors, for each shard
    left: list[Any]  # and to what a narrow wire leaves out of them
    began: float
    due: float  # by the run's clock, if the fleet says
    ends: float | None = None  # once its job is written off: when its worker is given up too
    over: bool = False  # of a run that has ended: nobody wants its update


class Ready(NamedTuple):
    """A message for the server."""

    due: float
    message: Message


class RayPool(Pool):
    """Jobs on a Ray cluster; for a `with` statement. The record of a run makes it repeatable (`tardygrad.replay`).

    A worker that dies loses its job only, whose client is lost and joins again at once. So does one that takes too
    long; what it may still send is refused at the gate, and if that does not come either, its process is ended.

    Args:
        workers: how many are asked for; clients share them, first come, first served. Those for which there is no room
            come when there is.
        address: of a cluster to join, "auto" or host:port; None starts Ray here, on loopback, and stops it at the end.
            Where this process has joined one already, that is used and left as it is.
        cpus_per_worker: CPUs of a cluster that a worker takes; not counted on one machine.
        gpus_per_worker: GPUs that a worker takes; with some, the task is moved there.
        evaluate: "beside" the training on a worker of its own, or "between" rounds.
        patience: a job is written off after the median and so many MADs of its client's own times; inf: never.
        grace: seconds that every job has.
        fleet: how long jobs take and what goes wrong when, if `second` is set.
        second: real seconds for each of the fleet's; 0 leaves the fleet out.
        server_shards: processes that hold the server's vectors, a slice each; 1 keeps them in this process.
        wire: what updates travel as; what a narrow one leaves out of a client's update goes with its next.
    """

    resume_keys: ClassVar[tuple[str, ...]] = ("workers", "address", "cpus_per_worker", "gpus_per_worker")

    @checked_call
    def __init__(
        self,
        task: Task,
        method: Method,
        *,
        workers: int = 2,
        address: str | None = None,
        cpus_per_worker: float = 1.0,
        gpus_per_worker: float = 0.0,
        evaluate: Literal["beside", "between"] = "beside",
        patience: float = 10.0,
        grace: float = 30.0,
        fleet: Fleet | None = None,
        second: float = 0.0,
        server_shards: int = 1,
        wire: Wire = "float32",
    ) -> None:
        check(
            task,
            workers=workers,
            address=address,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            evaluate=evaluate,
            patience=patience,
            grace=grace,
            second=second,
            wire=wire,
        )
        check_slices(method, task.parameters, server_shards)
        self.task, self.method, self.address = task, method, address
        self.cpus, self.gpus = cpus_per_worker, gpus_per_worker
        self.beside, self.wire, self.cuts = evaluate == "beside", wire, bounds(task.parameters, server_shards)
        self.fleet = fleet if second else None
        self.emulated = Emulated(task, method, fleet, second)
        self._ray = ray_module()
        self.staff = Staff(self._ray, lambda: self._actor(self.cpus), workers)
        self.deadlines = Deadlines(patience, grace)
        self.waiting: deque[Job] = deque()
        self.flights: dict[Any, Flight] = {}  # by what Ray will answer
        self.ready: list[Ready] = []  # by the fleet's times, or as they came
        self.models: dict[int, Model] = {}  # by the id of a job's x, which its jobs keep alive
        self.errors: dict[int, tuple[Any, Worker]] = {}  # what the wire has left out of a client's updates, and at whom
        self.shards: ShardedVectors | None = None
        self.losses: Counter[int] = Counter()
        self._began: float | None = None
        self._evaluator: Evaluator | None = None
        self._ours = self._interrupted = False
        self._watch: Watch | None = None
        self._heard = self._looked = 0.0

    @property
    def now(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    @property
    def features(self) -> Features:
        return Features(
            checkpoint=self,
            interrupt=self.interrupt,
            evaluator=self if self.beside else None,
            vectors=self.vectors,
            wire=self.wire,
            fleet=self.fleet,
            method=self.method,
            parallel=self.staff.wanted,
            status=self.missing,
            startup="joining Ray" if self.address else "starting Ray",
        )

    # ------------------------------------------------------------------------------------------- jobs and messages

    def submit(self, job: Job) -> None:
        self._check_ray()
        if isinstance(job.x, Parts) != (len(self.cuts) > 2):
            rule = "a RayPool with several server_shards holds the server's vectors"
            raise Invalid(f"{rule}, got a job of another server. Make it with vectors=pool.features.vectors.")
        references = list(job.x.references) if isinstance(job.x, Parts) else []
        self.models.setdefault(id(job.x), Model(references)).jobs += 1
        self.waiting.append(job)
        self._launch()

    def next(self) -> Message | None:
        while True:
            self._check()
            if strikes := self.emulated.at <= self.now:
                self._collect(0.0)  # what came before comes first
            if self.ready and not (strikes and self.emulated.at <= self.ready[0].due):
                return self._deliver()
            if strikes and not self._earlier():
                return self._strike()
            self._launch()
            if not (self.waiting or self.emulated.calendar or self.flights):
                return None
            self._collect(SLICE)
            self._write_off()
            if self.staff.free or self.flights or not self.waiting:
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard > QUIET:
                raise WorkFailed(self._alone())

    def _deliver(self) -> Message:
        if isinstance(self.ready[0].message, Update):
            self._spend(self.emulated.server_time)
        return self.ready.pop(0).message

    def _earlier(self) -> bool:
        """Whether a job should be back before what strikes now, and is only a moment late."""
        at = self.emulated.at
        return self.now - at < SLICE and any(one.due < at and one.ends is None for one in self.flights.values())

    def interrupt(self, on: bool = True) -> None:
        """Have whoever waits, or is the next to wait, be told `Interrupted`; from any thread or signal handler.

        False takes back what nobody was told.
        """
        self._interrupted = on

    def _check(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise Interrupted("the pool was told to stop waiting.")
        self._check_ray()

    def _spend(self, seconds: float) -> None:
        """The server takes its time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(SLICE, left))

    def _still(self, since: float) -> None:
        """Whether to wait on for the slices of the model; without them there can be no checkpoint either."""
        self._check_ray()
        if time.monotonic() - since > (STOPPING if self._interrupted else QUIET):
            raise WorkFailed("a process that holds a slice of the model does not answer. Resume the run.")

    def _check_ray(self) -> None:
        """Asked before Ray is asked for anything: where there is none, it would start itself, open to all."""
        if self._watch is None:
            raise Invalid("a RayPool works inside its `with` statement, got work outside of it.")
        if not self._ray.is_initialized():
            raise WorkFailed("Ray was shut down by someone else in this process.")
        self._watch.check()

    def _launch(self) -> None:
        """Give waiting jobs to free workers."""
        while self.waiting and self.staff.free:
            job = self.waiting.popleft()
            if (due := self.emulated.due(job, now := self.now)) == math.inf:
                self._release(job)
                continue
            model = self.models[id(job.x)]
            if not model.slices:
                model.slices = [self._ray.put(as_vector(job.x).numpy())]
            module_buffers = job.module_buffers and tuple(flat.numpy() for flat in job.module_buffers)
            state = None if job.state is None else {name: value.numpy() for name, value in job.state.items()}
            light = job._replace(x=None, module_buffers=None, state=None)  # type: ignore[arg-type]
            errors, rather = self.errors.get(job.client, (None, None))
            worker, spoilt = self.staff.take(rather), (job.client, job.serial) in self.emulated.spoilt
            work = worker.actor.work.options(num_returns=len(self.cuts) + (self.wire != "float32"))
            facts, *rest = work.remote(light, due - now, spoilt, module_buffers, state, errors, *model.slices)
            shards = len(self.cuts) - 1
            self.flights[facts] = Flight(job, worker, rest[:shards], rest[shards:], time.monotonic(), due)

    def _release(self, job: Job) -> None:
        """A job needs its start vector no more."""
        model = self.models[id(job.x)]
        model.jobs -= 1
        if not model.jobs:
            del self.models[id(job.x)]

    def _collect(self, seconds: float) -> None:
        """Take all that is there, or else let Ray say something, for so long at most and until the calendar strikes."""
        pause = min(seconds, max(self.emulated.at - self.now, SLICE / 10))
        refs = [*self.flights, *self.staff.coming]
        if not refs:
            time.sleep(pause)
            return
        for ref in self._ray.wait(refs, num_returns=len(refs), timeout=0)[0] or self._ray.wait(refs, timeout=pause)[0]:
            if ref in self.flights:
                self._land(ref)
            else:
                self.staff.met(ref)

    def _land(self, ref: Any) -> None:
        """A flight is over."""
        flight, update = self.flights.pop(ref), None
        job = flight.job
        try:
            facts = self._ray.get(ref)
            if not isinstance(facts, str):
                update = self._received(facts, flight)
        except self._ray.exceptions.RayError as error:
            if self.shards:
                self.shards.check()  # else it may be a slice that died, and not a worker
            self.staff.replace(flight.worker)
            if flight.ends is None:
                self._lose(job, said(error))
            return
        self.staff.done(flight.worker)
        if flight.over:
            return
        if flight.ends is None:
            self._release(job)
        if update is None:
            raise WorkFailed(facts)
        if flight.ends is None and self.wire != "float32":
            self.errors[job.client] = flight.left[0], flight.worker
        self.deadlines.took(job.client, time.monotonic() - flight.began)
        self.losses.pop(job.client, None)
        for _ in range(2 if (job.client, job.serial) in self.emulated.twice else 1):
            self._queue(Ready(flight.due, update))

    def _received(self, facts: Update, flight: Flight) -> Update:
        if len(self.cuts) > 2:
            return bare(facts)._replace(delta=Parts(tuple(flight.parts)))
        return received(facts, self._ray.get(flight.parts[0], timeout=QUIET), self.wire)

    def _lose(self, job: Job, why: str) -> None:
        """A job is lost, through no fault of its client's as far as anyone knows."""
        self._release(job)
        self.losses[job.client] += 1
        if self.losses[job.client] >= LOSSES:
            named = f"client {job.client}, job {job.serial}, from round {job.round}"
            raise WorkFailed(f"the work of {named} failed: lost {LOSSES} times in a row, {why}.")
        self._part_with(job.client)

    def _part_with(self, client: int) -> None:
        """A client is lost, and back at once; what was left out of its updates is lost with it."""
        self.errors.pop(client, None)
        self._queue(Ready(0.0, Lost(client)))
        self._queue(Ready(0.0, Joined(client)))

    def _queue(self, ready: Ready) -> None:
        insort(self.ready, ready, key=lambda one: one.due)

    def _write_off(self) -> None:
        """Wait no longer for what is overdue."""
        now = time.monotonic()  # a run's own clock may be set back
        if now - self._looked < SLICE:
            return
        self._looked = now
        for ref, flight in list(self.flights.items()):
            limit = self.deadlines.limit(flight.job.client)
            if flight.ends is None and now - flight.began > limit:
                flight.ends = now + limit
                self._lose(flight.job, f"it took longer than {limit:.3g} s")
            elif flight.ends is not None and now > flight.ends:
                del self.flights[ref]
                self.staff.replace(flight.worker)

    def _strike(self) -> Message:
        """What the fleet's calendar has for now: a client is back, or lost with its job and whoever has it."""
        message = self.emulated.strike()
        if isinstance(message, Joined):
            return message
        client = message.client
        self.errors.pop(client, None)
        for job in [job for job in self.waiting if job.client == client]:
            self.waiting.remove(job)
            self._release(job)
        for ref, flight in list(self.flights.items()):
            if flight.job.client == client and flight.ends is None:
                self._release(flight.job)
                del self.flights[ref]
                self.staff.replace(flight.worker)
        self.ready = [one for one in self.ready if one.message.client != client or not isinstance(one.message, Update)]
        return message

    def pending(self) -> Pending:
        """What the fleet has in store, and whose jobs or messages are under way: these end with this process."""
        flying = [flight.job for flight in self.flights.values() if flight.ends is None]
        out = {job.client: job.serial for job in (*self.waiting, *flying)}
        out |= {message.client: 0 for _, message in self.ready if message.client not in out}
        return Pending(self.now, [], [(self.now, *one) for one in out.items()] + self.emulated.calendar)

    def restore(self, pending: Pending) -> None:
        self._began = time.monotonic() - pending.now
        self.emulated.resume(pending.due)
        for client in (client for _, client, serial in pending.due if serial >= 0):
            self._part_with(client)

    # ----------------------------------------------------------------------------------------------------- workers

    def resize(self, workers: int) -> None:
        """Have so many workers from now on; of those too many, busy ones go after their job."""
        self.staff.resize(workers, {flight.worker for flight in self.flights.values()})

    def _actor(self, cpus: float) -> Any:
        # On a machine of our own nobody counts CPUs.
        asked = {"num_cpus": 0 if self._ours and self.address is None else cpus, "num_gpus": self.gpus}
        make = self._ray.remote(max_restarts=0, max_task_retries=0, **asked)(Hand)
        loads, device = self._ray.cloudpickle.loads, "cuda" if self.gpus else None
        return make.remote(self._luggage, loads, torch.get_num_threads(), device, self.wire, self.cuts)

    def _renew(self) -> None:
        """Begin anew: what is under way for an earlier run is for nobody."""
        for flight in self.flights.values():
            flight.over, flight.ends = True, time.monotonic() + self.deadlines.limit(flight.job.client)
        self._dismiss()
        for held in (self.waiting, self.ready, self.models, self.errors, self.losses):
            held.clear()
        self.emulated = Emulated(self.task, self.method, self.fleet, self.emulated.second)
        self._began = time.monotonic()

    def _dismiss(self) -> None:
        """End the slices; x stays with the run that had them."""
        if self.shards is None:
            return
        if self._ray.is_initialized():
            with suppress(Exception):  # Ray may be dead, or a slice
                self.shards.close()
        for actor in self.shards.actors:
            self.staff.end(actor)
        self.shards = None

    def vectors(self, method: Method, x: Vector) -> VectorStore:
        """What holds the vectors of a server on this pool, for a run that begins."""
        self._check_ray()
        self._renew()
        if len(self.cuts) == 2:
            return LocalVectors(method, x)
        make = self._ray.remote(max_restarts=0, max_task_retries=0, num_cpus=0, scheduling_strategy="SPREAD")(
            ServerShard
        )
        luggage, loads = self._ray.cloudpickle.dumps(method), self._ray.cloudpickle.loads

        def hire(part: Any) -> Any:
            return make.remote(luggage, loads, torch.get_num_threads(), self._ray.put(part), self.wire)

        self.shards = ShardedVectors(self._ray, hire, method, x, len(self.cuts) - 1, self._still)
        self._began = time.monotonic()  # now that all are there
        return self.shards

    def missing(self) -> str:
        """How many workers are not there, and why that may be; nothing if all are."""
        there = len(self.staff.free) + len(self.flights)
        return (
            ""
            if there >= self.staff.wanted
            else f"{there} of {self.staff.wanted} workers are there: {self._room_for()}"
        )

    def _room_for(self) -> str:
        has = self._ray.cluster_resources()
        asked = f"each takes {self.cpus:g} CPUs and {self.gpus:g} GPUs"
        return f"{asked}, and the cluster has {has.get('CPU', 0):g} and {has.get('GPU', 0):g}."

    def _alone(self) -> str:
        return f"no worker has answered for {QUIET:g} s. {self.missing()}"

    # -------------------------------------------------------------------------------------------------- evaluation

    def ask(self, x: Vector, module_buffers: ModuleBuffers | None) -> Asked:
        """Have a model evaluated beside the training; see `answer`."""
        self._check_ray()
        if self._evaluator is None:  # no CPUs: it must not wait for those that workers have
            self._evaluator = Evaluator(self._ray, lambda: self._actor(0.0), self.staff.end, self._timer())
        return self._evaluator.ask(x.numpy(), module_buffers and tuple(flat.numpy() for flat in module_buffers))

    def _timer(self) -> Deadlines:
        return Deadlines(self.deadlines.patience, self.deadlines.grace)

    def answer(self, asked: Asked, wait: bool) -> tuple[dict[str, float], float] | None:
        """Scores and the seconds they took; None if they are not there yet and need not be waited for."""
        assert self._evaluator is not None
        self._check()
        while (answer := self._evaluator.look(asked, SLICE if wait else 0.0)) is None and wait:
            self._check()
            self._evaluator.hurry(asked)
            if self._evaluator.missing(asked, QUIET):
                raise WorkFailed(f"{self._alone()} Leave one for evaluations, or use evaluate='between'.")
        return answer

    # ----------------------------------------------------------------------------------------------- start and end

    def __enter__(self) -> Self:
        try:
            luggage = self._ray.cloudpickle.dumps((self.task, self.method))
        except Exception as error:
            raise Invalid(f"task and method must be of a kind that can be sent (pickled): {said(error)}.") from error
        if not self._ray.is_initialized():
            if self.address is None:
                size = store(self.task, self.method, workers=self.staff.wanted, luggage=len(luggage))
                start(self._ray, cpus=self.staff.wanted, gpus=self.gpus > 0, store=size)
            else:
                join(self._ray, self.address)
            self._ours = True
        try:
            self._watch = Watch(self._ray)
            self._luggage = self._ray.put(luggage)
            room = self._room()
            for _ in range(self.staff.wanted):
                self.staff.hire()
            if self.beside:
                self._evaluator = Evaluator(self._ray, lambda: self._actor(0.0), self.staff.end, self._timer())
            until = time.monotonic() + QUIET / 4
            while len(self.staff.free) < room and time.monotonic() < until:  # the clock starts with the work
                self._check()
                self._collect(SLICE)
        except BaseException:
            self.close()
            raise
        self._began = self._heard = time.monotonic()
        return self

    def _room(self) -> int:
        """How many workers can come at once."""
        has, needs = self._ray.available_resources(), {"CPU": self.cpus, "GPU": self.gpus}
        if self._ours and self.address is None:
            del needs["CPU"]
            if has.get("GPU", 0) < self.gpus:
                there = f"{has.get('GPU', 0):g}"
                raise Invalid(f"`gpus_per_worker` must be at most the GPUs here ({there}), got {self.gpus:g}.")
        return min([self.staff.wanted, *(int(has.get(name, 0) / each) for name, each in needs.items() if each)])

    def close(self) -> None:
        self.staff.close()
        if self._evaluator:
            self.staff.end(self._evaluator.actor)
        self._dismiss()
        for held in (self.flights, self.waiting, self.models, self.ready, self.errors):
            held.clear()
        self._evaluator = self._luggage = None
        if self._ours:
            with suppress(Exception):
                self._ray.shutdown()
        if self._watch:
            self._watch.close()
        self._ours, self._watch, self._began = False, None, None
