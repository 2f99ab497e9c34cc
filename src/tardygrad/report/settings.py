"""A spec as text: to be read, and to be compared."""

from __future__ import annotations

import json
import re
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


def toml(tables: Any, most: int | None = SPEC) -> str:
    """A spec as TOML, up to so many characters; keys without a value are left out.

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
    if most is None or len(whole) <= most:
        return whole
    return f"{whole[:most]}…\n\n({len(whole) - most:,} more characters stand in spec.json)"


def _key(name: Any) -> str:
    return str(name) if re.fullmatch(r"[A-Za-z0-9_-]+", str(name)) else _string(str(name))


def _string(value: str) -> str:
    """As JSON writes it, but TOML knows no surrogates, and has one more letter to escape."""
    known = value.encode("utf-8", "replace").decode()
    return json.dumps(known, ensure_ascii=False).replace("\x7f", "\\u007f")


def inline(value: Any) -> str:
    """A value in TOML, on one line.

    >>> print(inline({"name": "far 🚀", "clip": float("inf"), "é": ["\\n", True]}))
    { name = "far 🚀", clip = inf, "é" = ["\\n", true] }
    """
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {inline(each)}" for key, each in value.items() if each is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, str):
        return _string(value)
    return repr(value) if isinstance(value, float) else json.dumps(value)
