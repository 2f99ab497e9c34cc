"""What a worker of a cluster runs: a process that has the task, and is sent models and jobs as arrays."""

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
    """A process with the task.

    Args:
        payload: task and method, as bytes.
        loads: what makes them of these.
        threads: torch's; as many as a replay will have, for the same bits.
        device: where to work; None is where the task is.
        wire: what the vectors of an update travel as.
        cuts: where they are cut, for several servers.
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
        """Process and machine."""
        return os.getpid(), socket.gethostname()

    def work(
        self, job: Job, lasts: float, corrupted: bool, module_buffers: Any, state: Any, errors: Any, *slices: Any
    ) -> tuple[Any, ...]:
        """A job, from the slices of x. Takes so many seconds at least.

        Returns an update without its vectors, the parts of those for each server, and, of a narrow wire, what was left
        out of them; or what went wrong.
        """
        began = time.monotonic()
        x, own = self._model(slices, module_buffers)
        kept = None if state is None else {name: self._tensor(value) for name, value in state.items()}
        try:
            update = perform(job._replace(x=x, module_buffers=own, state=kept), self.task, self.method)
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
        time.sleep(max(0.0, lasts - (time.monotonic() - began)))
        return answer

    def evaluate(self, module_buffers: Any, x: Any) -> tuple[dict[str, float], float] | str:
        """Scores and the seconds they took, or what went wrong."""
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
    """A tensor on memory that may be read-only, which `from_numpy` would warn of."""
    made: Tensor = from_dlpack(array)
    return made


def received(facts: Update, part: dict[str, Any], wire: Wire) -> Update:
    """An update that a worker has sent, in one part: where the wire is wide, views of the memory it came in.

    State, which a server keeps for long, is copied: that memory has other things to hold.
    """
    state = part.pop("state", None)
    vectors = {name: unpack(Packed.of(arrays, wire), wire) for name, arrays in part.items()}
    kept = None if state is None else {name: tensor(value).clone() for name, value in state.items()}
    return bare(facts)._replace(delta=vectors["delta"], curvature=vectors.get("curvature"), state=kept)


def bare(facts: Update) -> Update:
    """An update whose vectors are elsewhere."""
    module_buffers = facts.module_buffers and ModuleBuffers(*map(tensor, facts.module_buffers))
    return facts._replace(delta=NOTHING, module_buffers=module_buffers)


def _bytes(*arrays: Any) -> int:
    return sum(array.nbytes for array in arrays)
