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
from tardygrad.tasks.torch_task import TorchTask
from tardygrad.tasks.views import Views, buffers, flat_buffers, flatten, trainable


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


def _squares(result: LocalResult, x: Tensor, start: Tensor) -> Tensor | None:
    """The squares of the moves that a training loop returned; raises `Invalid` if they cannot be those of its job."""
    squares = result.squares.total if isinstance(result.squares, SquaredMoves) else result.squares
    if squares is None:
        return None
    if not isinstance(squares, Tensor) or (squares.dtype, squares.shape) != (torch.float32, x.shape):
        got = f"{squares.dtype} {list(squares.shape)}" if isinstance(squares, Tensor) else type(squares).__name__
        raise Invalid(f"`squares` must be SquaredMoves, or a float32 tensor with shape {list(x.shape)}, got {got}.")
    if isinstance(result.squares, SquaredMoves) and not squares.any() and not torch.equal(x, start):
        fix = "Make it before the first optimizer step, and call its `add` after each."
        raise Invalid(f"`squares` must have every move, got none. {fix}")
    return squares.detach().to(x.device)


def _forms(module: nn.Module) -> list[dict[str, Any]]:
    groups = trainable(module), *buffers(module)
    return [{name: (tensor.shape, tensor.dtype, tensor.layout) for name, tensor in group.items()} for group in groups]


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

    @checked(passes_to=(TorchTask,))
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
        start = flatten(trainable(module).values()).to(self.device)  # x_s, rounded where parameters are bfloat16
        with self._frozen_unchanged("`train`"), seeded(streams.key(job.seed, "train", job.client, job.serial)):
            result = self._train(module, job.copied())
        if not isinstance(result, LocalResult):
            result = LocalResult(math.nan if result is None else result)  # type: ignore[arg-type]
        check_integer("steps", result.steps, 0)
        steps = result.steps or (result.squares.steps if isinstance(result.squares, SquaredMoves) else job.steps or 0)
        if _forms(module) != _forms(self._template):
            raise Invalid("`train` must not add, remove, freeze, reorder or resize parameters or persistent buffers.")
        x = flatten(trainable(module).values()).to(self.device)
        return Trained(x, _number(result.loss), steps, _squares(result, x, start), flat_buffers(module), start)

    def samples(self, client: int) -> int:
        """The number of a client's training rows, as given."""
        if self.counts is None:
            raise unknown_counts("a training loop of its own")
        return self.counts[client]
