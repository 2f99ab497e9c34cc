"""Writing TOML."""

from __future__ import annotations

import json
import re
from typing import Any


def document(tables: Any) -> str:
    """Tables as TOML, one line per key; keys without a value are left out.

    >>> print(document({"run": {"rounds": 3, "out": None}, "task": {"noise": {"tail": 1.5}}}))
    [run]
    rounds = 3
    <BLANKLINE>
    [task]
    noise = { tail = 1.5 }
    """
    parts = []
    for name, table in tables.items() if isinstance(tables, dict) else ():
        items = table.items() if isinstance(table, dict) else ()
        lines = [f"{_key(key)} = {inline(value)}" for key, value in items if value is not None]
        parts.append("\n".join((f"[{_key(name)}]", *lines)))
    return "\n\n".join(parts)


def inline(value: Any) -> str:
    """A value on one line.

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
    return repr(value) if isinstance(value, float) else json.dumps(value, default=str)  # dates become strings


def _key(name: Any) -> str:
    return str(name) if re.fullmatch(r"[A-Za-z0-9_-]+", str(name)) else _string(str(name))


def _string(value: str) -> str:
    """A JSON string without surrogates, which TOML forbids; unprintable characters are escaped."""
    text = json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
