"""The interface of a task: batches, gradients and scores of a vector."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from tardygrad.constructors import is_unicode
from tardygrad.core.messages import Job, ModuleBuffers, Update, Vector
from tardygrad.core.transforms import ParameterGroup
from tardygrad.errors import Invalid, check_integer


class Task:
    """A learning problem. Only the task knows the network behind the vector.

    A task of your own has `clients` and `parameters`, and defines `init`, `batches`, `gradient` and `evaluate`. The
    other members may stay as they are here: then nothing is known.
    """

    clients: int
    parameters: int  # d, the length of the vector
    ids: Sequence[str] | None = None  # the clients' names
    groups: tuple[ParameterGroup, ...] = ()  # parts of the vector with options of their own for the local optimizer

    def init(self, seed: int) -> Vector:
        """x_0."""
        raise NotImplementedError

    def batches(self, job: Job) -> Iterator[Any]:
        """ξ_{i,1}, ξ_{i,2}, …: K steps or K epochs of the client's own data, drawn from the job's streams."""
        raise NotImplementedError

    def gradient(self, x: Vector, batch: Any, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        """F(x; ξ) and ∇F(x; ξ). Updates the buffers in place; the gradient may be overwritten by the next call."""
        raise NotImplementedError

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """Named scores on the test set; `loss` is one of them."""
        raise NotImplementedError

    def init_module_buffers(self) -> ModuleBuffers | None:
        """The buffers that go with x_0, if the model has any."""
        return None

    def gradients(self, requests: Sequence[GradientRequest]) -> list[tuple[Tensor, Vector]]:
        """`gradient` of each request, up to rounding; raises `Invalid`, even for no requests, if the task cannot."""
        raise Invalid(f"`batch` above 1 needs a task with `gradients`, got {type(self).__name__}. Use batch=1.")

    @property
    def can_evaluate(self) -> bool:
        """Whether there is anything to evaluate a model on."""
        return True

    def evaluates_on(self) -> str:
        """Which rows of a client `evaluate_client` uses: "test" or "training"; raises `Invalid` if there are none."""
        members = "`evaluates_on` and `evaluate_client`"
        raise Invalid(f"`evaluate_clients` needs a task with {members}, got {type(self).__name__}. Use 0.")

    def evaluate_client(self, client: int, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """Named scores on the client's own rows; empty if it has none."""
        return {}

    def higher_is_better(self) -> dict[str, bool]:
        """Whether high values of a score are good, by the names of the scores of which the task knows it."""
        return {}

    def samples(self, client: int) -> int:
        """The number of a client's training samples; raises `Invalid` with the reason if it is not known."""
        fix = "Give it a method samples(client), or leave weight_by out."
        raise Invalid(f'weight_by="samples" needs a task that counts samples, got {type(self).__name__}. {fix}')

    @property
    def counts_by_opening(self) -> bool:
        """Whether counting the samples opens the data of all clients."""
        return False

    def where(self, client: int) -> str | None:
        """The place of a client, as engines with several machines name places; None: anywhere."""
        return None

    def frozen(self) -> dict[str, Tensor]:
        """Parts that are not in the vector and never change, by name; all processes of a run must have the same."""
        return {}

    def state_dict(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, Tensor]:
        """The model as tensors by name, for a run's record."""
        return {"x": x, **(module_buffers._asdict() if module_buffers else {})}

    def module_bytes(self) -> tuple[int, int]:
        """The bytes of a network of which every thread has a copy, and of its buffers alone."""
        return 0, 0


GradientRequest = tuple[Vector, Any, ModuleBuffers | None]
"""x_{i,k−1}, ξ_{i,k}, and the model's buffers: the arguments of `Task.gradient`."""

LocalWork = Generator[GradientRequest, tuple[Tensor, Vector], Update]
"""A client's local steps: yields requests, receives losses and gradients, returns the update."""


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
    counts = tuple(task.samples(client) for client in range(task.clients))
    for client, count in enumerate(counts):
        check_integer(f"samples of client {client}", count, 0)
    if not any(counts):
        raise Invalid('weight_by="samples" needs a client with samples, got none.')
    return counts


REQUIRED = ("init", "batches", "gradient")
"""What a task must define to be worked on; `evaluate` only where it is evaluated."""


def check_task(task: object) -> None:
    """Raise `Invalid` unless an argument is a task."""
    if not isinstance(task, Task):
        rule = "a task must be a tardygrad.Task, such as a TorchTask for a module"
        got = f"the class {task.__name__}. Call it." if isinstance(task, type) else f"{type(task).__name__}."
        raise Invalid(f"{rule}, got {got} Check the order of the arguments; a task of your own is a subclass.")
    if missing := [name for name in REQUIRED if getattr(type(task), name) is getattr(Task, name)]:
        raise Invalid(f"a task must define `{missing[0]}`, got a {type(task).__name__} without it.")


def ids_of(task: Task) -> tuple[str, ...] | None:
    """The clients' names, of a task whose member `ids` has them; None: they have only numbers."""
    ids = None if task.ids is None else tuple(map(str, task.ids))
    if ids is not None and len(ids) != task.clients:
        raise Invalid(f"`ids` of a task must name each of its {task.clients} clients, got {len(ids)} ids.")
    for name in ids or ():
        if not is_unicode(name):
            raise Invalid(f"ids of clients must be Unicode text, got {name!a} with a lone surrogate.")
    return ids


SCORE_NAMES_IN_USE = ("event", "time", "round", "seconds", "check")
"""Keys of an evaluation in a record, beside which its scores are written."""


def check_score_names(scores: Iterable[str]) -> None:
    """Raise `Invalid` if a score has the name of a key beside which records write it."""
    for name in scores:
        if name in SCORE_NAMES_IN_USE:
            raise Invalid(f"a score must not be named {', '.join(SCORE_NAMES_IN_USE)}, got {name!r}. Rename it.")


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
