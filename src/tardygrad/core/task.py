"""The interface of a task: batches, gradients and scores of a vector."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tardygrad.constructors import is_unicode
from tardygrad.core.messages import Job, ModuleBuffers, Update, Vector
from tardygrad.core.transforms import ParameterGroup
from tardygrad.errors import Invalid, check_integer


@runtime_checkable
class Task(Protocol):
    """A learning problem. Only the task knows the network behind the vector."""

    @property
    def clients(self) -> int: ...

    @property
    def parameters(self) -> int:
        """d, the length of the vector."""

    def init(self, seed: int) -> Vector:
        """x_0."""

    def init_module_buffers(self) -> ModuleBuffers | None:
        """The buffers that go with x_0, if the model has any."""

    def batches(self, job: Job) -> Iterator[Any]:
        """ξ_{i,1}, ξ_{i,2}, …: K steps or K epochs of the client's own data, drawn from the job's streams."""

    def gradient(self, x: Vector, batch: Any, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        """F(x; ξ) and ∇F(x; ξ). Updates the buffers in place; the gradient may be overwritten by the next call."""

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """Named scores on the test set; `loss` is one of them."""


@runtime_checkable
class Placed(Protocol):
    """A task that says where the data of its clients is. Engines with several machines send a client's jobs there."""

    def where(self, client: int) -> str | None:
        """The place of a client, as the engine names places; None: anywhere."""


class HasGroups:
    """A task whose local optimizer has options of its own for parts of the vector.

    A base class, since isinstance on a protocol is slow, and every job calls it.
    """

    groups: tuple[ParameterGroup, ...]


@runtime_checkable
class HasModule(Protocol):
    """A task with a network, of which every thread has a copy."""

    def module_bytes(self) -> tuple[int, int]:
        """The bytes of the network, and of its buffers alone."""


@runtime_checkable
class HasStateDict(Protocol):
    """A task that names the parts of its vector and buffers, for the model in a run's record."""

    def state_dict(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, Tensor]:
        """The model as tensors by name."""


@runtime_checkable
class HasFrozen(Protocol):
    """A task with parts that are not in the vector and never change; all processes of a run must have the same."""

    def frozen(self) -> dict[str, Tensor]:
        """These parts by name."""


@runtime_checkable
class MayLackTest(Protocol):
    """A task that may have nothing to evaluate a model on."""

    @property
    def can_evaluate(self) -> bool:
        """Whether the task can evaluate a model."""


@runtime_checkable
class EvaluatesClients(Protocol):
    """A task that can evaluate a model on the data of one client."""

    def evaluates_on(self) -> str:
        """Which rows of a client it evaluates: "test" or "training".

        Raises:
            Invalid: with the reason, if it has none.
        """

    def evaluate_client(self, client: int, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """Named scores on the client's own rows; empty if it has none."""


@runtime_checkable
class KnowsDirections(Protocol):
    """A task that knows of some scores whether high values are good."""

    def higher_is_better(self) -> dict[str, bool]:
        """Whether high values of a score are good, by the score's name."""


@runtime_checkable
class CountsSamples(Protocol):
    """A task that knows how many training samples its clients have, for `weight_by="samples"`."""

    def samples(self, client: int) -> int:
        """The number of a client's training samples.

        Raises:
            Invalid: with the reason, if it is not known.
        """


@runtime_checkable
class CountsByOpening(Protocol):
    """A task that may have to open the data of all clients to count their samples."""

    @property
    def counts_by_opening(self) -> bool:
        """Whether counting the samples opens the data of all clients."""


def start_vector(task: Task, seed: int) -> Vector:
    """x_0 of a task, checked."""
    x = task.init(seed)
    if not isinstance(x, Tensor) or x.shape != (task.parameters,):
        got = f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise Invalid(f"`init` of a task must return a vector of its {task.parameters} parameters, got {got}.")
    if not x.isfinite().all():
        raise Invalid("`init` of a task must return finite numbers, got NaN or infinity. Use smaller settings.")
    return x


def sample_counts(task: Task, weight_by: str | None) -> tuple[int, ...] | None:
    """The number of training samples of every client, None if a method does not weight by them; raises `Invalid` if the
    task does not know them."""
    if weight_by is None:
        return None
    if not isinstance(task, CountsSamples):
        fix = "Give it a method samples(client), or leave weight_by out."
        raise Invalid(f'weight_by="samples" needs a task that counts samples, got {type(task).__name__}. {fix}')
    counts = tuple(task.samples(client) for client in range(task.clients))
    for client, count in enumerate(counts):
        check_integer(f"samples of client {client}", count, 0)
    if not any(counts):
        raise Invalid('weight_by="samples" needs a client with samples, got none.')
    return counts


def check_task(task: object) -> None:
    """Raise `Invalid` unless an argument has the members of a `Task`."""
    members = [name for name in vars(Task) if not name.startswith("_")]
    rule = f"a task must have {', '.join(members)}"
    if isinstance(task, type):
        raise Invalid(f"{rule}, got the class {task.__name__}. Call it: {task.__name__}(...).")
    if missing := [name for name in members if not hasattr(task, name)]:
        fix = "Use tardygrad.TorchTask for a module, and check the order of the arguments."
        raise Invalid(f"{rule}, got {type(task).__name__} without {', '.join(missing)}. {fix}")


def ids_of(task: Task) -> tuple[str, ...] | None:
    """The clients' names, of a task whose member `ids` has them; None: they have only numbers."""
    ids = getattr(task, "ids", None)
    if ids is not None and len(ids) != task.clients:
        raise Invalid(f"`ids` of a task must name each of its {task.clients} clients, got {len(ids)} ids.")
    for name in ids or ():
        if not is_unicode(str(name)):
            raise Invalid(f"ids of clients must be Unicode text, got {str(name)!a} with a lone surrogate.")
    return None if ids is None else tuple(map(str, ids))


SCORE_NAMES_IN_USE = ("event", "time", "round", "seconds", "check")
"""Keys of an evaluation in a record, beside which its scores are written."""


def check_score_names(scores: Iterable[str]) -> None:
    """Raise `Invalid` if a score has the name of a key beside which records write it."""
    for name in scores:
        if name in SCORE_NAMES_IN_USE:
            raise Invalid(f"a score must not be named {', '.join(SCORE_NAMES_IN_USE)}, got {name!r}. Rename it.")


GradientRequest = tuple[Vector, Any, ModuleBuffers | None]
"""x_{i,k−1}, ξ_{i,k}, and the model's buffers: the arguments of `Task.gradient`."""

LocalWork = Generator[GradientRequest, tuple[Tensor, Vector], Update]
"""A client's local steps: yields requests, receives losses and gradients, returns the update."""


def gradient_of(task: Task, request: GradientRequest) -> tuple[Tensor, Vector]:
    """The loss and the gradient that a task computes, checked."""
    loss, g = task.gradient(*request)
    if not isinstance(g, Tensor) or g.shape != request[0].shape or g.dtype != request[0].dtype:
        got = f"{g.dtype} {list(g.shape)}" if isinstance(g, Tensor) else type(g).__name__
        wanted = f"{request[0].dtype} {list(request[0].shape)}"
        raise Invalid(f"`gradient` of a task must return a loss and a gradient of the form of x, {wanted}, got {got}.")
    return loss, g


def next_request(work: LocalWork, gradient: tuple[Tensor, Vector] | None = None) -> GradientRequest | Update:
    """Send the requested gradient (None: start); returns the next request, or the update after the last step."""
    try:
        return next(work) if gradient is None else work.send(gradient)
    except StopIteration as end:
        update: Update = end.value
        return update
