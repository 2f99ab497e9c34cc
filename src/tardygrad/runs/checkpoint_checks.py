"""Checks that the state in a checkpoint has the types and sizes of its run: checksums do not tell who wrote it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from tardygrad.core.admission import StateShape, expected_state
from tardygrad.core.algorithm import Server
from tardygrad.core.hierarchy import HierarchicalServer, RegionMessage, ServerLike
from tardygrad.core.messages import Job, ModuleBuffers, StateReference, Taken, Update
from tardygrad.core.transforms import Step, Transform
from tardygrad.engines.pool import Pending
from tardygrad.errors import FIX_CHECKPOINT, RecordError


def check_state(state: Any, pending: Any, server: ServerLike) -> None:
    """Raise `RecordError` unless a server and its engine can continue from a state."""
    for level, saved in zip(server.levels, levels_of(state, server), strict=True):
        _require(_level_rules(saved, level))
    if isinstance(server, HierarchicalServer):
        _require(_region_rules(state, server))
    _require(_engine_rules(pending, server))


def check_run_parts(tail: Any, rows: Any, seconds: Any) -> None:
    """Raise `RecordError` unless a run can continue from the parts that neither its server nor its engine has."""
    _require(_run_rules(tail, rows, seconds))


def levels_of(state: Any, server: ServerLike) -> list[Any]:
    """The saved state of each level of a server."""
    return state["levels"] if server.method.regions else [state]


def _require(rules: Iterator[tuple[str, bool]]) -> None:
    """Raise `RecordError` at the first rule that does not hold: those after it rely on it."""
    if wrong := next((name for name, holds in rules if not holds), None):
        raise RecordError(f"the checkpoint's `{wrong}` must have the types and sizes of its run. {FIX_CHECKPOINT}")


def _level_rules(state: Any, level: Server) -> Iterator[tuple[str, bool]]:
    roster, clients, x = state["roster"], level.roster.clients, level.x
    jobs, serials = roster["jobs"], roster["serials"]
    yield "round", _are([state["round"], roster["sent"]], int)
    yield "x", _are_like(x, [state["x"]])
    yield "sum", state["sum"] is None or _are_like(x, [state["sum"]])
    yield "outer", isinstance(state["outer"], dict) and _are(state["outer"].values(), Tensor)
    outer, fixed = level.vectors.state, _fixed_entries(level.method.outer)
    yield "outer", all(_are_like(outer[name], [state["outer"].get(name)]) for name in fixed & outer.keys())
    yield "buffer", isinstance(state["buffer"], list) and _are(state["buffer"], Taken)
    yield "buffer", len(state["buffer"]) < level.method.buffer
    updates, delays, norms, weights = (_column(state["buffer"], place) for place in range(4))
    yield "buffer", _are(updates, Update) and _are(delays, int) and _are_numbers([*norms, *weights])
    yield "buffer", _are_indices([update.client for update in updates], clients)
    yield "buffer", all(_are_module_buffers(update.module_buffers, level.module_buffers) for update in updates)
    yield "module_buffers", _are_module_buffers(state["module_buffers"], level.module_buffers)
    states, expected = state["client_states"], expected_state(level.method)
    yield "client_states", isinstance(states, dict) and _are_indices(states, clients)
    yield "client_states", all(_is_client_state(each, x, expected) for each in states.values())
    yield "jobs", isinstance(jobs, dict) and _are(jobs.values(), int)
    yield "serials", isinstance(serials, list) and _are(serials, int) and len(serials) == clients
    lists = [roster[name] for name in ("idle", "waiting", "asleep", "suspended") if name in roster]
    yield "clients", _are(lists, list) and all(_are_indices(some, clients) for some in (jobs, *lists))
    if level.speeds:
        speeds, last = state["speeds"]["of"], state["speeds"]["given"]
        yield "speeds", isinstance(speeds, dict) and isinstance(last, dict) and _are_indices([*speeds, *last], clients)
        yield "speeds", _are(last.values(), tuple) and set(map(len, last.values())) <= {2}
        yield "speeds", _are(_column(last.values(), 0), int)
        yield "speeds", _are_numbers([*speeds.values(), *_column(last.values(), 1)])
    if level.privacy.privacy:
        key, history = state["privacy"]["key"], state["privacy"]["history"]
        yield "privacy", _are([key, history], str) and re.fullmatch("[0-9a-f]{64}", key) is not None
    else:
        yield "privacy", state.get("privacy") is None


def _region_rules(state: Any, server: HierarchicalServer) -> Iterator[tuple[str, bool]]:
    regions, x, transit = len(server.regions), server.x, state["transit"]
    yield "references", len(state["references"]) == regions and _are_like(x, state["references"])
    yield "synced", len(state["synced"]) == regions and _are([*state["synced"], state["posted"]], int)
    yield "transit", isinstance(transit, list) and _are(transit, tuple) and set(map(len, transit)) <= {4}
    times, receivers, numbers, messages = (_column(transit, place) for place in range(4))
    yield "transit", _are(messages, RegionMessage) and _are_numbers(times) and _are([*receivers, *numbers], int)
    due, members, _, vectors, buffers = (_column(messages, place) for place in range(5))
    yield "transit", _are_numbers(due) and _are_indices(members, regions) and _are_like(x, vectors)
    yield "transit", all(_are_module_buffers(each, server.module_buffers) for each in buffers)


def _engine_rules(pending: Any, server: ServerLike) -> Iterator[tuple[str, bool]]:
    clients, x, expected = server.clients, server.x, expected_state(server.method)
    yield "pending", isinstance(pending, Pending) and _are_numbers([pending.now])
    jobs, due, done = pending.jobs, pending.due, pending.done
    yield "jobs", isinstance(jobs, list) and _are(jobs, Job)
    yield "due", isinstance(due, list) and _are(due, tuple) and set(map(len, due)) <= {3}
    yield "done", isinstance(done, tuple) and _are(done, Update)
    for name, items in (("jobs", jobs), ("done", done)):
        members, serials, rounds, vectors = (_column(items, place) for place in range(4))
        yield name, _are_indices(members, clients) and _are(serials, int) and _are(rounds, int)
        yield name, _are_like(x, {id(vector): vector for vector in vectors}.values())
    steps, epochs, seeds, buffers, states = (_column(jobs, place) for place in range(4, 9))
    yield "jobs", _are_work(steps, server.method.local_steps) and _are_work(epochs, server.method.local_epochs)
    yield "jobs", _are(seeds, int)
    yield "jobs", all(_are_module_buffers(b, server.module_buffers) for b in {id(b): b for b in buffers}.values())
    yield "jobs", all(each is None or _is_client_state(each, x, expected) for each in states)
    times, members, serials = (_column(due, place) for place in range(3))
    yield "due", _are_numbers(times) and _are_indices(members, clients) and _are(serials, int)


def _run_rules(tail: Any, rows: Any, seconds: Any) -> Iterator[tuple[str, bool]]:
    yield "tail", isinstance(tail, list) and _are(tail, Tensor)
    yield "rows", isinstance(rows, list) and _are(rows, dict)
    yield "seconds", _are_numbers([seconds])


def _fixed_entries(transform: Transform) -> set[str]:
    """The entries of a state that keep shape and type in two steps; an own outer step may change the others."""
    x = torch.zeros(2)
    first = state = transform.init(x)
    fixed = set(first)
    try:
        with torch.random.fork_rng(devices=()):
            for number in (1, 2):
                state = transform.update(x, state, Step(number, (1,), x))[1]
                fixed = {name for name in fixed if _are_like(first[name], [state.get(name)])}
    except Exception:  # a step for vectors of this model only
        return set()
    return fixed


def _column(rows: Collection[Any], place: int) -> list[Any]:
    return list(map(itemgetter(place), rows))  # much faster than zip(*rows)


def _are(values: Collection[Any], *kinds: type) -> bool:
    """Whether every value is of one of these types; a subclass, such as bool of int, does not count.

    Integers must have at most 64 bits.
    """
    return set(map(type, values)) <= set(kinds) and all(v.bit_length() <= 64 for v in values if type(v) is int)


def _are_numbers(values: Collection[Any]) -> bool:
    return _are(values, float, int)


def _are_indices(values: Collection[Any], length: int) -> bool:
    return _are(values, int) and (not values or 0 <= min(values) <= max(values) < length)


def _are_work(values: Collection[Any], most: int | None) -> bool:
    """Whether these are K_i of jobs, at most K; None if K is not in this unit."""
    return _are(values, type(None)) if most is None else _are(values, int) and all(1 <= v <= most for v in values)


def _are_like(x: Tensor, values: Collection[Any]) -> bool:
    return _are(values, Tensor) and all(v.shape == x.shape and v.dtype == x.dtype for v in values)


def _are_module_buffers(value: Any, own: ModuleBuffers | None) -> bool:
    if own is None or not isinstance(value, ModuleBuffers):
        return value is own
    return _are_like(own.floats, [value.floats]) and _are_like(own.ints, [value.ints])


def _is_client_state(state: Any, x: Tensor, expected: StateShape) -> bool:
    """Whether a client of this method can leave a state for its next job."""
    without_steps = {name for name in expected if not name.startswith("inner.")}  # if the client has made no step
    if not isinstance(state, dict) or state.keys() not in (expected.keys(), without_steps):
        return isinstance(state, StateReference) and tuple(map(type, state)) == (str, int)
    return all(_are_like(x if (like := expected[name]) is None else like, [v]) for name, v in state.items())
