"""Hill's estimate of the tail index from the k largest of n, for a range of k, and which k to believe.

    1/α_k = (1/k) Σ_{i≤k} log(X_(i) / X_(k+1)) = (1/k) Σ_{i≤k} i log(X_(i) / X_(i+1))

Of a power law the terms of the last sum are independent and all alike (Rényi), so those of the very largest can go
without a bias: here the k are those after the m largest, one for every hundred, so that no single outlier decides.

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

Z = 1.96  # a band holds 95 %
SHARE = 10  # k is a tenth of n at most
SPARED = 100  # of k, one is left out
STEPS = 24  # different k
REFUSED = 1.08  # √k times the distance: 5 % of power laws are farther (Lilliefors)


@dataclass(frozen=True)
class Hill:
    """Hill's estimate at the chosen k, and at all."""

    k: int
    index: float
    heaviness: float  # the extreme-value index γ: 1/α of a power law, 0 or less of a light tail
    error: float  # of γ, standard
    curve: list[tuple[int, float, float, float]]  # k, index, and its band


def band(index: float, k: int) -> tuple[float, float]:
    """α_k ± 1.96 α_k / √k: asymptotic, for independent samples, without bias and without the choice of k."""
    return index * max(1 - Z / math.sqrt(k), 0.0), index * (1 + Z / math.sqrt(k))


def hill(sizes: Numbers) -> Hill:
    """Hill's estimate; k is where the k largest are nearest to a power law, of those k that pass for one, if any.

    The distance is Kolmogorov and Smirnov's, between the largest and the power law of their own index.

    Args:
        sizes: positive numbers, a hundred or more.
    """
    n = len(sizes)
    least = max(10, int(n**0.4))
    ks = np.unique(np.geomspace(least, max(n // SHARE, least), STEPS).astype(int))
    most = int(ks[-1]) + _spared(int(ks[-1]))
    top = np.log(-np.sort(-np.partition(sizes, n - most - 1)[n - most - 1 :]))
    gaps = (top[:-1] - top[1:]) * np.arange(1.0, most + 1)
    found = [_at(gaps, int(k)) for k in ks]
    k, _, mean, square = min(found, key=lambda one: (one[1] * math.sqrt(one[0]) > REFUSED, one[1]))
    spread = 1 - mean * mean / square if square > 0 else 0.0
    gamma = mean + 1 - 0.5 / spread if spread > 0 else -math.inf  # of equal numbers: they have an end
    error = math.sqrt((1 + max(gamma, 0.0) ** 2) / k)
    indices = [(k, 1 / mean if mean > 0 else math.inf) for k, _, mean, _ in found]
    return Hill(k, 1 / mean if mean > 0 else math.inf, gamma, error, [(k, a, *band(a, k)) for k, a in indices])


def _spared(k: int) -> int:
    """m."""
    return max(k // SPARED, 1)


def _at(gaps: Numbers, k: int) -> tuple[int, float, float, float]:
    """k, the distance from a power law, and the first two moments of log(X_(i) / X_(k+1)), from i log(X_(i) / X_(i+1)).

    The gaps after the m first are taken for the first k, which of a power law have the same distribution.
    """
    rank = np.arange(k)
    logs = np.cumsum((gaps[_spared(k) :][:k] / (rank + 1))[::-1])[::-1]
    mean, square = float(logs.mean()), float((logs * logs).mean())
    if mean <= 0:
        return k, math.inf, 0.0, 0.0
    beyond = np.exp(-logs / mean)
    return k, float(np.maximum(beyond - rank / k, (rank + 1) / k - beyond).max()), mean, square
