"""Jobs to workers, and their updates back; a client's jobs go where its state and compression errors are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from tardygrad.core.messages import NOTHING, Job, Message, Parts, StateReference, Update, Vector
from tardygrad.engines.ray.places import Places
from tardygrad.engines.ray.worker import received, tensors
from tardygrad.engines.ray.workers import Worker, Workers
from tardygrad.engines.real_time import TIMEOUT, Running
from tardygrad.engines.wire import Wire


@dataclass(eq=False)
class RunningJob(Running):
    """A job, its worker, and what the worker will send; the handle is the reference of its answer."""

    worker: Worker = field(kw_only=True)
    parts: list[Any] = field(kw_only=True)  # references to the parts of its vectors, one for each server shard
    residuals_ref: list[Any] = field(kw_only=True)  # reference to the compression errors, if the wire compresses


class StartVectors:
    """The start vectors of jobs, in Ray's object store: each once, for as long as the vector is used."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._references = WeakTensorKeyDictionary()

    def references(self, x: Vector | Parts) -> Sequence[Any]:
        """References to the slices of a start vector."""
        if isinstance(x, Parts):
            return x.references
        if x not in self._references:
            self._references[x] = self._ray.put(x.numpy())
        return [self._references[x]]

    def __len__(self) -> int:
        return len(self._references)

    def clear(self) -> None:
        self._references.clear()


class Transport:
    """The way of jobs to workers, and of updates back.

    Args:
        ray: the module.
        places: where clients are pinned.
        wire: number format of updates in transit.
        shards: how many parts the vectors of an update are cut into.
    """

    def __init__(self, ray: Any, workers: Workers, places: Places, wire: Wire, shards: int) -> None:
        self._ray, self._workers, self._places = ray, workers, places
        self._shards, self._compresses = shards, wire != "float32"
        self.starts = StartVectors(ray)
        self.errors: dict[int, tuple[Any, Worker]] = {}  # client → its compression errors, and the worker with them
        self.holders: dict[str, Worker] = {}  # by name, the workers that hold inner states

    def take_worker(self, job: Job) -> Worker | None:
        """A free worker at the place of a job's client, and with the client's inner state; None: the job must wait."""
        holder = self.holders.get(job.state.worker) if isinstance(job.state, StateReference) else None
        if holder in self._workers.members and holder not in self._workers.free:
            return None
        _, preferred = self.errors.get(job.client, (None, None))
        return self._workers.take(holder or preferred, self._places.of(job.client))

    def send(self, job: Job, worker: Worker) -> RunningJob:
        """Send a job to a worker."""
        errors, _ = self.errors.get(job.client, (None, None))
        small_job = tree_map_only(Tensor, Tensor.numpy, job._replace(x=NOTHING))
        work = worker.actor.work.options(num_returns=1 + self._shards + self._compresses)
        header, *rest = work.remote(small_job, errors, *self.starts.references(job.x))
        parts, residuals = rest[: self._shards], rest[self._shards :]
        return RunningJob(job, header, worker=worker, parts=parts, residuals_ref=residuals)

    def receive(self, header: Update, running: RunningJob) -> Update:
        """The update of a job, from its worker's answer; with shards, its vectors stay in Ray's object store."""
        header = header._replace(worker=running.worker.label, node=running.worker.node)
        if self._shards > 1:
            update: Update = tensors(header)
            return update._replace(delta=Parts(tuple(running.parts)))
        return received(header, self._ray.get(running.parts[0], timeout=TIMEOUT))

    def remember(self, message: Message, running: RunningJob) -> None:
        """Remember which worker has the client's inner state and, unless the job timed out, its compression errors."""
        if isinstance(message, Update) and isinstance(message.state, StateReference):
            self.holders[message.state.worker] = running.worker
        if running.late_at is None and self._compresses:
            self.errors[running.job.client] = running.residuals_ref[0], running.worker

    def forget(self, client: int) -> None:
        """Drop the compression errors of a lost client."""
        self.errors.pop(client, None)

    def clear(self) -> None:
        for state in (self.starts, self.errors, self.holders):
            state.clear()
