"""Measured delays against the conditions that the theorems put on them.

`delays` are those of a whole run: whole numbers, one row per round, round 1 first, and in a row the delays p_{t,j} ≥ 1
of its M updates in order of arrival (`delays` of metrics.jsonl, row by row). `conditions(delays, constants)` says of
every theorem whether they are within it, by what factor not, and which updates are to blame.

    Σ_t Σ_j 1/p_{t,j}      Σ_t (Σ_j 1/p_{t,j})²      Σ_t Σ_j 1/p_{t,j} Σ_{i=t−p_{t,j}}^{t−1} 1/p_{i,j}

The sums are the paper's, to the letter: p_{i,j} is the delay in the same place j of the buffer, and the last sum has p
terms. Rounds before the first row made no move and count nothing, so an update that started from x_0 has p − 1 terms.
All of it takes time and memory linear in T · M.

The constants of the O(...) in Theorems 3 to 5 are not known; 1 is used. C₁, L, G and D are rarely known either:
`factor` says how far from its limit a condition is for those that were given.
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

LEAST, MOST = 1e-30, 1e30  # of a constant; with these no bound and no condition overflows
LATEST = 2**31  # a delay at most

Delays = NDArray[np.int64]
"""T × M delays."""

Shares = NDArray[np.float64]
"""T × M numbers, one for each update."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the theorems need to know besides delays: the settings of the run, and of the problem what is known."""

    tail: float  # α
    local_steps: int = 1  # K
    local_clip: float = 1.0  # u
    local_lr: float = 1.0  # η_ℓ
    clip: float = 1.0  # ũ
    gap: float = 1.0  # C₁ = E[F(x_0) − F(x_T)]
    smoothness: float = 1.0  # L
    gradient: float = 1.0  # G, the largest ‖∇F‖
    noise: float = 1.0  # D, E‖ξ‖^α ≤ D^α
    variance: float = 1.0  # σ of FADAS, within a client
    spread: float = 1.0  # σ_g of FADAS, between clients

    def __post_init__(self) -> None:
        exact(self.tail)
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_number(value) or not LEAST <= value <= MOST:
                raise Invalid(f"`{field.name}` must be a number from {LEAST:g} to {MOST:g}, got {value!r}.")
            plain = int(value) if isinstance(value, Integral) else float(value)  # NumPy's own would overflow sooner
            object.__setattr__(self, field.name, plain)


class Sums(NamedTuple):
    """All that the explicit bounds ask of a sequence of delays."""

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
    factor: float  # how much too late: above 1 the condition fails, by that factor
    excess: Shares  # T × M: what each update adds to (above 0) or takes from the failure

    @property
    def holds(self) -> bool:
        """Whether the delays are within the theorem."""
        return self.factor <= 1


class Small(NamedTuple):
    """How many delays are small in the sense of a proposition: with any fixed share of them, the method converges."""

    method: str
    proposition: str
    exponent: float  # c of T^c, which a small delay stays below
    share: float  # of delays below T^c
    least: int  # the smallest delay of all
    least_share: float  # its share, which suffices too if it is O(√T)


def checked(delays: ArrayLike) -> Delays:
    """The delays as an array; refuses what are none."""
    try:
        found: NDArray[Any] = np.asarray(delays)
    except ValueError as error:
        raise Invalid("`delays` must have as many updates in every round, got rounds of several lengths.") from error
    if found.ndim != 2 or not found.size or not np.issubdtype(found.dtype, np.integer):
        got = f"{found.dtype} of shape {found.shape}"
        raise Invalid(f"`delays` must be whole numbers, rounds × updates of a round, got {got}.")
    for one in (found.min(), found.max()):
        if not 1 <= one <= LATEST:
            raise Invalid(f"`delays` must be from 1 (fresh) to 2^31, got {one}.")
    return found.astype(np.int64)


def measured(delays: ArrayLike) -> Sums:
    """The sums over a sequence of delays.

    >>> measured([[1], [2], [1]]).drift  # 1/p times: nothing before round 1; 1/p_1 in round 2; 1/p_2 in round 3
    1.0
    """
    found = checked(delays)
    weights = 1 / found
    drift = weights * _since(found, weights)
    mean, median = float(found.mean()), float(np.median(found))
    square = float((weights.sum(1) ** 2).sum())
    rounds, buffer = found.shape
    return Sums(rounds, buffer, float(weights.sum()), square, float(drift.sum()), mean, median)


def equal(delay: float, *, rounds: int, buffer: int = 1) -> Sums:
    """The sums if all delays were the same, as the paper counts them: as if the first rounds had rounds before them."""
    updates = rounds * buffer
    return Sums(rounds, buffer, updates / delay, updates * buffer / delay**2, updates / delay, delay, delay)


def conditions(delays: ArrayLike, constants: Constants) -> list[Condition]:
    """Every theorem's condition on these delays.

    >>> [one.holds for one in conditions([[1], [1], [2], [40]], Constants(tail=1.5)) if one.method == "clip2"]
    [False]
    """
    found, factor = checked(delays), factors(measured(delays), constants)
    weights = 1 / found
    drift = weights * _since(found, weights)  # 1/p Σ_i 1/p_i, of each update
    return [
        _sd_sgdclip(weights, drift, factor["sd-sgdclip"], constants),
        _sd_clip2(weights, drift, factor["sd-clip2"], constants),
        *(_latest(found, one, constants) for one in PRESETS if one.name not in factor),
    ]


def factors(sums: Sums, c: Constants) -> dict[str, float]:
    """How much too late for Theorems 1 and 2: above 1, their condition fails.

    Σ_t(Σ_j 1/p)² ≥ 2GM/(Ku) · Σ_tΣ_j 1/p Σ_i 1/p_i, and
    √(C₁ / (L Σ_t(Σ_j 1/p)²)) ≤ 2uη_ℓ Σ_tΣ_j 1/p / ((K+1) Σ_tΣ_j 1/p Σ_i 1/p_i).
    """
    step = math.sqrt(c.gap / (c.smoothness * sums.square))
    return {
        "sd-sgdclip": 2 * c.gradient * sums.buffer * sums.drift / (c.local_steps * c.local_clip * sums.square),
        "sd-clip2": step * (c.local_steps + 1) * sums.drift / (2 * c.local_clip * c.local_lr * sums.weight),
    }


def small(delays: ArrayLike, tail: float) -> list[Small]:
    """Propositions 1 and 2 on these delays, with the schedules of the presets and the constant 1."""
    found, made = checked(delays), []
    for name, proposition in (("sd-sgdclip", "Proposition 1"), ("sd-clip2", "Proposition 2")):
        _, local_lr, local_clip, clip = preset(name).schedule(exact(tail))
        room = 0.5 - local_clip if name == "sd-sgdclip" else 0.5 + local_lr - clip
        exponent, least = float(min(room, 0.25)), int(found.min())
        share = float((found <= len(found) ** exponent).mean())
        made.append(Small(name, proposition, exponent, share, least, float((found == least).mean())))
    return made


def _since(delays: Delays, weights: Shares) -> Shares:
    """Σ_{i=t−p_{t,j}}^{t−1} 1/p_{i,j} for every t and j, by differences of prefix sums."""
    rounds, buffer = delays.shape
    until = np.vstack([np.zeros((1, buffer)), weights.cumsum(0)])  # row t: Σ_{i≤t} 1/p_{i,j}
    before = np.maximum(np.arange(1, rounds + 1)[:, None] - delays - 1, 0)
    since: Shares = until[:-1] - np.take_along_axis(until, before, axis=0)
    return since


def _sd_sgdclip(weights: Shares, drift: Shares, factor: float, c: Constants) -> Condition:
    asked = 2 * c.gradient * weights.shape[1] / (c.local_steps * c.local_clip) * drift
    says = "Σ(Σ 1/p)² must be at least 2GM/(Ku) Σ 1/p Σ 1/p_i"
    return Condition("sd-sgdclip", "Theorem 1", says, factor, asked - weights * weights.sum(1, keepdims=True))


def _sd_clip2(weights: Shares, drift: Shares, factor: float, c: Constants) -> Condition:
    step = math.sqrt(c.gap / (c.smoothness * float((weights.sum(1) ** 2).sum())))
    asked = step * (c.local_steps + 1) * drift
    says = "√(C₁ / (L Σ(Σ 1/p)²)) must be at most 2uη_ℓ Σ 1/p / ((K+1) Σ 1/p Σ 1/p_i)"
    return Condition("sd-clip2", "Theorem 2", says, factor, asked - 2 * c.local_clip * c.local_lr * weights)


def _latest(delays: Delays, of: Preset, c: Constants) -> Condition:
    """τ ≤ T^b; of DC-Clip², whose term of τ has the factor |1 − η_ℓ|, τ ≤ T^b / |1 − η_ℓ|."""
    power = float(of.tolerance(c.tail))
    better = abs(1 - c.local_lr) if of.name == "dc-clip2" else 1.0
    most = len(delays) ** power / better if better else math.inf
    shown = f"T^{power:.3g}{' / |1 − η_ℓ|' * (of.name == 'dc-clip2')} = {most:.4g}"
    return Condition(
        of.name, of.theorem.name, f"no delay must be above {shown}", float(delays.max() / most), delays - most
    )
