"""Nothing to learn: for runs that only ask how long a fleet takes and how stale its updates get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.errors import check_integer


@dataclass(frozen=True)
class Clock:
    """A task whose vector is empty and whose jobs are done at once; see `clock`."""

    clients: int
    parameters: int

    def init(self, seed: int) -> Vector:
        return torch.empty(0)

    def init_module_buffers(self) -> ModuleBuffers | None:
        return None

    def batches(self, job: Job) -> Iterator[None]:
        return iter(())

    def gradient(self, x: Vector, batch: None, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        return torch.zeros(()), torch.zeros_like(x)

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        return {}


def clock(*, clients: int, parameters: int = 0) -> Clock:
    """A clock-only task: no vector, no batches, no scores.

    Args:
        clients: number of clients, N.
        parameters: the size of the model it stands for, for links whose messages take time.

    >>> clock(clients=40).evaluate(torch.empty(0), None)
    {}
    """
    check_integer("clients", clients)
    check_integer("parameters", parameters, least=0)
    return Clock(clients, parameters)
