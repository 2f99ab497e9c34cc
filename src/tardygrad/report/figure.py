"""What all figures of a report have in common.

Text of records is only ever a value, a title or a domain, never a field's name and never in an expression; of titles
Vega-Lite makes expressions, so theirs has no character that could end one. Ink is `currentColor`, so that a page's
colours are its style sheet's business; in pictures it is black.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.loader import RunView
from tardygrad.runs.record import Row, plain

WIDTH, PANEL = 820, 360
SMALL = 120  # rows of a table that is worth showing
NAMED = 60  # lines in a legend
INK = "currentColor"
BLUE, RED = "#0072B2", "#D55E00"
CLASS_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#999933", "#808080")
QUOTES = str.maketrans("\\\"'", "∖”’")
CLOCK = "time on the clock (s)"


def figure(
    key: str, title: str, caption: str, chart: Any, data: Mapping[str, Iterable[Row]], table: Table | None = None
) -> Figure:
    """A figure in the dress of all of them; its data join it last, since Altair copies and checks what it is given."""
    inked = dict.fromkeys(("labelColor", "titleColor", "tickColor", "domainColor", "gridColor"), INK)
    axis = {"gridOpacity": 0.12, "tickOpacity": 0.4, "domainOpacity": 0.4, "labelFontSize": 12, "titleFontSize": 12}
    words = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12}
    dressed = chart.configure(
        background="transparent",
        font="system-ui, sans-serif",
        axis={**inked, **axis, "titleFontWeight": "normal"},
        legend={**words, "labelLimit": 400, "symbolLimit": NAMED, "orient": "top"},
        title={"color": INK, "fontSize": 13, "fontWeight": "normal", "anchor": "start"},
        header={**words, "titleFontWeight": "normal"},
        view={"stroke": None},
    )
    spec = _quoted(dressed.properties(description=f"{title}. {caption}", padding=4).to_dict())
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


def by_class(classes: Sequence[str], **more: Any) -> Any:
    """The colour of a client's class."""
    colours = [CLASS_COLOURS[number % len(CLASS_COLOURS)] for number in range(len(classes))]
    return alt.Color("class:N", title=None, scale=alt.Scale(domain=list(classes), range=colours), **more)
