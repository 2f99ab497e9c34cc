"""Any module, loss and data as a task: the vector is the concatenation of the module's trainable parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from tardygrad import streams
from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.core.task import GradientRequest
from tardygrad.errors import Invalid, check_choice, check_integer, checked_call
from tardygrad.tasks.data.sharding import Data, Shards, tensors
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.views import Views, buffers, check, copied, draws, flatten, keyed, trainable

Loss = Callable[[Any, Tensor], Tensor]
"""(output, target) to the mean loss of the batch; usually from torch.nn.functional."""

Scores = Callable[[Tensor, Tensor], dict[str, float]]
"""(outputs, targets) of the whole test set to scores by name."""

Augment = Callable[[Tensor, np.random.Generator], Tensor]
"""(first input of a training batch, the step's generator) to the augmented input."""


class Batch(NamedTuple):
    """ξ_{i,k}: everything that is random in one local step."""

    rows: Tensor  # indices into the data
    key: int  # of the module's own random numbers (dropout) and of the augmentation
    noise: Vector | None  # added to the gradient


class TorchTask:
    """A task from your own module, loss and data.

    Gradients are bit-identical to those of a plain torch loop. The module itself never changes: each thread works on a
    deep copy. Frozen parameters are not in the vector and never change; tied weights appear once.

    Args:
        module: a module, whose weights are x_0; or a function without arguments that creates one, with x_0 by the seed.
        loss: (output, target) to the mean loss of the batch.
        shards: the training data and each client's rows, made by `shard`.
        test: the test set; without it nothing can be evaluated.
        batch_size: rows per local step; the last batch of an epoch may be smaller.
        noise: heavy-tailed noise added to every gradient.
        module_buffers: "average" persistent buffers (BatchNorm) over a round's updates, or "refuse" modules with any.
        evaluate_batch: rows per batch of an evaluation.
        scores: computes scores of the test set besides the loss; None is the accuracy, if targets are classes.
        augment: changes the inputs of every training batch, like `crop_and_flip` of `tardygrad.tasks.data.pixels`.
        device: the torch device of data, vectors and module.
        autocast: run forward passes in bfloat16 where torch considers it safe; vectors stay float32.
        uncut: creates the whole network if `module` is only its last layers; None if it is complete.

    >>> from tardygrad.tasks import shard
    >>> data = (torch.randn(20, 3), torch.arange(20) % 2)
    >>> TorchTask(nn.Linear(3, 2), loss=nn.functional.cross_entropy, shards=shard(data, clients=4))
    TorchTask(Linear, parameters=8, clients=4)
    """

    @checked_call
    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        loss: Loss,
        shards: Shards,
        test: Data | None = None,
        batch_size: int = 32,
        noise: Noise | None = None,
        module_buffers: Literal["average", "refuse"] = "average",
        evaluate_batch: int = 1024,
        scores: Scores | None = None,
        augment: Augment | None = None,
        device: str = "cpu",
        autocast: bool = False,
        uncut: Callable[[], nn.Module] | None = None,
    ) -> None:
        check_integer("batch_size", batch_size)
        check_integer("evaluate_batch", evaluate_batch)
        if not isinstance(shards, Shards):
            raise Invalid(f"`shards` must be made by shard(data, clients=...), got {type(shards).__name__}.")
        if isinstance(loss, type) or not callable(loss):
            got = f"the class {loss.__name__}. Use {loss.__name__}()." if isinstance(loss, type) else f"{loss!r}."
            raise Invalid(f"`loss` must be a function of (output, target), got {got}")
        check_choice("module_buffers", module_buffers, Literal["average", "refuse"])
        self.loss, self.noise, self.augment, self.autocast = loss, noise, augment, autocast
        self.scores, self._uncut = scores, uncut
        self.shards, self.test = shards, None if test is None else tensors(test)
        self.batch_size, self.evaluate_batch = batch_size, evaluate_batch
        self._factory = None if isinstance(module, nn.Module) else module
        given = module if isinstance(module, nn.Module) else self._make(0)
        check(given)  # before the copy, in which parameters no longer share memory
        self._template = copied(given)
        self._move_to(device)
        floats, ints = buffers(self._template)
        if module_buffers == "refuse" and (floats or ints):
            name = next(iter(floats | ints))
            owner = type(self._template.get_submodule(name.rpartition(".")[0])).__name__
            raise Invalid(
                f"module_buffers='refuse' allows no buffers, got `{name}` of {owner}. Use GroupNorm or LayerNorm."
            )
        self._shapes = [p.shape for p in trainable(self._template).values()]
        self.clients, self.parameters = shards.clients, sum(shape.numel() for shape in self._shapes)
        self.draws_globally = draws(self._template)  # such as dropout: then threads take turns in forward passes
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"TorchTask({type(self._template).__name__}, parameters={self.parameters}, clients={self.clients})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def to(self, device: str) -> Self:
        """The same task on another device."""
        moved = copy.copy(self)
        moved._template = copied(self._template)
        moved._move_to(device)
        return moved

    def _move_to(self, device: str) -> None:
        self.device = _device(device)
        self.shards = replace(self.shards, data=tuple(t.to(self.device) for t in self.shards.data))
        self.test = self.test and tuple(t.to(self.device) for t in self.test)
        self._template.to(self.device)

    def init(self, seed: int) -> Vector:
        """x_0; frozen parameters and buffers always come from seed 0."""
        module = self._template if self._factory is None or seed == 0 else self._make(seed)
        parameters = trainable(module).values()
        if [p.shape for p in parameters] != self._shapes:
            raise Invalid(f"a module factory must return the same shapes every time, got others for seed {seed}.")
        return flatten(parameters).to(self.device)

    def init_module_buffers(self) -> ModuleBuffers | None:
        floats, ints = buffers(self._template)
        if not floats and not ints:
            return None
        return ModuleBuffers(flatten(floats.values()), flatten(ints.values(), torch.int64))

    def module(self, x: Vector, module_buffers: ModuleBuffers | None = None) -> nn.Module:
        """A copy of the network with the parameters x, in evaluation mode."""
        views = self._views()
        if self._uncut is not None:
            with keyed(0):  # its initial weights are overwritten
                views = Views(self._uncut().to(self.device))
        own = ModuleBuffers(*(flat.to(self.device, copy=True) for flat in module_buffers)) if module_buffers else None
        views.bind(x.to(self.device), own, training=False)
        return copied(views.module)

    def batches(self, job: Job) -> Iterator[Batch]:
        """The batches of K steps or K epochs."""
        noise = job.stream("noise") if self.noise else None
        each = -(-len(self.shards.rows[job.client]) // self.batch_size)
        count = (job.epochs or 0) * each if job.steps is None else job.steps
        for step, rows in zip(range(count), self._shuffled_batches(job), strict=False):
            drawn = self.noise.draw(noise, self.parameters) if self.noise and noise else None
            yield Batch(rows, streams.key(job.seed, "dropout", job.client, job.serial, step), drawn)

    def _shuffled_batches(self, job: Job) -> Iterator[Tensor]:
        """The client's rows in batches, endlessly, each pass in a new order."""
        rng, mine = job.stream("batches"), self.shards.rows[job.client]
        while True:
            yield from torch.split(mine[torch.from_numpy(rng.permutation(len(mine)))], self.batch_size)

    def gradient(self, x: Vector, batch: Batch, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        """F(x; ξ) without the noise, and ∇F(x; ξ) + noise; the thread's next call overwrites the gradient."""
        views = self._views()
        views.bind(x, module_buffers, training=True)
        views.g.zero_()
        with keyed(batch.key) if self.draws_globally or not views.probed else nullcontext():
            before = None if views.probed else torch.get_rng_state()
            *inputs, target = self._rows(batch)
            with self._precision():
                value = self.loss(views.module(*inputs), target)
            if before is not None:
                self.draws_globally |= not torch.equal(before, torch.get_rng_state())
                views.probed = True
        if value.numel() != 1:
            raise Invalid(f"`loss` must return one number, got shape {list(value.shape)}. Use reduction='mean'.")
        value.backward()  # type: ignore[no-untyped-call]
        views.write_back(module_buffers)
        if batch.noise is not None:
            views.g += batch.noise.to(self.device)
        return value.detach(), views.g

    def gradients(self, requests: Sequence[GradientRequest]) -> list[tuple[Tensor, Vector]]:
        """`gradient` of each (x, ξ); batches of equal size are computed together by torch.func."""
        if self.draws_globally or any(buffers(self._template)):
            what = "draws random numbers (dropout)" if self.draws_globally else "keeps buffers (BatchNorm)"
            raise Invalid(f"jobs can be computed together only by a module without state, got one that {what}.")
        answers: list[tuple[Tensor, Vector] | None] = [None] * len(requests)
        same_size: dict[int, list[int]] = {}
        for i, (_, batch, _) in enumerate(requests):
            same_size.setdefault(len(batch.rows), []).append(i)
        for places in same_size.values():
            values, gradients = self._vmapped([requests[i][0] for i in places], [requests[i][1] for i in places])
            for i, value, g in zip(places, values, gradients, strict=True):
                noise = requests[i][1].noise
                answers[i] = value, g if noise is None else g + noise.to(self.device)
        return [answer for answer in answers if answer is not None]

    def _vmapped(self, xs: list[Vector], batches: list[Batch]) -> tuple[Tensor, Tensor]:
        module, count = self._views().module.train(), len(xs)
        names = trainable(module)
        parts = torch.split(torch.stack(xs), [p.numel() for p in names.values()], 1)
        weights = {name: part.view(count, *p.shape) for (name, p), part in zip(names.items(), parts, strict=True)}
        *inputs, target = (torch.stack(each) for each in zip(*(self._rows(batch) for batch in batches), strict=True))

        def loss(weights: dict[str, Tensor], target: Tensor, *inputs: Tensor) -> Tensor:
            with self._precision():
                return self.loss(functional_call(module, weights, inputs), target)

        grads: dict[str, Tensor]
        grads, values = vmap(grad_and_value(loss))(weights, target, *inputs)
        return values, torch.cat([grads[name].reshape(count, -1) for name in names], 1)

    def _rows(self, batch: Batch) -> list[Tensor]:
        """A batch's inputs and target."""
        inputs = [tensor[batch.rows] for tensor in self.shards.data]
        if self.augment:
            inputs[0] = self.augment(inputs[0], streams.generator(batch.key, "augment"))
        return inputs

    @torch.no_grad()
    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """The mean loss on the test set and `scores`, or the accuracy in [0, 1] if targets are classes."""
        if self.test is None:
            raise Invalid("evaluating needs a test set, got none. Give the task test=(inputs..., target).")
        views = self._views()
        views.bind(
            x, ModuleBuffers(*(flat.clone() for flat in module_buffers)) if module_buffers else None, training=False
        )
        loss, right, count = 0.0, 0, len(self.test[-1])
        classes, outputs = False, []
        for *inputs, target in zip(*(torch.split(tensor, self.evaluate_batch) for tensor in self.test), strict=True):
            with self._precision():
                output = views.module(*inputs)
                loss += float(self.loss(output, target)) * len(target)
            classes = _classes(output, target)
            right += int((output.argmax(1) == target).sum()) if classes else 0
            outputs += [output] if self.scores else []
        scores = {"loss": loss / count}
        if self.scores:
            return scores | self.scores(torch.cat(outputs), self.test[-1])
        return scores | {"accuracy": right / count} if classes else scores

    def _make(self, seed: int) -> nn.Module:
        with keyed(streams.key(seed, "init")):
            module = self._factory() if callable(self._factory) else self._factory
        if not isinstance(module, nn.Module):
            raise Invalid(f"`module` must be a module, or a function that returns one, got {type(module).__name__}.")
        return module

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def _views(self) -> Views:
        """The calling thread's copy of the module."""
        if not hasattr(self._local, "views"):
            self._local.views = Views(self._template)
        views: Views = self._local.views
        return views


def _classes(output: Any, target: Tensor) -> bool:
    whole_numbers = not target.is_floating_point() and target.dtype != torch.bool
    return isinstance(output, Tensor) and output.dim() == 2 and target.dim() == 1 and whole_numbers


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise Invalid(f"`device` must be one that torch can use here, got {name!r}. Use 'cpu'.") from error
    return device
