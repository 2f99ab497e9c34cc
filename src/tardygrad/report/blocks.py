"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Table(NamedTuple):
    """Headings and rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Note(NamedTuple):
    """A paragraph that must not be missed."""

    said: str


class Figure(NamedTuple):
    """A chart with what is said about it."""

    key: str  # a word of ours: it becomes an id and a file's name
    title: str
    caption: str
    chart: Any  # as plain data
    table: Table | None = None


class Code(NamedTuple):
    """Text to be copied."""

    said: str
    text: str


class Fold(NamedTuple):
    """A run that can be opened."""

    key: str
    title: str
    blocks: list[Any]


Block = str | Note | Figure | Table | Code | Fold
"""A paragraph, or something with a form of its own."""


class Part(NamedTuple):
    """A part of a report, with a heading."""

    key: str
    title: str
    blocks: list[Block]
