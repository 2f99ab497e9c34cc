"""Any optimizer of `torch.optim` as an inner step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_type_hints

import torch
from torch import Tensor

from tardygrad.constructors import conform
from tardygrad.core.schedules import Schedule
from tardygrad.core.transforms import ParameterGroup, State, Step, Transform
from tardygrad.errors import Invalid, nearest

Options = Mapping[str, bool | int | float | str | list[float] | None]
"""Keyword arguments of an optimizer, besides params and lr."""


@dataclass(frozen=True)
class Optimizer(Transform):
    """An optimizer of `torch.optim` as a transform: move = x − (x after the optimizer's step).

    The optimizer sees the model as one vector without layers, in parameter groups if the task has any.

    >>> step = Step(1, x=torch.tensor([1.0]))
    >>> move, state = Optimizer("AdamW", lambda round: 0.1).update(torch.tensor([2.0]), {}, step)
    >>> sorted(state)
    ['exp_avg', 'exp_avg_sq', 'step']
    """

    name: str
    lr: Schedule
    options: Options = field(default_factory=dict)

    scratch = 5  # copies of x, gradient and state, and the optimizer's own
    reads_groups = True

    def __post_init__(self) -> None:
        options, hints = dict(self.options), get_type_hints(_class(self.name).__init__)
        if "lr" in options:
            raise Invalid(f"`options` must not contain `lr`: set `local_lr`, got {options}.")
        for key, value in options.items():
            options[key] = conform(hints.get(key, Any), value, f"options.{key}")
        object.__setattr__(self, "options", options)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _, state = self.update(torch.ones(2), {}, Step(1, x=torch.ones(2)))
                move, _ = self.update(torch.ones(2), state, Step(1, x=torch.ones(2)))
            if not move.isfinite().all():
                raise ValueError("its first moves are not finite")
        except Exception as error:
            rule = f"torch.optim.{self.name} cannot be an inner step with these `options`"
            raise Invalid(f"{rule}, got {options}: {' '.join(str(error).split())}") from error

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        start = torch.zeros_like(direction) if step.x is None else step.x
        groups = step.groups or (ParameterGroup((slice(0, len(start)),), {}),)
        parts = [group.read(start) for group in groups]
        for part, group in zip(parts, groups, strict=True):
            part.grad = group.read(direction)
        own = [{"params": [part], **group.options} for part, group in zip(parts, groups, strict=True)]
        optimizer = _class(self.name)(own, **self.options, lr=self.lr(step.round))
        for key in (key for group in groups for key in group.options if key not in optimizer.defaults):
            fix = nearest(key, optimizer.defaults)
            raise Invalid(f"the parameter groups of torch.optim.{self.name} have no option `{key}`.{fix}")
        for part, group in zip(parts, groups, strict=True):
            if state:
                optimizer.state[part] = {
                    key: group.read(value) if value.shape == start.shape else value.clone()
                    for key, value in state.items()
                }
        optimizer.step()
        x, after = torch.empty_like(start), dict[str, Tensor]()
        for part, group in zip(parts, groups, strict=True):
            group.write(x, part)
            for key, value in optimizer.state[part].items():
                if value is None:
                    continue
                if not isinstance(value, Tensor):
                    raise Invalid(f"torch.optim.{self.name} cannot be an inner step: not all of its state is tensors.")
                if value.shape == part.shape and value.dim():
                    group.write(after.setdefault(key, torch.zeros_like(start, dtype=value.dtype)), value)
                else:
                    after[key] = value
        return start - x, after


def _class(name: str) -> Any:
    if not isinstance(name, str):
        raise Invalid(f"`optimizer` must be the name of a class of torch.optim, got {name!r}.")
    known = _known()
    if name not in known:
        same = {key.lower(): key for key in known}.get(name.lower())
        fix = f" Did you mean {same!r}?" if same else nearest(name, known)
        raise Invalid(f"`optimizer` must be a class of torch.optim, got {name!r}.{fix}")
    return known[name]


@cache
def _known() -> dict[str, Any]:
    """The optimizers of torch by their names."""
    return {
        key: kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
