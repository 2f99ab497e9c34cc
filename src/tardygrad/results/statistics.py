"""Statistics of a few paired runs: means with confidence intervals, paired tests, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ALL_EQUAL = " (all equal)"  # what tables add to a mean of equal numbers
EQUAL = 1e-12  # numbers that differ by less than this share of the largest are equal but for rounding


class Estimate(NamedTuple):
    """A mean and the half-width of its confidence interval."""

    mean: float
    half_width: float | None  # None: one number, or all are equal, so nothing is known of their spread
    number: int


def confidence_interval(numbers: Sequence[float], confidence: float = 0.95, *, size: float | None = None) -> Estimate:
    """The mean of independent numbers and its confidence interval by Student's t.

    Args:
        size: of the numbers that these are differences of, to tell a spread from rounding errors.

    >>> mean, half_width, _ = confidence_interval([1.0, 2.0, 3.0])
    >>> mean, round(half_width, 4)
    (2.0, 2.4841)
    """
    from scipy import stats  # slow to import

    values = np.asarray(numbers, dtype=float)
    number, mean = len(values), float(values.mean())
    rounding = EQUAL * float(np.abs(values).max() if size is None else size)
    if number < 2 or np.ptp(values) <= rounding:
        return Estimate(mean if abs(mean) > rounding else 0.0, None, number)
    quantile = stats.t.ppf((1 + confidence) / 2, number - 1)
    return Estimate(mean, float(quantile * values.std(ddof=1) / math.sqrt(number)), number)


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95
) -> tuple[Estimate, float | None]:
    """The mean difference of pairs, and the p-value of the two-sided paired t-test that it is 0.

    There is no p-value of one pair, nor of differences that are all equal.

    >>> difference, p = paired_difference([1.0, 2.0, 4.0], [2.0, 4.0, 5.0])
    >>> round(difference.mean, 4), round(p, 4)
    (-1.3333, 0.0572)
    """
    from scipy import stats

    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    found = confidence_interval(differences, confidence, size=max(map(abs, (*ours, *theirs))))
    return found, None if found.half_width is None else float(stats.ttest_rel(ours, theirs).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values adjusted for being several, by the method of Holm (1979); None stays None and does not count.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min((len(known) - rank) * p, 1.0))
        adjusted[i] = largest
    return adjusted
