"""Local steps of several clients at once: one call computes all their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from tardygrad.core.algorithm import local, with_fault
from tardygrad.core.messages import Job, Update
from tardygrad.core.method import Method
from tardygrad.core.task import Task, next_request


def work_together(jobs: Sequence[Job], task: Task, method: Method) -> list[Update]:
    """Do the jobs of several clients together, one step of each at a time."""
    steps = [local(job, task, method) for job in jobs]
    messages = [next_request(client) for client in steps]
    while requests := {i: message for i, message in enumerate(messages) if not isinstance(message, Update)}:
        for i, gradient in zip(requests, task.gradients(list(requests.values())), strict=True):
            messages[i] = next_request(steps[i], gradient)
    updates = [message for message in messages if isinstance(message, Update)]
    return [with_fault(update, job, task, method) for update, job in zip(updates, jobs, strict=True)]
