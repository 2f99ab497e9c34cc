"""The verdict on a sample's tail: P(|X| > v) falls like v^−α (heavy), or faster than any power (light)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from tardygrad.errors import Invalid
from tardygrad.tail.hill import Numbers, Z, band, hill
from tardygrad.tail.stable import Stable, block_sum, shuffled, stable

Verdict = Literal["heavy-tailed, infinite variance", "heavy-tailed, finite variance", "light-tailed", "too few to tell"]

MIN_SAMPLES = 100  # samples needed for an estimate
VERDICT_ERRORS = 2.6  # standard errors for a verdict: 99 %
STABLE_ERRORS = 3.0  # standard errors within which a `bend` counts as zero, and by which a stable index is below 2
MAX_BEND_ERROR = 0.08  # a larger standard error of the bend would hide that of Student's t with 3 degrees of freedom
MAX_BEND_ERROR_BELOW_2 = 0.03  # with 1.5; needed where Hill's index is below 2


@dataclass(frozen=True)
class Tail:
    """The estimated tail of a sample.

    The index comes from a stable law if one fits, otherwise from Hill's estimator. Read the verdict first: for a light
    tail the index is still a number, but only says how steep the tail is where it was measured.
    """

    verdict: Verdict
    index: float | None  # α; None if there are too few samples
    low: float | None  # 95 % confidence band, asymptotic, assuming independent samples
    high: float | None
    by: Literal["hill", "stable"] | None
    number: int  # nonzero samples
    k: int | None  # how many of the largest samples Hill's estimate uses
    hill: float | None
    hill_low: float | None
    hill_high: float | None
    heaviness: float | None  # γ, the extreme-value index: 1/α for a power law, 0 or less for a light tail
    stable: float | None  # the index if the law is stable
    bend: float | None  # evidence against a stable law, in standard errors
    block_sum: float | None  # the index by block sums, which assume a stable law; see stable.py
    curve: list[tuple[int, float, float, float]]  # (k, Hill's index, low, high)


def estimate(samples: ArrayLike) -> Tail:
    """Estimate the tail of |X| from independent samples of X, in any order. Zeros are ignored.

        heavy       γ, the extreme-value index, is above 0 by 2.6 standard errors
        infinite    heavy, and α < 2
        light       not heavy, and γ is below ½ (where variances become infinite) by 2.6 standard errors
        too few     fewer than 100 samples, or neither heavy nor light

    α comes from a stable law if the tail is heavy, log(−log|φ|²) is straight within 3 standard errors, and the index is
    below 2 by 3 standard errors; otherwise from Hill's estimator. With only a few thousand samples, where a bend could
    be missed, the stable law also needs Hill's index to be 2 or more, as it is where the power law begins far out.

    >>> from tardygrad import streams
    >>> tail = estimate(streams.generator(0, "example").pareto(1.5, 20_000) + 1)
    >>> tail.verdict, tail.by, round(tail.index, 1)
    ('heavy-tailed, infinite variance', 'hill', 1.5)
    """
    numbers = _numbers(samples)
    if not np.isfinite(numbers).all():
        count = int((~np.isfinite(numbers)).sum())
        raise Invalid(f"`samples` must be finite, got {count} of {len(numbers)} that are not.")
    if len(numbers) and numbers.min() == numbers.max():
        raise Invalid(f"`samples` must differ from each other, got {len(numbers)} times {numbers[0]:g}.")
    nonzero = shuffled(numbers[numbers != 0])
    if len(nonzero) < MIN_SAMPLES:
        return Tail("too few to tell", *(None,) * 4, len(nonzero), *(None,) * 8, [])
    sizes = np.abs(nonzero)
    top = hill(sizes)
    nonzero /= sizes.max()  # so that no sum overflows
    law = stable(nonzero)
    heavy = top.heaviness > VERDICT_ERRORS * top.error
    fits = heavy and law is not None and _fits(law) and (law.bend_error < MAX_BEND_ERROR_BELOW_2 or top.index >= 2)
    hill_low, hill_high = band(top.index, top.k)
    index, low, high = top.index, hill_low, hill_high
    if law and fits:
        index, low, high = law.index, law.index - Z * law.error, law.index + Z * law.error
    verdict: Verdict = "too few to tell"
    if heavy:
        verdict = "heavy-tailed, infinite variance" if index < 2 else "heavy-tailed, finite variance"
    elif top.heaviness + VERDICT_ERRORS * top.error < 0.5:
        verdict = "light-tailed"
    return Tail(
        verdict=verdict,
        index=index,
        low=low,
        high=high,
        by="stable" if fits else "hill",
        number=len(nonzero),
        k=top.k,
        hill=top.index,
        hill_low=hill_low,
        hill_high=hill_high,
        heaviness=top.heaviness,
        stable=law.index if law else None,
        bend=law.bend / law.bend_error if law and law.bend_error else None,
        block_sum=block_sum(nonzero),
        curve=top.curve,
    )


def _numbers(samples: ArrayLike) -> Numbers:
    """The samples as a flat float64 array; raises `Invalid` unless they are real numbers."""
    try:
        array = np.asarray(samples)
        if array.dtype.kind in "biufO":
            with np.errstate(over="ignore"):
                return array.astype(np.float64).ravel()
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"`samples` must be real numbers, got others ({error}).") from error
    raise Invalid(f"`samples` must be real numbers, got {array.dtype}.")


def _fits(law: Stable) -> bool:
    straight = abs(law.bend) < STABLE_ERRORS * law.bend_error and law.bend_error < MAX_BEND_ERROR
    return straight and law.index + STABLE_ERRORS * law.error < 2
