"""A picture of a table: the score against simulated time, with the colours of `tardygrad.report.theme`."""

from __future__ import annotations

from typing import Any

import altair as alt

from tardygrad.report.theme import below, colours, widths
from tardygrad.reproduce.experiments import FLEETS, LABELS
from tardygrad.reproduce.tables import Study


def svg(study: Study) -> bytes:
    """The synchronous and the client-centric cells with their best settings, first seed; the fleets side by side."""
    import vl_convert

    points = [
        {
            "method": line.label,
            "mode": line.cell.mode,
            "fleet": line.cell.stragglers,
            "time": time,
            "score": 100 * score,
        }
        for line in sorted(study.lines(), key=lambda line: not below(line.label))
        if line.best and line.cell.mode != "server"
        for _, time, score in (study.look(line.best) or {})["curve"]
        if score is not None
    ]
    chart: Any = alt.Chart({"values": points}).mark_line(point=alt.OverlayMarkDef(size=18, strokeWidth=2))
    legend = alt.Legend(orient="top", symbolType="stroke", symbolStrokeWidth=4, labelFontSize=13)
    dashes = alt.Scale(domain=["client", "sync"], range=[[1, 0], [4, 2]])
    labels = list(LABELS.values())
    strokes = alt.Scale(domain=labels, range=[stroke.colour for stroke in colours(labels)])
    title = f"test {study.experiment.score} (%)"
    chart = chart.encode(
        x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("score:Q", title=title, scale=alt.Scale(zero=False)),
        color=alt.Color("method:N", title=None, scale=strokes, legend=legend),
        strokeWidth=widths(labels),
        strokeDash=alt.StrokeDash("mode:N", scale=dashes, legend=None),
    ).properties(width=380, height=300)
    sides = [
        chart.transform_filter(alt.datum.fleet == fleet).properties(
            title=f"{fleet} stragglers, client-centric (dashed: synchronous)"
        )
        for fleet in FLEETS
    ]
    both = alt.hconcat(*sides).configure_axis(labelFontSize=12, titleFontSize=13, gridColor="#eeeeee")
    return str(vl_convert.vegalite_to_svg(both.configure_view(stroke="#cccccc").to_json())).encode()
