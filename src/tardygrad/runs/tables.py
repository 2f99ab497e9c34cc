"""The tables of a run's objects: what its record says of them, and whether others are the same."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tardygrad.constructors import (
    Call,
    Make,
    arguments,
    call,
    call_of,
    choose,
    parameters,
    remember,
    written_arguments,
)
from tardygrad.core.method import Method, without_addresses
from tardygrad.core.task import Task
from tardygrad.engines.contract import Pool
from tardygrad.engines.fleet_clock import matched
from tardygrad.engines.ray.places import by_id
from tardygrad.engines.ray.pool import RayPool
from tardygrad.errors import Invalid, shortened, shown
from tardygrad.fleet import Fleet
from tardygrad.own_code import is_own, names
from tardygrad.runs.kinds import FLEET_KEYS, FROM_OTHER_TABLES, KINDS, keys_of
from tardygrad.runs.record import Row, to_json_value

DESCRIPTION = 120  # most characters of an object that is only described


def spec_of(method: Method, task: Task, pool: Pool, run: Row) -> Row:
    """What spec.json says of a run's objects: `spec`, as `tardygrad run` would record it.

    If some of them cannot be made again, `spec` is None, `described` has the tables that are known and texts for the
    other objects, and `missing` says for each of those why.
    """
    fleet = pool.fleet
    objects = {"task": task, "fleet": fleet, "method": method, "engine": pool}
    tables: Row = {}
    missing = []
    for name, component in objects.items():
        if component is None:
            continue
        try:
            tables[name] = _table_of(name, component)
        except Invalid as error:
            text = shortened(without_addresses(str(component)), DESCRIPTION)
            tables[name] = {"described": text}
            missing.append(f"its {name} ({text}) cannot be made again: {error}")
    settings = {key: list(value) if isinstance(value, tuple) else value for key, value in run.items() if key != "out"}
    tables["run"] = settings | {"threads": torch.get_num_threads(), "track": []}
    return {"spec": None, "described": tables, "missing": missing} if missing else {"spec": tables}


def ready_method(method: Method) -> Row | None:
    """The table of the ready method that a function of the user's returned; None if it returned another one."""
    recipe = call_of(method)
    while recipe is not None and recipe.function not in KINDS["method"].values():
        recipe = recipe.inner
    try:
        return None if recipe is None or recipe is call_of(method) else table_of_call("method", recipe)
    except Invalid:
        return None


def check_objects(recorded: Row, method: Method, task: Task, pool: Pool, path: Path) -> None:
    """Raise `Invalid` if a task or a fleet is not that of a record, as far as both say how they were made."""
    described = spec_of(method, task, pool, {})
    ours, theirs = (row.get("spec") or row.get("described") or {} for row in (described, recorded))
    for name in ("task", "fleet"):
        now, was = to_json_value(ours.get(name) or {}), theirs.get(name) or {}
        if name == "fleet" and now.get("kind") == "groups" and was.get("kind") in KINDS["fleet"]:
            was = _expanded_fleet(was, task)
        if now.get("kind") == was.get("kind") and (found := _difference(was, now)):
            key, old, new = found
            rule = f"the {name} must be that of the run in {str(path)!r}"
            which = "which" if key == "described" else f"whose `{key}`"
            raise Invalid(f"{rule}, {which} is {shown(old)}, got {shown(new)}.")


def _expanded_fleet(table: Row, task: Task) -> Row:
    """A recorded [fleet] as its groups: with links and days applied, and clients in the order of the task's.

    Empty if the fleet cannot be made, or only with code that the record names.
    """
    if any(names(table)):
        return {}
    with suppress(Invalid):
        _, make, rest = choose(KINDS["fleet"], table, "fleet")
        fleet = make_fleet(make, arguments(keys_of("fleet", make), rest, "fleet"))
        expanded: Row = to_json_value(_table_of("fleet", matched(fleet, task)))
        return expanded
    return {}


def make_fleet(make: Make, given: Row) -> Fleet:
    """The fleet of a table [fleet]: that of its kind, changed by the keys that every kind takes."""
    own = {name: value for name, value in given.items() if name in parameters(make)}
    fleet: Fleet = call(make, own, "fleet")
    if not isinstance(fleet, Fleet):
        raise Invalid(f"`fleet.kind` must be a function that returns a Fleet, got a {type(fleet).__name__}.")
    made_by = call_of(fleet)  # None of a trace: a record needs no other file
    fields = {name: each for name, each in parameters(Fleet).items() if name in given and name not in own}
    changes = {name: given[name] for name, each in fields.items() if given[name] != each.default}  # others: of the kind
    fleet = call(partial(replace, fleet), changes, "fleet")
    for name, (_, change) in FLEET_KEYS.items():
        if given.get(name) is not None:
            fleet = call(partial(change, fleet, given[name]), {}, "fleet")
    known = made_by is not None and made_by.function == make and given.get("availability") is None
    return remember(fleet, Call(make, given) if known else None)


def _difference(was: Any, now: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """The first place where two values differ, and both; keys that only one has do not count, as versions add keys."""
    pairs: list[tuple[str, Any, Any]]
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = [(f"{key}.{name}".lstrip("."), was[name], now[name]) for name in now if name in was]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(f"{key}[{number}]", old, new) for number, (old, new) in enumerate(zip(was, now, strict=True))]
    else:
        return (key, was, now) if was != now else None
    return next((found for place, old, new in pairs if (found := _difference(old, new, place))), None)


def _table_of(name: str, component: object) -> Row:
    """The table of an object; a fleet without a recipe is written field by field."""
    try:
        return table_of_call(name, call_of(component))
    except Invalid:
        if not isinstance(component, Fleet):
            raise
    return table_of_call(name, Call(Fleet, {key: getattr(component, key) for key in parameters(Fleet)}))


def why_no_spec(recorded: Row) -> str:
    """Why a record has no spec that a command could use, for an error message, and what to do about it."""
    reasons = recorded.get("missing") or ["it has no spec"]
    if no_replay := recorded.get("no_replay"):
        fix = "Continue it in the program that started it, with resume=True. Its final model is in model.safetensors."
        return f"cannot be started by a command: {no_replay}. {fix}"
    fix = (
        "Next time make such objects by tardygrad.make(FUNCTION, KEY=VALUE, ...), with a function of a module. In "
        "Python: run = tardygrad.resume(path, method, task, pool); iterate over run.go() to continue it; "
        "tardygrad.replay(run) repeats it."
    )
    return f"was started in Python, and {'; '.join(map(str, reasons))}. {fix}"


def table_of_call(table: str, recipe: Call | None) -> Row:
    """The table of a spec that makes an object again.

    Raises:
        Invalid: with the reason, if there is none.
    """
    if recipe is None:
        raise Invalid("nothing says how it was made")
    kind = next((kind for kind, make in KINDS[table].items() if make == recipe.function), None) or recipe.name
    known = keys_of(table, recipe.function)
    if "kind" in known:
        raise Invalid("its function has an argument `kind`, and in a table that names the function")
    given = {key: value for key, value in recipe.arguments.items() if key not in FROM_OTHER_TABLES}
    if recipe.function is RayPool and given.get("place"):
        given["place"] = by_id(given["place"], recipe.arguments["task"])
    defaults = {
        key: parameter.default
        for key, parameter in known.items()
        if parameter.default is not parameter.empty and key not in given
    }
    written = written_arguments(known, given | defaults)
    try:
        arguments(known, written, table)
    except Invalid as error:
        raise Invalid(f"its arguments cannot be read back: {str(error).rstrip('.')}") from error
    filled = {"kind": kind, **{key: written[key] for key in known if key in written}}
    if table == "task":
        anchor(filled, Path())
    return filled


def anchor(task: Row, folder: Path) -> None:
    """Make existing paths in [task] absolute, so that a run can be resumed from any directory.

    Arguments of the user's own functions stay as they are: nothing says which of them are paths.
    """
    if is_own(task.get("kind")):
        return
    words = {"data": ("hub", "python"), "pretrained": (), "text": ("python",), "tokenizer": ("byte",)}  # not paths
    if task.get("kind") == "causal_lm":
        words["model"] = ()  # for other kinds it is no path
    for key, known in words.items():
        value = task.get(key)
        if isinstance(value, str) and value not in known and (folder / value).exists():
            task[key] = str((folder / value).resolve())
