"""The trend of a training loss, and how much it differs between clients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tardygrad.runs.history import History

FEW, SHORT = 5, 20  # rounds: fewer show nothing, or no trend, but only whether the loss has grown out of bounds
FALLS = 0.9  # a loss falls if its last tenth is below this fraction of the first
RISES = 2.0  # a loss that rises by this factor is out of bounds
SLOW = 2.0  # a loss that falls by less than this factor, as fast at the end as at the start, falls too slowly
STEADY = 0.5  # it falls as fast at the end if the second half's slope is this fraction of the first half's
SURE = 1e-3  # a slope counts if its p-value is smaller
SKEWED = 0.1  # clients' losses differ if their deviation is this fraction of the loss that is left
NOISY = 0.5  # a loss is noisy if its logarithm has a larger standard deviation, by quartiles, and no course
UNLIKELY = 0.05  # the p-value up to which the last losses are higher than the first ones
CHANCE = 0.01  # tenths of a run may differ by chance if the p-value is larger
EXTREME = 0.05  # a loss at x_0 is part of the noise if this share of the losses is below it, and above it
LARGEST = 10.0  # largest factor by which larger steps are suggested


def skewed(history: History) -> bool:
    """Whether the clients' losses differ so much that it matters which of them contribute more.

    Compares the mean losses of the clients' later updates, and subtracts what chance explains.
    """
    first, last, *_ = trend(history)
    later = [np.array(client.loss_values[len(client.loss_values) // 2 :]) for client in history.by_client]
    later = [losses[np.isfinite(losses)] for losses in later]
    known = [losses for losses in later if len(losses) > 1]
    if len(known) < 2 or not first > last:
        return False
    chance = float(np.mean([losses.var(ddof=1) / len(losses) for losses in known]))
    between = float(np.var([losses.mean() for losses in known], ddof=1)) - chance
    return between > (SKEWED * last) ** 2


class Trend(NamedTuple):
    """The loss at the start, and its medians in the last and the best tenth of the rounds; NaN if there are too few."""

    first: float  # at x_0, if the record tells; otherwise the median of the first tenth
    last: float
    least: float
    slope: float  # of the logarithm of the loss, per round; 0 if it cannot be told from 0
    steady: bool  # whether it falls as fast at the end as at the start
    short: bool  # whether there are too few rounds to see a slope
    rises: bool = False  # whether the loss ends above `RISES` times the first, which is no chance
    noise: float = 0.0  # deviation of the logarithm of the loss between rounds, if no course can be seen in it

    @property
    def noisy(self) -> bool:
        """Whether the loss differs much between rounds, and not between parts of the run."""
        return self.noise > 0

    @property
    def surely_falls(self) -> bool:
        """Whether it is certain that the loss falls."""
        return self.slope < 0 and self.falls

    @property
    def falls(self) -> bool:
        """Whether the loss falls; True if there are too few rounds to say, or if it is too noisy."""
        if self.noisy:
            return True
        if self.short:
            return not self.rises
        return not self.last > FALLS * self.first or (self.slope < 0 and self.last <= self.first)

    @property
    def slow(self) -> bool:
        """Whether the loss falls, but so slowly and steadily that larger steps would help."""
        return self.steady and self.falls and self.first < SLOW * self.last


def trend(history: History) -> Trend:
    """The trend of a run's training loss."""
    return trend_of(history.rounds.loss, loss_at_start(history))


def loss_at_start(history: History) -> float:
    """The mean loss of the jobs that started from x_0; NaN if there are none."""
    rounds = history.rounds
    from_start = rounds.delays == np.arange(1, len(rounds) + 1)[:, None]
    losses = [history.by_client[client].loss_values[:1] for client in sorted(set(rounds.clients[from_start].tolist()))]
    known = [loss for first in losses for loss in first if math.isfinite(loss)]
    return float(np.mean(known)) if known else math.nan


def trend_of(loss: NDArray[np.float64], start: float = math.nan) -> Trend:
    """The trend of a loss by rounds.

    A loss that steps which are too large have thrown up may fall ever after, and still be above that of x_0.

    >>> trend_of(np.linspace(1.0, 0.8, 100)).slow, trend_of(np.exp(-np.linspace(0.0, 5.0, 100))).slow
    (True, False)
    >>> trend_of(np.linspace(9.0, 3.0, 100)).falls, trend_of(np.linspace(9.0, 3.0, 100), start=2.3).falls
    (True, False)
    """
    known = loss[np.isfinite(loss)]
    if len(known) < FEW:
        return Trend(math.nan, math.nan, math.nan, 0.0, steady=False, short=True)
    tenths = [float(np.median(part)) for part in np.array_split(known, min(len(known) // 2, 10))]
    logs, short = np.log(known[known > 0]), len(known) < SHORT
    whole, steady = 0.0, False
    if len(logs) >= SHORT:
        whole = slope(np.arange(len(logs)), logs)
        first, second = (stats.linregress(np.arange(len(half)), half).slope for half in np.array_split(logs, 2))
        steady = whole < 0 and first < 0 and second <= STEADY * first
    first = start if math.isfinite(start) else tenths[0]
    low, high = np.quantile(known, (EXTREME, 1 - EXTREME))
    is_above = tenths[-1] > RISES * first
    rises = is_above and (first <= low or whole > 0 or _last_are_higher(known))
    noise = _noise(logs) if not whole and low <= first <= high else 0.0
    if is_above and not rises and len(logs) >= SHORT:  # by chance
        noise = float(stats.iqr(logs, scale="normal"))
    return Trend(first, tenths[-1], min(tenths), whole, bool(steady), short, rises, noise)


def _last_are_higher(loss: NDArray[np.float64]) -> bool:
    """Whether the last fifth of the losses is higher than the first, by a rank test."""
    fifth = max(len(loss) // 5, 1)
    return bool(stats.mannwhitneyu(loss[-fifth:], loss[:fifth], alternative="greater").pvalue <= UNLIKELY)


def _noise(logs: NDArray[np.float64]) -> float:
    """The deviation of a loss's logarithms, by quartiles; 0 if it is small, or if the tenths of the run differ.

    >>> values = np.random.default_rng(0).standard_t(2, 150)
    >>> [round(_noise(values + course * np.arange(150)), 1) for course in (0.0, 0.02)], _noise(values / 10)
    ([1.1, 0.0], 0.0)
    """
    noise = float(stats.iqr(logs, scale="normal")) if len(logs) >= SHORT else 0.0
    return noise if noise > NOISY and stats.kruskal(*np.array_split(logs, 10)).pvalue > CHANCE else 0.0


def slope(x: NDArray[Any], y: NDArray[np.float64]) -> float:
    """The slope of a line through points; 0 if it cannot be told from 0, or there are too few."""
    if len(x) < FEW or np.ptp(x) == 0:
        return 0.0
    line = stats.linregress(x, y)
    return float(line.slope) if line.pvalue < SURE else 0.0


def larger(found: Trend, delay: float) -> float:
    """A factor for larger steps that is safe.

    The logarithm of the loss falls by about 2ηh per round, for steps of η and a curvature of h. Steps are stable up to
    about ηh = 1/delay for the largest curvature, which may be much larger than that of the whole loss: a twentieth is
    the aim, and at most ten times the present step.
    """
    return min(LARGEST, 0.1 / (max(-found.slope, 1e-9) * max(delay, 1.0)))
