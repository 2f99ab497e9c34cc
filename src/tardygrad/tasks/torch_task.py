"""Any module, loss and data as a task: the vector is the concatenation of the module's trainable parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from tardygrad import streams
from tardygrad.constructors import checked
from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.core.task import GradientRequest
from tardygrad.errors import Invalid, check_integer, type_and_first_line
from tardygrad.seeding import keyed, other_states, others_seeded, restore
from tardygrad.tasks.data.client_data import (
    Collate,
    Datasets,
    Loading,
    OwnBatches,
    checked_counts,
    client_data,
    is_stream,
    unknown_counts,
)
from tardygrad.tasks.data.sharding import Shards
from tardygrad.tasks.forward import Loss, to_device
from tardygrad.tasks.module_task import Evaluate, ModuleTask
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.original_module import checked_once
from tardygrad.tasks.scores import Scores
from tardygrad.tasks.views import Views, buffers, groups_of, trainable

Augment = Callable[[Tensor, np.random.Generator], Tensor]
"""(first input of a training batch, the step's generator) to the augmented input."""

_UNCHECKED = nullcontext()
ONE_BY_ONE = "Compute them one by one: batch=1."
SAME_GRADIENT, SAME_IN_BFLOAT16 = 0.01, 0.05  # shares of its length by which a gradient computed with others may differ


class Batch(NamedTuple):
    """ξ_{i,k}: everything that is random in one local step."""

    data: tuple[Any, ...]  # one batch, or several whose gradients are averaged
    step: int  # k − 1
    key: int  # of the module's own random numbers (dropout) and of the augmentation
    noise: Vector | None  # added to the gradient


class TorchTask(ModuleTask):
    """A task from your own module, loss and data.

    Gradients are bit-identical to those of a plain torch loop. The module itself never changes: each thread works on a
    copy, which shares the frozen parameters. They are not in the vector and never change; tied weights appear once.

    Args:
        module: a module, whose weights are x_0; or a function without arguments that creates one, whose initial weights
            then depend on the run's seed.
        data: the training data of each client: rows of one dataset, made by `shard`; a list with a dataset for each
            client, or a mapping from client ids to datasets; a function from a client (its id, if `clients` has ids) to
            its dataset, called once in each process that works for the client; or a function whose first parameter
            is named `job`, from a job to its batches, which depends on nothing but the job.
        loss: a function of (output, target), or of (module, batch), to the mean loss of a batch; None takes the `loss`
            of the module's output, as in `transformers`.
        clients: if `data` is a function: the number of clients, or their ids.
        test: the test set: tensors (inputs..., target), a dataset, an iterable of batches, or a function without
            arguments that returns one of these; without it nothing can be evaluated.
        batch_size: rows per batch; the last batch of an epoch may be smaller.
        accumulate: batches per local step, whose gradients are averaged.
        drop_last: leave out the last batch of an epoch if it is smaller than the others; a client with fewer rows than
            that keeps its only batch.
        collate: makes a batch of a list of rows; None is torch's `default_collate`.
        num_workers: processes that read rows ahead, as in `DataLoader`.
        pin_memory: read rows into pinned memory, as in `DataLoader`.
        noise: heavy-tailed noise added to every gradient.
        module_buffers: "average" persistent buffers (BatchNorm) over a round's updates, or "refuse" modules with any.
        evaluate: replaces the evaluation: a function of (module, test) to scores by name; None computes the mean loss
            and `scores`.
        evaluate_batch: rows per batch of an evaluation.
        client_test: test sets of clients, for `evaluate_clients` of a run: a list with one for each client, a mapping
            from ids to test sets, which may leave out clients, or a function of the client; None uses training data.
        scores: a function of all outputs and targets to scores by name; or metrics by name, such as those of
            torchmetrics; None is the accuracy, if targets are classes.
        augment: changes the first input of every training batch (inputs..., target), like `crop_and_flip` of
            `tardygrad.tasks.data.images`.
        parameter_groups: a function of the module to parameter groups, as `torch.optim` takes them: lists of parameters
            with options of their own, such as weight_decay=0.
        device: the torch device of data, vectors and module.
        autocast: run forward passes in bfloat16 where torch considers it safe; vectors stay float32.
        compile: compile the module by torch.compile, at the first step of each process or thread; if its forward pass
            cannot be compiled, a warning says why, and it runs uncompiled.
        uncut: creates the whole network if `module` is only its last layers; None if it is complete.
        samples: number of training rows of each client, for `weight_by="samples"` of a method; None counts them.

    >>> from tardygrad.tasks import shard
    >>> data = (torch.randn(20, 3), torch.arange(20) % 2)
    >>> TorchTask(nn.Linear(3, 2), loss=nn.functional.cross_entropy, data=shard(data, clients=4))
    TorchTask(Linear, parameters=8, clients=4)
    """

    @checked
    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        data: Any,
        loss: Loss | None = None,
        clients: int | Sequence[str] | None = None,
        test: Any = None,
        batch_size: int = 32,
        accumulate: int = 1,
        drop_last: bool = False,
        collate: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        noise: Noise | None = None,
        module_buffers: Literal["average", "refuse"] = "average",
        evaluate: Evaluate | None = None,
        evaluate_batch: int = 1024,
        client_test: Any = None,
        scores: Scores | Mapping[str, Any] | None = None,
        augment: Augment | None = None,
        parameter_groups: Callable[[nn.Module], Sequence[Mapping[str, Any]]] | None = None,
        device: str = "cpu",
        autocast: bool = False,
        compile: bool = False,
        uncut: Callable[[], nn.Module] | None = None,
        samples: Sequence[int] | None = None,
    ) -> None:
        check_integer("batch_size", batch_size)
        check_integer("accumulate", accumulate)
        check_integer("num_workers", num_workers, 0)
        if isinstance(data, Shards | Datasets) and clients is not None:
            raise Invalid(f"`clients` is only for `data` that is a function, got clients={clients!r}. Leave it out.")
        self.data = data if isinstance(data, Shards | Datasets) else client_data(data, clients)
        self.clients, self.ids = self.data.clients, self.data.ids
        original = module if isinstance(module, nn.Module) else None
        collate = checked_once(collate, "collate", original)
        self.noise, self.augment = noise, checked_once(augment, "augment", original)
        self.counts = checked_counts(samples, self.clients)
        self.loading = Loading(batch_size, accumulate, drop_last, num_workers, pin_memory, collate)
        self._may_repeat_tensors = collate is not None or isinstance(self.data, OwnBatches)  # in the next job
        self._check_loading()
        super().__init__(
            module, loss=loss, test=test, evaluate=evaluate, evaluate_batch=evaluate_batch, client_test=client_test,
            scores=scores, module_buffers=module_buffers, collate=collate, device=device, autocast=autocast,
            uncut=uncut, compile=compile,
        )  # fmt: skip
        self._draws_from_others = False  # from the generators of NumPy and Python
        self.groups = groups_of(self._template, parameter_groups) if parameter_groups else ()

    def _check_loading(self) -> None:
        """Raise `Invalid` for settings of a loader that have no effect."""
        unused = {Shards: ("num_workers", "pin_memory"), OwnBatches: ("num_workers", "pin_memory", "drop_last")}
        for name in unused.get(type(self.data), ()):
            if getattr(self.loading, name):
                what = "tensors in memory" if isinstance(self.data, Shards) else "batches of your own"
                raise Invalid(f"`{name}` has no effect on {what}. Leave it out.")

    def _move_to(self, device: str) -> None:
        super()._move_to(device)
        if isinstance(self.data, Shards):
            self.data = self.data.to(self.device)

    def _check_training_data(self) -> None:
        if isinstance(self.data, OwnBatches):
            super()._check_training_data()

    def _training_rows(self, client: int) -> Any:
        if isinstance(self.data, Shards):
            return tuple(tensor[self.data.rows[client]] for tensor in self.data.data)
        rows = None if isinstance(self.data, OwnBatches) else self.data[client]
        if rows is None or is_stream(rows):
            super()._check_training_data()
        return rows

    @property
    def counts_by_opening(self) -> bool:
        """Whether rows are counted by opening every client's dataset."""
        return self.counts is None and isinstance(self.data, Datasets) and self.data.open is not None

    def samples(self, client: int) -> int:
        """The number of a client's training rows; opens its dataset if nothing else says it."""
        if self.counts is not None:
            return self.counts[client]
        if isinstance(self.data, Shards):
            return self.data.rows[client].numel()
        if isinstance(self.data, OwnBatches) or is_stream(rows := self.data[client]):
            raise unknown_counts("a stream" if isinstance(self.data, Datasets) else "a function of the job")
        return len(rows)

    def batches(self, job: Job) -> Iterator[Batch]:
        """The batches of K steps or K epochs."""
        noise = job.stream("noise") if self.noise else None
        for step, data in enumerate(self.data.steps(job, self.loading)):
            drawn = self.noise.draw(noise, self.parameters) if self.noise and noise else None
            yield Batch(data, step, streams.key(job.seed, "dropout", job.client, job.serial, step), drawn)

    def gradient(self, x: Vector, batch: Batch, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        """F(x; ξ) without the noise, and ∇F(x; ξ) + noise; the thread's next call overwrites the gradient."""
        views = self._views(start=batch.step == 0)
        views.bind(x, module_buffers, training=True)
        views.clear_gradient()
        values, parts = [], len(batch.data)
        first = batch.step == 0 and bool(self._frozen)
        with self._first_jobs_checked() if first else _UNCHECKED:
            for part, data in enumerate(batch.data):
                key = batch.key if part == 0 else streams.key(batch.key, "accumulate", part)
                if not isinstance(self.data, Shards):  # those are there
                    data = to_device(data, self.device, copy=self._may_repeat_tensors)
                value = self._loss(views, data, key, x, module_buffers)
                value = value / parts if parts > 1 else value
                value.backward()  # type: ignore[no-untyped-call]
                values.append(value.detach())
        views.check_frozen("a pass")
        views.collect(module_buffers)
        if batch.noise is not None:
            views.g += batch.noise.to(self.device)
        return torch.stack(values).sum() if parts > 1 else values[0], views.g

    def _first_jobs_checked(self) -> AbstractContextManager[None]:
        """Looks at all bits of frozen parameters around the first steps of a thread's jobs 1, 2, 4, 8 …"""
        jobs = self._local.jobs = getattr(self._local, "jobs", 0) + 1
        return self._frozen_unchanged("a pass") if jobs & (jobs - 1) == 0 else _UNCHECKED

    def _loss(self, views: Views, data: Any, key: int, x: Vector, module_buffers: ModuleBuffers | None) -> Tensor:
        """The loss of one batch; random numbers of the module and the loss come from `key`.

        Seeding makes threads take turns, so it is left out while nothing has drawn any. The first pass shows which
        generators are used; if a later one is the first to draw from torch's, it is repeated with the key.
        """
        if not views.probed:
            views.probed, start = True, x.clone()
            with keyed(key), others_seeded(key):
                before, others = torch.get_rng_state(), other_states()
                value = self._forward(views, data, key)
                views.check_reached(value)
                self.draws_globally |= not torch.equal(before, torch.get_rng_state())
                self._draws_from_others |= others != other_states()
            if views.changed() or not torch.equal(start, x):  # then passes cannot be repeated
                self.draws_globally = True
            return value
        if not self.draws_globally and not self._draws_from_others:
            before, buffers_before = torch.get_rng_state(), module_buffers.clone() if module_buffers else None
            value = self._forward(views, data, key)
            if torch.equal(before, torch.get_rng_state()):
                return value
            self.draws_globally = True  # or another thread did, which costs only time
            if views.changed():
                rule = "a pass that keeps something on the module must draw its random numbers in the first pass too"
                raise Invalid(f"{rule}, got one that drew later. Keep what it needs in persistent buffers.")
            restore(before)
            for now, old in zip(module_buffers or (), buffers_before or (), strict=True):
                now.copy_(old)
            views.bind(x, module_buffers, training=True)
        with keyed(key), others_seeded(key) if self._draws_from_others else nullcontext():
            return self._forward(views, data, key)

    def _forward(self, views: Views, data: Any, key: int) -> Tensor:
        try:
            with self._precision():
                return self.forward(views.module, self._augmented(data, key), views.loss).loss
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            fix = "Use drop_last=True if the client has more rows, or GroupNorm in place of BatchNorm."
            raise Invalid(f"BatchNorm needs two rows or more in a batch, got one. {fix}") from error

    def _augmented(self, data: Any, key: int) -> Any:
        if not self.augment:
            return data
        if not isinstance(data, tuple | list):
            raise Invalid(
                f"`augment` needs batches (inputs..., target), got {type(data).__name__}. Augment in the dataset."
            )
        first, *rest = data
        return [self.augment(first, streams.generator(key, "augment")), *rest]

    def gradients(self, requests: Sequence[GradientRequest]) -> list[tuple[Tensor, Vector]]:
        """`gradient` of each (x, ξ); batches of equal shapes are computed together by torch.func."""
        plain = isinstance(self.data, Shards) and self.loss is not None and not self.forward.takes_module
        if not plain or self.loading.accumulate > 1 or self.compile:
            rule = (
                "jobs are computed together only with tensors as data, a loss of (output, target), accumulate=1 and "
                "compile=False"
            )
            raise Invalid(f"{rule}. {ONE_BY_ONE}")
        self._check_together()
        answers: list[tuple[Tensor, Vector] | None] = [None] * len(requests)
        same_size: dict[int, list[int]] = {}
        for i, (_, batch, _) in enumerate(requests):
            same_size.setdefault(len(batch.data[0][-1]), []).append(i)
        for places in same_size.values():
            values, gradients = self._together([requests[i][0] for i in places], [requests[i][1] for i in places])
            for i, value, g in zip(places, values, gradients, strict=True):
                noise = requests[i][1].noise
                answers[i] = value, g if noise is None else g + noise.to(self.device)
        return [answer for answer in answers if answer is not None]

    def _together(self, xs: list[Vector], batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """Losses and gradients; the first time, the first one is computed alone too, with all checks."""
        if alone := not hasattr(self._local, "together"):
            own = batches[0]._replace(noise=None, step=0, data=to_device(batches[0].data, self.device, copy=True))
            expected = TorchTask.gradient(self, xs[0].clone(), own, None)[1].clone()  # not that of a subclass
            self._check_together(changes=self._views().changed())
            self._local.together = Views(self._template, self.loss), None
        views, left = self._local.together  # what torch.func leaves in attributes, such as those of an LSTM
        views.bind(xs[0], None, training=True)
        try:
            values, gradients = self._vmapped(views, xs, batches)
        except RuntimeError as error:
            why = f"torch.func cannot: {type_and_first_line(error)}"
            raise Invalid(f"jobs cannot be computed together by this module, {why}. {ONE_BY_ONE}") from error
        views.check_frozen("a pass")
        self._local.together = views, views.state.changed()
        self._check_together(changes=left not in (None, views.state.changed()))
        limit = SAME_IN_BFLOAT16 if self.autocast else SAME_GRADIENT
        if alone and (gradients[0] - expected).norm() > limit * expected.norm():
            raise Invalid(
                f"jobs computed together must have the gradients that they have alone, got others. {ONE_BY_ONE}"
            )
        return values, gradients

    def _check_together(self, *, changes: bool = False) -> None:
        """Raise `Invalid` if the module has state or draws random numbers."""
        draws = self.draws_globally or self._draws_from_others
        if draws or changes or any(buffers(self._template)):
            what = "draws random numbers (dropout)" if draws else "keeps buffers (BatchNorm)"
            what = "changes its attributes" if changes else what
            rule = "jobs can be computed together only by a module without state"
            raise Invalid(f"{rule}, got one that {what}. {ONE_BY_ONE}")

    def _vmapped(self, views: Views, xs: list[Vector], batches: list[Batch]) -> tuple[Tensor, Tensor]:
        names, count = trainable(views.module), len(xs)
        parts = torch.split(torch.stack(xs), [p.numel() for p in names.values()], 1)
        weights = {name: part.view(count, *p.shape) for (name, p), part in zip(names.items(), parts, strict=True)}
        rows = [self._augmented(batch.data[0], batch.key) for batch in batches]
        stacked = tuple(torch.stack(each) for each in zip(*rows, strict=True))

        def loss(weights: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
            with self._precision():
                network: Any = lambda *inputs: functional_call(views.module, weights, inputs)  # noqa: E731
                return self.forward(network, batch, views.loss).loss.reshape(())

        grads: dict[str, Tensor]
        grads, values = vmap(grad_and_value(loss))(weights, stacked)
        return values, torch.cat([grads[name].reshape(count, -1) for name in names], 1)
