"""From a batch to its loss. The structure of the batch and the form of the loss decide how the module is called.

loss(output, target)    a batch (inputs..., target): module(*inputs); or named inputs with `labels`
loss(module, batch)     any batch; recognised by its first parameter, named `module` or `model`
no loss                 module(**batch), module(*batch) or module(batch) returns an output with a `loss`, as
                        `transformers` does
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tardygrad.errors import Invalid

Loss = Callable[[Any, Any], Tensor]
"""(output, target) or (module, batch) to the mean loss of the batch."""


OWN_LOSS = "Or use a loss of (module, batch), whose first parameter is named `module`."


class Result(NamedTuple):
    """A batch's loss, and what it was computed from, where that is known."""

    loss: Tensor
    output: Any = None
    target: Any = None


class Forward:
    """Calls a module on a batch, and computes the loss.

    Args:
        loss: None takes the module's own.
    """

    def __init__(self, loss: Loss | None) -> None:
        if isinstance(loss, type) or not (loss is None or callable(loss)):
            got = f"the class {loss.__name__}. Use {loss.__name__}()." if isinstance(loss, type) else f"{loss!r}."
            raise Invalid(f"`loss` must be a function of (output, target) or of (module, batch), got {got}")
        if isinstance(loss, nn.Module) and (own := [n for n, p in loss.named_parameters() if p.requires_grad]):
            rule = "`loss` must have no parameters of its own, which nothing would train"
            fix = (
                "Make it a part of the module, and use a loss of (module, batch); or freeze it: requires_grad_(False)."
            )
            raise Invalid(f"{rule}, got `{own[0]}` in {type(loss).__name__}. {fix}")
        self.loss = loss
        self.takes_module = loss is not None and first_parameter(loss) in ("module", "model")

    def __call__(self, module: nn.Module, batch: Any, loss: Loss | None = None) -> Result:
        """The loss of a batch.

        Args:
            loss: a copy of the loss.
        """
        loss = loss or self.loss
        if loss is None:
            return self._own_loss(module, batch)
        if self.takes_module:
            return Result(_one_number(loss(module, batch)))
        if isinstance(batch, Mapping):
            if "labels" not in batch:
                rule = "a loss of (output, target) needs the target under `labels` in a batch with names"
                raise Invalid(f"{rule}, got {', '.join(batch)}. {OWN_LOSS}")
            target = batch["labels"]
            named = {name: value for name, value in batch.items() if name != "labels"}
            try:
                output = module(**named)
            except TypeError:
                _check_names(module, named)
                raise
        elif isinstance(batch, tuple | list):
            *inputs, target = batch
            output = module(*inputs)
        else:
            rule = "a loss of (output, target) needs batches (inputs..., target) or with names"
            raise Invalid(f"{rule}, got {type(batch).__name__}. {OWN_LOSS}")
        output = getattr(output, "logits", output)
        return Result(_one_number(loss(output, target)), output, target)

    def _own_loss(self, module: nn.Module, batch: Any) -> Result:
        named = dict(batch) if isinstance(batch, Mapping) else {}
        inputs = () if named else batch if isinstance(batch, tuple | list) else (batch,)
        _check_names(module, named)
        try:
            signature(module.forward).bind(*inputs, **named)
        except TypeError as error:
            rule = f"without `loss`, {type(module).__name__} is called with the whole batch, targets included"
            raise Invalid(f"{rule}, and does not take it ({error}). Give the task a loss.") from error
        output = module(*inputs, **named)
        value = getattr(output, "loss", None)
        if value is None:
            rule = f"without `loss`, {type(module).__name__} must return an output with a `loss`"
            got = f"{type(output).__name__} without one" if isinstance(output, Mapping) else type(output).__name__
            raise Invalid(f"{rule}, got {got}. Put `labels` in the batch, or give the task a loss.")
        target = batch.get("labels") if isinstance(batch, Mapping) else None
        return Result(_one_number(value), getattr(output, "logits", None), target)


def _check_names(module: nn.Module, named: Mapping[str, Any]) -> None:
    """Raise `Invalid` if a batch has a column that the module does not take, such as the ids of users."""
    known = signature(module.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        return
    names = [parameter.name for parameter in known]
    for name in named:
        if name not in names:
            rule = f"the columns of a batch, but for `labels`, are arguments of {type(module).__name__}.forward"
            fix = "Remove that column from the rows; if it says whose rows they are, use shard(rows, by=its values)."
            raise Invalid(f"{rule} ({', '.join(names)}), got `{name}`. {fix}")


def _one_number(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {list(value.shape)}. Use reduction='mean'." if isinstance(value, Tensor) else None
        raise Invalid(f"`loss` must return a tensor with one number, got {got or type(value).__name__ + '.'}")
    return value


def first_parameter(function: Callable[..., Any]) -> str:
    """The name of a function's first parameter; empty if it has none."""
    try:
        return next(iter(signature(function).parameters), "")
    except ValueError:  # a function written in C
        return ""


def to_device(batch: Any, device: torch.device, *, copy: bool = False) -> Any:
    """The batch on a device, in the same structure.

    Args:
        copy: whether its tensors are always copied, since they may be used again, and a module may change its input.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, copy=copy)
    if hasattr(batch, "to"):  # a batch that knows how, such as BatchEncoding
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device, copy=copy) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device, copy=copy) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: to_device(getattr(batch, f.name), device, copy=copy) for f in fields(batch)})
    return batch


def rows_of(batch: Any) -> int:
    """The number of rows of a batch: the length of its first tensor that has one; 0 if none has."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif is_dataclass(batch) and not isinstance(batch, type):
        batch = [getattr(batch, f.name) for f in fields(batch)]
    if isinstance(batch, tuple | list):
        return next((n for n in map(rows_of, batch) if n), 0)
    return 0
