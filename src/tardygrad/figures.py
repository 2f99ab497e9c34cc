"""Figures: one chart, written as a picture (PNG) and as an interactive page that works offline (HTML).

Every method has one colour everywhere; the palette is Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt

from tardygrad.record import Row, plain, replace

COLOURS = {
    "sync-Clip²": "#000000",
    "Clip²": "#0072B2",
    "SD-Clip²": "#E69F00",
    "DC-Clip²": "#009E73",
    "SGDClip": "#D55E00",
}


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
    colours = [COLOURS.get(label, "#56B4E9") for label in labels]
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
            color=alt.Color("method:N", title=None, scale=alt.Scale(domain=labels, range=colours), legend=legend),
            opacity=alt.condition(highlight, alt.value(1.0), alt.value(0.15)),
            tooltip=tooltip,
        )
        .properties(width=380, height=300)
    )
    by_round = base.encode(x=alt.X("round:Q", title="rounds")).add_params(highlight)
    by_time = base.encode(x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log")))
    both = alt.hconcat(by_round, by_time)
    return both.configure_axis(labelFontSize=12, titleFontSize=13, gridColor="#eeeeee").configure_view(stroke="#cccccc")


def write(chart: Any, path: Path) -> list[Path]:
    """Write a chart beside each other as PNG and as a page that needs no network."""
    import vl_convert

    spec = chart.to_json()
    png, page = path.with_suffix(".png"), path.with_suffix(".html")
    replace(png, vl_convert.vegalite_to_png(spec, scale=2.0))
    replace(page, vl_convert.vegalite_to_html(spec, bundle=True).encode())
    return [png, page]
