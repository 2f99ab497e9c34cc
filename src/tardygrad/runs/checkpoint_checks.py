"""Whether the state in a checkpoint has the types of a run's state. Its checksums do not tell who wrote it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import itemgetter
from typing import Any

from torch import Tensor

from tardygrad.core.hierarchy import ServerLike
from tardygrad.core.messages import Job, Taken, Update
from tardygrad.engines.pool import Pending
from tardygrad.errors import RecordError


def check_types(state: Any, pending: Any, server: ServerLike) -> None:
    """Raise `RecordError` unless a server and its engine can continue from a state."""
    levels = state["levels"] if server.method.regions else [state]
    for level, saved in zip(server.levels, levels, strict=True):
        _require(_level(saved, level.roster.clients, level.x))
    _require(_engine(pending, server.clients, server.x))


def check_rest(tail: Any, rows: Any, seconds: Any) -> None:
    """Raise `RecordError` unless a run can continue from what is neither its server's nor its engine's."""
    rules = {"tail": isinstance(tail, list) and _all(tail, Tensor), "rows": isinstance(rows, list) and _all(rows, dict)}
    _require(iter((rules | {"seconds": _all([seconds], float, int)}).items()))


def _require(rules: Iterator[tuple[str, bool]]) -> None:
    if wrong := next((name for name, holds in rules if not holds), None):
        fix = "It was not written by tardygrad: resume from an older one, or start a new run."
        raise RecordError(f"the checkpoint's `{wrong}` cannot be that of this run. {fix}")


def _level(state: Any, clients: int, x: Tensor) -> Iterator[tuple[str, bool]]:
    roster = state["roster"]
    yield "round", _all([state["round"], roster["sent"]], int)
    yield "x", _vectors([state["x"]], x) and (state["sum"] is None or _vectors([state["sum"]], x))
    yield "outer", isinstance(state["outer"], dict) and _all(state["outer"].values(), Tensor)
    yield "buffer", isinstance(state["buffer"], list) and _all(state["buffer"], Taken)
    yield "jobs", isinstance(roster["jobs"], dict) and _all(roster["jobs"].values(), int)
    yield "serials", isinstance(roster["serials"], list) and _all(roster["serials"], int)
    yield "serials", len(roster["serials"]) == clients
    yield "clients", all(isinstance(roster[name], list) for name in ("idle", "waiting"))
    yield "clients", all(_clients(roster[name], clients) for name in ("jobs", "idle", "waiting"))


def _engine(pending: Any, clients: int, x: Tensor) -> Iterator[tuple[str, bool]]:
    yield "pending", isinstance(pending, Pending) and _all([pending.now], float, int)
    jobs, due, done = pending.jobs, pending.due, pending.done
    yield "jobs", isinstance(jobs, list) and _all(jobs, Job)
    yield "due", isinstance(due, list) and _all(due, tuple) and set(map(len, due)) <= {3}
    yield "done", isinstance(done, tuple) and _all(done, Update)
    for name, items in (("jobs", jobs), ("done", done)):
        members, serials, rounds, vectors = (_column(items, place) for place in range(4))
        yield name, _clients(members, clients) and _all(serials, int) and _all(rounds, int)
        yield name, _vectors({id(v): v for v in vectors}.values(), x)
    times, members, serials = (_column(due, place) for place in range(3))
    yield "due", _all(times, float, int) and _clients(members, clients) and _all(serials, int)


def _column(rows: Collection[Any], place: int) -> list[Any]:
    return list(map(itemgetter(place), rows))  # much faster than zip(*rows)


def _all(values: Collection[Any], *kinds: type) -> bool:
    return set(map(type, values)) <= set(kinds)


def _clients(values: Collection[Any], clients: int) -> bool:
    return _all(values, int) and (not values or 0 <= min(values) <= max(values) < clients)


def _vectors(values: Collection[Any], x: Tensor) -> bool:
    return _all(values, Tensor) and all(v.shape == x.shape and v.dtype == x.dtype for v in values)
