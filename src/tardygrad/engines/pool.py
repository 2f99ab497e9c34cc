"""The seam between the algorithm and whatever does the work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from torch import Tensor

from tardygrad.core import admission
from tardygrad.core.algorithm import Batched, Task, work, work_together
from tardygrad.core.messages import Job, Joined, Lost, Refused, Update
from tardygrad.core.method import Method
from tardygrad.engines.wire import Packed, Wire, send
from tardygrad.errors import Invalid, WorkFailed

Message = Update | Lost | Joined | Refused
"""What a pool delivers to the server; `Refused` for an update that it turned away itself."""


class Pool(Protocol):
    """An engine.

    Every submitted job comes back exactly once, as an `Update`, as `Refused`, or with its client's `Lost`, in the order
    of the engine's clock.
    """

    @property
    def now(self) -> float:
        """Seconds since the run began, by this engine's clock; never goes back."""

    def submit(self, job: Job) -> None:
        """Start a job. Returns at once."""

    def next(self) -> Message | None:
        """Wait for the next message; None if nothing is under way and so none can come."""


class Pending(NamedTuple):
    """What an engine must remember to go on after a crash."""

    now: float
    jobs: list[Job]  # under way
    due: list[tuple[float, int, int]]  # the simulator's calendar: (time, client, serial)
    done: tuple[Update, ...] = ()  # not yet due, but computed, with others and to other last bits than alone


class Resumable(Pool, Protocol):
    """An engine that can be stopped and started again."""

    def pending(self) -> Pending:
        """What is under way."""

    def restore(self, pending: Pending) -> None:
        """Go on from there."""


def check_work(pool: Pool, method: Method) -> None:
    """Refuse a pool that would do other work than a run's method asks for; the server's side is not its affair."""
    made_for = getattr(pool, "method", method)
    if not isinstance(made_for, Method):  # a pool of someone else's, with another meaning of the word
        return
    for name in ("inner", "local_steps", "local_epochs", "compensate", "curvature", "keep"):
        ours, theirs = (_written(getattr(one, name)) for one in (method, made_for))
        if ours != theirs:
            raise Invalid(f"a pool must work as its run's method does, got `{name}` {theirs} for {ours}. Make another.")


def _written(value: object) -> str:
    """A value as it is written, wherever it is in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


Errors = dict[str, Tensor]
"""What the wire has left out of a client's vectors so far, by their names."""


def pack(update: Update, errors: Errors, wire: Wire) -> tuple[dict[str, Packed], Errors]:
    """The vectors of an update as they travel, by name, and what is left out for the client's next.

    If any part of it is not finite it will be refused, so the errors stay what they were.
    """
    packed: dict[str, Packed] = {}
    left: Errors = {}
    for name in ("delta", "curvature"):
        if (v := getattr(update, name)) is not None:
            packed[name], error = send(v, errors.get(name), wire)
            left |= {} if error is None else {name: error}
    arrives = all(left.get(name) is not errors.get(name) for name in packed) and admission.finite(update, 0.0)
    return packed, left if arrives else errors


def perform(job: Job, task: Task, method: Method) -> Update:
    """`work`, with an error that names the client and the job."""
    with _named([job]):
        return work(job, task, method)


def perform_together(jobs: Sequence[Job], task: Batched, method: Method) -> list[Update]:
    """`work_together`, with an error that names the clients and their jobs."""
    with _named(jobs):
        return work_together(jobs, task, method)


@contextmanager
def _named(jobs: Sequence[Job]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        where = "; ".join(f"client {job.client}, job {job.serial}, from round {job.round}" for job in jobs)
        raise WorkFailed(f"the work of {where} failed: {type(error).__name__}: {error}") from error
