"""A picture of a table: the score against simulated time, with the colours of `tardygrad.report.theme`."""

from __future__ import annotations

import altair as alt

from tardygrad.report.theme import image_style, method_lines, rendered
from tardygrad.reproduce.experiments import FLEETS, LABELS
from tardygrad.reproduce.tables import Study


def svg(study: Study) -> bytes:
    """The synchronous and the client-centric cells with their best settings, first seed; the fleets side by side."""
    points = [
        {
            "method": line.label,
            "mode": line.cell.mode,
            "fleet": line.cell.stragglers,
            "time": time,
            "score": 100 * score,
        }
        for line in study.lines()
        if line.best and line.cell.mode != "server"
        for _, time, score in (study.look(line.best) or {})["curve"]
        if score is not None
    ]
    dashes = alt.Scale(domain=["client", "sync"], range=[[1, 0], [4, 2]])
    title = f"test {study.experiment.score} (%)"
    chart = method_lines(points, list(LABELS.values())).encode(
        x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("score:Q", title=title, scale=alt.Scale(zero=False)),
        strokeDash=alt.StrokeDash("mode:N", scale=dashes, legend=None),
    )
    sides = [
        chart.transform_filter(alt.datum.fleet == fleet).properties(
            title=f"{fleet} stragglers, client-centric (dashed: synchronous)"
        )
        for fleet in FLEETS
    ]
    return rendered(image_style(alt.hconcat(*sides)), ".svg")
