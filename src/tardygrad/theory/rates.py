"""The theorems as sums of powers of T, and the schedules that the paper gives for them.

J. Sun, D. Yao, X. Gong, T. Rabbani, M. Zaheer, T. Li. Asynchronous Heavy-Tailed Optimization (Section 4, Appendix B).

With η_t = Θ(t^ω), η_ℓ^t = Θ(t^ν), u_t = Θ(t^ζ), ũ_t = Θ(t^ζ̃) and delays of at most τ = O(T^b), each theorem bounds
min_t E‖∇F(x_{t−1})‖² by a sum of powers of T. The largest exponent at b = 0 is minus the rate; the tolerance is the
largest b that does not change it and meets the theorem's own condition on delays. Only the sums are written down here:
rates and tolerances are computed from them, with exact fractions.

Differs from the paper in: Theorem 4's sum is that of its proof, from which its schedule was computed (the statement has
τ in other terms); T^γ of a lower threshold is left out, since d = 0; ε̃ of SD-Clip² is 0, which gives the same rate;
SD-SGDClip's theorem fixes only the sum ω + ν: here both are SGDClip's, which have that sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tardygrad.errors import Invalid, is_number, nearest


class Exponents(NamedTuple):
    """Exponents of t of the four scheduled settings."""

    lr: Fraction  # ω
    local_lr: Fraction  # ν
    local_clip: Fraction  # ζ
    clip: Fraction = Fraction(0)  # ζ̃; unused where the server does not clip


Sum = Callable[[Exponents, Fraction, Fraction], tuple[Fraction, ...]]
"""(exponents, tail index, b) to powers of T, each linear in b."""


@dataclass(frozen=True)
class Theorem:
    """A bound that is a sum of powers of T, and its condition on the delays."""

    name: str
    terms: Sum
    needs: Sum = lambda e, a, b: ()  # powers that must be 0 or less

    def rate(self, schedule: Exponents, tail: Fraction) -> Fraction:
        """r of O(T^−r), for bounded delays."""
        return -max(self.terms(schedule, tail, Fraction(0)))

    def tolerance(self, schedule: Exponents, tail: Fraction) -> Fraction:
        """The largest b such that delays up to T^b do not change the rate."""
        bounds = ((self.terms, -self.rate(schedule, tail)), (self.needs, Fraction(0)))
        limits: list[Fraction] = []
        for powers, most in bounds:
            for at_0, at_1 in zip(*(powers(schedule, tail, Fraction(b)) for b in (0, 1)), strict=True):
                if at_1 > at_0:
                    limits.append((most - at_0) / (at_1 - at_0))
        return min(limits)


def _sgdclip(e: Exponents, a: Fraction, b: Fraction) -> tuple[Fraction, ...]:
    w, v, z, _ = e  # ω, ν, ζ
    return (2 * z + v + w, (1 - a) * z, v + z, w + v + z, b + w + v + z, -1 - w - v)


def _clip2(e: Exponents, a: Fraction, b: Fraction) -> tuple[Fraction, ...]:
    w, v, z, zz = e  # ω, ν, ζ, ζ̃
    return (-v - w - 1, w + 2 * zz - v, (a - 1) * (v - zz), (1 - a) * z, v + z, b + w + zz)


def _sd_sgdclip(e: Exponents, a: Fraction, b: Fraction) -> tuple[Fraction, ...]:
    """For equal delays p: then √(Σ_t(Σ_j 1/p)²) / Σ_tΣ_j 1/p is T^{−1/2} for every p."""
    _, v, z, _ = e
    return (z - Fraction(1, 2), (1 - a) * z, z + v)


def _sd_clip2(e: Exponents, a: Fraction, b: Fraction) -> tuple[Fraction, ...]:
    _, v, z, zz = e
    return (zz - v - Fraction(1, 2), (1 - a) * (zz - v), (1 - a) * z, z + v)


def _dc_clip2(e: Exponents, a: Fraction, b: Fraction) -> tuple[Fraction, ...]:
    w, v, z, zz = e
    return (
        -w - v - 1,
        (a - 1) * v,
        a * b + a * w + (2 * a - 1) * v + a * zz,
        (1 - a) * z,
        w - v + 2 * zz,
        b + (2 - 2 * a) * z + zz + w + v,
        b + w + 2 * v + z + zz,
        b + w + (a + 1) * v / 2 + zz,
        (a / 2 + 1) * b + (2 * a + 1) * v / 2 + (1 + a / 2) * (w + zz),
        b + (3 * v + z) / 2 + w + zz,
        3 * b / 2 + (2 * z + 3 * w + 3 * v + 3 * zz) / 2,
        b + (3 * w + v + 4 * zz) / 2,
        v + z,
        b + w + zz,
        2 * b + 2 * w + 2 * zz,
        3 * v + 2 * z,
    )


SGDCLIP = Theorem("Theorem 4", _sgdclip)
CLIP2 = Theorem("Theorem 5", _clip2)
SD_SGDCLIP = Theorem("Theorem 1", _sd_sgdclip, lambda e, a, b: (b - e.local_clip,))  # p = O(u)
SD_CLIP2 = Theorem("Theorem 2", _sd_clip2, lambda e, a, b: (b - e.local_clip - e.local_lr - Fraction(1, 2),))
DC_CLIP2 = Theorem("Theorem 3", _dc_clip2)  # the sum of Theorem 12, which proves it


@dataclass(frozen=True)
class Preset:
    """Schedules that the paper gives for a theorem, as functions of the tail index."""

    name: str
    theorem: Theorem
    schedule: Callable[[Fraction], Exponents]
    outer_clip: bool = True  # whether ũ is a setting of the method

    def exponents(self, tail: float) -> dict[str, Fraction]:
        """The power of t of each setting."""
        exponents = self.schedule(exact(tail))._asdict()
        return {name: value for name, value in exponents.items() if self.outer_clip or name != "clip"}

    def rate(self, tail: float) -> Fraction:
        """r of O(T^−r).

        >>> preset("clip2").rate(1.5)
        Fraction(1, 8)
        """
        return self.theorem.rate(self.schedule(exact(tail)), exact(tail))

    def tolerance(self, tail: float) -> Fraction:
        """b of delays up to O(T^b).

        >>> preset("clip2").tolerance(1.5)
        Fraction(3, 8)
        """
        return self.theorem.tolerance(self.schedule(exact(tail)), exact(tail))


def _averaged(a: Fraction) -> Exponents:
    beta = (a + 1) / (2 * a)
    return Exponents(-beta / (a + 1), -beta * a / (a + 1), beta / (a + 1))


def _best(a: Fraction) -> Exponents:
    return Exponents(Fraction(-1, 2), -a / (4 * a - 2), 1 / (4 * a - 2))


def _tolerant(a: Fraction) -> Exponents:
    return Exponents(Fraction(-3, 4) + 1 / (4 * a), -1 / (2 * a), 1 / (4 * a))


def _unknown(a: Fraction) -> Exponents:
    return Exponents(Fraction(-1, 2), Fraction(-1, 4), 1 / (4 * a))


def _downplayed(a: Fraction) -> Exponents:
    clip = Fraction(1, 8)  # and ω = −ζ̃ − 1/2, from η = √(C₁ / (L ũ² Σ_t(Σ_j 1/p)²)) with bounded delays
    return Exponents(-clip - Fraction(1, 2), Fraction(-1, 4), 1 / (4 * a), clip)


PRESETS = (
    Preset("sgdclip", SGDCLIP, _averaged, outer_clip=False),
    Preset("clip2", CLIP2, _best),
    Preset("clip2-tolerant", CLIP2, _tolerant),
    Preset("clip2-unknown-tail", CLIP2, _unknown),
    Preset("sd-sgdclip", SD_SGDCLIP, _averaged, outer_clip=False),
    Preset("sd-clip2", SD_CLIP2, _downplayed),
    Preset("dc-clip2", DC_CLIP2, _best),
)


def preset(name: str) -> Preset:
    """The preset of that name."""
    known = {preset.name: preset for preset in PRESETS}
    if name not in known:
        raise Invalid(f"the theory covers the methods {', '.join(known)}, got {name!r}.{nearest(name, known)}")
    return known[name]


def exact(tail: float) -> Fraction:
    """The tail index as an exact fraction of its decimals; raises `Invalid` if the theorems do not cover it.

    >>> exact(1.3)
    Fraction(13, 10)
    """
    if not is_number(tail) or not 1 < tail <= 2:  # also refuses nan
        raise Invalid(f"`tail` must be above 1 and at most 2 (finite variance), got {tail!r}.")
    return Fraction(str(tail))
