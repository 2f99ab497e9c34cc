"""Checks of the settings of a `RayPool`, before anything starts."""

from __future__ import annotations

import re

import torch

from tardygrad.core.task import Task
from tardygrad.engines.wire import Wire, check_wire
from tardygrad.errors import Invalid, check_integer, check_number, is_number


def check(
    task: Task,
    *,
    workers: int,
    address: str | None,
    cpus_per_worker: float,
    gpus_per_worker: float,
    evaluate: str,
    patience: float,
    grace: float,
    second: float,
    wire: Wire,
) -> None:
    """Raise `Invalid` if a setting of `RayPool` is wrong; the arguments have the names of the settings."""
    check_integer("workers", workers)
    if address is not None and not re.fullmatch(r"auto|[\w.\-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}", address):
        raise Invalid(f"`address` must be 'auto' or host:port, got {address!r}. Leave it out to start Ray here.")
    check_number("cpus_per_worker", cpus_per_worker)
    check_number("grace", grace)
    if not (is_number(second) and (second == 0 or 1e-6 <= second <= 86_400)):
        raise Invalid(f"`second` must be 0, or a number of seconds from 1e-6 to 86,400, got {second!r}.")
    if not (is_number(gpus_per_worker) and (0 <= gpus_per_worker <= 1 or gpus_per_worker in range(2, 1025))):
        raise Invalid(f"`gpus_per_worker` must be a fraction of a GPU or a whole number, got {gpus_per_worker!r}.")
    if not (is_number(patience) and patience >= 0):
        raise Invalid(f"`patience` must be a number, 0 or more, got {patience!r}.")
    if evaluate not in ("beside", "between"):
        raise Invalid(f"`evaluate` must be 'beside' or 'between', got {evaluate!r}.")
    check_wire(wire)
    if (device := getattr(task, "device", torch.device("cpu"))).type != "cpu":
        raise Invalid(f"a RayPool needs a task on the CPU, got one on {device}. Use gpus_per_worker to move it.")
    if gpus_per_worker and not hasattr(task, "to"):
        raise Invalid(f"`gpus_per_worker` needs a task that can be moved (`to`), got a {type(task).__name__}.")
