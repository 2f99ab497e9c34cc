"""The index α of a stable law, |φ(u)| = exp(−|c u|^α), and whether the samples have one.

Both estimators presume such a law, the limit of heavy-tailed sums; of others they are wrong. Student's t with 3 degrees
of freedom, whose index is 3 and whose variance is finite, reads 1.7 or so. `bend` tells them apart.

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

GROUPS = 20  # of the samples, for standard errors (jackknife)
PLACES = np.geomspace(0.1, 1.6, 13)  # u, in units of 1/c
HALF = len(PLACES) // 2


@dataclass(frozen=True)
class Stable:
    """The slope of the line, and the difference between the slopes of its halves, zero for a stable law."""

    index: float
    error: float  # standard
    bend: float
    bend_error: float


def shuffled(samples: Numbers) -> Numbers:
    """The samples in an order that has nothing to do with what they are, always the same."""
    return streams.generator(0, "shuffle").permutation(samples)


def block_sum(samples: Numbers) -> float | None:
    """The index by block sums of √n samples, less their mean; None if they say none."""
    size = math.isqrt(len(samples))
    centred = samples[: size * size] - samples.mean()
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        sums, each = np.log(np.abs(centred.reshape(size, size).sum(1))), np.log(np.abs(centred))
    sums, each = sums[np.isfinite(sums)], each[np.isfinite(each)]
    grown = float(sums.mean() - each.mean()) if len(sums) and len(each) else 0.0
    return math.log(size) / grown if grown > 0 else None


def stable(samples: Numbers) -> Stable | None:
    """The index by the characteristic function; None where the line cannot be drawn."""
    low, high = np.percentile(samples, [25, 75])
    if not high > low:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # of samples that have next to nothing between their quartiles
        units = samples / ((high - low) / 2)  # half the quartiles' distance is all but c, whatever α
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
    """|φ(u)|² without the bias of its noise."""
    turns = np.outer(u, part)
    squared = np.cos(turns).mean(1) ** 2 + np.sin(turns).mean(1) ** 2
    return np.asarray((len(part) * squared - 1) / (len(part) - 1))


def _slopes(at: Numbers, lines: Numbers) -> Numbers:
    centred = at - at.mean()
    return np.asarray(lines @ centred / (centred @ centred))


def _error(values: Numbers) -> float:
    """The jackknife's standard error; the first value is of all groups."""
    left = values[1:] - values[1:].mean()
    return math.sqrt((GROUPS - 1) / GROUPS * float(left @ left))
