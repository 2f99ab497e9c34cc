"""The interface of an engine, which sends jobs to workers and returns their updates, and what every worker does."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from torch import Tensor

from tardygrad.constructors import rule as rule_of
from tardygrad.core import admission
from tardygrad.core.algorithm import LocalVectors, work
from tardygrad.core.batching import work_together
from tardygrad.core.messages import Job, Message, ModuleBuffers, Update, Vector, as_vector
from tardygrad.core.method import Method, check_method, without_addresses
from tardygrad.core.task import Task, ids_of
from tardygrad.core.vectors import VectorStore
from tardygrad.engines.same_task import is_same
from tardygrad.engines.wire import Packed, Wire, send
from tardygrad.errors import Invalid, WorkFailed, check_choice, check_integer, described_error
from tardygrad.fleet import Fleet
from tardygrad.tasks.clock import Clock
from tardygrad.tasks.torch_settings import settings_restored


class Pending(NamedTuple):
    """The state of an engine in a checkpoint."""

    now: float
    jobs: list[Job]  # submitted, not yet delivered
    due: list[tuple[float, int, int]]  # calendar: (time, client, serial), or a negative number: see attendance.py
    done: tuple[Update, ...] = ()  # computed in a batch but not yet due, or to be delivered a second time


class Evaluator(Protocol):
    """Evaluates models while training continues."""

    def ask(self, x: Vector, module_buffers: ModuleBuffers | None) -> Any:
        """Start to evaluate a model; returns a request to pass to `answer`."""

    def answer(self, request: Any, *, wait: bool) -> tuple[dict[str, float], float] | None:
        """The scores and the seconds they took; None if they are not ready and `wait` is False."""


class Pool(ABC):
    """An engine. Subclass it and write `now`, `submit` and `next`; override what else it can do.

    Every submitted job comes back exactly once, as an `Update`, as `Refused`, or with its client's `Lost` or `Asleep`
    (if that cancels it), in the order of the engine's clock.

    The attributes below say what a run may expect of the engine; a class or an instance sets those that differ.
    """

    resume_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a spec's [engine] that may change when a run is resumed."""

    task: Task | None = None
    """The task that the workers have; None: that of any run."""
    method: Method | None = None
    """The method whose local work the workers do; None: any."""
    fleet: Fleet | None = None
    """The fleet whose runtimes and failures the engine simulates, or whose runtimes its jobs take."""
    wire: Wire = "float32"
    """The number format of updates in transit."""
    parallel: int | None = None
    """The number of jobs computed at once; None: unknown."""
    processes: int = 1
    """The number of processes that do one job together; a replay needs 1."""
    deadline: float | None = None
    """Seconds of the clock after which `next` raises `TimeUp`: a run sets it. None: the engine knows no deadline."""
    evaluator: Evaluator | None = None
    """Evaluates beside the training; None: the run evaluates between two messages."""
    opens_data: bool = True
    """Whether the run's process may open the clients' data; False: only the workers do."""
    virtual_clock: bool = False
    """Whether time is simulated: then it does not advance while the driver works."""
    asleep: tuple[int, ...] = ()
    """The clients that are asleep when the run begins: they get no job until they are awake."""
    no_replay: str = ""
    """Why a replay cannot do the jobs again; empty: it can."""
    startup: str = ""
    """What to tell the user if entering the `with` block takes long."""

    @classmethod
    def resume_command(cls, folder: str, options: str) -> str:
        """The command that continues a run in a folder; `options` go behind the folder."""
        return f"tardygrad resume {shlex.quote(folder)}{options}"

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

    def begin(self) -> None:  # noqa: B027 (an engine that remembers nothing need not write it)
        """Prepare for a run, and forget the run before."""

    def interrupt(self, on: bool = True) -> None:  # noqa: B027
        """Make the present or next call of `next` raise `Interrupted`, or withdraw that; callable from any thread."""

    def pending(self) -> Pending | None:
        """The engine's state between two messages, for a checkpoint; None: its runs cannot be resumed."""
        return None

    def restore(self, pending: Pending) -> None:
        """Continue from a saved state; called once, on a new engine."""
        raise Invalid(f"cannot resume: {type(self).__name__} does not support checkpoints.")

    def vectors(self, method: Method, x: Vector) -> VectorStore:
        """Create the store of a server's vectors."""
        return LocalVectors(method, x)

    def status(self) -> str:
        """A message about missing workers; empty if none are missing."""
        return ""

    def close(self) -> None:  # noqa: B027
        """Free what the engine holds; called at the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


ATTRIBUTES: dict[str, Any] = {
    "fleet": Fleet | None, "processes": int, "deadline": float | None, "opens_data": bool, "virtual_clock": bool,
    "asleep": tuple, "no_replay": str, "startup": str,
}  # fmt: skip
"""The types of a pool's attributes, apart from those that `check_pool` checks by rules of their own."""


def check_pool(pool: Any) -> None:
    """Raise `Invalid` unless an object is a pool whose attributes are as they should be."""
    if not isinstance(pool, Pool):
        fix = " Use tardygrad.simulate, or a SimPool of it." if type(pool) is Fleet else ""
        raise Invalid(f"a pool must be an instance of a subclass of tg.Pool, got {type(pool).__name__}.{fix}")
    check_choice("wire", pool.wire, Wire)
    if pool.method is not None:
        check_method(pool.method)
    if pool.parallel is not None:
        check_integer("parallel", pool.parallel)
    for name, kind in ATTRIBUTES.items():
        if not isinstance(value := getattr(pool, name), kind):
            raise Invalid(f"the attribute `{name}` of a pool must be {rule_of(kind)}, got {value!r}.")


def check_work(pool: Pool, method: Method, task: Task) -> None:
    """Raise `Invalid` if the workers of a pool have another task, or do other local work than `method` says; the
    server's part of the method may differ."""
    check_pool(pool)
    if pool.task is not None and not is_same(pool.task, task):
        ours, theirs = (type(each).__name__ for each in (task, pool.task))
        rule = f"the pool must be made for the run's task ({ours}), got a pool made for another one ({theirs})"
        raise Invalid(f"{rule}. Pass the same object to both.")
    if pool.method is None:
        return
    for name in ("inner", "local_steps", "local_epochs", "compensate", "curvature", "keep"):
        ours, theirs = (without_addresses(repr(getattr(owner, name))) for owner in (method, pool.method))
        if ours != theirs:
            raise Invalid(f"the pool has `{name}` {theirs}, and the run's method {ours}. Make a pool with that method.")


Residuals = dict[str, Tensor]
"""The compression errors that a client adds to its next update, by the names of the vectors."""


def pack(update: Update, residuals: Residuals, wire: Wire) -> tuple[dict[str, Packed], Residuals]:
    """Compress the vectors of an update; returns them by name, and the client's new compression errors.

    An update that is not finite will be refused, so it leaves the errors unchanged.
    """
    packed: dict[str, Packed] = {}
    new_residuals: Residuals = {}
    for name in ("delta", "curvature"):
        if (v := getattr(update, name)) is not None:
            packed[name], error = send(v, residuals.get(name), wire)
            new_residuals |= {} if error is None else {name: error}
    changed = all(
        new_residuals.get(name) is not residuals.get(name) for name in packed
    )  # `send` keeps those not finite
    return packed, new_residuals if changed and admission.finite(update) else residuals


def perform(job: Job, task: Task, method: Method) -> Update:
    """Do a job; an error names the client and the job."""
    x = as_vector(job.x)
    version = x._version
    try:
        with nullcontext() if type(task) is Clock else settings_restored():  # no code, and many jobs
            update = work(job, task, method)
        if x._version != version:
            raise Invalid("code of a task must not change `job.x`, which other jobs share. Use job.x.clone().")
        return update
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as a SystemExit, or the panic of an extension in Rust
        raise _failed(error, task, job) from error


def perform_together(jobs: Sequence[Job], task: Task, method: Method) -> list[Update]:
    """Do several jobs at once; an error names the clients and their jobs."""
    try:
        with settings_restored():
            return work_together(jobs, task, method)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(error, task, *jobs) from error


def _failed(error: BaseException, task: Task, *jobs: Job) -> WorkFailed:
    ids = ids_of(task)
    whose = (f"{ids[job.client]!r}, {job}" if ids else str(job) for job in jobs)
    return WorkFailed(f"the work of {'; '.join(whose)} failed: {described_error(error)}")
