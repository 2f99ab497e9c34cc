"""The JSON schema of specs, for editors: by the types that constructors.py reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from tardygrad.constructors import Make, Parameters, classes_in, described, is_protocol, members, parameters, written
from tardygrad.core.method import Method
from tardygrad.errors import Invalid
from tardygrad.fleet import Fleet
from tardygrad.runs.kinds import FLEET_KEYS, KINDS, keys_of
from tardygrad.runs.settings import RunTable, Settings

Schema = dict[str, Any]

DEFAULT_ENGINE = "sim"

OWN = {"type": "string", "pattern": "^[^:]+:[^:]+$"}  # `package.module:function`
_SCHEMAS: dict[Any, Schema] = {
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
    tables["run"] = _object(parameters(RunTable), described_keys("run", RunTable))
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
    common = described({"method": Method, "fleet": Fleet, "run": Settings}.get(table, make))
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
    """The JSON schema of a table with these keys.

    Args:
        texts: descriptions of the keys.
        kind: of the table, if several are possible.
    """
    properties: Schema = {} if kind is None else {"kind": {"const": kind}}
    for key, each in known.items():
        properties[key] = _schema(each.annotation) | ({"description": texts[key]} if key in texts else {})
        if each.default is not each.empty and each.default is not None:
            with suppress(Invalid):  # JSON cannot hold it
                properties[key]["default"] = written(each.annotation, each.default, key)
    required = [key for key, each in known.items() if each.default is each.empty]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema(hint: Any) -> Schema:
    """The JSON schema of a value of a type."""
    options, found = members(hint), list[Schema]()
    if Any in options:
        return {}
    for name, make in classes_in(hint).items():
        several = make in options and len(classes_in(hint)) > 1
        found.append(_object(parameters(make), described(make), kind=name if several else None))
        if several:
            found[-1]["required"] = ["kind", *found[-1]["required"]]
            found.append({"const": name})  # its defaults
    for option in options:
        found += _schemas(option)
    unique = [each for i, each in enumerate(found) if each not in found[:i]]
    return dict(unique[0]) if len(unique) == 1 else {"anyOf": unique}


def _schemas(option: Any) -> list[Schema]:
    """The JSON schemas of a value of a type that is no union and no dataclass; none if a spec cannot have it."""
    origin, hints = get_origin(option), get_args(option)
    if option in _SCHEMAS:
        return [_SCHEMAS[option]]
    if origin is Literal:
        return [{"enum": list(hints)}]
    if origin is tuple and hints[-1] is ...:
        items = _schema(hints[0])
        return [{"type": "array", "items": items}, *[items] * (get_origin(hints[0]) is Literal)]
    if origin is tuple:
        each = [_schema(hint) for hint in hints]
        return [{"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}]
    if origin is list:
        return [{"type": "array"}]
    if origin in (dict, Mapping):
        return [{"type": "object", "additionalProperties": _schema(hints[-1])}]
    if isinstance(option, type) and issubclass(option, Enum):
        return [{"enum": [member.value for member in option]}]
    return [{"type": "object", "properties": {"kind": OWN}, "required": ["kind"]}] * is_protocol(option)
