"""The actor of a worker: it holds the task, and receives models and jobs as NumPy arrays."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.dlpack import from_dlpack

from tardygrad.core import admission
from tardygrad.core.messages import NOTHING, Job, Refused, StateReference, Update
from tardygrad.core.transforms import State
from tardygrad.engines.contract import pack
from tardygrad.engines.slowed import perform_in_time
from tardygrad.engines.threads import use_threads
from tardygrad.engines.wire import Packed, Wire, unpack
from tardygrad.errors import WorkFailed, described_error


class Alive(NamedTuple):
    """The first answer of a worker."""

    process: int  # its id
    node: str  # the name of its machine
    error: str  # why it could not load the task; empty: it could


class WorkerProcess:
    """A worker's process. If the method says keep="worker", it holds the inner states of its clients.

    Args:
        payload: task and method, pickled.
        loads: unpickles them.
        threads: torch threads; a replay needs as many for the same bits.
        device: where to move the task; None leaves it where it is.
        wire: number format of updates in transit.
        shard_bounds: where the vectors of an update are cut for the server shards.
    """

    def __init__(
        self,
        payload: bytes,
        loads: Callable[[bytes], Any],
        threads: int,
        device: str | None,
        wire: Wire,
        shard_bounds: list[int],
    ) -> None:
        self._payload, self._loads, self._threads = payload, loads, threads
        self.device, self.wire, self.shard_bounds = device, wire, shard_bounds
        self.name = uuid4().hex  # in references to the states that it holds; no other worker of any run has it
        self.states: dict[int, dict[int, State]] = {}  # of each client: after its last accepted job and its last job
        self.load_error = ""

    def begun(self) -> None:
        """Return at once: this process has started, and loads its task next."""

    def ping(self) -> Alive:
        """Load the task, at first; then, that this process lives, and why it cannot work, if it cannot."""
        if self._payload:
            self._load()
        return Alive(os.getpid(), socket.gethostname(), self.load_error)

    def _load(self) -> None:
        use_threads()
        torch.set_num_threads(self._threads)
        payload, self._payload = self._payload, b""
        try:
            self.task, self.method = self._loads(payload)
            self.expected_state = admission.expected_state(self.method)
            if self.device:
                self.task = self.task.to(self.device)
        except BaseException as error:  # own code may raise anything, and Ray would cut the text
            self.load_error = described_error(error)

    def work(self, job: Job, errors: dict[str, np.ndarray] | None, *slices: np.ndarray) -> tuple[Any, ...]:
        """Do a job.

        Args:
            job: without x_s, and with arrays in place of tensors.
            errors: the client's compression errors so far.
            slices: x_s, in one or more slices.

        Returns:
            The update without its vectors, an error message, or the refusal of an update that does not fit the model;
            the parts of the vectors, one for each server shard; and, if the wire compresses, the compression errors.
        """
        x = torch.cat(self._tensors(slices)) if len(slices) > 1 else self._tensors(slices[0])
        full_job: Job = self._tensors(job)._replace(x=x, state=self._last_state(job))
        nothing = [None] * (len(self.shard_bounds) - 1) + [errors] * (self.wire != "float32")
        try:
            update = perform_in_time(full_job, self.task, self.method)
        except (WorkFailed, KeyboardInterrupt) as error:  # only its own code interrupts a worker
            return str(error) or f"the work of {job} failed: {described_error(error)}", *nothing
        if not admission.fits(update, x, full_job.module_buffers, self.method, self.expected_state):
            return Refused(job.client, job.serial, job.round, "wrong shape"), *nothing  # it cannot be cut into parts
        update = self._hold_state(update)
        packed, left = pack(update, self._tensors(errors or {}), self.wire)
        parts: list[dict[str, Any]] = [
            {name: vector.between(a, b).arrays() for name, vector in packed.items()}
            for a, b in pairwise(self.shard_bounds)
        ]
        header: Update = _arrays(update._replace(delta=NOTHING, curvature=None))
        down, up = _bytes(slices, job.module_buffers, job.state), _bytes(header.module_buffers, header.state)
        up += sum(vector.nbytes for vector in packed.values())
        if isinstance(header.state, dict):
            parts[0]["state"] = header.state
            header = header._replace(state=None)
        answer = (header._replace(down=down, up=up), *parts)
        if self.wire != "float32":
            answer += (_arrays(left),)
        return answer

    def evaluate(self, module_buffers: Any, x: np.ndarray) -> tuple[dict[str, float], float] | str:
        """The scores of a model and the seconds they took, or an error message."""
        began = time.perf_counter()
        try:
            if self.load_error:
                return f"the evaluation failed, because its worker could not load the task: {self.load_error}."
            scores = self.task.evaluate(self._tensors(x), self._tensors(module_buffers))
            return {str(name): float(value) for name, value in scores.items()}, time.perf_counter() - began
        except BaseException as error:
            return f"the evaluation failed: {described_error(error)}."

    def _last_state(self, job: Job) -> State | StateReference | None:
        """The inner state for a job; if it is a reference to a state that this worker does not have, the reference."""
        held = self.states.pop(job.client, {})
        if not isinstance(job.state, StateReference):
            state: State | None = self._tensors(job.state)
            return state
        if job.state.worker != self.name or job.state.serial not in held:
            return job.state
        self.states[job.client] = {job.state.serial: held[job.state.serial]}  # the server may refuse this job's update
        return held[job.state.serial]

    def _hold_state(self, update: Update) -> Update:
        """Hold the inner state of an update, and send a reference to it instead, if the method says so.

        A state that is not finite is sent, so that the server refuses the update.
        """
        if self.method.keep != "worker" or not isinstance(update.state, dict) or not admission.finite(update):
            return update
        self.states.setdefault(update.client, {})[update.serial] = update.state
        return update._replace(state=StateReference(self.name, update.serial))

    def _tensors(self, value: Any) -> Any:
        """A value with tensors on this worker's device in place of arrays."""
        return tree_map_only(Tensor, lambda v: v.to(self.device), tensors(value)) if self.device else tensors(value)


def tensors(value: Any) -> Any:
    """A value with tensors in place of its arrays, on the same memory; `from_numpy` would warn if that is read-only."""
    return tree_map_only(np.ndarray, from_dlpack, value)


def received(header: Update, part: dict[str, Any]) -> Update:
    """An update, or a slice of it, from what a worker has sent. On a float32 wire its vectors are views of Ray's store.

    The state is copied: the server keeps it, and a view would occupy the store for as long.
    """
    state = tree_map_only(Tensor, Tensor.clone, tensors(part.pop("state", header.state)))
    vectors = {name: unpack(Packed.of(arrays)) for name, arrays in part.items()}
    update: Update = tensors(header)
    return update._replace(delta=vectors["delta"], curvature=vectors.get("curvature"), state=state)


def _arrays(value: Any) -> Any:
    return tree_map_only(Tensor, lambda v: v.cpu().numpy(), value)


def _bytes(*values: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, np.ndarray))
