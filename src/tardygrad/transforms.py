"""Inner and outer steps, as one type: a pair of pure functions that turn a direction into a move.

The client walks a gradient down (x − move), the server walks a delta up (x + move); a transform does not care which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from tardygrad import clipping
from tardygrad.clipping import Norm
from tardygrad.errors import Invalid
from tardygrad.kernels import Form
from tardygrad.schedules import Constant, Schedule

State = dict[str, Tensor]
"""What a transform remembers between steps: named tensors, so that every optimizer state is a checkpoint as it is."""


class Step(NamedTuple):
    """The context of one step."""

    round: int  # the client's: the round it pulled; the server's: the round it makes
    delays: tuple[int, ...] = ()  # the server's: p of every update in the buffer


def _no_form(round: int) -> Form | None:
    return None


@dataclass(frozen=True)
class Transform:
    """A direction becomes a move.

    Args:
        init: the vector about to be walked, to a first state.
        update: (direction, state, step) to (move, next state); changes none of its arguments.
        text: the call that made it.
        form: of a round, the same as one clip and one rate, if that is all there is to it; see `tardygrad.kernels`.
    """

    init: Callable[[Tensor], State] = field(repr=False)
    update: Callable[[Tensor, State, Step], tuple[Tensor, State]] = field(repr=False)
    text: str = "Transform(...)"
    form: Callable[[int], Form | None] = field(default=_no_form, repr=False)

    def __repr__(self) -> str:
        return self.text


def stateless(x: Tensor) -> State:
    """The first state of a transform that needs none."""
    return {}


def scale(lr: Schedule) -> Transform:
    """move = η · direction."""

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        return direction * lr(step.round), state

    return Transform(stateless, update, f"scale({lr})", lambda round: Form(lr=lr(round)))


def clip(upper: Schedule, lower: Schedule = Constant(0.0), norm: Norm = "coordinate") -> Transform:
    """move = Clip(u, direction), or BiClip with a lower threshold d > 0.

    The state holds `clipped`: the share of coordinates that the last step changed.
    """
    if norm not in ("coordinate", "l2"):
        raise Invalid(f"`norm` must be 'coordinate' or 'l2', got {norm!r}.")
    if lower(1) > upper(1):
        raise Invalid(f"a lower threshold must not exceed the upper one ({upper(1):g}), got {lower(1):g}.")
    function = clipping.clip if norm == "coordinate" else clipping.clip_l2

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        move = function(direction, upper(step.round), lower(step.round))
        changed = (move != direction).sum() / max(direction.numel(), 1)
        return move, {"clipped": changed}

    text = f"clip({upper}, lower={lower}, norm={norm!r})"
    form = None if norm == "l2" else lambda round: Form(upper(round), lower(round))
    return Transform(stateless, update, text, form or _no_form)


def chain(*transforms: Transform) -> Transform:
    """One transform after the other: the move of each is the direction of the next."""

    stateful = [(i, transform) for i, transform in enumerate(transforms) if transform.init is not stateless]

    def init(x: Tensor) -> State:
        return {f"{i}.{name}": value for i, transform in stateful for name, value in transform.init(x).items()}

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        after: State = {}
        for i, transform in enumerate(transforms):
            own = {name.removeprefix(f"{i}."): value for name, value in state.items() if name.startswith(f"{i}.")}
            direction, own = transform.update(direction, own, step)
            after |= {name if name == "clipped" else f"{i}.{name}": value for name, value in own.items()}
        return direction, after

    def form(round: int) -> Form | None:
        first, *rest = (transform.form(round) for transform in transforms)
        if first is None or len(rest) != 1 or rest[0] is None or (first.lr, *rest[0][:2]) != (1.0, *Form()[:2]):
            return None
        return Form(first.upper, first.lower, rest[0].lr)  # a clip, then a rate

    return Transform(init if stateful else stateless, update, f"chain({', '.join(map(repr, transforms))})", form)


def clipped_share(state: State) -> Tensor | float:
    """The share of coordinates that the last step's clip changed, of the last clip if there are several; 0 without."""
    return state.get("clipped", 0.0)
