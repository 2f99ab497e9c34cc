"""The actor of a worker: it holds the task, and receives models and jobs as NumPy arrays."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from tardygrad.core.messages import NOTHING, Job, ModuleBuffers, Update, Vector
from tardygrad.engines.fleet_clock import corrupt
from tardygrad.engines.pool import pack, perform
from tardygrad.engines.ray.connection import first_line
from tardygrad.engines.sim.process_pool import map_vectors
from tardygrad.engines.wire import Packed, Wire, unpack
from tardygrad.errors import WorkFailed


class WorkerProcess:
    """A worker's process.

    Args:
        payload: task and method, pickled.
        loads: unpickles them.
        threads: torch threads; a replay needs as many for the same bits.
        device: where to move the task; None leaves it where it is.
        wire: number format of updates in transit.
        cuts: where the vectors of an update are cut for the server shards.
    """

    def __init__(
        self,
        payload: bytes,
        loads: Callable[[bytes], Any],
        threads: int,
        device: str | None,
        wire: Wire,
        cuts: list[int],
    ) -> None:
        torch.set_num_threads(threads)
        self.task, self.method = loads(payload)
        self.device, self.wire, self.cuts = device, wire, cuts
        if device:
            self.task = self.task.to(device)

    def ping(self) -> tuple[int, str]:
        """The process id and the machine's name."""
        return os.getpid(), socket.gethostname()

    def work(
        self, job: Job, seconds: float, corrupted: bool, module_buffers: Any, state: Any, errors: Any, *slices: Any
    ) -> tuple[Any, ...]:
        """Do a job.

        Args:
            seconds: takes at least this long.
            corrupted: whether to send NaN.
            errors: the client's compression errors so far.
            slices: x_s, in one or more slices.

        Returns:
            The update without its vectors, or an error message; the parts of the vectors, one for each server shard;
            and, if the wire compresses, the new compression errors.
        """
        began = time.monotonic()
        x, own_buffers = self._model(slices, module_buffers)
        own_state = None if state is None else {name: self._tensor(value) for name, value in state.items()}
        try:
            update = perform(job._replace(x=x, module_buffers=own_buffers, state=own_state), self.task, self.method)
        except WorkFailed as error:
            return str(error), *[None] * (len(self.cuts) - 1), *[None] * (self.wire != "float32")
        update = corrupt(update) if corrupted else update
        packed, left = pack(update, {name: self._tensor(error) for name, error in (errors or {}).items()}, self.wire)
        parts: list[dict[str, Any]] = [
            {name: one.between(a, b).arrays() for name, one in packed.items()} for a, b in pairwise(self.cuts)
        ]
        rest = map_vectors(update._replace(delta=NOTHING, curvature=None), lambda v: v.cpu().numpy())
        if rest.state is not None:
            parts[0]["state"] = rest.state
        down, up = (
            _bytes(*slices, *(module_buffers or ()), *(state or {}).values()),
            _bytes(*(rest.module_buffers or ())),
        )
        up += sum(one.nbytes for one in packed.values()) + _bytes(*(rest.state or {}).values())
        facts = rest._replace(delta=None, state=None, down=down, up=up)  # type: ignore[arg-type]
        answer = (facts, *parts, *([{n: e.cpu().numpy() for n, e in left.items()}] if self.wire != "float32" else []))
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        return answer

    def evaluate(self, module_buffers: Any, x: Any) -> tuple[dict[str, float], float] | str:
        """The scores of a model and the seconds they took, or an error message."""
        began = time.perf_counter()
        try:
            scores = self.task.evaluate(*self._model([x], module_buffers))
            return {str(name): float(value) for name, value in scores.items()}, time.perf_counter() - began
        except Exception as error:
            return f"the evaluation failed: {first_line(error)}."

    def _model(self, slices: Sequence[Any], module_buffers: Any) -> tuple[Vector, ModuleBuffers | None]:
        x = self._tensor(slices[0]) if len(slices) == 1 else torch.cat([self._tensor(one) for one in slices])
        return x, module_buffers and ModuleBuffers(*map(self._tensor, module_buffers))

    def _tensor(self, array: Any) -> Tensor:
        return tensor(array).to(self.device) if self.device else tensor(array)


def tensor(array: Any) -> Tensor:
    """A tensor that shares the array's memory; `from_numpy` would warn if that is read-only."""
    shared: Tensor = from_dlpack(array)
    return shared


def received(facts: Update, part: dict[str, Any], wire: Wire) -> Update:
    """An update that a worker has sent in one part. On a float32 wire its vectors are views of Ray's object store.

    The state is copied: the server keeps it, and a view would occupy the object store for as long.
    """
    state = part.pop("state", None)
    vectors = {name: unpack(Packed.of(arrays, wire), wire) for name, arrays in part.items()}
    client_state = None if state is None else {name: tensor(value).clone() for name, value in state.items()}
    return bare(facts)._replace(delta=vectors["delta"], curvature=vectors.get("curvature"), state=client_state)


def bare(facts: Update) -> Update:
    """An update without its vectors, with its buffers as tensors."""
    module_buffers = facts.module_buffers and ModuleBuffers(*map(tensor, facts.module_buffers))
    return facts._replace(delta=NOTHING, module_buffers=module_buffers)


def _bytes(*arrays: Any) -> int:
    return sum(array.nbytes for array in arrays)
