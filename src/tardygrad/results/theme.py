"""How charts look: colours, line styles, fonts and axes, and how they are written to files.

A method has the same colour in every chart. The palette extends the one by Okabe and Ito, which colour-blind readers
can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import altair as alt

from tardygrad.results.blocks import LegendEntry
from tardygrad.runs.record import Row, make_directory, replace, to_json_value

COLOURS = {
    "sync-Clip²": "#000000",
    "Clip²": "#0072B2",
    "SD-Clip²": "#E69F00",
    "DC-Clip²": "#009E73",
    "SGDClip": "#D55E00",
    "SD-SGDClip": "#CC79A7",
    "DC-SGDClip": "#332288",
    "sync-SGDClip": "#808080",
    "FADAS": "#A50026",
    "DN+DyLU": "#882255",
    "DN": "#AA4499",
    "FedBuff": "#999933",
    "FedAsync": "#44AA99",
    "DC-ASGD-a": "#661100",
    "HALoS": "#88CCEE",
    "sync-Bi²Clip": "#DDCC77",
    "sync-DiLoCo": "#117733",
}
BLACK, BLUE, ORANGE, RED, GREY = "#000000", "#0072B2", "#E69F00", "#D55E00", "#808080"
CLASS_COLOURS = ("#56B4E9", ORANGE, "#009E73", "#CC79A7", BLUE, RED, "#999933", GREY)  # of the clients' classes
INK = "currentColor"  # on a page, text and lines take the colour of the style sheet; in image files it is black
DISTINCT = 6  # the first colours are the easiest to tell apart: methods without a colour of their own get these first
DASHES = ((6, 3), (2, 2), (8, 3, 2, 3))


class Stroke(NamedTuple):
    """Colour and dash pattern of a curve."""

    colour: str
    dash: tuple[int, ...]


def strokes(labels: Iterable[str]) -> list[Stroke]:
    """A different stroke for each label: the method's colour, dashed if it occurs again.

    A label that is not in `COLOURS` has a colour that depends on its name, the same on all pages, unless it is taken.

    >>> [first, other, again] = strokes(["Clip²", "ours", "Clip²"])
    >>> first.colour == again.colour != other.colour, first.dash, again.dash
    (True, (1, 0), (6, 3))
    >>> strokes(["ours"])[0].colour == other.colour == strokes(["sync-ours"])[0].colour
    True
    """
    known, palette = list(labels), list(COLOURS.values())
    chosen = {label: COLOURS[label] for label in known if label in COLOURS}
    for label in known:
        if label not in chosen:
            start = crc32(label.removeprefix("sync-").encode("utf-8", "replace")) % DISTINCT
            in_turn = palette[start:DISTINCT] + palette[:start] + palette[DISTINCT:]
            chosen[label] = min(in_turn, key=[*chosen.values()].count)
    found: list[Stroke] = []
    for label in known:
        repeats = sum(stroke.colour == chosen[label] for stroke in found)
        longer, which = divmod(repeats - 1, len(DASHES))
        dash = tuple(length * (longer + 1) for length in DASHES[which]) if repeats else (1, 0)
        found.append(Stroke(chosen[label], dash))
    return found


def method_colours(labels: Iterable[str], names: Sequence[str] | None = None, black: str = BLACK) -> alt.Scale:
    """The colours of methods as a scale.

    Args:
        names: what the curves are called in the data, if not by the labels.
        black: what to use for black, such as INK.
    """
    known = list(labels)
    colours = [black if stroke.colour == BLACK else stroke.colour for stroke in strokes(known)]
    return alt.Scale(domain=list(names or known), range=colours)


def legend_colours(field: str, entries: Sequence[LegendEntry]) -> alt.Color:
    """The colours of a legend's entries, for a field with their names; the page shows the legend."""
    scale = alt.Scale(domain=[entry.name for entry in entries], range=[entry.colour for entry in entries])
    return alt.Color(field, scale=scale, legend=None)


def class_colours(classes: Sequence[str], field: str = "class:N") -> alt.Color:
    """The colours of the clients' classes; see `class_legend`."""
    return legend_colours(field, class_legend(classes, least=1))


def class_legend(classes: Sequence[str], least: int = 2) -> list[LegendEntry]:
    """The legend of `class_colours`; empty for fewer than `least` classes."""
    colours = [CLASS_COLOURS[number % len(CLASS_COLOURS)] for number in range(len(classes))]
    return [*map(LegendEntry, classes, colours)] if len(classes) >= least else []


def method_legend(labels: Iterable[str], names: Sequence[str]) -> list[LegendEntry]:
    """The legend of curves: each one's name, and the colour and dashes of its method's label."""
    found = zip(names, strokes(labels), strict=True)
    return [LegendEntry(name, INK if colour == BLACK else colour, dash) for name, (colour, dash) in found]


def line_legend(**options: Any) -> alt.Legend:
    """A legend that shows lines instead of dots."""
    return alt.Legend(**{"symbolType": "stroke", "symbolStrokeWidth": 4, "orient": "top", **options})


def drawn_wide(label: str) -> bool:
    """Whether a curve is drawn first and wide: DC is often so close to Clip² that it would be hidden."""
    return label.startswith("DC-")


def method_lines(points: Iterable[Row], labels: Sequence[str]) -> Any:
    """One line per `method` of the points, in the methods' colours."""
    wide = alt.FieldOneOfPredicate(field="method", oneOf=list(filter(drawn_wide, labels)))
    rows = sorted(points, key=lambda point: not drawn_wide(point["method"]))
    chart: Any = alt.Chart({"values": to_json_value(rows)}).mark_line(point=alt.OverlayMarkDef(size=18, strokeWidth=2))
    legend = line_legend(labelFontSize=13)
    return chart.encode(
        color=alt.Color("method:N", title=None, scale=method_colours(labels), legend=legend),
        strokeWidth=alt.condition(wide, alt.value(6), alt.value(2)),
    ).properties(width=380, height=300)


def tips(*fields: str | tuple[str, ...]) -> list[alt.Tooltip]:
    """Tooltips: each a field, or a field with its title and its format."""
    given = [(field,) if isinstance(field, str) else field for field in fields]
    return [
        alt.Tooltip(field, **dict(zip(("title", "format"), options, strict=False)))  # type: ignore[arg-type]
        for field, *options in given
    ]


def image_style(chart: Any, frame: str | None = "#cccccc") -> Any:
    """The chart in the style of image files."""
    styled = chart.configure_axis(labelFontSize=12, titleFontSize=13, gridColor="#eeeeee")
    return styled.configure_view(stroke=frame).configure_legend(labelFontSize=12, titleFontSize=12)


def page_style(spec: dict[str, Any]) -> dict[str, Any]:
    """The chart, as JSON, in the style of report pages."""
    coloured = dict.fromkeys(("labelColor", "titleColor", "tickColor", "domainColor", "gridColor"), INK)
    faint = {"gridOpacity": 0.12, "tickOpacity": 0.4, "domainOpacity": 0.4}
    words = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12}
    style = {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "axis": {**coloured, **faint, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
        "legend": {**words, "labelLimit": 0, "orient": "top"},
        "title": {"color": INK, "fontSize": 13, "fontWeight": "normal", "anchor": "start"},
        "header": {**words, "titleFontWeight": "normal"},
        "view": {**spec["config"]["view"], "stroke": None},
    }
    return {**spec, "config": style}


def rendered(chart: Any, suffix: str, *, scale: float = 2.0) -> bytes:
    """The chart, or its JSON, as the content of a .png, .pdf or .svg file.

    Args:
        scale: pixels of a PNG per pixel of the chart.
    """
    import vl_convert

    spec = chart if isinstance(chart, str) else chart.to_json()
    if suffix == ".png":
        return vl_convert.vegalite_to_png(spec, scale=scale)
    if suffix == ".pdf":
        return vl_convert.vegalite_to_pdf(spec)
    return str(vl_convert.vegalite_to_svg(spec)).encode()


def write(chart: Any, path: Path) -> Path:
    """Write the chart to a .png, .pdf or .svg file."""
    make_directory(path.parent)
    replace(path, rendered(chart, path.suffix))
    return path
