"""A task whose local steps are your own training loop: plain torch, `transformers.Trainer`, Lightning, anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tardygrad import streams
from tardygrad.constructors import checked
from tardygrad.core.admission import LARGEST_NUMBER
from tardygrad.core.messages import Job, as_vector
from tardygrad.core.own_loop import OwnLoop, Trained
from tardygrad.errors import Invalid, check_integer
from tardygrad.seeding import seeded
from tardygrad.tasks.data.client_data import Collate, checked_counts, count_clients, unknown_counts
from tardygrad.tasks.forward import Loss
from tardygrad.tasks.module_task import Evaluate, ModuleTask
from tardygrad.tasks.original_module import checked_once
from tardygrad.tasks.scores import Scores
from tardygrad.tasks.views import Views, buffers, flat_buffers, flatten, trainable, without_numbers


class SquaredMoves:
    """Sums the squares of a module's moves, which delay compensation needs: call `add` after each optimizer step.

    >>> module = nn.Linear(1, 1, bias=False)
    >>> squares = SquaredMoves(module)
    >>> for _ in range(3):
    ...     _ = module.weight.data.add_(0.5)
    ...     squares.add()
    >>> squares.total
    tensor([0.7500])
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.last = module, flatten(trainable(module).values()).clone()
        self.total, self.steps = torch.zeros_like(self.last), 0

    def add(self) -> None:
        """Add the squares of the move since the last call."""
        now = flatten(trainable(self.module).values()).clone()
        self.total += (now - self.last) ** 2
        self.last, self.steps = now, self.steps + 1


@dataclass(frozen=True)
class LocalResult:
    """What a training loop may return instead of the bare mean loss.

    Args:
        loss: the mean loss of its steps.
        steps: how many it made; 0: those that `squares` has counted, else `job.steps`.
        squares: the squares of its moves, for methods that compensate.
    """

    loss: float = math.nan
    steps: int = 0
    squares: SquaredMoves | Tensor | None = None


def _number(loss: Any) -> float:
    """The loss that a training loop returned, as a number."""
    try:
        number = float(loss.detach() if isinstance(loss, Tensor) else loss)
        return math.copysign(math.inf, number) if abs(number) > LARGEST_NUMBER else number
    except OverflowError:  # of a whole number
        return math.inf if loss > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise Invalid(f"`train` must return the mean loss as a number, a LocalResult or None, got {got}.") from error


def _buffer_shapes(module: nn.Module) -> list[dict[str, torch.Size]]:
    return [{name: buffer.shape for name, buffer in some.items()} for some in buffers(module)]


def _check_squares(result: LocalResult, x: Tensor, moved: bool) -> Tensor | None:
    """The squares of the moves that a training loop returned; raises `Invalid` if they cannot be those of its job."""
    squares = result.squares
    if isinstance(squares, SquaredMoves):
        check_integer("squares.steps", squares.steps, 0)
        squares = squares.total
    if squares is None:
        return None
    rule = f"`squares` must be SquaredMoves, or a dense float32 tensor with shape {list(x.shape)}"
    if not isinstance(squares, Tensor):
        raise Invalid(f"{rule}, got {type(squares).__name__}.")
    if (squares.dtype, squares.shape, squares.layout) != (torch.float32, x.shape, torch.strided) or squares.is_meta:
        kind = "meta" if squares.is_meta else str(squares.layout)
        raise Invalid(f"{rule}, got {list(squares.shape)} of {squares.dtype} ({kind}).")
    if (squares < 0).any():
        raise Invalid(f"`squares` must not be negative, got {float(squares.min()):g}.")
    if not squares.isfinite().all() and x.isfinite().all():
        raise Invalid("`squares` must be finite if the model is, got NaN or infinity.")
    if isinstance(result.squares, SquaredMoves) and moved and not (result.squares.steps and squares.any()):
        fix = "Make it before the first optimizer step, and call its `add` after each."
        raise Invalid(f"`squares` must have every move, got none. {fix}")
    return squares.detach().to(x.device)


Train = Callable[[nn.Module, Job], float | Tensor | LocalResult | None]
"""(module, job) to the mean loss; trains the module in place."""


class TrainerTask(ModuleTask, OwnLoop):
    """A task whose local steps are a training loop of your own.

    The task turns what the loop does to the module into an update. Use a method without `local_lr`: learning rates,
    clips and optimizers of the local steps are the loop's. The loop must be a function of the job; the global random
    generators of torch, NumPy and Python are seeded by the job while it runs, so threads of one process take turns.

    Args:
        train: trains the module in place: a function of (module, job) that returns the mean loss, a `LocalResult`, or
            None. `job.client`, `job.steps` or `job.epochs`, and `job.stream(purpose)` say what to do.
        clients: the number of clients, or their ids.
        samples: number of training rows of each client, for `weight_by="samples"` of a method.

    >>> TrainerTask(nn.Linear(3, 2), train=lambda module, job: 0.0, clients=4)
    TrainerTask(Linear, parameters=8, clients=4)
    """

    @checked(passes_to=(ModuleTask,))
    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        train: Train,
        clients: int | Sequence[str],
        loss: Loss | None = None,
        test: Any = None,
        evaluate: Evaluate | None = None,
        evaluate_batch: int = 1024,
        client_test: Any = None,
        scores: Scores | Mapping[str, Any] | None = None,
        module_buffers: Literal["average", "refuse"] = "average",
        collate: Collate | None = None,
        device: str = "cpu",
        autocast: bool = False,
        samples: Sequence[int] | None = None,
    ) -> None:
        if not callable(train):
            raise Invalid(f"`train` must be a function of (module, job), got {train!r}.")
        self._train: Train = checked_once(train, "train", module if isinstance(module, nn.Module) else None)
        self.clients, self.ids = count_clients(clients)
        self.counts = checked_counts(samples, self.clients)
        super().__init__(
            module, loss=loss, test=test, evaluate=evaluate, evaluate_batch=evaluate_batch, client_test=client_test,
            scores=scores, module_buffers=module_buffers, collate=collate, device=device, autocast=autocast, uncut=None,
        )  # fmt: skip

    def train(self, job: Job) -> Trained:
        """Train a fresh copy of the module, so that nothing that a loop attaches to it outlives the job."""
        views, own = Views(self._template), job.copied()
        views.bind(as_vector(own.x), own.module_buffers, training=True)
        module = views.module
        module.zero_grad(set_to_none=True)
        shapes = _buffer_shapes(module)
        start = flatten(trainable(module).values()).to(self.device)  # x_s, rounded where parameters are bfloat16
        with self._frozen_unchanged("`train`"), seeded(streams.key(job.seed, "train", job.client, job.serial)):
            result = self._train(module, job.copied())
        if not isinstance(result, LocalResult):
            result = LocalResult(math.nan if result is None else result)  # type: ignore[arg-type]
        loss, parameters = _number(result.loss), trainable(module).values()
        if [p.shape for p in parameters] != self._shapes or list(trainable(module)) != self._names:
            rule = "`train` must not add, remove, freeze, reorder or resize trainable parameters"
            raise Invalid(f"{rule}, got others after a job.")
        floats, ints = buffers(module)
        bad = [name for name, p in trainable(module).items() if p.is_complex()]
        if bad := without_numbers(trainable(module) | floats | ints) + bad:
            raise Invalid(f"`train` must leave parameters and buffers dense and real, got `{bad[0]}`, which is not.")
        if _buffer_shapes(module) != shapes:
            raise Invalid("`train` must not add, remove or resize persistent buffers, got others after a job.")
        check_integer("steps", result.steps, 0)
        steps = result.steps or (result.squares.steps if isinstance(result.squares, SquaredMoves) else job.steps or 0)
        after = flat_buffers(module)
        x = flatten(parameters).to(self.device)
        squares = _check_squares(result, x, moved=not torch.equal(x, start))
        return Trained(x, loss, steps, squares, after, start)

    def samples(self, client: int) -> int:
        """The number of a client's training rows, as given."""
        if self.counts is None:
            raise unknown_counts("a training loop of its own")
        return self.counts[client]

    def batches(self, job: Job) -> Any:
        raise Invalid("a TrainerTask has no batches: its own loop reads them.")

    def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
        raise Invalid("a TrainerTask has no gradients: its own loop computes them.")
