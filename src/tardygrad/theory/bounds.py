"""The explicit bounds on min_t E‖∇F(x_{t−1})‖², as functions of sums over the delays.

Each is literally the paper's: Theorems 6 and 9, which hold under a condition on the delays (see delays.py);
Corollaries 8 and 11, which hold for any delays; and the rate of FADAS in Appendix B.2, of which only the O(...) is
known: there the constants are 1, and a fresh update has delay 0, as FADAS counts.

    D̃ = K^α 2^{α−1} (G^α + D^α)
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from tardygrad.theory.delays import Constants, Sums


class Bound(NamedTuple):
    """A bound, term by term."""

    method: str  # the name of a preset, or "fadas"
    source: str
    lr: float | None  # the server's η that the bound is stated for; None for FADAS: the paper gives none
    terms: dict[str, float]  # by origin: the start, the tail that clipping cuts off, local steps, delays
    condition: str | None = None  # the theorem whose condition the delays must meet

    @property
    def value(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())


def bounds(sums: Sums, c: Constants) -> list[Bound]:
    """All explicit bounds for these delays."""
    return [*sd_sgdclip(sums, c), *sd_clip2(sums, c), fadas(sums, c)]


def sd_sgdclip(sums: Sums, c: Constants) -> tuple[Bound, Bound]:
    """Theorem 6 and Corollary 8.

    2√(C₁Lu²Σ_t(Σ_j 1/p)²) / Σ_tΣ_j 1/p + 2^{α−1}(G^α+D^α) u^{1−α} + GL (K−1)(K−2)/(2K) η_ℓ u; for any delays
    2√(C₁L/2 u²Σ_t(Σ_j 1/p)²) / Σ_tΣ_j 1/p + … + 2GM√(LC₁) Σ_tΣ_j 1/p Σ_i 1/p_i / (Σ_tΣ_j 1/p √Σ_t(Σ_j 1/p)²).
    """
    k = c.local_steps
    start = 2 * c.local_clip * sqrt(c.gap * c.smoothness * sums.square) / sums.weight
    steps = c.gradient * c.smoothness * (k - 1) * (k - 2) / (2 * k) * c.local_lr * c.local_clip
    same = {"tail": _tail(c), "local steps": steps}
    late = 2 * c.gradient * sums.buffer * sqrt(c.smoothness * c.gap) * _drift(sums)
    lr = sums.buffer * sqrt(c.gap / (c.smoothness * sums.square)) / (k * c.local_clip * c.local_lr)
    return (
        Bound("sd-sgdclip", "Theorem 6", lr, {"start": start, **same}, "Theorem 1"),
        Bound("sd-sgdclip", "Corollary 8", sqrt(2) * lr, {"start": start / sqrt(2), **same, "delays": late}),
    )


def sd_clip2(sums: Sums, c: Constants) -> tuple[Bound, Bound]:
    """Theorem 9 and Corollary 11.

    √(C₁Lũ²Σ_t(Σ_j 1/p)²) / (Kη_ℓ Σ_tΣ_j 1/p) + GD̃ũ^{1−α}η_ℓ^{α−1}/K + G 2^{α−1}(G^α+D^α) u^{1−α} + GLK(K+1) uη_ℓ,
    and for any delays half of the last term, plus
    GMK√(2C₁L) Σ_tΣ_j 1/p Σ_i 1/p_i / (Σ_tΣ_j 1/p √Σ_t(Σ_j 1/p)²).
    """
    k, a, g = c.local_steps, c.tail, c.gradient
    moment = k**a * 2 ** (a - 1) * (g**a + c.noise**a)  # D̃
    start = c.clip * sqrt(c.gap * c.smoothness * sums.square) / (k * c.local_lr * sums.weight)
    outer = g * moment * (c.local_lr / c.clip) ** (a - 1) / k
    same = {"start": start, "outer tail": outer, "tail": g * _tail(c)}
    steps = g * c.smoothness * k * (k + 1) * c.local_clip * c.local_lr
    late = g * sums.buffer * k * sqrt(2 * c.gap * c.smoothness) * _drift(sums)
    lr = sqrt(c.gap / (c.smoothness * sums.square)) / c.clip
    return (
        Bound("sd-clip2", "Theorem 9", lr, {**same, "local steps": steps}, "Theorem 2"),
        Bound("sd-clip2", "Corollary 11", lr, {**same, "local steps": steps / 2, "delays": late}),
    )


def fadas(sums: Sums, c: Constants) -> Bound:
    """√(𝓕σ)/√(TKM) + √(𝓕σ_g)/√(TM) + 𝓕Gτ_c/(T√M) + 𝓕τ_avg/T + 𝓕(τ_c² + τ_cτ_avg)/T, with 𝓕 = C₁."""
    t, m = sums.rounds, sums.buffer
    median, mean = sums.median - 1, sums.mean - 1  # τ_c, τ_avg
    noise = sqrt(c.gap * c.variance / (t * c.local_steps * m)) + sqrt(c.gap * c.spread / (t * m))
    late = c.gradient * median / sqrt(m) + mean + median**2 + median * mean
    return Bound("fadas", "Appendix B.2", None, {"noise": noise, "delays": c.gap * late / t})


def _tail(c: Constants) -> float:
    """2^{α−1} (G^α + D^α) u^{1−α}."""
    return float(2 ** (c.tail - 1) * (c.gradient**c.tail + c.noise**c.tail) * c.local_clip ** (1 - c.tail))


def _drift(sums: Sums) -> float:
    return sums.drift / (sums.weight * sqrt(sums.square))
