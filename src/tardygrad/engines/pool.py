"""The contract of an engine: what carries jobs to workers and brings their updates back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from torch import Tensor

from tardygrad.core import admission
from tardygrad.core.algorithm import work
from tardygrad.core.batching import Batched, work_together
from tardygrad.core.messages import Job, Joined, Lost, ModuleBuffers, Refused, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.core.vectors import LocalVectors, VectorStore
from tardygrad.engines.wire import Packed, Wire, send
from tardygrad.errors import Invalid, WorkFailed
from tardygrad.fleet import Fleet

Message = Update | Lost | Joined | Refused
"""What a pool delivers to the server; `Refused` for an update that the pool itself rejected."""


class Pending(NamedTuple):
    """What an engine must remember to continue after a crash."""

    now: float
    jobs: list[Job]  # submitted, not yet delivered
    due: list[tuple[float, int, int]]  # the simulator's calendar: (time, client, serial)
    done: tuple[Update, ...] = ()  # computed but not yet due, in a batch whose last bits a single job would not repeat


class Checkpointing(Protocol):
    """How an engine is saved and continued."""

    def pending(self) -> Pending:
        """The engine's state between two messages."""

    def restore(self, pending: Pending) -> None:
        """Continue from a saved state; called once, on a new engine."""


class Evaluator(Protocol):
    """Evaluates models while the training goes on."""

    def ask(self, x: Vector, module_buffers: ModuleBuffers | None) -> Any:
        """Start to evaluate a model; returns a request to pass to `answer`."""

    def answer(self, request: Any, *, wait: bool) -> tuple[dict[str, float], float] | None:
        """The scores and the seconds they took; None if they are not ready and `wait` is False."""


@dataclass(frozen=True)
class Features:
    """What an engine can do besides carrying jobs and updates. The defaults describe an engine that can do no more."""

    checkpoint: Checkpointing | None = None  # None: a run on it cannot be resumed
    interrupt: Callable[[bool], None] | None = None  # True: the next `next()` raises `Interrupted`; False: undo that
    evaluator: Evaluator | None = None  # None: the run evaluates between two messages
    vectors: Callable[[Method, Vector], VectorStore] = LocalVectors  # makes the store of a server's vectors
    wire: Wire = "float32"  # the number format of updates in transit
    fleet: Fleet | None = None  # the fleet whose runtimes and failures it emulates
    method: Method | None = None  # whose local work it does; None: any
    parallel: int | None = None  # jobs that it computes at once; None: unknown
    virtual_clock: bool = False  # if so, time stands still while a checkpoint is written
    status: Callable[[], str] = str  # a line about missing workers; empty if none are missing
    startup: str = ""  # what to tell the user if entering its `with` block takes long


class Pool(ABC):
    """An engine. Subclass it, write `now`, `submit` and `next`, and declare in `features` what else it can do.

    Every submitted job comes back exactly once, as an `Update`, as `Refused`, or with its client's `Lost`, in the order
    of the engine's clock.
    """

    resume_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a spec's [engine] that may change when a run is resumed."""

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began, by this engine's clock; never decreases."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Start a job. Returns at once."""

    @abstractmethod
    def next(self) -> Message | None:
        """Wait for the next message; None if no job is in flight, so that none can come."""

    @property
    def features(self) -> Features:
        """What else this engine can do."""
        return Features()

    def close(self) -> None:  # noqa: B027 (an engine that holds nothing need not write it)
        """Free what the engine holds; called at the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def declared(pool: Pool) -> Features:
    """A pool's features; `Invalid` for an object that declares none."""
    rule = "a pool must be an instance of a subclass of tg.Pool, whose `features` are a tg.Features"
    try:
        features = pool.features
    except AttributeError as error:
        raise Invalid(f"{rule}, got {type(pool).__name__}: {error}.") from error
    if not isinstance(features, Features):
        raise Invalid(f"{rule}, got {pool!r} with features {features!r}.")
    return features


def check_work(pool: Pool, method: Method) -> None:
    """Raise `Invalid` if a pool was made for other local work than that of `method`; the server's side may differ."""
    made_for = declared(pool).method
    if made_for is None:
        return
    for name in ("inner", "local_steps", "local_epochs", "compensate", "curvature", "keep"):
        ours, theirs = (_written(getattr(one, name)) for one in (method, made_for))
        if ours != theirs:
            raise Invalid(f"a pool must work as its run's method does, got `{name}` {theirs} for {ours}. Make another.")


def _written(value: object) -> str:
    """The repr of a value without memory addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


Errors = dict[str, Tensor]
"""What the wire has left out of a client's vectors so far, by the vectors' names."""


def pack(update: Update, errors: Errors, wire: Wire) -> tuple[dict[str, Packed], Errors]:
    """The vectors of an update as they travel, by name, and what they leave out for the client's next update.

    An update with a part that is not finite will be refused, so the errors then stay what they were.
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
