"""The interface of an engine: it sends jobs to workers and returns their updates."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from torch import Tensor

from tardygrad import type_hints
from tardygrad.core import admission
from tardygrad.core.algorithm import LocalVectors, work
from tardygrad.core.batching import Batched, work_together
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


class Checkpointing(Protocol):
    """Saves and restores the state of an engine."""

    def pending(self) -> Pending:
        """The engine's state between two messages."""

    def restore(self, pending: Pending) -> None:
        """Continue from a saved state; called once, on a new engine."""


class Evaluator(Protocol):
    """Evaluates models while training continues."""

    def ask(self, x: Vector, module_buffers: ModuleBuffers | None) -> Any:
        """Start to evaluate a model; returns a request to pass to `answer`."""

    def answer(self, request: Any, *, wait: bool) -> tuple[dict[str, float], float] | None:
        """The scores and the seconds they took; None if they are not ready and `wait` is False."""


@dataclass(frozen=True)
class Features:
    """Optional features of an engine. By default it has none."""

    begin: Callable[[], None] | None = None  # called when a run begins; forgets the run before
    checkpoint: Checkpointing | None = None  # None: runs cannot be resumed
    interrupt: Callable[[bool], None] | None = None  # True: the next `next()` raises `Interrupted`; False: undo that
    deadline: Callable[[float], None] | None = None  # sets the time after which `next()` raises `TimeUp`
    evaluator: Evaluator | None = None  # None: the run evaluates between two messages
    vectors: Callable[[Method, Vector], VectorStore] = LocalVectors  # makes a server's vectors
    wire: Wire = "float32"  # the number format of updates in transit
    fleet: Fleet | None = None  # whose runtimes and failures the engine simulates or emulates
    task: Task | None = None  # that the workers have; None: any
    method: Method | None = None  # whose local work the workers do; None: any
    opens_data: bool = True  # whether the run's process may open the clients' data; False: only the workers do
    parallel: int | None = None  # number of jobs computed at once; None: unknown
    processes: int = 1  # that do one job together; a replay needs 1
    no_replay: str = ""  # why a replay cannot do the jobs again; empty: it can
    asleep: tuple[int, ...] = ()  # clients that are asleep when the run begins: they get no job until they are awake
    virtual_clock: bool = False  # time is simulated: it does not advance while the driver works
    status: Callable[[], str] = str  # a message about missing workers; empty if none are missing
    startup: str = ""  # what to tell the user if entering its `with` block takes long

    def __post_init__(self) -> None:
        check_choice("wire", self.wire, Wire)
        if self.method is not None:
            check_method(self.method)
        if self.parallel is not None:
            check_integer("parallel", self.parallel)
        kinds: dict[str, Any] = {"fleet": Fleet | None, "asleep": tuple, "virtual_clock": bool, "opens_data": bool}
        kinds |= dict.fromkeys(("startup", "no_replay"), str)
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                expected = type_hints.rule(kind)
                raise Invalid(f"the feature `{name}` of a pool must be {expected}, got {getattr(self, name)!r}.")
        methods: dict[str, tuple[str, ...]] = {"checkpoint": ("pending", "restore"), "evaluator": ("ask", "answer")}
        methods |= dict.fromkeys(("begin", "interrupt", "deadline", "vectors", "status"), ("__call__",))
        for name, wanted in methods.items():
            value = getattr(self, name)
            optional = name not in ("vectors", "status")
            if not (value is None and optional) and not all(callable(getattr(value, each, None)) for each in wanted):
                rule = "a function" if wanted == ("__call__",) else f"an object with {' and '.join(wanted)}"
                raise Invalid(f"the feature `{name}` of a pool must be {rule}, got {value!r}.")


class Pool(ABC):
    """An engine. Subclass it, write `now`, `submit` and `next`, and declare in `features` what else it can do.

    Every submitted job comes back exactly once, as an `Update`, as `Refused`, or with its client's `Lost` or `Asleep`
    (if that cancels it), in the order of the engine's clock.
    """

    resume_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a spec's [engine] that may change when a run is resumed."""

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


def features_of(pool: Any) -> Features:
    """The features of a pool; raises `Invalid` if the object declares none."""
    rule = "a pool must be an instance of a subclass of tg.Pool, whose `features` are a tg.Features"
    try:
        features = pool.features
    except AttributeError as error:
        fix = " Use tardygrad.simulate, or a SimPool of it." if type(pool) is Fleet else ""
        raise Invalid(f"{rule}, got {type(pool).__name__}: {error}.{fix}") from error
    if not isinstance(features, Features):
        raise Invalid(f"{rule}, got {pool!r} with features {features!r}.")
    return features


def check_work(pool: Pool, method: Method, task: Task) -> None:
    """Raise `Invalid` if the workers of a pool have another task, or do other local work than `method` says; the
    server's part of the method may differ."""
    features = features_of(pool)
    if features.task is not None and not is_same(features.task, task):
        ours, theirs = (type(each).__name__ for each in (task, features.task))
        rule = f"the pool must be made for the run's task ({ours}), got a pool made for another one ({theirs})"
        raise Invalid(f"{rule}. Pass the same object to both.")
    made_for = features.method
    if made_for is None:
        return
    for name in ("inner", "local_steps", "local_epochs", "compensate", "curvature", "keep"):
        ours, theirs = (without_addresses(repr(getattr(owner, name))) for owner in (method, made_for))
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


def perform_together(jobs: Sequence[Job], task: Batched, method: Method) -> list[Update]:
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
