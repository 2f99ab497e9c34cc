"""Any optimizer of `torch.optim` as an inner step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, get_type_hints

import torch
from torch import Tensor

from tardygrad.constructors import conform
from tardygrad.core.schedules import Schedule
from tardygrad.core.transforms import ParameterGroup, State, Step, Transform
from tardygrad.errors import Invalid, nearest

Options = Mapping[str, bool | int | float | str | list[float] | None]
"""Keyword arguments of an optimizer, besides params and lr."""


SCRATCH = 5  # temporary vectors: copies of x, gradient and state, and the optimizer's own


def optimizer(name: str, lr: Schedule, options: Options | None = None) -> Transform:
    """An optimizer of `torch.optim` as a transform: move = x − (x after the optimizer's step).

    The optimizer sees the model as one vector without layers, in parameter groups if the task has any.

    >>> step = Step(1, x=torch.tensor([1.0]))
    >>> move, state = optimizer("AdamW", lambda round: 0.1).update(torch.tensor([2.0]), {}, step)
    >>> sorted(state)
    ['exp_avg', 'exp_avg_sq', 'step']
    """
    if options is not None and not isinstance(options, Mapping):
        raise Invalid(f"`options` must be a table of arguments, got {options!r}.")
    make = _class(name)
    if "lr" in (options or {}):
        raise Invalid(f"`options` must not contain `lr`: set `local_lr`, got {dict(options or {})}.")
    hints = get_type_hints(make.__init__)
    given = {key: conform(hints.get(key, Any), value, f"options.{key}") for key, value in (options or {}).items()}

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        start = torch.zeros_like(direction) if step.x is None else step.x
        groups = step.groups or (ParameterGroup((slice(0, len(start)),), {}),)
        parts = [group.read(start) for group in groups]
        for part, group in zip(parts, groups, strict=True):
            part.grad = group.read(direction)
        own = [{"params": [part], **group.options} for part, group in zip(parts, groups, strict=True)]
        torch_optimizer = make(own, **given, lr=lr(step.round))
        for key in (key for group in groups for key in group.options if key not in torch_optimizer.defaults):
            fix = nearest(key, torch_optimizer.defaults)
            raise Invalid(f"the parameter groups of torch.optim.{name} have no option `{key}`.{fix}")
        for part, group in zip(parts, groups, strict=True):
            if state:
                torch_optimizer.state[part] = {
                    key: group.read(value) if value.shape == start.shape else value.clone()
                    for key, value in state.items()
                }
        torch_optimizer.step()
        x, after = torch.empty_like(start), dict[str, Tensor]()
        for part, group in zip(parts, groups, strict=True):
            group.write(x, part)
            for key, value in torch_optimizer.state[part].items():
                if value is None:
                    continue
                if not isinstance(value, Tensor):
                    raise Invalid(f"torch.optim.{name} cannot be an inner step: not all of its state is tensors.")
                if value.shape == part.shape and value.dim():
                    group.write(after.setdefault(key, torch.zeros_like(start, dtype=value.dtype)), value)
                else:
                    after[key] = value
        return start - x, after

    text = f"optimizer({name!r}, {lr}, {dict(options or {})})"
    transform = Transform(lambda x: {}, update, text, scratch=SCRATCH, reads_groups=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, state = transform.update(torch.ones(2), {}, Step(1, x=torch.ones(2)))
            move, _ = transform.update(torch.ones(2), state, Step(1, x=torch.ones(2)))
        if not move.isfinite().all():
            raise ValueError("its first moves are not finite")
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, LookupError, ArithmeticError) as error:
        reason, rule = " ".join(str(error).split()), f"torch.optim.{name} cannot be an inner step with these `options`"
        raise Invalid(f"{rule}, got {dict(options or {})}: {reason}") from error
    return transform


def _class(name: str) -> Any:
    if not isinstance(name, str):
        raise Invalid(f"`optimizer` must be the name of a class of torch.optim, got {name!r}.")
    known = {
        key: kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if name not in known:
        same = {key.lower(): key for key in known}.get(name.lower())
        fix = f" Did you mean {same!r}?" if same else nearest(name, known)
        raise Invalid(f"`optimizer` must be a class of torch.optim, got {name!r}.{fix}")
    return known[name]
