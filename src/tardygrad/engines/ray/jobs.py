"""What a pool on Ray knows about its jobs and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tardygrad.core.messages import Job
from tardygrad.engines.pool import Message
from tardygrad.engines.ray.workers import Worker


@dataclass
class StartVector:
    """A start vector in Ray's object store."""

    slices: list[Any]  # references to it, once it is there
    jobs: int = 0  # that need it


@dataclass(eq=False)
class RunningJob:
    """A job and its worker."""

    job: Job
    worker: Worker
    parts: list[Any]  # references to its update's vectors, for each server shard
    left: list[Any]  # reference to what a narrow wire leaves out of them, if it does
    began: float
    due: float  # by the run's clock, if a fleet is emulated
    ends: float | None = None  # once it has timed out: when its worker is killed
    over: bool = False  # belongs to a run that has ended: nobody wants its update


class Ready(NamedTuple):
    """A message for the server."""

    due: float
    message: Message
