"""What all figures of a report have in common.

Text of records is only ever a value, a title or a domain, never a field's name and never in an expression; of titles
Vega-Lite makes expressions, so theirs has no character that could end one. Ink is `currentColor`, so that a page's
colours are its style sheet's business; in pictures it is black.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.loader import RunView
from tardygrad.report.theme import page_style
from tardygrad.runs.record import Row, plain

WIDTH, PANEL = 820, 360
SMALL = 120  # rows of a table that is worth showing
QUOTES = str.maketrans("\\\"'", "∖”’")
CLOCK = "time on the clock (s)"


def figure(
    key: str, title: str, caption: str, chart: Any, data: Mapping[str, Iterable[Row]], table: Table | None = None
) -> Figure:
    """A figure in the dress of all of them; its data join it last, since Altair copies and checks what it is given."""
    spec = _quoted(page_style(chart).properties(description=f"{title}. {caption}", padding=4).to_dict())
    spec["datasets"] = {name: plain(list(rows)) for name, rows in data.items()}
    return Figure(key, title, caption, spec, table if table and 0 < len(table.rows) <= SMALL else None)


def _quoted(spec: Any) -> Any:
    """A chart in whose titles nothing ends a string."""
    if isinstance(spec, list):
        return [_quoted(each) for each in spec]
    if not isinstance(spec, dict):
        return spec
    return {
        key: value.translate(QUOTES) if key == "title" and isinstance(value, str) else _quoted(value)
        for key, value in spec.items()
    }


def drawn(name: str = "rows") -> Any:
    """A chart of the data of that name."""
    return alt.Chart(alt.NamedData(name))


def percent() -> alt.Axis:
    """An axis of shares."""
    return alt.Axis(format=".0%")


def classes_of(story: RunView) -> list[str]:
    """The classes of a run's clients, in the order of the fleet."""
    return list(dict.fromkeys((*story.classes, *story.uses, *story.updates)))
