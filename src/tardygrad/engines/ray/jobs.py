"""The jobs and messages of a `RayPool`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tardygrad.core.messages import Job, Message
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


class Ready(NamedTuple):
    """A message for the server, and when it is due."""

    due: float
    message: Message
