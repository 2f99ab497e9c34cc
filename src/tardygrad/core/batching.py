"""Several clients' local steps side by side: their gradients are computed in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tardygrad.core.algorithm import local
from tardygrad.core.messages import Job, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.task import GradientRequest, Task, resume


class Batched(Task, Protocol):
    """A task that can compute several clients' gradients at once."""

    def gradients(self, requests: Sequence[GradientRequest]) -> list[tuple[Tensor, Vector]]:
        """`gradient` of each request, up to the last bits; raises `Invalid`, even for no request, if it cannot."""


def work_together(jobs: Sequence[Job], task: Batched, method: Method) -> list[Update]:
    """`work` of several clients, one gradient of each at a time."""
    steps = [local(job, task, method) for job in jobs]
    messages = [resume(client) for client in steps]
    while requests := {i: message for i, message in enumerate(messages) if not isinstance(message, Update)}:
        for i, gradient in zip(requests, task.gradients(list(requests.values())), strict=True):
            messages[i] = resume(steps[i], gradient)
    return [message for message in messages if isinstance(message, Update)]
