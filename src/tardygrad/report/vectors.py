"""Figures of one run's vectors: how heavy the tail of the updates is, and how many past models were held."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.figure import BLUE, PANEL, RED, WIDTH, drawn, figure
from tardygrad.report.read import Story

LEAST = 1e-12  # share that is drawn, on a logarithmic scale


def tail(story: Story) -> Iterator[Figure]:
    """The tail of the updates' norms."""
    if story.tail is None:
        return
    tail, error, number, edge, share, points = story.tail
    fit = [{"norm": norm, "share": max(share * (norm / edge) ** -tail, LEAST)} for norm in (edge, points[0][0])]
    x = alt.X("norm:Q", title="‖δ‖", scale=alt.Scale(type="log", nice=False))
    axis = alt.Axis(format="~%", tickCount=4)
    y = alt.Y("share:Q", title="share of updates beyond it", scale=alt.Scale(type="log", nice=False), axis=axis)
    tooltip = [
        alt.Tooltip("norm:Q", title="‖δ‖", format=".4~g"),
        alt.Tooltip("share:Q", title="share beyond it", format=".3~%"),
    ]
    chart = alt.layer(
        drawn().mark_circle(color=BLUE, size=24, aria=False).encode(x=x, y=y, tooltip=tooltip),
        drawn("fit").mark_line(color=RED, strokeDash=[6, 3], aria=False).encode(x=x, y=y),
    ).properties(width=PANEL + 120, height=260)
    caption = (
        f"Hill's estimate of the tail index of ‖δ‖ from its {number:,} largest values: {tail:.2f} ± {error:.2f} "
        "(dashed; smaller is heavier, and below 2 the variance is infinite). These are updates after local clipping, "
        "which bounds them: it says little about the noise of the gradients."
    )
    data = {"rows": [{"norm": norm, "share": beyond} for norm, beyond in points], "fit": fit}
    yield figure("tail", "Tail of the updates", caption, chart, data, Table(("‖δ‖", "share beyond it"), points))


def memory(story: Story) -> Iterator[Figure]:
    """Past models that the server held for compensation."""
    if not story.snapshots:
        return
    rows = [{"round": row["round"], "held": row["snapshots"]} for row in story.rounds]
    base = drawn().mark_line(
        color=BLUE, interpolate="step-after", point=alt.OverlayMarkDef(size=16, color=BLUE), aria=False
    )
    chart = base.encode(
        x=alt.X("round:Q", title="rounds", scale=alt.Scale(nice=False)),
        y=alt.Y("held:Q", title="past models held", axis=alt.Axis(tickMinStep=1)),
        tooltip=[alt.Tooltip("round:Q"), alt.Tooltip("held:Q", title="models held")],
    ).properties(width=WIDTH, height=180)
    each = f", {4 * story.parameters:,} bytes each" if story.parameters else ""
    caption = f"Past models that the server held to correct late updates{each}."
    yield figure("memory", "Past models held", caption, chart, {"rows": rows})
