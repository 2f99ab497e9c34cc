"""One verdict on a sample's tail: P(|X| > v) falls like v^−α, or faster than any power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from tardygrad.errors import Invalid
from tardygrad.tail.hill import Numbers, Z, band, hill
from tardygrad.tail.stable import Stable, block_sum, shuffled, stable

Verdict = Literal["heavy-tailed, infinite variance", "heavy-tailed, finite variance", "light-tailed", "too few to tell"]

FEWEST = 100  # samples
SURE = 2.6  # standard errors: 99 %
STRAIGHT = 3.0  # standard errors of a stable law's bend
FAIR, SHARP = 0.08, 0.03  # larger standard errors of it could hide the bend of Student's t with 3, with 1.5


@dataclass(frozen=True)
class Tail:
    """What a sample says of its tail.

    The index is that of a stable law if one fits, else Hill's. It is a number even where the tail is light, and says
    then only how steep it is where it was measured: the verdict comes first.
    """

    verdict: Verdict
    index: float | None  # α; None of too few samples
    low: float | None  # a band of 95 %, asymptotic and for independent samples
    high: float | None
    by: Literal["hill", "stable"] | None
    number: int  # of samples that are not zero
    k: int | None  # the largest samples, which Hill's estimate is made from
    hill: float | None
    hill_low: float | None
    hill_high: float | None
    heaviness: float | None  # γ: 1/α of a power law, 0 or less of a light tail
    stable: float | None  # the index if the law were stable, and
    bend: float | None  # what speaks against it, in standard errors
    block_sum: float | None  # the same by block sums, which cannot tell; see stable.py
    curve: list[tuple[int, float, float, float]]  # k, Hill's index, and its band


def estimate(samples: ArrayLike) -> Tail:
    """The tail of |X|, from independent samples of X in any order.

        heavy       γ, the extreme-value index, is above 0 by 2.6 standard errors
        infinite    heavy, and α < 2
        light       not heavy, and γ is below ½, where variances become infinite, by as much
        too few     fewer than 100, or neither heavy nor light

    α is the stable law's if the samples are heavy, log(−log|φ|²) is straight within 3 standard errors, and the index is
    below 2 by as many; else it is Hill's. Of some thousand samples only, where a bend could be missed, it is Hill's too
    unless that is above 2, as it is of stable laws whose power law begins far out. Zeros are left out.

    >>> from tardygrad import streams
    >>> tail = estimate(streams.generator(0, "example").pareto(1.5, 20_000) + 1)
    >>> tail.verdict, tail.by, round(tail.index, 1)
    ('heavy-tailed, infinite variance', 'hill', 1.5)
    """
    given = _numbers(samples)
    if not np.isfinite(given).all():
        count = int((~np.isfinite(given)).sum())
        raise Invalid(f"a tail needs samples that are finite, got {count} of {len(given)} that are not.")
    if len(given) and given.min() == given.max():
        raise Invalid(f"a tail needs samples that differ, got {len(given)} times {given[0]:g}.")
    found = shuffled(given[given != 0])
    if len(found) < FEWEST:
        return Tail("too few to tell", *(None,) * 4, len(found), *(None,) * 8, [])
    sizes = np.abs(found)
    far = hill(sizes)
    found /= sizes.max()  # so that no sum overflows
    law = stable(found)
    heavy = far.heaviness > SURE * far.error
    fits = heavy and law is not None and _fits(law) and (law.bend_error < SHARP or far.index >= 2)
    index, low, high = far.index, *band(far.index, far.k)
    if law and fits:
        index, low, high = law.index, law.index - Z * law.error, law.index + Z * law.error
    verdict: Verdict = "too few to tell"
    if heavy:
        verdict = "heavy-tailed, infinite variance" if index < 2 else "heavy-tailed, finite variance"
    elif far.heaviness + SURE * far.error < 0.5:
        verdict = "light-tailed"
    return Tail(
        verdict=verdict,
        index=index,
        low=low,
        high=high,
        by="stable" if fits else "hill",
        number=len(found),
        k=far.k,
        hill=far.index,
        hill_low=band(far.index, far.k)[0],
        hill_high=band(far.index, far.k)[1],
        heaviness=far.heaviness,
        stable=law.index if law else None,
        bend=law.bend / law.bend_error if law and law.bend_error else None,
        block_sum=block_sum(found),
        curve=far.curve,
    )


def _numbers(samples: ArrayLike) -> Numbers:
    """The samples as an array; refuses what are no real numbers."""
    try:
        given = np.asarray(samples)
        if given.dtype.kind in "biufO":
            with np.errstate(over="ignore"):
                return given.astype(np.float64).ravel()
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"a tail needs samples that are real numbers, got some that are none: {error}.") from error
    raise Invalid(f"a tail needs samples that are real numbers, got {given.dtype}.")


def _fits(law: Stable) -> bool:
    straight = abs(law.bend) < STRAIGHT * law.bend_error and law.bend_error < FAIR
    return straight and law.index + STRAIGHT * law.error < 2
