"""Fit a fleet to a record: every client draws from its measured times. Windows of availability are those of its spec.

A job's time goes from dispatch to arrival, so it includes messages and queues, and a fitted fleet has no links. For a
job that never came back only a lower bound is known: it is replaced by the median of the client's longer times, or kept
if there are none (Efron's redistribution to the right). If half of a client's times are such bounds, its runtime is
marked "at least". Losses of clients are counted, but not modelled.

A client with few jobs has the median of its own times and the spread of its class.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tardygrad.constructors import parameters, written_arguments
from tardygrad.engines.fleet_clock import in_order
from tardygrad.errors import Invalid
from tardygrad.fleet import Fleet, Group, Trace, Uniform
from tardygrad.runs.history import History
from tardygrad.spec.spec import Spec, build_fleet
from tardygrad.spec.toml import document, inline

ENOUGH = 5  # a client with this many jobs has a distribution of its own
LONGEST = 100  # most times of a fitted runtime
MANY, CLASSES = 1000, 50  # with more clients, those of similar speed share their times; with more classes, across them
AT_LEAST = " (at least)"  # suffix of the name of a group whose runtime is a lower bound

Source = Literal["own", "class", "everyone"]
"""Whose times determine a client's runtime; with very many clients, "own" are those of clients of similar speed."""
Times = NDArray[np.float64]


class ClientFit(NamedTuple):
    """One client's runtime and its origin."""

    client: int
    name: str  # its class
    jobs: int  # measured
    runtime: Trace
    source: Source
    lost: float | None  # share of its jobs that were lost with it; None if it had no jobs
    at_least: bool  # whether half of its jobs or more are out for longer than any that came back: a lower bound


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
    times = [_completed(client.seconds, client.unfinished_ages) * scale for client in history.by_client]
    fits = _fits(times, history.classes)
    found: list[ClientFit] = []
    for number, (client, name) in enumerate(zip(history.by_client, history.classes, strict=True)):
        runtime, source = fits[number]
        longer = sum(age >= max(client.seconds, default=0.0) for age in client.unfinished_ages)
        lost = client.losses / len(client.jobs) if client.jobs else None
        at_least = 2 * longer >= len(times[number]) > 0
        found.append(ClientFit(number, name, len(client.seconds), runtime, source, lost, at_least))
    alike = groupby(found, key=lambda each: (each.name + AT_LEAST * each.at_least, each.runtime))
    groups = tuple(Group(name, len(list(same)), runtime) for (name, runtime), same in alike)
    return FittedFleet(replace(_recorded_windows(history), groups=groups), found)


def _fits(times: Sequence[Times], classes: Sequence[str]) -> list[tuple[Trace, Source]]:
    """Every client's runtime and whose times it is from."""
    kinds: list[Hashable] = list(range(len(times)))
    if len(times) > MANY:
        some = len(set(classes)) <= CLASSES
        kinds = [(some and name, _speed(own)) for own, name in zip(times, classes, strict=True)]
    own, mates = _joined(times, kinds), _joined(times, classes)
    ratios = [each / np.median(each) if len(each) and np.median(each) > 0 else each[:0] for each in times]
    spreads = _joined(ratios, classes)  # times relative to the median of their client
    fits: dict[Hashable, tuple[Trace, Source]] = {}
    for kind, name in zip(kinds, classes, strict=True):
        if kind in fits:
            continue
        source: Source = "own" if len(own[kind]) >= ENOUGH else "class" if len(mates[name]) >= ENOUGH else "everyone"
        pool = own[kind]
        if source != "own" and len(pool):
            pool = np.median(pool) * (spreads[name] if source == "class" else np.concatenate(ratios))
        elif source != "own":
            pool = mates[name] if source == "class" else np.concatenate(times)
        fits[kind] = _resampled(pool if len(pool) else own[kind]), source
    return [fits[kind] for kind in kinds]


def _joined(times: Sequence[Times], keys: Sequence[Hashable]) -> dict[Hashable, Times]:
    """The times of all clients with the same key."""
    found = defaultdict[Hashable, list[Times]](list)
    for own, key in zip(times, keys, strict=True):
        found[key].append(own)
    return {key: np.concatenate(each) for key, each in found.items()}


def _speed(times: Times) -> int:
    """The median, on a scale of half octaves; below all others: 0 s, and no times."""
    median = np.median(times) if len(times) else 0.0
    return math.floor(2 * math.log2(median)) if median > 0 else -10_000 - (not len(times))


def _resampled(times: Times) -> Trace:
    """A runtime that draws from these times, or from the means of equal shares of them if they are many."""
    parts = np.array_split(np.sort(times), min(len(times), LONGEST))
    means = [float(f"{part.mean():.4g}") for part in parts]
    return Trace(tuple(means if means[0] < means[-1] else means[:1]), resample=True)


def _completed(seconds: Sequence[float], out: Sequence[float]) -> Times:
    """All times of a client, including estimates for jobs that never came back."""
    done = np.asarray(seconds, dtype=np.float64)
    longer = [np.sort(done[done > least]) for least in out]
    at_least = [more[(len(more) - 1) // 2] if len(more) else least for more, least in zip(longer, out, strict=True)]
    return np.concatenate([done, np.asarray(at_least, dtype=np.float64)])


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
