"""Statistics of a few paired runs: means with confidence intervals, paired tests, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A mean and the half-width of its confidence interval, None if there is only one number."""

    mean: float
    half_width: float | None


def estimate(numbers: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean of independent numbers and its confidence interval by Student's t.

    >>> mean, half_width = estimate([1.0, 2.0, 3.0])
    >>> mean, round(half_width, 4)
    (2.0, 2.4841)
    """
    from scipy import stats  # slow to import

    values = np.asarray(numbers, dtype=float)
    if len(values) < 2:
        return Estimate(float(values.mean()), None)
    quantile = stats.t.ppf((1 + confidence) / 2, len(values) - 1)
    return Estimate(float(values.mean()), float(quantile * values.std(ddof=1) / math.sqrt(len(values))))


def paired_p(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The p-value of the paired t-test that both have the same mean; None if there is only one pair.

    >>> round(paired_p([1.0, 2.0, 4.0], [2.0, 4.0, 5.0]), 4)
    0.0572
    """
    from scipy import stats

    differences = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    if len(differences) < 2:
        return None
    if not differences.any():  # 0 / 0
        return 1.0
    if not differences.std():
        return 0.0
    return float(stats.ttest_rel(ours, theirs).pvalue)


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
