"""Local steps of several clients at once: one call computes all their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tardygrad.core.algorithm import local, with_fault
from tardygrad.core.messages import Job, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.task import GradientRequest, Task, next_request


class Batched(Task, Protocol):
    """A task that can compute several clients' gradients at once."""

    def gradients(self, requests: Sequence[GradientRequest]) -> list[tuple[Tensor, Vector]]:
        """`gradient` of each request, up to rounding; raises `Invalid`, even for no requests, if the task cannot."""


def work_together(jobs: Sequence[Job], task: Batched, method: Method) -> list[Update]:
    """Do the jobs of several clients together, one step of each at a time."""
    steps = [local(job, task, method) for job in jobs]
    messages = [next_request(client) for client in steps]
    while requests := {i: message for i, message in enumerate(messages) if not isinstance(message, Update)}:
        for i, gradient in zip(requests, task.gradients(list(requests.values())), strict=True):
            messages[i] = next_request(steps[i], gradient)
    updates = [message for message in messages if isinstance(message, Update)]
    return [with_fault(update, job, task, method) for update, job in zip(updates, jobs, strict=True)]
