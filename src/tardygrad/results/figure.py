"""What the figures of a report have in common.

Text from records appears only as values, titles and domains, never as field names or in expressions. Vega-Lite turns
titles into expressions, so characters that could end a string are replaced there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

import altair as alt

from tardygrad.results.blocks import Figure, LegendEntry, Table
from tardygrad.results.theme import page_style
from tardygrad.runs.record import Row, to_json_value

WIDTH, PANEL = 820, 360
SMALL = 120  # most rows of a table below a figure
QUOTES = str.maketrans("\\\"'", "∖”’")
WIDTHS = {"one-column": 234, "two-columns": 486}  # of figures for papers: 3.25 and 6.75 inches
TEXT = 8  # points, in figures for papers
CHARACTER = 0.55 * TEXT  # mean width of one
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
LABEL_EXPR = "split(datum.label, '\\n')"  # the expression of labels that may have several lines; see `wrapped`


def figure(
    key: str,
    title: str,
    caption: str,
    chart: Any,
    data: Mapping[str, Iterable[Row]],
    table: Table | None = None,
    legend: Sequence[LegendEntry] = (),
) -> Figure:
    """A figure in the style of the page. Style and data are added last: Altair would copy them, and the chart too."""
    spec = page_style(quoted(chart.to_dict(validate=False)))
    spec |= {"description": f"{title}. {caption}", "padding": 4}
    spec["datasets"] = {name: to_json_value(list(rows)) for name, rows in data.items()}
    return Figure(key, title, caption, spec, table if table and 0 < len(table.rows) <= SMALL else None, legend)


def wrapped(name: str, width: int = 30) -> str:
    """A long name in several lines, for axes and legends with the label expression `LABEL_EXPR`.

    >>> wrapped("FedBuff, weight.kind=polynomial, local_lr=0.1", 25)
    'FedBuff,\\nweight.kind=polynomial,\\nlocal_lr=0.1'
    """
    return "\n".join(wrap(name, width)) or name


def quoted(spec: Any) -> Any:
    """The chart with safe titles."""
    if isinstance(spec, list):
        return [quoted(each) for each in spec]
    if not isinstance(spec, dict):
        return spec
    return {
        key: value.translate(QUOTES) if key == "title" and isinstance(value, str) else quoted(value)
        for key, value in spec.items()
    }


def named_data(name: str = "rows") -> Any:
    """An empty chart of the dataset with this name."""
    return alt.Chart(alt.NamedData(name))


HIGHLIGHT = alt.param(name="highlight", value=None)  # the name whose line is highlighted, which a page's legend sets


def highlighted(field: str) -> Any:
    """The opacity of lines: all but the highlighted one are faint. The chart needs the parameter `HIGHLIGHT`."""
    return alt.condition(f"highlight === null || datum.{field} === highlight", alt.value(1.0), alt.value(0.12))


def log_scale(**options: Any) -> alt.Scale:
    """A logarithmic scale that ends at the data."""
    return alt.Scale(type="log", nice=False, **options)


def percent() -> alt.Axis:
    """An axis of shares."""
    return alt.Axis(format=".2~%")


def fitted_names(names: Sequence[str], width: int) -> tuple[list[str], int]:
    """Names for a legend of this width, long ones in several lines, and in how many columns they fit."""
    shown = [wrapped(name, int((width - 40) / CHARACTER)) for name in names]
    longest = max(len(part) for name in shown for part in name.split("\n"))
    return shown, max(1, min(len(names), int(width / (longest * CHARACTER + 40))))
