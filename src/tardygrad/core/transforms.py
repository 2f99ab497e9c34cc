"""Inner and outer steps as one type, `Transform`: a pair of pure functions that turn a direction into a move.

The client subtracts the move of a gradient (x − move), the server adds the move of a delta (x + move).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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


def _no_form(round: int) -> ClipAndRate | None:
    return None


@dataclass(frozen=True)
class Transform:
    """Turns a direction into a move.

    Args:
        init: x → the first state.
        update: (direction, state, step) → (move, next state); changes none of its arguments.
        text: the call that created it, as its `repr`.
        form: round → the numbers of the step, if it is a clip and a rate (see kernels.py); else None.
        scratch: number of temporary vectors that `update` needs besides direction, move and state.
        reads_groups: whether `update` reads the parameter groups of its step.
        can_step: False for the inner step of a method whose task has a training loop of its own.
    """

    init: Callable[[Tensor], State] = field(repr=False)
    update: Callable[[Tensor, State, Step], tuple[Tensor, State]] = field(repr=False)
    text: str = "Transform(...)"
    form: Callable[[int], ClipAndRate | None] = field(default=_no_form, repr=False)
    scratch: int = 0
    reads_groups: bool = False
    can_step: bool = True

    def __repr__(self) -> str:
        return self.text


def no_steps() -> Transform:
    """The inner step of a method whose task has a training loop of its own."""

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        raise Invalid("a method without `local_lr` makes no local steps: the task needs a training loop of its own.")

    return Transform(stateless, update, "no_steps()", can_step=False)


def stateless(x: Tensor) -> State:
    """`init` of a transform without state."""
    return {}


def strip_prefix(state: State, prefix: str) -> State:
    """The entries whose names start with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def scale(lr: Schedule) -> Transform:
    """move = η · direction."""

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        return direction * lr(step.round), state

    return Transform(stateless, update, f"scale({lr})", lambda round: ClipAndRate(lr=lr(round)))


def clip(upper: Schedule, lower: Schedule = Constant(0.0), norm: Norm = "coordinate") -> Transform:
    """move = Clip(u, direction), or BiClip with a lower threshold d > 0.

    The state holds `clipped`: the share of coordinates that the last step changed.
    """
    check_choice("norm", norm, Norm)
    if lower(1) > upper(1):
        raise Invalid(f"a lower threshold must not exceed the upper one ({upper(1):g}), got {lower(1):g}.")
    function = clipping.clip if norm == "coordinate" else clipping.clip_l2

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        move = function(direction, upper(step.round), lower(step.round))
        changed = (move != direction).sum() / max(direction.numel(), 1)
        return move, {"clipped": changed}

    text = f"clip({upper}, lower={lower}, norm={norm!r})"
    form = None if norm == "l2" else lambda round: ClipAndRate(upper(round), lower(round))
    return Transform(stateless, update, text, form or _no_form)


def chain(*transforms: Transform) -> Transform:
    """One transform after the other: the move of each is the direction of the next."""

    stateful = [(i, transform) for i, transform in enumerate(transforms) if transform.init is not stateless]

    def init(x: Tensor) -> State:
        return {f"{i}.{name}": value for i, transform in stateful for name, value in transform.init(x).items()}

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        after: State = {}
        for i, transform in enumerate(transforms):
            direction, own = transform.update(direction, strip_prefix(state, f"{i}."), step)
            after |= {name if name == "clipped" else f"{i}.{name}": value for name, value in own.items()}
        return direction, after

    def form(round: int) -> ClipAndRate | None:
        first, *rest = (transform.form(round) for transform in transforms)
        if first is None or len(rest) != 1 or rest[0] is None or (first.lr, *rest[0][:2]) != (1.0, *ClipAndRate()[:2]):
            return None
        return ClipAndRate(first.upper, first.lower, rest[0].lr)  # a clip, then a rate

    text, scratch = f"chain({', '.join(map(repr, transforms))})", max(transform.scratch for transform in transforms)
    reads_groups = any(transform.reads_groups for transform in transforms)
    return Transform(init if stateful else stateless, update, text, form, scratch, reads_groups)


def amsgrad(
    lr: Schedule,
    tau_c: float,
    beta1: float,
    beta2: float,
    eps: float,
    lr_rule: LateRate = "code",
    bias_correction: bool = True,
) -> Transform:
    """FADAS's step: AMSGrad with a smaller rate if an update of the round missed more than τ_c rounds.

    m = β₁ m + (1 − β₁) direction, v = β₂ v + (1 − β₂) direction², v̂ = max(v̂, v), all from 0; with s the most rounds
    that an update missed, η_t = η if s ≤ τ_c, else η/s or min(η, 1/s);
    move = η_t / (1 − β₁^t) · m / (√v̂ / √(1 − β₂^t) + ε), or η_t · m / (√v̂ + ε) without bias correction.
    """
    below_one(beta1=beta1, beta2=beta2)
    check_epsilon("eps", eps)
    if not (is_number(tau_c) and tau_c >= 0):
        raise Invalid(f"`tau_c` must be a number of rounds, 0 or more (inf: the rate never falls), got {tau_c!r}.")
    check_choice("lr_rule", lr_rule, LateRate)

    def init(x: Tensor) -> State:
        return {name: torch.zeros_like(x) for name in ("m", "v", "v_max")}

    def rate(step: Step) -> float:
        eta, missed = lr(step.round), max(step.delays, default=1) - 1  # s = p − 1
        if missed <= tau_c:
            return eta
        return eta / missed if lr_rule == "code" else min(eta, 1 / missed)

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        m = (beta1 * state["m"]).add_(direction, alpha=1 - beta1)
        v = (beta2 * state["v"]).addcmul_(direction, direction, value=1 - beta2)
        v_max = torch.maximum(state["v_max"], v)
        bias1, bias2 = (1 - beta**step.round if bias_correction else 1.0 for beta in (beta1, beta2))
        denominator = v_max.sqrt().div_(math.sqrt(bias2)).add_(eps)
        return (m * (rate(step) / bias1)).div_(denominator), {"m": m, "v": v, "v_max": v_max}

    settings = f"beta1={beta1}, beta2={beta2}, eps={eps}, lr_rule={lr_rule!r}, bias_correction={bias_correction}"
    return Transform(init, update, f"amsgrad({lr}, tau_c={tau_c:g}, {settings})")


def delayed_nesterov(lr: Schedule, momentum: float, period: int, c: float = 0.0) -> Transform:
    """DN's step: each direction is applied at once, divided by N; the momentum is updated in every N-th round.

    sum = sum + direction; in every N-th round m = β m + sum/N, move = η · ((1 − cN + c) β m + direction/N), sum = 0;
    in the others move = η · (c β m + direction/N). Both m and sum start at 0.
    """
    below_one(momentum=momentum)
    if not (is_number(c) and 0 <= c <= 1 / period):
        raise Invalid(f"`c` must be between 0 and 1/period ({1 / period:g}), got {c!r}.")

    def init(x: Tensor) -> State:
        return {name: torch.zeros_like(x) for name in ("m", "sum")}

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        m, total, share = state["m"], state["sum"] + direction, c
        if step.round % period == 0:
            m = (momentum * m).add_(total, alpha=1 / period)
            total, share = torch.zeros_like(total), 1 - c * period + c
        move = (direction / period).add_(m, alpha=share * momentum).mul_(lr(step.round))
        return move, {"m": m, "sum": total}

    return Transform(init, update, f"delayed_nesterov({lr}, momentum={momentum}, period={period}, c={c})")


def momentum(lr: Schedule, beta: float, nesterov: bool = False) -> Transform:
    """m = β m + direction from 0; move = η · m, or Nesterov's η · (direction + β m)."""
    below_one(momentum=beta)

    def init(x: Tensor) -> State:
        return {"m": torch.zeros_like(x)}

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        m = beta * state["m"] + direction
        return ((direction + beta * m) if nesterov else m) * lr(step.round), {"m": m}

    return Transform(init, update, f"momentum({lr}, beta={beta}, nesterov={nesterov})")


Squares = Literal["sum", "mean", "yogi"]
"""How an adaptive step accumulates squares: Adagrad's sum, RMSProp's and Adam's running mean, or Yogi's rule."""


def adaptive(
    lr: Schedule,
    rule: Squares,
    beta1: float,
    beta2: float,
    eps: float,
    initial: float = 0.0,
    unbiased: bool = False,
) -> Transform:
    """The adaptive server steps: Adagrad and RMSProp (β₁ = 0), Adam, Yogi.

    m = β₁ m + (1 − β₁) direction from 0; v, from `initial`, is v + direction² (sum), β₂ v + (1 − β₂) direction² (mean),
    or v − (1 − β₂) sign(v − direction²) direction² (yogi); move = η · m / (√v + ε). Unbiased, m is divided by
    1 − β₁^t, and v by 1 − β₂^t.
    """
    below_one(beta1=beta1, beta2=beta2)
    check_epsilon("eps", eps)
    check_number("initial", initial)
    check_choice("rule", rule, Squares)

    def init(x: Tensor) -> State:
        first = {"m": torch.zeros_like(x)} if beta1 else {}
        return first | {"v": torch.full_like(x, initial)}

    def squares(v: Tensor, new: Tensor) -> Tensor:
        if rule == "sum":
            return v + new
        if rule == "mean":
            return beta2 * v + (1 - beta2) * new
        return v - (1 - beta2) * (v - new).sign() * new

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        m = beta1 * state["m"] + (1 - beta1) * direction if beta1 else direction
        v = squares(state["v"], direction * direction)
        bias1, bias2 = (1 - beta**step.round if unbiased else 1.0 for beta in (beta1, beta2))
        move = m * (lr(step.round) / bias1) / (v.sqrt() / math.sqrt(bias2) + eps)
        return move, ({"m": m} if beta1 else {}) | {"v": v}

    settings = f"beta1={beta1}, beta2={beta2}, eps={eps}, initial={initial}, unbiased={unbiased}"
    return Transform(init, update, f"adaptive({lr}, {rule!r}, {settings})")


def proximal(inner: Transform, rho: float) -> Transform:
    """A local step on F(x) + (ρ/2) ‖x − x_s‖²: FedAsync's and FedProx's proximal term."""
    check_number("rho", rho)
    if rho == 0:
        return inner

    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        assert step.x is not None
        assert step.start is not None
        return inner.update(direction + rho * (step.x - step.start), state, step)

    text = f"tethered({inner!r}, rho={rho})"  # an old name: checkpoints contain it
    return replace(inner, update=update, text=text, form=_no_form)


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
