"""Inner and outer steps as one type, `Transform`: a pair of pure functions that turn a direction into a move.

The client subtracts the move of a gradient (x − move), the server adds the move of a delta (x + move).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tardygrad.core import clipping
from tardygrad.core.clipping import Norm
from tardygrad.core.kernels import ClipAndRate
from tardygrad.core.schedules import Constant, Schedule
from tardygrad.errors import Invalid, check_choice, check_number, is_number

State = dict[str, Tensor]
"""The state of a transform between steps: named tensors."""


LateRate = Literal["code", "paper"]
"""FADAS's rate for a late round: η/s as in its authors' code, or min(η, 1/s) as in their text."""


class ParameterGroup(NamedTuple):
    """A part of the vector, and the options of its optimizer."""

    slices: tuple[slice, ...]
    options: Mapping[str, Any]

    def read(self, v: Tensor) -> Tensor:
        """The group's coordinates of a vector."""
        return torch.cat([v[part] for part in self.slices])

    def write(self, v: Tensor, values: Tensor) -> None:
        """Set the group's coordinates of a vector."""
        sizes = [part.stop - part.start for part in self.slices]
        for part, own in zip(self.slices, torch.split(values, sizes), strict=True):
            v[part] = own


class Step(NamedTuple):
    """The context of one step."""

    round: int  # client: the round of the model it started from; server: the round it computes
    delays: tuple[int, ...] = ()  # server: p of every update in the buffer
    x: Tensor | None = None  # the vector that the move is for
    start: Tensor | None = None  # client: x_s
    groups: tuple[ParameterGroup, ...] = ()  # client: parts of x whose optimizer has options of their own


class Transform:
    """Turns a direction into a move: `init` makes the first state, and `update` is a pure function.

    Subclass it as a frozen dataclass with the settings of the step, or give it two functions.

    Args:
        init: x → the first state.
        update: (direction, state, step) → (move, next state); changes none of its arguments.
        text: the call that created it, as its `repr`.
    """

    scratch = 0
    """Temporary vectors that `update` needs besides direction, move and state."""
    reads_groups = False
    """Whether `update` reads the parameter groups of its step."""
    can_step = True
    """False for the inner step of a method whose task has a training loop of its own."""

    def __init__(
        self,
        init: Callable[[Tensor], State],
        update: Callable[[Tensor, State, Step], tuple[Tensor, State]],
        text: str = "Transform(...)",
    ) -> None:
        self.init, self.update, self._text = init, update, text  # type: ignore[method-assign, assignment]

    def init(self, x: Tensor) -> State:
        """The first state."""
        return {}

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        """The move, and the next state."""
        raise NotImplementedError

    def form(self, round: int) -> ClipAndRate | None:
        """The numbers of the step in a round, if it is a clip and a rate (see kernels.py); else None."""
        return None

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True)
class NoSteps(Transform):
    """The inner step of a method whose task has a training loop of its own."""

    can_step = False

    def __init__(self) -> None:
        """It has no settings."""

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        raise Invalid("a method without `local_lr` makes no local steps: the task needs a training loop of its own.")


@dataclass(frozen=True)
class Scale(Transform):
    """move = η · direction."""

    lr: Schedule

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        return direction * self.lr(step.round), state

    def form(self, round: int) -> ClipAndRate | None:
        return ClipAndRate(lr=self.lr(round))


_ZERO = Constant(0.0)


@dataclass(frozen=True)
class Clip(Transform):
    """move = Clip(u, direction), or BiClip with a lower threshold d > 0.

    The state holds `clipped`: the share of coordinates that the last step changed.
    """

    upper: Schedule
    lower: Schedule = _ZERO
    norm: Norm = "coordinate"

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, Norm)
        upper, lower = self.upper(1), self.lower(1)
        if lower > upper:
            raise Invalid(f"a lower threshold must not exceed the upper one ({upper:g}), got {lower:g}.")

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        function = clipping.clip if self.norm == "coordinate" else clipping.clip_l2
        move = function(direction, self.upper(step.round), self.lower(step.round))
        changed = (move != direction).sum() / max(direction.numel(), 1)
        return move, {"clipped": changed}

    def form(self, round: int) -> ClipAndRate | None:
        return None if self.norm == "l2" else ClipAndRate(self.upper(round), self.lower(round))


@dataclass(frozen=True, init=False)
class Chain(Transform):
    """One transform after the other: the move of each is the direction of the next."""

    transforms: tuple[Transform, ...]

    def __init__(self, *transforms: Transform) -> None:
        object.__setattr__(self, "transforms", transforms)

    @property
    def scratch(self) -> int:  # type: ignore[override]
        """The most of any of them."""
        return max(transform.scratch for transform in self.transforms)

    @property
    def reads_groups(self) -> bool:  # type: ignore[override]
        """Whether any of them does."""
        return any(transform.reads_groups for transform in self.transforms)

    def init(self, x: Tensor) -> State:
        parts = enumerate(transform.init(x) for transform in self.transforms)
        return {f"{i}.{name}": value for i, state in parts for name, value in state.items()}

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        after: State = {}
        for i, transform in enumerate(self.transforms):
            direction, own = transform.update(direction, strip_prefix(state, f"{i}."), step)
            after |= {name if name == "clipped" else f"{i}.{name}": value for name, value in own.items()}
        return direction, after

    def form(self, round: int) -> ClipAndRate | None:
        first, *rest = (transform.form(round) for transform in self.transforms)
        if first is None or len(rest) != 1 or rest[0] is None or (first.lr, *rest[0][:2]) != (1.0, *ClipAndRate()[:2]):
            return None
        return ClipAndRate(first.upper, first.lower, rest[0].lr)  # a clip, then a rate


@dataclass(frozen=True)
class AMSGrad(Transform):
    """FADAS's step: AMSGrad with a smaller rate if an update of the round missed more than τ_c rounds.

    m = β₁ m + (1 − β₁) direction, v = β₂ v + (1 − β₂) direction², v̂ = max(v̂, v), all from 0; with s the most rounds
    that an update missed, η_t = η if s ≤ τ_c, else η/s or min(η, 1/s);
    move = η_t / (1 − β₁^t) · m / (√v̂ / √(1 − β₂^t) + ε), or η_t · m / (√v̂ + ε) without bias correction.
    """

    lr: Schedule
    tau_c: float
    beta1: float
    beta2: float
    eps: float
    lr_rule: LateRate = "code"
    bias_correction: bool = True

    def __post_init__(self) -> None:
        below_one(beta1=self.beta1, beta2=self.beta2)
        check_epsilon("eps", self.eps)
        if not (is_number(self.tau_c) and self.tau_c >= 0):
            rule = "a number of rounds, 0 or more (inf: the rate never falls)"
            raise Invalid(f"`tau_c` must be {rule}, got {self.tau_c!r}.")
        check_choice("lr_rule", self.lr_rule, LateRate)

    def init(self, x: Tensor) -> State:
        return zeros(x, "m", "v", "v_max")

    def rate(self, step: Step) -> float:
        """η_t."""
        eta, missed = self.lr(step.round), max(step.delays, default=1) - 1  # s = p − 1
        if missed <= self.tau_c:
            return eta
        return eta / missed if self.lr_rule == "code" else min(eta, 1 / missed)

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        beta1, beta2 = self.beta1, self.beta2
        m = (beta1 * state["m"]).add_(direction, alpha=1 - beta1)
        v = (beta2 * state["v"]).addcmul_(direction, direction, value=1 - beta2)
        v_max = torch.maximum(state["v_max"], v)
        bias1, bias2 = (1 - beta**step.round if self.bias_correction else 1.0 for beta in (beta1, beta2))
        denominator = v_max.sqrt().div_(math.sqrt(bias2)).add_(self.eps)
        return (m * (self.rate(step) / bias1)).div_(denominator), {"m": m, "v": v, "v_max": v_max}


@dataclass(frozen=True)
class DelayedNesterov(Transform):
    """DN's step: each direction is applied at once, divided by N; the momentum is updated in every N-th round.

    sum = sum + direction; in every N-th round m = β m + sum/N, move = η · ((1 − cN + c) β m + direction/N), sum = 0;
    in the others move = η · (c β m + direction/N). Both m and sum start at 0.
    """

    lr: Schedule
    momentum: float
    period: int
    c: float = 0.0

    def __post_init__(self) -> None:
        below_one(momentum=self.momentum)
        if not (is_number(self.c) and 0 <= self.c <= 1 / self.period):
            raise Invalid(f"`c` must be between 0 and 1/period ({1 / self.period:g}), got {self.c!r}.")

    def init(self, x: Tensor) -> State:
        return zeros(x, "m", "sum")

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        m, total, share, period = state["m"], state["sum"] + direction, self.c, self.period
        if step.round % period == 0:
            m = (self.momentum * m).add_(total, alpha=1 / period)
            total, share = torch.zeros_like(total), 1 - self.c * period + self.c
        move = (direction / period).add_(m, alpha=share * self.momentum).mul_(self.lr(step.round))
        return move, {"m": m, "sum": total}


@dataclass(frozen=True)
class Momentum(Transform):
    """m = β m + direction from 0; move = η · m, or Nesterov's η · (direction + β m)."""

    lr: Schedule
    beta: float
    nesterov: bool = False

    def __post_init__(self) -> None:
        below_one(momentum=self.beta)

    def init(self, x: Tensor) -> State:
        return zeros(x, "m")

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        m = self.beta * state["m"] + direction
        return ((direction + self.beta * m) if self.nesterov else m) * self.lr(step.round), {"m": m}


Squares = Literal["sum", "mean", "yogi"]
"""How an adaptive step accumulates squares: Adagrad's sum, RMSProp's and Adam's running mean, or Yogi's rule."""


@dataclass(frozen=True)
class Adaptive(Transform):
    """The adaptive server steps: Adagrad and RMSProp (β₁ = 0), Adam, Yogi.

    m = β₁ m + (1 − β₁) direction from 0; v, from `initial`, is v + direction² (sum), β₂ v + (1 − β₂) direction² (mean),
    or v − (1 − β₂) sign(v − direction²) direction² (yogi); move = η · m / (√v + ε). Unbiased, m is divided by
    1 − β₁^t, and v by 1 − β₂^t.
    """

    lr: Schedule
    rule: Squares
    beta1: float
    beta2: float
    eps: float
    initial: float = 0.0
    unbiased: bool = False

    def __post_init__(self) -> None:
        below_one(beta1=self.beta1, beta2=self.beta2)
        check_epsilon("eps", self.eps)
        check_number("initial", self.initial)
        check_choice("rule", self.rule, Squares)

    def init(self, x: Tensor) -> State:
        return (zeros(x, "m") if self.beta1 else {}) | {"v": torch.full_like(x, self.initial)}

    def squares(self, v: Tensor, new: Tensor) -> Tensor:
        """The next v."""
        if self.rule == "sum":
            return v + new
        if self.rule == "mean":
            return self.beta2 * v + (1 - self.beta2) * new
        return v - (1 - self.beta2) * (v - new).sign() * new

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        m = self.beta1 * state["m"] + (1 - self.beta1) * direction if self.beta1 else direction
        v = self.squares(state["v"], direction * direction)
        bias1, bias2 = (1 - beta**step.round if self.unbiased else 1.0 for beta in (self.beta1, self.beta2))
        move = m * (self.lr(step.round) / bias1) / (v.sqrt() / math.sqrt(bias2) + self.eps)
        return move, ({"m": m} if self.beta1 else {}) | {"v": v}


@dataclass(frozen=True)
class Proximal(Transform):
    """A local step on F(x) + (ρ/2) ‖x − x_s‖²: FedAsync's and FedProx's proximal term."""

    inner: Transform
    rho: float

    def __post_init__(self) -> None:
        check_number("rho", self.rho)

    @property
    def scratch(self) -> int:  # type: ignore[override]
        """That of the inner step."""
        return self.inner.scratch

    @property
    def reads_groups(self) -> bool:  # type: ignore[override]
        """Whether the inner step does."""
        return self.inner.reads_groups

    def init(self, x: Tensor) -> State:
        return self.inner.init(x)

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        assert step.x is not None
        assert step.start is not None
        return self.inner.update(direction + self.rho * (step.x - step.start), state, step)


def zeros(x: Tensor, *names: str) -> State:
    """A state of vectors that start at 0."""
    return {name: torch.zeros_like(x) for name in names}


def strip_prefix(state: State, prefix: str) -> State:
    """The entries whose names start with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def clipped_share(state: State) -> Tensor | float:
    """The share of coordinates that the last step clipped (the last clip of a chain); 0 without a clip."""
    return state.get("clipped", 0.0)


def below_one(**settings: float) -> None:
    """Raise `Invalid` unless every value is a number ≥ 0 and < 1."""
    for name, value in settings.items():
        if not (is_number(value) and 0 <= value < 1):
            raise Invalid(f"`{name}` must be at least 0 and below 1, got {value!r}.")


def check_epsilon(name: str, value: float) -> None:
    """Raise `Invalid` unless `value` can be an ε: above 0, with room in float32 to add it and to divide by it."""
    if not (is_number(value) and 0 < value < math.inf):
        raise Invalid(f"`{name}` must be a finite number above 0, got {value!r}.")
    if not 1e-37 <= value <= 1e15:
        raise Invalid(f"`{name}` must be between 1e-37 and 1e15, for float32, got {value!r}.")
