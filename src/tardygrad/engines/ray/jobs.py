"""The jobs and messages of a `RayPool`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.weak import WeakTensorKeyDictionary

from tardygrad.core.messages import Job, Message, Parts, Vector
from tardygrad.engines.ray.workers import Worker


@dataclass(eq=False)
class RunningJob:
    """A job and its worker."""

    job: Job
    worker: Worker
    parts: list[Any]  # references to the parts of its update's vectors, one for each server shard
    residuals_ref: list[Any]  # reference to the compression errors, if the wire compresses
    began: float
    due: float  # when it should return by the run's clock; 0 unless a fleet is emulated
    kill_at: float | None = None  # set when it times out: when its worker will be killed
    ignored: bool = False  # its run has ended: ignore its update


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


class Ready(NamedTuple):
    """A message for the server, and when it is due."""

    due: float
    message: Message
