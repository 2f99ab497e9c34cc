"""Hill's estimate of the tail index from the k largest of n samples, for a range of k, and the choice of k.

    1/α_k = (1/k) Σ_{i≤k} log(X_(i) / X_(k+1)) = (1/k) Σ_{i≤k} i log(X_(i) / X_(i+1))

For a power law the terms of the last sum are independent and identically distributed (Rényi), so leaving out those of
the very largest samples adds no bias. Here the m largest, one for every hundred, are left out, so that no single
outlier decides.

B. M. Hill. A simple general approach to inference about the tail of a distribution. Annals of Statistics, 1975.
k: A. Clauset, C. R. Shalizi, M. E. J. Newman. Power-law distributions in empirical data. SIAM Review, 2009.
Heaviness: A. L. M. Dekkers, J. H. J. Einmahl, L. de Haan. A moment estimator for the index of an extreme-value
distribution. Annals of Statistics, 1989.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

Z = 1.96  # standard errors of a 95 % band
SHARE = 10  # k is at most a tenth of n
SPARED = 100  # m = k / 100
STEPS = 24  # values of k that are tried
MAX_DISTANCE = 1.08  # √k times the distance from a power law: 5 % of power laws exceed it (Lilliefors)


@dataclass(frozen=True)
class Hill:
    """Hill's estimate at the chosen k, and the curve over all k."""

    k: int
    index: float
    heaviness: float  # γ, the extreme-value index: 1/α for a power law, 0 or less for a light tail
    error: float  # standard error of γ
    curve: list[tuple[int, float, float, float]]  # (k, index, low, high)


def band(index: float, k: int) -> tuple[float, float]:
    """α_k ± 1.96 α_k / √k: asymptotic, assuming independent samples; ignores the bias and the choice of k."""
    return index * max(1 - Z / math.sqrt(k), 0.0), index * (1 + Z / math.sqrt(k))


def survival(sizes: Numbers, points: int) -> list[tuple[float, float]]:
    """(size, share of sizes at or above it), at ranks evenly spaced in logarithms."""
    ordered = -np.sort(-sizes)
    ranks = np.unique(np.geomspace(1, len(sizes), points).round().astype(int)) if len(sizes) else ()
    return [(float(ordered[rank - 1]), float(rank / len(sizes))) for rank in ranks]


def hill(sizes: Numbers) -> Hill:
    """Hill's estimate from 100 or more positive numbers.

    Among the k whose k largest samples pass for a power law, the one closest to it is chosen; if none passes, the
    closest of all. The distance is that of Kolmogorov and Smirnov, to the power law with the estimated index.
    """
    n = len(sizes)
    least = max(10, int(n**0.4))
    ks = np.unique(np.geomspace(least, max(n // SHARE, least), STEPS).astype(int))
    most = int(ks[-1]) + _spared(int(ks[-1]))
    top = np.log(-np.sort(-np.partition(sizes, n - most - 1)[n - most - 1 :]))
    gaps = (top[:-1] - top[1:]) * np.arange(1.0, most + 1)
    fits = [_fit(gaps, int(k)) for k in ks]
    k, _, mean, square = min(fits, key=lambda fit: (fit[1] * math.sqrt(fit[0]) > MAX_DISTANCE, fit[1]))
    spread = 1 - mean * mean / square if square > 0 else 0.0
    gamma = mean + 1 - 0.5 / spread if spread > 0 else -math.inf  # all samples are equal
    error = math.sqrt((1 + max(gamma, 0.0) ** 2) / k)
    indices = [(k, 1 / mean if mean > 0 else math.inf) for k, _, mean, _ in fits]
    return Hill(k, 1 / mean if mean > 0 else math.inf, gamma, error, [(k, a, *band(a, k)) for k, a in indices])


def _spared(k: int) -> int:
    """m, how many of the largest are left out."""
    return max(k // SPARED, 1)


def _fit(gaps: Numbers, k: int) -> tuple[int, float, float, float]:
    """(k, distance from a power law, mean and mean square of log(X_(i) / X_(k+1))), from gaps i log(X_(i) / X_(i+1)).

    The first m gaps are skipped; for a power law the next k have the same distribution.
    """
    rank = np.arange(k)
    logs = np.cumsum((gaps[_spared(k) :][:k] / (rank + 1))[::-1])[::-1]
    mean, square = float(logs.mean()), float((logs * logs).mean())
    if mean <= 0:
        return k, math.inf, 0.0, 0.0
    beyond = np.exp(-logs / mean)
    return k, float(np.maximum(beyond - rank / k, (rank + 1) / k - beyond).max()), mean, square
