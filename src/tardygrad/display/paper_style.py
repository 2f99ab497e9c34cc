"""Widths, text and legends of figures for papers."""

from __future__ import annotations

from collections.abc import Sequence

from tardygrad.display.figure import wrapped

WIDTHS = {"one-column": 234, "two-columns": 486}  # 3.25 and 6.75 inches
TEXT = 8  # points
CHARACTER = 0.55 * TEXT  # mean width of one
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


def fitted_names(names: Sequence[str], width: int) -> tuple[list[str], int]:
    """Names for a legend of this width, long ones in several lines, and in how many columns they fit."""
    shown = [wrapped(name, int((width - 40) / CHARACTER)) for name in names]
    longest = max(len(part) for name in shown for part in name.split("\n"))
    return shown, max(1, min(len(names), int(width / (longest * CHARACTER + 40))))
