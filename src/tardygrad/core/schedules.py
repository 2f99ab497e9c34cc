"""Schedules: learning rates and thresholds as functions of the round.

A client's schedules are evaluated at the round s of the model it started from, the server's at its own round t. Rounds
count from 1 here, because a power law may be infinite at 0: a client that started from x_0 uses round 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from tardygrad.constructors import checked
from tardygrad.errors import Invalid, is_number, shown


@dataclass(frozen=True)
class Constant:
    """The same value in every round."""

    value: float

    def __call__(self, round: int) -> float:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)


@checked
@dataclass(frozen=True)
class Power:
    """The theory's power law, value · t^exponent.

    >>> Power(0.1, -0.5)(4)
    0.05
    """

    value: float
    exponent: float

    def __post_init__(self) -> None:
        if not (0 <= self.value < math.inf and math.isfinite(self.exponent)):
            raise Invalid(f"a power law needs a finite value, zero or more, and a finite exponent, got {self}.")

    def __call__(self, round: int) -> float:
        try:
            return float(self.value * max(round, 1) ** self.exponent)
        except OverflowError:
            return math.inf


@checked
@dataclass(frozen=True)
class Cosine:
    """Linear warm-up to `peak` over `warmup` rounds, then half a cosine down to `floor` at round `rounds`.

    >>> [Cosine(peak=1.0, rounds=10, warmup=2)(t) for t in (1, 2, 6, 10)]
    [0.5, 1.0, 0.5, 0.0]
    """

    peak: float
    rounds: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.warmup < self.rounds and 0 <= self.floor <= self.peak < math.inf):
            raise Invalid(f"a cosine schedule needs 0 <= warmup < rounds and 0 <= floor <= peak, got {self}.")

    def __call__(self, round: int) -> float:
        t = min(max(round, 1), self.rounds)
        if t < self.warmup:
            return self.peak * t / self.warmup
        progress = (t - self.warmup) / (self.rounds - self.warmup)
        return self.floor + (self.peak - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


Schedule = Annotated[Callable[[int], float], Power, Cosine, "a schedule such as {value = 0.1, exponent = -0.5}"]
"""Round → value: one of the classes above, which a spec tells apart by their keys, or any function."""


def lift(name: str, value: float | Schedule, *, finite: bool = True) -> Schedule:
    """Turn a number into a schedule; raise `Invalid` unless it can be a learning rate or a threshold.

    Args:
        name: the setting's name, for the error.
        finite: learning rates must be finite; thresholds may be infinite (no clipping).
    """
    if not (callable(value) or is_number(value)):
        raise Invalid(f"`{name}` must be a number or a schedule, got {value!r}.")
    try:
        schedule = value if callable(value) else Constant(float(value))
    except OverflowError as error:
        raise Invalid(f"`{name}` must fit in a float, got {shown(value)}.") from error
    try:
        first = schedule(1)
    except Exception as error:
        raise Invalid(f"`{name}` must be a number or a function of the round, got {value!r}: {error}.") from error
    if not is_number(first):
        raise Invalid(f"`{name}` must be a schedule that gives numbers, got {first!r} for round 1.")
    if math.isnan(first) or first < 0 or (finite and math.isinf(first)):
        rule = "a finite number, zero or more" if finite else "zero or more (inf switches it off)"
        raise Invalid(f"`{name}` must be {rule}, got {first:g}.")
    return schedule
