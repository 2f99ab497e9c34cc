"""How long jobs take: distributions of runtimes, and measured times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol, runtime_checkable

from tardygrad.constructors import checked
from tardygrad.errors import Invalid


def check_rule(holds: bool, value: object, rule: str) -> None:
    """Raise `Invalid` with the rule and the value unless the rule holds."""
    if not holds:
        raise Invalid(f"{type(value).__name__} needs {rule}, got {value}.")


def capped_exp(power: float) -> float:
    """e^power, capped at the largest float: a draw from a very heavy tail may overflow."""
    return math.exp(min(power, 709.0))


@checked
@dataclass(frozen=True)
class Uniform:
    """Uniform between low and high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_rule(0 <= self.low <= self.high < math.inf, self, "0 <= low <= high < inf")

    def draw(self, u: float, serial: int) -> float:
        return self.low + u * (self.high - self.low)


@checked
@dataclass(frozen=True)
class Integer:
    """A whole number of seconds from low to high, both included: the paper's distribution."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_rule(0 <= self.low <= self.high < 2**53, self, "0 <= low <= high < 2^53")

    def draw(self, u: float, serial: int) -> float:
        return float(self.low + int(u * (self.high - self.low + 1)))


@checked
@dataclass(frozen=True)
class LogNormal:
    """exp(Normal(log median, sigma²))."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        check_rule(
            0 < self.median < math.inf and 0 <= self.sigma < math.inf, self, "0 < median < inf and 0 <= sigma < inf"
        )

    def draw(self, u: float, serial: int) -> float:
        return capped_exp(math.log(self.median) + self.sigma * NormalDist().inv_cdf(max(u, 2.0**-53)))


@checked
@dataclass(frozen=True)
class Exponential:
    """Exponential with the given mean."""

    mean: float

    def __post_init__(self) -> None:
        check_rule(0 < self.mean < math.inf, self, "0 < mean < inf")

    def draw(self, u: float, serial: int) -> float:
        return -self.mean * math.log1p(-u)


@checked
@dataclass(frozen=True)
class Pareto:
    """At least `minimum`; P(longer than r) = (minimum / r)^tail, so the mean is infinite for tail <= 1."""

    minimum: float
    tail: float

    def __post_init__(self) -> None:
        check_rule(
            0 < self.minimum < math.inf and 0 < self.tail < math.inf, self, "0 < minimum < inf and 0 < tail < inf"
        )

    def draw(self, u: float, serial: int) -> float:
        return capped_exp(math.log(self.minimum) - math.log1p(-u) / self.tail)


@checked
@dataclass(frozen=True)
class Trace:
    """Measured times, used in order and repeated from the start; with `resample`, drawn from at random."""

    seconds: tuple[float, ...]
    resample: bool = False

    def __post_init__(self) -> None:
        valid = bool(self.seconds) and all(0 <= s < math.inf for s in self.seconds)
        check_rule(valid, self, "at least one time, each finite and not negative")

    def draw(self, u: float, serial: int) -> float:
        return self.seconds[int(u * len(self.seconds)) if self.resample else serial % len(self.seconds)]


@runtime_checkable
class Runtime(Protocol):
    """How long a job takes: any object with `draw`, of a class of your own too."""

    def draw(self, u: float, serial: int) -> float:
        """Map a uniform random number u in [0, 1) to seconds; `serial` is the number of the client's job, from 0."""


Distribution = Uniform | Integer | LogNormal | Exponential | Pareto | Trace
"""The runtimes of this file; a spec names each by its class in lower case."""


def is_random(runtime: Runtime) -> bool:
    """Whether a runtime depends on the random number."""
    return len({repr(runtime.draw(u, 0)) for u in (0.0, 0.03, 0.2, 0.5, 0.7, 0.96)}) > 1
