"""Texts, counts, numbers and times of a record, checked or made printable: a record may come from a stranger."""

from __future__ import annotations

import math
from typing import Any

from tardygrad.core.admission import COUNT_LIMIT, LARGEST_NUMBER


def printable(value: Any, limit: int = 80) -> str:
    """Text of a record, printable and shortened.

    >>> printable("one\\ntwo"), printable("x" * 100, 5)
    ('one two', 'xxxx…')
    """
    clean = "".join(c if c.isprintable() else " " for c in str(value))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def read_count(value: Any) -> int:
    """A count of a record; raises `ValueError` for anything else."""
    if not isinstance(value, int) or not 0 <= value < COUNT_LIMIT:
        raise ValueError(f"{printable(repr(value))} is not a count")
    return value


def read_number(value: Any) -> float:
    """A number of a record; NaN for null."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{printable(repr(value))} is not a number")
    if abs(value) > LARGEST_NUMBER:
        raise ValueError(f"{value:.3g} is too large")
    return float(value)


def read_time(value: Any) -> float:
    """A time of a record, in seconds."""
    if not (time := read_number(value)) >= 0:
        raise ValueError(f"a time of {time:.3g} s")
    return time


def rounded(number: float) -> str:
    """A number to four digits, or to a whole number if it has more; with an exponent only if it is very large or small.

    >>> [rounded(number) for number in (0.12345, 12.3456, 38_853.2, 1e20)]
    ['0.1235', '12.35', '38,853', '1e+20']
    """
    return f"{number:,.0f}" if 1e4 <= abs(number) < 1e15 else f"{number:,.4g}"
