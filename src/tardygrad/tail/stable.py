"""The index α of a stable law, |φ(u)| = exp(−|c u|^α), and whether the samples follow one.

Both estimators assume a stable law, the limit of heavy-tailed sums, and are wrong for others: for Student's t with 3
degrees of freedom, whose index is 3 and whose variance is finite, they give about 1.7. `bend` tells the two apart.

    block sums   1/α = (mean log |Y_j| − mean log |X_i|) / log m, with Y_j the sum of m samples
    φ            log(−log |φ(u)|²) = log 2c^α + α log u, a straight line, whatever the law's centre and skew

M. Mohammadi, A. Mohammadpour, H. Ogata. On estimating the tail index and the spectral measure of multivariate α-stable
distributions. Metrika, 2015 (first online 2014).
I. A. Koutrouvelis. Regression-type estimation of the parameters of stable laws. JASA, 1980.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tardygrad import streams
from tardygrad.tail.hill import Numbers

GROUPS = 20  # of samples, for jackknife standard errors
PLACES = np.geomspace(0.1, 1.6, 13)  # values of u, in units of 1/c
HALF = len(PLACES) // 2


@dataclass(frozen=True)
class Stable:
    """The slope of the line, and the difference between the slopes of its two halves, which is 0 for a stable law."""

    index: float
    error: float  # standard error
    bend: float
    bend_error: float


def shuffled(samples: Numbers) -> Numbers:
    """The samples in a random order, the same every time."""
    return streams.generator(0, "shuffle").permutation(samples)


def block_sum(samples: Numbers) -> float | None:
    """The index from sums over blocks of √n centred samples; None if there is no such index."""
    size = math.isqrt(len(samples))
    centred = samples[: size * size] - samples.mean()
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        sums, each = np.log(np.abs(centred.reshape(size, size).sum(1))), np.log(np.abs(centred))
    sums, each = sums[np.isfinite(sums)], each[np.isfinite(each)]
    growth = float(sums.mean() - each.mean()) if len(sums) and len(each) else 0.0
    return math.log(size) / growth if growth > 0 else None


def stable(samples: Numbers) -> Stable | None:
    """The index from the characteristic function; None where the line is not defined."""
    low, high = np.percentile(samples, [25, 75])
    if not high > low:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # if the quartiles are almost equal
        units = samples / ((high - low) / 2)  # half the interquartile range is close to c for every α
        squares = np.array([_square(part, PLACES) for part in np.array_split(units, GROUPS)])
    whole = squares.mean(0)
    without = (squares.sum(0) - squares) / (GROUPS - 1)
    every = np.vstack([whole, without])
    if not (np.all(every > 0) and np.all(every < 1)):
        return None
    lines, at = np.log(-np.log(every)), np.log(PLACES)
    slopes = _slopes(at, lines)
    bends = _slopes(at[: HALF + 1], lines[:, : HALF + 1]) - _slopes(at[HALF:], lines[:, HALF:])
    return Stable(float(slopes[0]), _error(slopes), float(bends[0]), _error(bends))


def _square(part: Numbers, u: Numbers) -> Numbers:
    """An unbiased estimate of |φ(u)|²."""
    turns = np.outer(u, part)
    squared = np.cos(turns).mean(1) ** 2 + np.sin(turns).mean(1) ** 2
    return np.asarray((len(part) * squared - 1) / (len(part) - 1))


def _slopes(at: Numbers, lines: Numbers) -> Numbers:
    centred = at - at.mean()
    return np.asarray(lines @ centred / (centred @ centred))


def _error(values: Numbers) -> float:
    """The jackknife standard error; the first value is that of all groups together."""
    left = values[1:] - values[1:].mean()
    return math.sqrt((GROUPS - 1) / GROUPS * float(left @ left))
