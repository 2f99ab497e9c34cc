"""The JSON schema of specs, for editors: by the rules of constructors/signature.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from tardygrad.core.method import Method
from tardygrad.core.recipe import Make, Parameters, parameters, written
from tardygrad.core.schedules import Cosine, Power, Schedule
from tardygrad.errors import Invalid, described
from tardygrad.fleet import Fleet
from tardygrad.runs.kinds import FLEET_KEYS
from tardygrad.spec.kinds import KINDS, RunTable, keys_of
from tardygrad.type_hints import classes_in, union_members

Schema = dict[str, Any]

DEFAULT_ENGINE = "sim"

OWN = {"type": "string", "pattern": "^[^:]+:[^:]+$"}  # `package.module:function`
SIMPLE: dict[Any, Schema] = {
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    Path: {"type": "string"},
    float: {"anyOf": [{"type": "number"}, {"const": "inf"}]},
    type(None): {"type": "null"},
}


def schema() -> Schema:
    """The schema of a whole spec."""
    tables = {name: _kinds(name) for name in KINDS}
    tables["run"] = _object(parameters(RunTable), described(RunTable))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A spec of tardygrad",
        "type": "object",
        "properties": tables,
        "required": ["task", "method", "run"],
        "additionalProperties": False,
    }


def described_keys(table: str, make: Make) -> dict[str, str]:
    """What each key of a table means."""
    common = {"method": described(Method), "fleet": described(Fleet)}.get(table, {})
    for key, (kind, _) in FLEET_KEYS.items() if table == "fleet" else ():
        common[key] = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return common | described(make)


def _kinds(table: str) -> Schema:
    """A table whose kind decides which keys it has; a function of your own has its own keys."""
    makes = KINDS[table]
    kind = {"anyOf": [{"enum": list(makes)}, OWN]}
    branches = []
    for name, make in makes.items():
        known = keys_of(table, make)
        keys = _object(known, described_keys(table, make), kind=name)
        keys["required"] = [key for key in keys["required"] if key != "clients"]  # [task] and [fleet] share it
        needed = [] if name == DEFAULT_ENGINE else ["kind"]
        branches.append({"if": {"properties": {"kind": {"const": name}}, "required": needed}, "then": keys})
    needed = [] if table == "engine" else ["kind"]
    return {"type": "object", "properties": {"kind": kind}, "required": needed, "allOf": branches}


def _object(known: Parameters, texts: Mapping[str, str], kind: str | None = None) -> Schema:
    properties: Schema = {} if kind is None else {"kind": {"const": kind}}
    for key, parameter in known.items():
        properties[key] = _value(parameter.annotation) | ({"description": texts[key]} if key in texts else {})
        if parameter.default is not parameter.empty and parameter.default is not None:
            with suppress(Invalid):  # JSON cannot hold it
                properties[key]["default"] = written(parameter.annotation, parameter.default, key)
    required = [key for key, parameter in known.items() if parameter.default is parameter.empty]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(hint: Any) -> Schema:
    """The schema of a value, by its type hint."""
    options = union_members(hint)
    if Any in options:
        return {}
    found: list[Schema] = []
    classes = classes_in(options)
    for name, make in classes.items():
        several = len(classes) > 1
        found.append(_object(parameters(make), described(make), kind=name if several else None))
        if several:
            found[-1]["required"] = ["kind", *found[-1]["required"]]
            found.append({"const": name})  # its defaults
    for option in options:
        if option not in classes.values():
            found += _single(option)
    unique = [each for i, each in enumerate(found) if each not in found[:i]]
    return dict(unique[0]) if len(unique) == 1 else {"anyOf": unique}


def _single(option: Any) -> list[Schema]:
    origin, hints = get_origin(option), get_args(option)
    if option == Schedule:
        tables = [_object(parameters(make), described(make)) for make in (Power, Cosine)]
        return [SIMPLE[float], *tables]
    if option in SIMPLE:
        return [SIMPLE[option]]
    if origin is Literal:
        return [{"enum": list(hints)}]
    if origin is tuple:
        return _list(hints)
    if isinstance(option, type) and issubclass(option, Enum):
        return [{"enum": [member.value for member in option]}]
    if origin in (dict, Mapping):
        return [{"type": "object", "additionalProperties": _value(hints[-1])}]
    if origin is Callable:
        return []  # Python only
    if getattr(option, "_is_protocol", False):  # an object of your own
        return [{"type": "object", "properties": {"kind": OWN}, "required": ["kind"]}]
    return [{"type": "array"}] if origin is list else []


def _list(hints: tuple[Any, ...]) -> list[Schema]:
    if hints[-1] is not Ellipsis:
        items = [_value(hint) for hint in hints]
        return [{"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}]
    items_schema = _value(hints[0])
    single = [items_schema] if get_origin(hints[0]) is Literal else []
    return [{"type": "array", "items": items_schema}, *single]
