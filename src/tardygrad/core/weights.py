"""What a late update counts: functions of its delay p, which see the rounds it missed, s = p − 1.

Publications and their implementations agree on little but that a later update counts less. The differences are
arguments here: `fresh` says what s of an update that missed nothing is, 0 in nearly all, 1 in some.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tardygrad.errors import Invalid, is_number


@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """(1 + s)^−a, FedBuff's with a = 1/2, FedAsync's, and SD's with a = 1.

    Args:
        exponent: a.
        fresh: s of an update that missed nothing.
        average: divide by the weight of this s, as FLSim does with the s it expects on average; 0 divides by 1.

    >>> [Polynomial(exponent=0.5)(p) for p in (1, 4)]
    [1.0, 0.5]
    """

    exponent: float = 0.5
    fresh: int = 0
    average: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "exponent", "average")

    def __call__(self, delay: int) -> float:
        return float(((1 + _missed(self.fresh, delay)) / (1 + self.average)) ** -self.exponent)


@dataclass(frozen=True, kw_only=True)
class Hinge:
    """1 up to s = b, and 1 / (a (s − b) + 1) beyond: FedAsync's.

    Args:
        slope: a.
        bound: b.
        jump: 1 / (a (s − b + 1)) beyond, which falls to 1 / 2a at once, as FedLab has it.
        fresh: s of an update that missed nothing.

    >>> [Hinge(slope=1.0, bound=4)(p) for p in (1, 5, 6)]
    [1.0, 1.0, 0.5]
    """

    slope: float = 10.0
    bound: float = 4.0
    jump: bool = False
    fresh: int = 0

    def __post_init__(self) -> None:
        _check(self, "slope", "bound")
        if self.jump and self.slope == 0:
            raise Invalid("`slope` must be above 0 where the hinge jumps, got 0.")

    def __call__(self, delay: int) -> float:
        beyond = _missed(self.fresh, delay) - self.bound
        if beyond <= 0:
            return 1.0
        return 1 / (self.slope * (beyond + 1)) if self.jump else 1 / (self.slope * beyond + 1)


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """1 up to s = b, and 0 beyond: the update takes its place in the buffer and adds nothing."""

    bound: float
    fresh: int = 0

    def __post_init__(self) -> None:
        _check(self, "bound")

    def __call__(self, delay: int) -> float:
        return float(_missed(self.fresh, delay) <= self.bound)


@dataclass(frozen=True, kw_only=True)
class Root:
    """1 / (1 + √s), NVFlare's (with fresh = 1, so that an update that missed nothing counts a half)."""

    fresh: int = 0

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, delay: int) -> float:
        return 1 / (1 + math.sqrt(_missed(self.fresh, delay)))


Staleness = Polynomial | Hinge | Threshold | Root
"""The weights that a spec can name; None counts every update fully."""


def _missed(fresh: int, delay: int) -> int:
    """s."""
    return delay - 1 + fresh


def _check(weight: Staleness, *names: str) -> None:
    if weight.fresh not in (0, 1) or isinstance(weight.fresh, bool):
        raise Invalid(f"`fresh` must be 0 or 1, got {weight.fresh!r}.")
    for name in names:
        if not (is_number(getattr(weight, name)) and 0 <= getattr(weight, name) < math.inf):
            raise Invalid(f"`{name}` must be a finite number, 0 or more, got {getattr(weight, name)!r}.")
