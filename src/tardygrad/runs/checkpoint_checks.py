"""Checks that the state in a checkpoint has the types and sizes of its run: checksums do not tell who wrote it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import itemgetter
from typing import Any

from torch import Tensor

from tardygrad.core.hierarchy import ServerLike
from tardygrad.core.messages import Job, Taken, Update
from tardygrad.engines.pool import Pending
from tardygrad.errors import RecordError
from tardygrad.runs.packing import FORGED


def check_state(state: Any, pending: Any, server: ServerLike) -> None:
    """Raise `RecordError` unless a server and its engine can continue from a state."""
    for level, saved in zip(server.levels, levels_of(state, server), strict=True):
        _require(_level_rules(saved, level.roster.clients, level.x))
    _require(_engine_rules(pending, server.clients, server.x))


def check_run_parts(tail: Any, rows: Any, seconds: Any) -> None:
    """Raise `RecordError` unless a run can continue from the parts that neither its server nor its engine has."""
    _require(_run_rules(tail, rows, seconds))


def levels_of(state: Any, server: ServerLike) -> list[Any]:
    """The saved state of each level of a server."""
    return state["levels"] if server.method.regions else [state]


def _require(rules: Iterator[tuple[str, bool]]) -> None:
    """Raise `RecordError` at the first rule that does not hold: those after it rely on it."""
    if wrong := next((name for name, holds in rules if not holds), None):
        raise RecordError(f"the checkpoint's `{wrong}` must have the types and sizes of its run. {FORGED}")


def _level_rules(state: Any, clients: int, x: Tensor) -> Iterator[tuple[str, bool]]:
    roster = state["roster"]
    idle, waiting, jobs, serials = (roster[name] for name in ("idle", "waiting", "jobs", "serials"))
    yield "round", _are([state["round"], roster["sent"]], int)
    yield "x", _are_like(x, [state["x"]])
    yield "sum", state["sum"] is None or _are_like(x, [state["sum"]])
    yield "outer", isinstance(state["outer"], dict) and _are(state["outer"].values(), Tensor)
    yield "buffer", isinstance(state["buffer"], list) and _are(state["buffer"], Taken)
    yield "jobs", isinstance(jobs, dict) and _are(jobs.values(), int)
    yield "serials", isinstance(serials, list) and _are(serials, int) and len(serials) == clients
    yield "clients", isinstance(idle, list) and isinstance(waiting, list)
    yield "clients", all(_are_clients(some, clients) for some in (jobs, idle, waiting))


def _engine_rules(pending: Any, clients: int, x: Tensor) -> Iterator[tuple[str, bool]]:
    yield "pending", isinstance(pending, Pending) and _are([pending.now], float, int)
    jobs, due, done = pending.jobs, pending.due, pending.done
    yield "jobs", isinstance(jobs, list) and _are(jobs, Job)
    yield "due", isinstance(due, list) and _are(due, tuple) and set(map(len, due)) <= {3}
    yield "done", isinstance(done, tuple) and _are(done, Update)
    for name, items in (("jobs", jobs), ("done", done)):
        members, serials, rounds, vectors = (_column(items, place) for place in range(4))
        yield name, _are_clients(members, clients) and _are(serials, int) and _are(rounds, int)
        yield name, _are_like(x, {id(vector): vector for vector in vectors}.values())
    times, members, serials = (_column(due, place) for place in range(3))
    yield "due", _are(times, float, int) and _are_clients(members, clients) and _are(serials, int)


def _run_rules(tail: Any, rows: Any, seconds: Any) -> Iterator[tuple[str, bool]]:
    yield "tail", isinstance(tail, list) and _are(tail, Tensor)
    yield "rows", isinstance(rows, list) and _are(rows, dict)
    yield "seconds", _are([seconds], float, int)


def _column(rows: Collection[Any], place: int) -> list[Any]:
    return list(map(itemgetter(place), rows))  # much faster than zip(*rows)


def _are(values: Collection[Any], *kinds: type) -> bool:
    """Whether every value is of one of these types; a subclass, such as bool of int, does not count."""
    return set(map(type, values)) <= set(kinds)


def _are_clients(values: Collection[Any], clients: int) -> bool:
    return _are(values, int) and (not values or 0 <= min(values) <= max(values) < clients)


def _are_like(x: Tensor, values: Collection[Any]) -> bool:
    return _are(values, Tensor) and all(v.shape == x.shape and v.dtype == x.dtype for v in values)
