"""The weight of an update: by its client's number of samples (`SampleShares`), and by its delay p (all others).

A weight by delay is a function of the rounds that an update missed, s = p − 1. Papers and implementations agree only
that a later update counts less. Their differences are arguments here: `fresh` is the s of an update that missed no
round, 0 in most implementations and 1 in some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tardygrad.constructors import checked
from tardygrad.core.messages import Taken
from tardygrad.errors import Invalid, check_number, shortened


class SampleShares:
    """The weight of an update by its client's number of samples: n_i over the mean of all clients, exactly 1 if all
    have the same number, or if the method does not weight by samples."""

    def __init__(self, weight_by: str | None, samples: Sequence[int] | None, clients: int) -> None:
        self._weight_by, self._shares = weight_by, list[float]()
        if weight_by and samples is not None:
            whole = all(type(number) is int and number >= 0 for number in samples)
            if not whole or len(samples) != clients or not any(samples):
                rule = f"`samples` must have a whole number for each of the {clients} clients of a server, not all 0"
                raise Invalid(f"{rule}, got {shortened(str(list(samples)), 80)}.")
            mean = sum(samples) / clients
            self._shares = [number / mean for number in samples]

    def of(self, client: int) -> float:
        """The weight of a client's updates."""
        if self._weight_by is None:
            return 1.0
        if not self._shares:
            fix = "Create it with samples=[...], the number of training samples of each client."
            raise Invalid(f'a server with weight_by="samples" needs the clients\' samples. {fix}')
        return self._shares[client]

    def of_round(self, taken: Sequence[Taken]) -> list[float] | None:
        """The weights of a round's updates by samples; None if the method does not weight by them."""
        return [self.of(each.update.client) for each in taken] if self._weight_by else None


@checked
@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """(1 + s)^−a, FedBuff's with a = 1/2, FedAsync's, and SD's with a = 1.

    Args:
        exponent: a.
        fresh: s of an update that missed no round.
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


@checked
@dataclass(frozen=True, kw_only=True)
class Hinge:
    """1 up to s = b, and 1 / (a (s − b) + 1) beyond: FedAsync's.

    Args:
        slope: a.
        bound: b.
        jump: use 1 / (a (s − b + 1)) beyond b, as FedLab does: it jumps from 1 to 1 / 2a.
        fresh: s of an update that missed no round.

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
            raise Invalid("`slope` must be above 0 with jump=True, got 0.")

    def __call__(self, delay: int) -> float:
        beyond = _missed(self.fresh, delay) - self.bound
        if beyond <= 0:
            return 1.0
        return 1 / (self.slope * (beyond + 1)) if self.jump else 1 / (self.slope * beyond + 1)


@checked
@dataclass(frozen=True, kw_only=True)
class Threshold:
    """1 up to s = b, and 0 beyond: the update counts for the buffer and adds nothing to the sum."""

    bound: float
    fresh: int = 0

    def __post_init__(self) -> None:
        _check(self, "bound")

    def __call__(self, delay: int) -> float:
        return float(_missed(self.fresh, delay) <= self.bound)


@checked
@dataclass(frozen=True, kw_only=True)
class Root:
    """1 / (1 + √s), NVFlare's (with fresh = 1: an update that missed no round counts half)."""

    fresh: int = 0

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, delay: int) -> float:
        return 1 / (1 + math.sqrt(_missed(self.fresh, delay)))


@runtime_checkable
class WeightFunction(Protocol):
    """A weight of your own."""

    def __call__(self, delay: int) -> float:
        """The weight of an update, given its delay p."""


Known = Polynomial | Hinge | Threshold | Root
Staleness = Known | WeightFunction
"""The weights that a spec can name, and any function; None counts every update fully."""


def _missed(fresh: int, delay: int) -> int:
    """The rounds that an update missed, s."""
    return delay - 1 + fresh


def _check(weight: Known, *names: str) -> None:
    if weight.fresh not in (0, 1) or isinstance(weight.fresh, bool):
        raise Invalid(f"`fresh` must be 0 or 1, got {weight.fresh!r}.")
    for name in names:
        check_number(name, getattr(weight, name))
