"""Texts and numbers of a record made printable: a record may come from a stranger."""

from __future__ import annotations

from typing import Any


def printable(value: Any, limit: int = 80) -> str:
    """Text of a record, printable and shortened.

    >>> printable("one\\ntwo"), printable("x" * 100, 5)
    ('one two', 'xxxx…')
    """
    clean = "".join(c if c.isprintable() else " " for c in str(value))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def rounded(number: float) -> str:
    """A number to four digits, or to a whole number if it has more; with an exponent only if it is very large or small.

    >>> [rounded(number) for number in (0.12345, 12.3456, 38_853.2, 1e20)]
    ['0.1235', '12.35', '38,853', '1e+20']
    """
    return f"{number:,.0f}" if 1e4 <= abs(number) < 1e15 else f"{number:,.4g}"
