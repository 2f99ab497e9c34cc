"""Heavy-tailed noise for gradients: symmetric, with P(|ξ| > v) falling like v^−tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tardygrad.constructors import checked
from tardygrad.errors import Invalid, check_number

Kind = Literal["stable", "student", "pareto"]
"""The distribution of one coordinate."""

_LARGEST = float(np.finfo(np.float32).max)


@checked
@dataclass(frozen=True)
class Noise:
    """Heavy-tailed noise scale · ξ with independent, symmetric coordinates.

        stable    E exp(iωξ) = exp(−|ω|^tail), the limit law of heavy-tailed sums; tail = 2 is Gaussian, variance 2
        student   Student's t with `tail` degrees of freedom
        pareto    P(|ξ| > v) = v^−tail for v ≥ 1, with a random sign

    Moments of order `tail` and above are infinite (except for stable with tail = 2). Values beyond float32 are clipped
    to its range, so a draw is always finite.

    Args:
        kind: the distribution: "stable", "student" or "pareto".
        tail: the tail index; at most 2 for "stable".
        scale: factor of every draw.

    >>> Noise("student", tail=1.5, scale=0.1)
    Noise(kind='student', tail=1.5, scale=0.1)
    """

    kind: Kind = "stable"
    tail: float = 1.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("tail", self.tail, above=True)
        check_number("scale", self.scale)
        if self.kind == "stable" and self.tail > 2:
            raise Invalid(
                f"`tail` of stable noise must be at most 2 (Gaussian), got {self.tail:g}. Use kind='student'."
            )

    def draw(self, rng: np.random.Generator, size: int) -> Tensor:
        """`size` independent coordinates."""
        if self.kind == "stable":
            drawn = _stable(rng, self.tail, size)
        elif self.kind == "student":
            drawn = rng.standard_t(self.tail, size)
        else:
            drawn = np.exp(np.minimum(rng.standard_exponential(size) / self.tail, 700.0))
            drawn = np.where(rng.random(size) < 0.5, -drawn, drawn)
        drawn = np.clip(np.clip(drawn, -_LARGEST, _LARGEST) * self.scale, -_LARGEST, _LARGEST)
        return torch.from_numpy(drawn.astype(np.float32))


def _stable(rng: np.random.Generator, tail: float, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The method of Chambers, Mallows & Stuck (1976), in logarithms so that small tail indices do not overflow.

    ξ = sin(αU) / cos(U)^(1/α) · (cos((1 − α)U) / W)^((1−α)/α), with U uniform on (−π/2, π/2) and W exponential.
    The distribution of scipy.stats.levy_stable, which took 8× as long for 100 numbers and 3× for 25,000.
    """
    u = (rng.random(size) - 0.5) * np.pi
    w = np.maximum(rng.standard_exponential(size), 1e-300)
    sine = np.sin(tail * u)
    with np.errstate(divide="ignore"):
        log = np.log(np.abs(sine)) - np.log(np.cos(u)) / tail
    log += (1 - tail) / tail * (np.log(np.cos((1 - tail) * u)) - np.log(w))
    return np.sign(sine) * np.exp(np.minimum(log, 700.0))
