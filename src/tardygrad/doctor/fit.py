"""A fleet, fitted: every client's runtimes from the times that its jobs took in a record.

Times are those from dispatch to arrival, so messages and queues are in them, and a fitted fleet has no links. Jobs that
never came back count as at least as long as they were out: each takes the middle one of its client's longer times, or
stays as it is if there are none (Efron's redistribution to the right). A runtime that is made of such times by a half
is marked: it takes at least as long. That clients are lost is counted, not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tardygrad.doctor.history import History
from tardygrad.errors import Invalid
from tardygrad.fleet import Exponential, Fleet, Group, Integer, LogNormal, Pareto, Trace, Uniform

ENOUGH = 5  # jobs for a distribution of one's own
ALIKE = 2.0  # clients whose medians are no further apart are neighbours
TAIL = 20  # jobs that can show a heavy tail
WHOLE = 10**6  # seconds: whole numbers beyond it are taken for others
UNLIKELY = 0.01  # a distribution to which a test (Kolmogorov-Smirnov, or chi-square) gives less is no good
LONGEST = 200  # times in a trace
POOL = 5000  # times of several clients together
AT_LEAST = " (at least)"  # behind the name of a group whose runtime is a lower bound

Drawn = Uniform | Integer | LogNormal | Exponential | Pareto | Trace

Source = Literal["own", "class", "neighbours", "few", "everyone"]
"""Whose times a client's runtime is made from: `few` are its own, with the spread of the others."""


class Fit(NamedTuple):
    """One client's runtime, and what it is made from."""

    client: int
    name: str  # its class
    jobs: int  # measured
    runtime: Drawn
    source: Source
    lost: float | None  # share of its jobs that were lost with it; None: it had none
    at_least: bool  # its runtime is a lower bound, as half of its jobs or more never came back


class Fitted(NamedTuple):
    """A fleet, and how each of its clients was fitted."""

    fleet: Fleet
    clients: list[Fit]


def fit(history: History, scale: float = 1.0) -> Fitted:
    """The fleet of a record.

    Args:
        scale: the work of a job to come, over that of the record's.
    """
    times = [_completed(jobs.seconds, jobs.open) * scale for jobs in history.jobs]
    short = [_short(jobs.seconds, jobs.open) for jobs in history.jobs]
    if not any(jobs.seconds for jobs in history.jobs):
        raise Invalid(f"a fit needs a run with at least one finished job, got {str(history.path)!r} with none.")
    runtimes = {client: choose(each) for client, each in enumerate(times) if len(each) >= ENOUGH}
    pools = _Pools(history, times, short)
    found: list[Fit] = []
    for client, (jobs, name) in enumerate(zip(history.jobs, history.classes, strict=True)):
        own: tuple[Drawn, Source, bool] | None = (
            (runtimes[client], "own", pools.bounded(client)) if client in runtimes else None
        )
        runtime, source, at_least = own or pools.runtime(client)
        lost = jobs.lost / jobs.sent if jobs.sent else None
        found.append(Fit(client, name, len(jobs.seconds), runtime, source, lost, at_least))
    alike = groupby(found, key=lambda one: (one.name + AT_LEAST * one.at_least, one.runtime))
    return Fitted(Fleet(tuple(Group(name, len(list(same)), runtime) for (name, runtime), same in alike)), found)


def choose(times: Sequence[float] | NDArray[np.float64], *, several: bool = False) -> Drawn:
    """The most likely distribution of measured times, or the times themselves where that is unlikely.

    Whole numbers are Integer's. Of the others the likelihood decides, less one for every parameter.

    Args:
        several: the times are of several clients, who must not repeat them in step.

    >>> choose([2.0, 1.0, 2.0, 1.0, 2.0])
    Integer(low=1, high=2)
    """
    x = np.asarray(times, dtype=np.float64)
    if len(x) < ENOUGH:
        return Trace(tuple(map(float, x)))
    if x.min() == x.max() and x[0] != int(x[0]):
        return Uniform(float(x[0]), float(x[0]))
    if (x == np.floor(x)).all() and x.max() < WHOLE:
        low, high = int(x.min()), int(x.max())
        best: Drawn = Integer(low, high)
        likely = float(stats.chisquare(np.bincount(x.astype(np.int64) - low)).pvalue) if high > low else 1.0
    else:
        best, law, _ = max(_laws(x), key=lambda one: one[1].logpdf(x).sum() - one[2])
        likely = float(stats.ks_1samp(x, law.cdf).pvalue)
    if several or likely >= UNLIKELY:
        return best
    return Trace(tuple(float(one) for one in x[:: math.ceil(len(x) / LONGEST)]))


def _laws(x: NDArray[np.float64]) -> Iterable[tuple[Drawn, Any, int]]:
    """What may have drawn the times: the fleet's class, scipy's, and its free parameters. The ends are unbiased."""
    n, least, mean = len(x), float(x.min()), float(x.mean())
    beyond = (float(x.max()) - least) / (n - 1)
    low, high = max(least - beyond, 0.0), float(x.max()) + beyond
    yield Uniform(low, high), stats.uniform(low, high - low), 1
    yield Exponential(mean), stats.expon(scale=mean), 1
    if least > 0:
        logs = np.log(x)
        median, sigma = math.exp(logs.mean()), float(logs.std(ddof=1))
        yield LogNormal(median, sigma), stats.lognorm(sigma, scale=median), 2
        above = float((logs - math.log(least)).sum())  # the tail's likeliest value is n over it
        minimum = least * max(1 - above / (n * (n - 1)), 0.5)
        if n >= TAIL:
            yield Pareto(minimum, (n - 2) / above), stats.pareto((n - 2) / above, scale=minimum), 1


def _completed(seconds: Sequence[float], out: Sequence[float]) -> NDArray[np.float64]:
    """All times of a client, those of jobs that never came back at their least."""
    done = np.asarray(seconds, dtype=np.float64)
    longer = [np.sort(done[done > least]) for least in out]
    at_least = [more[(len(more) - 1) // 2] if len(more) else least for more, least in zip(longer, out, strict=True)]
    return np.concatenate([done, np.asarray(at_least, dtype=np.float64)])


def _short(seconds: Sequence[float], out: Sequence[float]) -> int:
    """How many of these times are lower bounds."""
    return sum(least >= max(seconds, default=0.0) for least in out)


def _spread(times: Sequence[NDArray[np.float64]]) -> float:
    """The standard deviation of a typical client's log-times."""
    logs = [np.log(each).std(ddof=1) for each in times if len(each) >= ENOUGH and each.min() > 0]
    return float(np.median(logs)) if logs else 0.0


class _Pools:
    """The times of clients with few jobs, beside those of others."""

    def __init__(self, history: History, times: list[NDArray[np.float64]], short: list[int]) -> None:
        self.times, self.classes = times, np.array(history.classes)
        self.short, self.many = np.array(short), np.array([len(each) for each in times])
        self.medians = np.array([np.median(each) if len(each) else math.nan for each in times])
        self.everyone = self._pool(np.ones(len(times), dtype=bool))
        self.spread = _spread(times)
        self.mates: dict[str, NDArray[np.float64]] = {}

    def runtime(self, client: int) -> tuple[Drawn, Source, bool]:
        """Its class's, its neighbours', or its own few with a typical spread; and whether that is a lower bound."""
        name, middle = self.classes[client], self.medians[client]
        like = self.classes == name
        if name not in self.mates:
            self.mates[name] = self._pool(like)
        mates = self.mates[name]
        if len(mates) >= ENOUGH and (math.isnan(middle) or _alike(np.median(mates), middle)):
            return choose(mates, several=True), "class", self.bounded(like)
        if math.isnan(middle):
            return choose(self.everyone, several=True), "everyone", False
        near = _alike(self.medians, middle)
        if len(pool := self._pool(near)) >= ENOUGH:
            return choose(pool, several=True), "neighbours", self.bounded(near)
        few: Drawn = LogNormal(float(middle), self.spread) if middle > 0 else Uniform(0.0, 0.0)
        return few, "few", self.bounded(client)

    def bounded(self, those: NDArray[np.bool_] | int) -> bool:
        """Whether half of their times or more are lower bounds, and so is their median."""
        return bool(2 * self.short[those].sum() >= self.many[those].sum())

    def _pool(self, those: NDArray[np.bool_]) -> NDArray[np.float64]:
        pool = np.concatenate([np.empty(0), *(self.times[client] for client in np.flatnonzero(those))])
        return pool[:: math.ceil(len(pool) / POOL) or 1]


def _alike(a: Any, b: Any) -> Any:
    return (a <= ALIKE * b) & (b <= ALIKE * a)
