"""A module as a vector, and its evaluation: what tasks around a `torch.nn.Module` share."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from tardygrad import streams
from tardygrad.constructors import remember
from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.core.task import Task
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.seeding import keyed, seeded
from tardygrad.tasks.data.client_data import Collate
from tardygrad.tasks.data.held_out import ClientTests, HeldOut
from tardygrad.tasks.forward import Forward, Loss, to_device
from tardygrad.tasks.module_state import fingerprint
from tardygrad.tasks.original_module import checked_once
from tardygrad.tasks.pretrained import save
from tardygrad.tasks.scores import Metrics, Scores, check_scores, checked
from tardygrad.tasks.torch_settings import settings_restored
from tardygrad.tasks.views import (
    Views,
    buffers,
    check,
    copied,
    draws,
    flat_buffers,
    flatten,
    overrides_train_or_eval,
    start_training,
    trainable,
)  # fmt: skip

Evaluate = Callable[[nn.Module, Any], Mapping[str, float]]
"""(module, test) to scores by name."""


class ModuleTask(Task):
    """The part of a task that knows the module: x_0, buffers, evaluation. Each thread has a copy of the module."""

    ids: tuple[str, ...] | None
    tokenizer: Any = None  # of a language model, if it is known; `save_pretrained` saves it too

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        loss: Loss | None,
        test: Any,
        evaluate: Evaluate | None,
        evaluate_batch: int,
        client_test: Any,
        scores: Scores | Mapping[str, Any] | None,
        module_buffers: Literal["average", "refuse"],
        collate: Collate | None,
        device: str,
        autocast: bool,
        uncut: Callable[[], nn.Module] | None,
        compile: bool = False,
    ) -> None:
        check_integer("evaluate_batch", evaluate_batch)
        check_choice("module_buffers", module_buffers, Literal["average", "refuse"])
        self.loss, self.forward, self.test, self.autocast = loss, Forward(loss), test, autocast
        self._uncut, self.compile = uncut, compile
        for name, function in (("evaluate", evaluate), ("collate", collate)):
            if not (function is None or callable(function)):
                raise Invalid(f"`{name}` must be a function, got {function!r}.")
        check_scores(scores)
        if evaluate is not None and scores is not None:
            raise Invalid("`scores` have no effect beside `evaluate`, which computes its own. Leave out one of them.")
        if scores is not None and self.forward.takes_module:
            rule = "`scores` need outputs and targets, which a loss of (module, batch) does not name"
            raise Invalid(f"{rule}. Use a loss of (output, target), or evaluate=... in place of `scores`.")
        self._factory = None if isinstance(module, nn.Module) else module
        original = module if isinstance(module, nn.Module) else None
        self._evaluate: Evaluate | None = checked_once(evaluate, "evaluate", original)
        self.scores: Scores | Mapping[str, Any] | None = checked_once(scores, "scores", original)
        self._collate: Collate | None = checked_once(collate, "collate", original)
        self._held_out = None if test is None else HeldOut(test, evaluate_batch, self._collate)
        self._evaluate_batch = evaluate_batch
        self._client_tests = None if client_test is None else ClientTests(client_test, self.clients, self.ids)
        given = module if isinstance(module, nn.Module) else self._make(0)
        check(given, self.forward.loss)  # before the copy, in which parameters no longer share memory
        if device == "meta":
            raise Invalid("`device` must be one that computes, got 'meta'. Use 'cpu'.")
        self._overrides_modes = overrides_train_or_eval(given)
        # otherwise `train` may change frozen parameters that are shared
        shared = device == "cpu" and (given.training or not self._overrides_modes)
        self._template = copied(given, share_frozen=shared)
        start_training(self._template)
        self._move_to(device)
        floats, ints = buffers(self._template)
        if module_buffers == "refuse" and (floats or ints):
            name = next(iter(floats | ints))
            owner = type(self._template.get_submodule(name.rpartition(".")[0])).__name__
            raise Invalid(
                f"module_buffers='refuse' allows no buffers, got `{name}` of {owner}. Use GroupNorm or LayerNorm."
            )
        self._shapes = [p.shape for p in trainable(self._template).values()]
        self._names = list(trainable(self._template))
        self._frozen = [name for name, p in self._template.named_parameters() if not p.requires_grad]
        self._fingerprints: dict[str, tuple[Any, ...]] = {}  # of frozen parameters, before user code
        self.parameters = sum(shape.numel() for shape in self._shapes)
        self.draws_globally = draws(self._template)  # such as dropout: then threads take turns in forward passes
        self._local = threading.local()

    @property
    def can_evaluate(self) -> bool:
        """Whether there is a test set, or an evaluation that brings its own."""
        return self._held_out is not None or self._evaluate is not None

    def __repr__(self) -> str:
        name = type(self._template).__name__
        return f"{type(self).__name__}({name}, parameters={self.parameters}, clients={self.clients})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def to(self, device: str) -> Self:
        """The same task on another device."""
        moved = copy.copy(self)
        moved._template, moved._local = copied(self._template), threading.local()
        moved._move_to(device)
        return remember(moved, None)  # its recipe may say another device

    def _move_to(self, device: str) -> None:
        try:
            self.device = torch.device(device)
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
            raise Invalid(f"`device` must be one that torch can use here, got {device!r}. Use 'cpu'.") from error
        if self._held_out is not None:
            self._held_out = self._held_out.to(self.device)
            self.test = self._held_out.tensors or self.test
        self._template.to(self.device)

    def init(self, seed: int) -> Vector:
        """x_0; frozen parameters and buffers always come from seed 0."""
        module = self._template if self._factory is None or seed == 0 else self._make(seed)
        parameters = trainable(module).values()
        if [p.shape for p in parameters] != self._shapes:
            raise Invalid(f"a module factory must return the same shapes every time, got others for seed {seed}.")
        return flatten(parameters).to(self.device)

    def init_module_buffers(self) -> ModuleBuffers | None:
        return flat_buffers(self._template)

    def frozen(self) -> dict[str, Tensor]:
        """Frozen parameters and constant buffers: not in the vector, and the same in all processes of a run."""
        template, persistent = self._template, self._template.state_dict().keys()
        parameters = {name: p for name, p in template.named_parameters() if not p.requires_grad}
        return parameters | {name: b for name, b in template.named_buffers() if name not in persistent}

    def module_bytes(self) -> tuple[int, int]:
        """The bytes of the network, and of its buffers alone."""
        buffers = sum(tensor.nbytes for tensor in self._template.buffers())
        return sum(p.nbytes for p in self._template.parameters()) + buffers, buffers

    def module(self, x: Vector, module_buffers: ModuleBuffers | None = None) -> nn.Module:
        """A copy of the network with the parameters x, in evaluation mode."""
        return self._network(x, module_buffers).eval()

    def _network(self, x: Vector, module_buffers: ModuleBuffers | None) -> nn.Module:
        views = self._views(start=True)
        if self._uncut is not None:
            with keyed(0):  # its initial weights are overwritten
                views = Views(self._uncut().to(self.device))
        views.bind(x.to(self.device), module_buffers, training=True)
        return copied(views.module)

    def save_pretrained(
        self,
        x: Vector,
        folder: str | Path,
        module_buffers: ModuleBuffers | None = None,
        *,
        facts: str = "",
        overwrite: bool = False,
    ) -> list[Path]:
        """Save the network with the parameters x so that `from_pretrained` loads it, and return the files.

        Args:
            x: the parameters, such as `run.x`.
            folder: where; created if it does not exist.
            module_buffers: `run.module_buffers`, if the network has any.
            facts: Markdown for the model card, such as `run.facts()`.
            overwrite: whether the folder may have files; those of an earlier export are removed, others stay.
        """
        module = self._network(x, module_buffers)  # in training mode: `eval` may merge adapters
        return save(module, Path(folder), tokenizer=self.tokenizer, facts=facts, overwrite=overwrite)

    @torch.no_grad()
    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """The mean loss on the test set and `scores`, or the accuracy in [0, 1] if targets are classes."""
        if not self.can_evaluate:
            raise Invalid("evaluating needs a test set, got none. Give the task test=(inputs..., target).")
        with seeded(streams.key(0, "evaluate")):  # datasets may augment rows, and modules may draw
            test = self._held_out.data if self._held_out else None
            return self._scores_on(test, self._held_out, x, module_buffers)

    def higher_is_better(self) -> dict[str, bool]:
        """What the metrics in `scores` say of themselves, as those of torchmetrics do."""
        metrics = self.scores.items() if isinstance(self.scores, Mapping) else ()
        known = {name: getattr(metric, "higher_is_better", None) for name, metric in metrics}
        return {name: higher for name, higher in known.items() if isinstance(higher, bool)}

    def evaluates_on(self) -> str:
        """Which rows of a client `evaluate_client` uses: "test" or "training"."""
        if self._client_tests is None:
            self._check_training_data()
        return "training" if self._client_tests is None else "test"

    def _check_training_data(self) -> None:
        """Raise `Invalid` unless the training data of clients have rows that can be evaluated."""
        rule = "`evaluate_clients` needs rows of each client, and this task's training data have none"
        raise Invalid(f"{rule} that can be read again. Give the task client_test=...")

    def _training_rows(self, client: int) -> Any:
        """A client's training data."""
        self._check_training_data()

    @torch.no_grad()
    def evaluate_client(self, client: int, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """Scores on the client's own test set, or else on its training data; empty if it has no test set."""
        with seeded(streams.key(0, "evaluate", client)):  # datasets may augment rows
            rows = self._client_tests[client] if self._client_tests else self._training_rows(client)
            if rows is None:
                return {}
            held_out = HeldOut(rows, self._evaluate_batch, self._collate).to(self.device)
            return self._scores_on(held_out.tensors or rows, held_out, x, module_buffers)

    def _scores_on(
        self, test: Any, held_out: HeldOut | None, x: Vector, module_buffers: ModuleBuffers | None
    ) -> dict[str, float]:
        # what an own evaluation or an own `eval()` does to the module must not outlive it
        fresh, shared = self._evaluate is not None or self._overrides_modes, not self._overrides_modes
        views = Views(self._template, self.loss, share_frozen=shared) if fresh else self._views(start=True)
        views.bind(x.clone(), module_buffers, training=False)
        tensors = (held_out.tensors if held_out else None) or ()
        versions = [tensor._version for tensor in tensors]
        if self._evaluate is not None:
            with settings_restored(), self._precision(), self._frozen_unchanged("`evaluate`"):
                scores = checked(self._evaluate(views.module, test), "evaluate")
        else:
            assert held_out is not None
            metrics = Metrics(self.scores, token_loss=self.loss is None)
            for given, rows in held_out.batches():
                batch = to_device(given, self.device, copy=held_out.may_repeat_tensors)
                with self._precision():
                    metrics.add(batch, self.forward(views.module, batch, views.loss), rows)
            scores = metrics.compute()
            views.check_frozen("an evaluation")
        if versions != [tensor._version for tensor in tensors]:
            fix = "Use an operation that is not in place, such as relu(x) in place of relu_(x)."
            raise Invalid(f"an evaluation must not change the test set, got another one after it. {fix}")
        return scores

    @contextmanager
    def _frozen_unchanged(self, who: str) -> Iterator[None]:
        """Raise `Invalid` if user code changes frozen parameters: all jobs of a process share them."""
        self._fingerprints = self._fingerprints or self._frozen_fingerprints()
        yield
        for name, now in self._frozen_fingerprints().items():
            if now != self._fingerprints[name]:
                fix = "Work on copy.deepcopy(module), keep what changes in a buffer, or train the parameter."
                raise Invalid(f"{who} must not change frozen parameters, which all jobs share, got `{name}`. {fix}")

    def _frozen_fingerprints(self) -> dict[str, tuple[Any, ...]]:
        return {name: fingerprint(self._template.get_parameter(name)) for name in self._frozen}

    def _make(self, seed: int) -> nn.Module:
        with keyed(streams.key(seed, "init")):
            module = self._factory() if callable(self._factory) else self._factory
        if not isinstance(module, nn.Module):
            raise Invalid(f"`module` must be a module, or a function that returns one, got {type(module).__name__}.")
        return module

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def _views(self, *, start: bool = False) -> Views:
        """The calling thread's copy of the module and the loss.

        Args:
            start: whether it must be as it was given, as at the start of a job or an evaluation.
        """
        views: Views | None = getattr(self._local, "views", None)
        if views is None or (start and not views.is_as_given()):
            views = self._local.views = Views(self._template, self.loss, compiled=self.compile)
        return views
