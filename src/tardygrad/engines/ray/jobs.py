"""The jobs of a `RayPool`, and their start vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.weak import WeakTensorKeyDictionary

from tardygrad.core.messages import Parts, Vector
from tardygrad.engines.ray.workers import Worker
from tardygrad.engines.real_time import Running


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
