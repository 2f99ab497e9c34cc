"""Figures: the chart of the demo, and what all charts have in common.

Every method has one colour everywhere; the palette is Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

from tardygrad.runs.record import Row, plain, replace

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
}
DASHES = ((6, 3), (2, 2), (8, 3, 2, 3))


class Stroke(NamedTuple):
    """How a method's curve is drawn."""

    colour: str
    dash: tuple[int, ...]


def colours(labels: Iterable[str]) -> list[Stroke]:
    """A stroke for each label, no two alike: a method's own colour, else a free one, dashed where it is taken.

    >>> [one, other, again] = colours(["Clip²", "mine", "Clip²"])
    >>> one.colour == again.colour != other.colour, one.dash, again.dash
    (True, (1, 0), (6, 3))
    """
    given = list(labels)
    free = [colour for colour in COLOURS.values() if colour not in {COLOURS.get(label) for label in given}]
    own: dict[str, str] = {}
    found: list[Stroke] = []
    for label in given:
        if label not in own:
            unknown = len(own.keys() - COLOURS.keys())
            spare = free or list(COLOURS.values())
            own[label] = COLOURS.get(label) or spare[unknown % len(spare)]
        taken = sum(stroke.colour == own[label] for stroke in found)
        longer, which = divmod(taken - 1, len(DASHES))
        dash = tuple(length * (longer + 1) for length in DASHES[which]) if taken else (1, 0)
        found.append(Stroke(own[label], dash))
    return found


def below(label: str) -> bool:
    """DC is often all but Clip²: its curve is drawn first, and wide, so that both are seen."""
    return label.startswith("DC-")


def widths(labels: list[str]) -> Any:
    """The width of every method's curve."""
    wide = alt.FieldOneOfPredicate(field="method", oneOf=list(filter(below, labels)))
    return alt.condition(wide, alt.value(6), alt.value(2))


def curves(runs: Mapping[str, list[Row]]) -> Any:
    """Test loss against rounds, and against simulated time.

    Args:
        runs: a method's label to its metrics, as in `Run.metrics`.
    """
    points = [
        {"method": name, "round": row["round"], "time": row["time"], "loss": row["test_loss"]}
        for name, rows in sorted(runs.items(), key=lambda run: not below(run[0]))
        for row in rows
        if row.get("test_loss") is not None
    ]
    labels = list(runs)
    strokes = [stroke.colour for stroke in colours(labels)]
    highlight = alt.selection_point(fields=["method"], bind="legend")
    tooltip = [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip("round:Q", title="round"),
        alt.Tooltip("time:Q", title="simulated seconds", format=",.0f"),
        alt.Tooltip("loss:Q", title="test loss", format=".3f"),
    ]
    legend = alt.Legend(orient="top", symbolType="stroke", symbolStrokeWidth=4, labelFontSize=13)
    base = (
        alt.Chart({"values": plain(points)})
        .mark_line(point=alt.OverlayMarkDef(size=18, strokeWidth=2))
        .encode(
            strokeWidth=widths(labels),
            y=alt.Y("loss:Q", title="test loss", scale=alt.Scale(type="log")),
            color=alt.Color("method:N", title=None, scale=alt.Scale(domain=labels, range=strokes), legend=legend),
            opacity=alt.condition(highlight, alt.value(1.0), alt.value(0.15)),
            tooltip=tooltip,
        )
        .properties(width=380, height=300)
    )
    by_round = base.encode(x=alt.X("round:Q", title="rounds")).add_params(highlight)
    by_time = base.encode(x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log")))
    both = alt.hconcat(by_round, by_time)
    return both.configure_axis(labelFontSize=12, titleFontSize=13, gridColor="#eeeeee").configure_view(stroke="#cccccc")


def png(chart: Any, path: Path) -> Path:
    """Write a chart as PNG."""
    import vl_convert

    replace(path, vl_convert.vegalite_to_png(chart.to_json(), scale=2.0))
    return path


def svg(chart: Any, path: Path) -> Path:
    """Write a chart as SVG."""
    import vl_convert

    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, str(vl_convert.vegalite_to_svg(chart.to_json())).encode())
    return path
