"""Measured delays, and the conditions that the theorems put on them.

`delays` are the integers of a whole run: one row per round, round 1 first, each with the delays p_{t,j} ≥ 1 of its M
updates in order of arrival (`delays` of a run's metrics, row by row). `conditions(delays, constants)` says for each
theorem whether the delays meet its condition, by what factor they miss it, and which updates are responsible.

    Σ_t Σ_j 1/p_{t,j}      Σ_t (Σ_j 1/p_{t,j})²      Σ_t Σ_j 1/p_{t,j} Σ_{i=t−p_{t,j}}^{t−1} 1/p_{i,j}

The sums are literally the paper's: p_{i,j} is the delay in the same position j of the buffer, and the last sum has p
terms. There are no rounds before the first, so an update that started from x_0 has p − 1 terms. Time and memory are
linear in T · M.

The constants of the O(...) in Theorems 3 to 5 are unknown; 1 is used. C₁, L, G and D are rarely known either: `factor`
says how far a condition is from its limit for the given values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tardygrad.errors import Invalid, is_number
from tardygrad.theory.rates import PRESETS, Preset, exact, preset

MIN_CONSTANT, MAX_CONSTANT = 1e-30, 1e30  # range of the constants, in which no bound and no condition overflows
MAX_DELAY = 2**31  # the largest delay
SAYS = {
    "sd-sgdclip": "Σ(Σ 1/p)² must be at least 2GM/(Ku) Σ 1/p Σ 1/p_i",
    "sd-clip2": "√(C₁ / (L Σ(Σ 1/p)²)) must be at most 2uη_ℓ Σ 1/p / ((K+1) Σ 1/p Σ 1/p_i)",
}

Delays = NDArray[np.int64]
"""T × M delays."""

Shares = NDArray[np.float64]
"""T × M numbers, one per update."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the theorems need besides delays: the run's settings, and the problem's constants as far as known."""

    tail: float  # α
    local_steps: int = 1  # K
    local_clip: float = 1.0  # u
    local_lr: float = 1.0  # η_ℓ
    clip: float = 1.0  # ũ
    gap: float = 1.0  # C₁ = E[F(x_0) − F(x_T)]
    smoothness: float = 1.0  # L
    gradient: float = 1.0  # G, the bound on ‖∇F‖
    noise: float = 1.0  # D, E‖ξ‖^α ≤ D^α
    variance: float = 1.0  # σ of FADAS, within a client
    spread: float = 1.0  # σ_g of FADAS, between clients

    def __post_init__(self) -> None:
        exact(self.tail)
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_number(value) or not MIN_CONSTANT <= value <= MAX_CONSTANT:
                limits = f"from {MIN_CONSTANT:g} to {MAX_CONSTANT:g}"
                raise Invalid(f"`{field.name}` must be a number {limits}, got {value!r}.")
            plain = int(value) if isinstance(value, Integral) else float(value)  # NumPy's numbers overflow sooner
            object.__setattr__(self, field.name, plain)


class Sums(NamedTuple):
    """Everything the explicit bounds need to know about the delays."""

    rounds: int  # T
    buffer: int  # M
    weight: float  # Σ_t Σ_j 1/p
    square: float  # Σ_t (Σ_j 1/p)²
    drift: float  # Σ_t Σ_j 1/p Σ_i 1/p_i
    mean: float
    median: float


class Condition(NamedTuple):
    """A theorem's condition on the delays of a run."""

    method: str  # the name of a preset: "sgdclip", "clip2", "sd-clip2", ...
    theorem: str
    says: str
    factor: float  # above 1 the condition fails, by that factor
    excess: Shares  # T × M: what each update contributes to (above 0) or takes from the failure

    @property
    def holds(self) -> bool:
        """Whether the delays meet the condition."""
        return self.factor <= 1


class Proposition(NamedTuple):
    """The share of delays that a proposition calls small: with any fixed positive share, the method converges."""

    method: str
    proposition: str
    exponent: float  # c: a delay is small if it is at most T^c
    share: float  # of delays that are small


def as_table(delays: ArrayLike) -> Delays:
    """The delays as an array; raises `Invalid` unless they are a table of integers ≥ 1."""
    try:
        table: NDArray[Any] = np.asarray(delays)
    except ValueError as error:
        raise Invalid("`delays` must have the same number of updates in every round, got different ones.") from error
    if table.ndim != 2 or not table.size or not np.issubdtype(table.dtype, np.integer):
        got = f"{table.dtype} of shape {table.shape}"
        raise Invalid(f"`delays` must be whole numbers, rounds × updates per round, got {got}.")
    for delay in (table.min(), table.max()):
        if not 1 <= delay <= MAX_DELAY:
            raise Invalid(f"`delays` must be from 1 (fresh) to 2^31, got {delay}.")
    return table.astype(np.int64)


def sums_of(delays: ArrayLike) -> Sums:
    """The sums over a table of delays.

    >>> sums_of([[1], [2], [1]]).drift  # 1/p times: nothing in round 1, 1/p_1 in round 2, 1/p_2 in round 3
    1.0
    """
    table = as_table(delays)
    rounds, buffer = table.shape
    weight, square, drift = (float(terms.sum()) for terms in _terms(table))
    return Sums(rounds, buffer, weight, square, drift, float(table.mean()), float(np.median(table)))


def sums_of_equal_delays(delay: float, *, rounds: int, buffer: int = 1) -> Sums:
    """The sums if all delays are equal; like the paper, as if there were rounds before the first."""
    updates = rounds * buffer
    return Sums(rounds, buffer, updates / delay, updates * buffer / delay**2, updates / delay, delay, delay)


def conditions(delays: ArrayLike, constants: Constants) -> list[Condition]:
    """Each theorem's condition on these delays.

    >>> [c.holds for c in conditions([[1], [1], [2], [40]], Constants(tail=1.5)) if c.method == "clip2"]
    [False]
    """
    table, sums = as_table(delays), sums_of(delays)
    sides = _sides(sums, constants, *_terms(table))
    found = [
        Condition(name, preset(name).theorem.name, SAYS[name], factor, np.subtract(*sides[name]))
        for name, factor in factors(sums, constants).items()
    ]
    return found + [_latest(table, other, constants) for other in PRESETS if other.name not in sides]


def factors(sums: Sums, c: Constants) -> dict[str, float]:
    """By what factor the delays miss the conditions of Theorems 1 and 2, which fail above 1."""
    sides = _sides(sums, c, sums.weight, sums.square, sums.drift)
    return {name: needed / given for name, (needed, given) in sides.items()}


def _sides(sums: Sums, c: Constants, weight: Any, square: Any, drift: Any) -> dict[str, tuple[Any, Any]]:
    """The smaller and the larger side of the conditions of Theorems 1 and 2, with the three sums or their terms.

    2GM/(Ku) · Σ_tΣ_j 1/p Σ_i 1/p_i ≤ Σ_t(Σ_j 1/p)², and
    √(C₁ / (L Σ_t(Σ_j 1/p)²)) (K+1) Σ_tΣ_j 1/p Σ_i 1/p_i ≤ 2uη_ℓ Σ_tΣ_j 1/p.
    """
    step = math.sqrt(c.gap / (c.smoothness * sums.square))
    return {
        "sd-sgdclip": (2 * c.gradient * sums.buffer / (c.local_steps * c.local_clip) * drift, square),
        "sd-clip2": (step * (c.local_steps + 1) * drift, 2 * c.local_clip * c.local_lr * weight),
    }


def propositions(delays: ArrayLike, tail: float) -> list[Proposition]:
    """Propositions 1 and 2 for these delays, with the schedules of the presets and constants of 1."""
    table, results = as_table(delays), []
    for name, proposition in (("sd-sgdclip", "Proposition 1"), ("sd-clip2", "Proposition 2")):
        _, local_lr, local_clip, clip = preset(name).schedule(exact(tail))
        limit = 0.5 - local_clip if name == "sd-sgdclip" else 0.5 + local_lr - clip
        exponent = float(min(limit, 0.25))
        results.append(Proposition(name, proposition, exponent, float((table <= len(table) ** exponent).mean())))
    return results


def _terms(delays: Delays) -> tuple[Shares, Shares, Shares]:
    """Of each update: 1/p_{t,j}, 1/p_{t,j} Σ_j 1/p_{t,j}, and 1/p_{t,j} Σ_{i=t−p_{t,j}}^{t−1} 1/p_{i,j}."""
    rounds, buffer = delays.shape
    weights = 1 / delays
    until = np.vstack([np.zeros((1, buffer)), weights.cumsum(0)])  # row t: Σ_{i≤t} 1/p_{i,j}
    before = np.maximum(np.arange(1, rounds + 1)[:, None] - delays - 1, 0)
    since = until[:-1] - np.take_along_axis(until, before, axis=0)
    return weights, weights * weights.sum(1, keepdims=True), weights * since


def _latest(delays: Delays, of: Preset, c: Constants) -> Condition:
    """τ ≤ T^b; for DC-Clip², whose term in τ has the factor |1 − η_ℓ|, τ ≤ T^b / |1 − η_ℓ|."""
    power = float(of.tolerance(c.tail))
    divisor = abs(1 - c.local_lr) if of.name == "dc-clip2" else 1.0
    most = len(delays) ** power / divisor if divisor else math.inf
    says = f"no delay must be above T^{power:.3g}{' / |1 − η_ℓ|' * (of.name == 'dc-clip2')} = {most:.4g}"
    return Condition(of.name, of.theorem.name, says, float(delays.max() / most), delays - most)
