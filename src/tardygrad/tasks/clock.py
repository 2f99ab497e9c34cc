"""A task without training, for runs that only measure a fleet's time and delays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tardygrad.constructors import checked
from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.core.task import Task
from tardygrad.errors import check_integer


@checked
@dataclass(frozen=True)
class Clock(Task):
    """A task without training: a job makes no local steps and returns δ = 0, so runs only measure times and delays.

    Args:
        clients: number of clients, N.
        parameters: size of the model it stands for, which sets how long messages take on a link.

    >>> Clock(clients=40).evaluate(torch.empty(0), None)
    {'loss': 0.0}
    """

    clients: int
    parameters: int = 0

    def __post_init__(self) -> None:
        check_integer("clients", self.clients)
        check_integer("parameters", self.parameters, least=0)

    def init(self, seed: int) -> Vector:
        return torch.zeros(self.parameters)

    def batches(self, job: Job) -> Iterator[None]:
        return iter(())

    def gradient(self, x: Vector, batch: None, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        return torch.zeros(()), torch.zeros_like(x)

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        return {"loss": 0.0}


clock = Clock
