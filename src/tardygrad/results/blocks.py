"""The content of a page: sections of paragraphs, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Table(NamedTuple):
    """Headings and rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Note(NamedTuple):
    """A highlighted paragraph."""

    text: str


class LegendEntry(NamedTuple):
    """A name and how it is drawn."""

    name: str
    colour: str
    dash: tuple[int, ...] | None = None  # of a line; None: a filled square


class Figure(NamedTuple):
    """A chart with title and caption."""

    key: str  # never from a record: it becomes an HTML id and a file name
    title: str
    caption: str
    chart: Any  # the Vega-Lite spec
    table: Table | None = None
    legend: Sequence[LegendEntry] = ()  # beside the chart, not in it: there it would be cut off or make the chart tiny


class Code(NamedTuple):
    """Text to copy, with a line that introduces it."""

    intro: str
    text: str


class Section(NamedTuple):
    """A section of a report; within another section it is closed at first."""

    key: str
    title: str
    blocks: list[Any]


Block = str | Note | Figure | Table | Code | Section
"""A string is a paragraph."""


def numeric_columns(rows: Sequence[Sequence[str]], columns: int) -> list[bool]:
    """Which columns of a table have only numbers, dashes and empty cells: they are aligned right.

    >>> numeric_columns([("Clip²", "+3.4 ± 1.9", "–"), ("FedAvg", "2 of 5 diverged", "<0.001")], 3)
    [False, True, True]
    """
    return [all(row[i][:1] in "0123456789<+-−–" for row in rows) for i in range(columns)]


def with_suffix(blocks: Sequence[Block], suffix: str) -> list[Block]:
    """The blocks with a suffix at the keys of the figures, which must be unique on a page."""
    return [block._replace(key=block.key + suffix) if isinstance(block, Figure) else block for block in blocks]
