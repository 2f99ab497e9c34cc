"""A spec as text: to be read, and to be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

SPEC = 20_000  # characters of a spec that are shown


def flat(tables: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a spec, as in an override, with its value.

    >>> dict(flat({"run": {"rounds": 3, "seed": 0}}))
    {'run.rounds': '3', 'run.seed': '0'}
    """
    if not isinstance(tables, dict):
        yield before, json.dumps(tables, ensure_ascii=False)[:400]
        return
    for key, value in tables.items():
        yield from flat(value, f"{before}.{key}" if before else str(key))


def toml(tables: Any) -> str:
    """A spec as TOML; keys without a value are left out.

    >>> print(toml({"run": {"rounds": 3, "out": None}, "task": {"noise": {"tail": 1.5}}}))
    [run]
    rounds = 3
    <BLANKLINE>
    [task]
    noise = { tail = 1.5 }
    """
    found = []
    for name, table in tables.items() if isinstance(tables, dict) else ():
        own = table.items() if isinstance(table, dict) else ()
        keys = [f"{_key(key)} = {inline(value)}" for key, value in own if value is not None]
        found.append("\n".join((f"[{_key(name)}]", *keys)))
    whole = "\n\n".join(found)
    if len(whole) <= SPEC:
        return whole
    return f"{whole[:SPEC]}…\n\n({len(whole) - SPEC:,} more characters stand in spec.json)"


def _key(name: Any) -> str:
    return str(name) if str(name).replace("_", "").replace("-", "").isalnum() else json.dumps(str(name))


def inline(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {inline(each)}" for key, each in value.items() if each is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value, ensure_ascii=True)
