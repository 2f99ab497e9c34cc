"""Fit a fleet to a record: the distribution of every client's runtimes. Windows of availability are those of its spec.

A job's time goes from dispatch to arrival, so it includes messages and queues, and a fitted fleet has no links. For a
job that never came back only a lower bound is known: it is replaced by the median of the client's longer times, or kept
if there are none (Efron's redistribution to the right). If half of a client's times are such bounds, its runtime is
marked "at least". Losses of clients are counted, but not modelled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tardygrad.constructors import parameters, written_arguments
from tardygrad.engines.fleet_clock import in_order
from tardygrad.errors import Invalid
from tardygrad.fleet import Exponential, Fleet, Group, Integer, LogNormal, Pareto, Runtime, Trace, Uniform
from tardygrad.runs.history import History
from tardygrad.spec.spec import Spec, build_fleet
from tardygrad.spec.toml import document, inline

ENOUGH = 5  # a client with this many jobs gets its own distribution
ALIKE = 2.0  # clients are similar if their medians differ by at most this factor
TAIL = 20  # fewer jobs cannot show a heavy tail
WHOLE = 10**6  # seconds: larger integers are treated as real numbers
UNLIKELY = 0.01  # a distribution is rejected if its test (Kolmogorov-Smirnov or chi-square) has a smaller p-value
LONGEST = 200  # most times in a trace
POOL = 5000  # most times of several clients together
MANY, CLASSES = 1000, 50  # with more clients, similar ones share a distribution; with more classes, across classes
AT_LEAST = " (at least)"  # suffix of the name of a group whose runtime is a lower bound

Source = Literal["own", "class", "neighbours", "few", "everyone"]
"""Whose times determine a client's runtime; `few`: its own median with a typical spread."""


class ClientFit(NamedTuple):
    """One client's runtime and its origin."""

    client: int
    name: str  # its class
    jobs: int  # measured
    runtime: Runtime
    source: Source
    lost: float | None  # share of its jobs that were lost with it; None if it had no jobs
    at_least: (
        bool  # its runtime is a lower bound because half of its jobs or more are out for longer than any that came back
    )


class FittedFleet(NamedTuple):
    """A fleet and the fits of its clients."""

    fleet: Fleet
    clients: list[ClientFit]


def fit_fleet(history: History, scale: float = 1.0) -> FittedFleet:
    """The fleet of a record.

    Args:
        scale: the work of a future job relative to one in the record.
    """
    if not any(client.seconds for client in history.by_client):
        raise Invalid(f"--fit needs a run with at least one finished job, got {str(history.path)!r} with none.")
    measured = _Measured(history, scale)
    found: list[ClientFit] = []
    for number, (client, name) in enumerate(zip(history.by_client, history.classes, strict=True)):
        runtime, source, at_least = measured.runtime(number)
        lost = client.losses / len(client.jobs) if client.jobs else None
        found.append(ClientFit(number, name, len(client.seconds), runtime, source, lost, at_least))
    alike = groupby(found, key=lambda each: (each.name + AT_LEAST * each.at_least, each.runtime))
    groups = tuple(Group(name, len(list(same)), runtime) for (name, runtime), same in alike)
    return FittedFleet(replace(_recorded_windows(history), groups=groups), found)


def _recorded_windows(history: History) -> Fleet:
    """A fleet with the windows of the record's spec, and nothing else of it; raises `Invalid` if they are not known."""
    if not any(client.asleep for client in history.by_client):
        return Fleet((Group("any", history.clients, Uniform(0.0, 0.0)),))
    table = (history.spec or history.described).get("fleet")
    if not isinstance(table, dict) or table.get("kind") not in ("groups", "paper"):
        raise Invalid("a fit needs to know when clients are awake, got a record of sleeping clients without a [fleet].")
    if isinstance(groups := table.get("groups"), list):  # their runtimes may be code of the user
        instant = {"runtime": {"kind": "uniform", "low": 0, "high": 0}}
        table = table | {"groups": [group | instant if isinstance(group, dict) else group for group in groups]}
    fleet = in_order(build_fleet(table | {"availability": None}), history.ids or None, history.clients)
    return Fleet(fleet.groups, available=fleet.available, at_window_end=fleet.at_window_end)


def fit_distribution(times: Sequence[float] | NDArray[np.float64], *, several: bool = False) -> Runtime:
    """The best distribution for measured times, or a trace of the times if none fits.

    Integers get an Integer distribution. Otherwise the log-likelihood decides, minus one per parameter.

    Args:
        several: the times are of several clients, so they must not become a trace, which all would repeat in step.

    >>> fit_distribution([2.0, 1.0, 2.0, 1.0, 2.0])
    Integer(low=1, high=2)
    """
    x = np.asarray(times, dtype=np.float64)
    if len(x) < ENOUGH:
        return Trace(tuple(map(float, x)))
    if x.min() == x.max() and x[0] != int(x[0]):
        return Uniform(float(x[0]), float(x[0]))
    if (x == np.floor(x)).all() and x.max() < WHOLE:
        low, high = int(x.min()), int(x.max())
        best: Runtime = Integer(low, high)
        likely = float(stats.chisquare(np.bincount(x.astype(np.int64) - low)).pvalue) if high > low else 1.0
    else:
        best, law, _ = max(_laws(x), key=lambda law: law[1].logpdf(x).sum() - law[2])
        likely = float(stats.ks_1samp(x, law.cdf).pvalue)
    if several or likely >= UNLIKELY:
        return best
    return Trace(tuple(float(time) for time in x[:: math.ceil(len(x) / LONGEST)]))


def _laws(x: NDArray[np.float64]) -> Iterable[tuple[Runtime, Any, int]]:
    """Candidate laws: the fleet's class, scipy's distribution, and the number of parameters. Limits are unbiased."""
    n, least, mean = len(x), float(x.min()), float(x.mean())
    beyond = (float(x.max()) - least) / (n - 1)
    low, high = max(least - beyond, 0.0), float(x.max()) + beyond
    yield Uniform(low, high), stats.uniform(low, high - low), 1
    yield Exponential(mean), stats.expon(scale=mean), 1
    if least > 0:
        logs = np.log(x)
        median, sigma = math.exp(logs.mean()), float(logs.std(ddof=1))
        yield LogNormal(median, sigma), stats.lognorm(sigma, scale=median), 2
        above = float((logs - math.log(least)).sum())  # n over this is the maximum likelihood estimate of the tail
        minimum = least * max(1 - above / (n * (n - 1)), 0.5)
        if n >= TAIL:
            yield Pareto(minimum, (n - 2) / above), stats.pareto((n - 2) / above, scale=minimum), 1


def _completed(seconds: Sequence[float], out: Sequence[float]) -> NDArray[np.float64]:
    """All times of a client, including estimates for jobs that never came back."""
    done = np.asarray(seconds, dtype=np.float64)
    longer = [np.sort(done[done > least]) for least in out]
    at_least = [more[(len(more) - 1) // 2] if len(more) else least for more, least in zip(longer, out, strict=True)]
    return np.concatenate([done, np.asarray(at_least, dtype=np.float64)])


class _Measured:
    """The times of all clients; those of others stand in for a client with few jobs."""

    def __init__(self, history: History, scale: float) -> None:
        jobs = [(client.seconds, client.unfinished_ages) for client in history.by_client]
        self.times = [_completed(*each) * scale for each in jobs]
        self.short = np.array([sum(age >= max(seconds, default=0.0) for age in out) for seconds, out in jobs])
        self.many, self.classes = np.array([len(each) for each in self.times]), np.array(history.classes)
        self.medians = np.array([np.median(each) if len(each) else math.nan for each in self.times])
        self.everyone = self._pool(np.ones(len(self.times), dtype=bool))
        names, numbers = np.unique(self.classes, return_inverse=True)
        self.shared: dict[int, tuple[Runtime, Source, bool]] = {}  # if there are many clients, by `kind`
        self.of_class: dict[str, NDArray[np.float64]] = {}
        if len(self.times) > MANY:
            none = np.where(np.isnan(self.medians), -3000.0, -2000.0)  # without times, or of 0 s
            speed = np.log2(self.medians, where=self.medians > 0, out=none)
            self.kind = np.floor(2 * speed).astype(np.int64) * CLASSES + (numbers if len(names) <= CLASSES else 0)
        else:
            self.of_class = {str(name): self._pool(self.classes == name) for name in names}
        logs = [np.log(each).std(ddof=1) for each in self.times if len(each) >= ENOUGH and each.min() > 0]
        self.spread = float(np.median(logs)) if logs else 0.0  # of a typical client's log times

    def runtime(self, client: int) -> tuple[Runtime, Source, bool]:
        """The runtime of its own jobs, of its class or of similar clients; and whether it is a lower bound."""
        if len(self.times) > MANY:
            if (kind := int(self.kind[client])) not in self.shared:
                self.shared[kind] = self._shared(self.kind == kind)
            return self.shared[kind]
        if self.many[client] >= ENOUGH:
            return fit_distribution(self.times[client]), "own", self.bounded(client)
        middle, like = self.medians[client], self.classes == self.classes[client]
        mates = self.of_class[str(self.classes[client])]
        if len(mates) >= ENOUGH and (math.isnan(middle) or _alike(np.median(mates), middle)):
            return fit_distribution(mates, several=True), "class", self.bounded(like)
        if math.isnan(middle):
            return fit_distribution(self.everyone, several=True), "everyone", False
        near = _alike(self.medians, middle)
        if len(pool := self._pool(near)) >= ENOUGH:
            return fit_distribution(pool, several=True), "neighbours", self.bounded(near)
        few: Runtime = LogNormal(float(middle), self.spread) if middle > 0 else Uniform(0.0, 0.0)
        return few, "few", self.bounded(client)

    def _shared(self, those: NDArray[np.bool_]) -> tuple[Runtime, Source, bool]:
        """One runtime for these clients, whose medians are similar: a fit for each of many takes minutes."""
        pool = self._pool(those)
        if not len(pool):
            return fit_distribution(self.everyone, several=True), "everyone", False
        if len(pool) >= ENOUGH:
            return fit_distribution(pool, several=True), "neighbours", self.bounded(those)
        middle = float(np.median(pool))
        few: Runtime = LogNormal(middle, self.spread) if middle > 0 else Uniform(0.0, 0.0)
        return few, "few", self.bounded(those)

    def bounded(self, those: NDArray[np.bool_] | int) -> bool:
        """Whether at least half of their times, and so the median, are lower bounds."""
        return bool(2 * self.short[those].sum() >= self.many[those].sum())

    def _pool(self, those: NDArray[np.bool_]) -> NDArray[np.float64]:
        pool = np.concatenate([np.empty(0), *(self.times[client] for client in np.flatnonzero(those))])
        return pool[:: math.ceil(len(pool) / POOL) or 1]


def _alike(a: Any, b: Any) -> Any:
    return (a <= ALIKE * b) & (b <= ALIKE * a)


def fitted_spec(spec: Spec, fleet: Fleet, *, as_json: bool) -> str:
    """The spec in JSON, or in TOML with a line for every group of clients and for the windows of every client."""
    fields = parameters(Fleet)
    keys = ["groups"] + ["available", "at_window_end"] * bool(fleet.available)  # all that a fitted fleet has
    table = {"kind": "groups", **written_arguments(fields, {key: getattr(fleet, key) for key in keys})}
    for group in table["groups"]:
        del group["link"]  # measured times include the messages
    tables = spec.resolved()
    if as_json:
        return json.dumps(tables | {"fleet": table}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    lines = (f"{key} = {_lines(value) if isinstance(value, list) else inline(value)}" for key, value in table.items())
    tables["method"] = {key: math.inf if value == "inf" else value for key, value in tables["method"].items()}
    others = (document({name: tables[name]}) for name in tables if name != "fleet")
    return "\n\n".join([*others, "\n".join(["[fleet]", *lines])]) + "\n"


def _lines(items: list[Any]) -> str:
    lines = [f"    {inline(item)}," for item in items]
    return "\n".join(["[", *lines, "]"])
