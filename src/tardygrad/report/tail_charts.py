"""Figures of one run's vectors: how heavy the tail of the updates is, and how many past models were held."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.figure import CLOCK, PANEL, WIDTH, drawn, figure
from tardygrad.report.loader import RunView
from tardygrad.report.theme import BLUE, RED, tips
from tardygrad.runs.record import Row

LEAST = 1e-12  # share that is drawn, on a logarithmic scale


def tail(story: RunView) -> Iterator[Figure]:
    """The tail of the updates' norms."""
    if story.tail is None:
        return
    tail, error, number, edge, share, points = story.tail
    fit = [{"norm": norm, "share": max(share * (norm / edge) ** -tail, LEAST)} for norm in (edge, points[0][0])]
    x = alt.X("norm:Q", title="‖δ‖", scale=alt.Scale(type="log", nice=False))
    axis = alt.Axis(format="~%", tickCount=4)
    y = alt.Y("share:Q", title="share of updates beyond it", scale=alt.Scale(type="log", nice=False), axis=axis)
    tooltip = tips(("norm:Q", "‖δ‖", ".4~g"), ("share:Q", "share beyond it", ".3~%"))
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


def indices(story: RunView) -> Iterator[Figure]:
    """The tail index of the updates over time, where the run estimated it."""
    rows = [row for row in story.tails if row["index"] is not None]
    if not rows:
        return
    least, most = (pick(row["index"] for row in rows) for pick in (min, max))
    wide = least > 0 and most > 20 * least
    points = [_banded(row, least if wide else -math.inf) for row in rows]
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=False)
    panels = [_panel(axis, title, scale) for axis, title in (("round", "rounds"), ("time", CLOCK))]
    heads = ("rounds", CLOCK, "tail index", "from", "to", "too few to tell")
    cells = [(*(row[key] for key in ("round", "time", "index", "low", "high")), "yes" * row["few"]) for row in rows]
    data = {"rows": points, "edge": [{"at": 2, "said": "below 2: infinite variance"}]}
    chart = alt.hconcat(*panels)
    yield figure("tail-index", "Tail index of updates", " ".join(_notes(story)), chart, data, Table(heads, cells))


def _notes(story: RunView) -> Iterator[str]:
    yield "Estimated every run.tail_every rounds from some coordinates of the updates; below 2 is infinite variance."
    if any(row["low"] is not None for row in story.tails):
        yield "The band goes from the low end to the high end of the estimate."
    if any(row["few"] for row in story.tails):
        yield "Hollow: too few to tell."
    if story.tail_step > 1:
        yield f"One in {story.tail_step} is drawn."
    if missing := sum(row["index"] is None for row in story.tails):
        yield f"{missing} values that are missing or not finite are left out."


def _banded(row: Row, least: float) -> Row:
    """A point, with the band's ends where it has them; a logarithm needs more than 0."""
    ends = {end: max(row["index"] if row[end] is None else row[end], least) for end in ("low", "high")}
    return {"round": row["round"], "time": row["time"], "index": row["index"], "few": row["few"], **ends}


def _panel(axis: str, title: str, scale: alt.Scale) -> Any:
    x = alt.X(f"{axis}:Q", title=title, scale=alt.Scale(nice=False))

    def y(key: str) -> alt.Y:
        return alt.Y(f"{key}:Q", title="tail index", scale=scale, axis=alt.Axis(format=".3~g"))

    shown = [(f"{key}:Q", key, ".3~g") for key in ("index", "low", "high")]
    tooltip = tips((f"{axis}:Q", title, ",.6~g"), *shown)
    base, edge = drawn().encode(x=x), drawn("edge").encode(y=y("at"))
    return alt.layer(
        base.mark_area(color=BLUE, opacity=0.18, aria=False).encode(y=y("low"), y2="high:Q"),
        edge.mark_rule(color=RED, strokeDash=[6, 3], aria=False),
        edge.mark_text(color=RED, align="right", dx=-4, dy=-7, aria=False).encode(x=alt.value(PANEL), text="said:N"),
        base.mark_line(color=BLUE, strokeWidth=1.5, aria=False).encode(y=y("index")),
        base.mark_point(color=BLUE, fill=BLUE, size=30, opacity=1, aria=False).encode(
            y=y("index"), tooltip=tooltip, fillOpacity=alt.condition(alt.datum.few, alt.value(0), alt.value(1))
        ),
    ).properties(width=PANEL, height=220)


def memory(story: RunView) -> Iterator[Figure]:
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
        tooltip=tips("round:Q", ("held:Q", "models held")),
    ).properties(width=WIDTH, height=180)
    each = f", {4 * story.parameters:,} bytes each" if story.parameters else ""
    caption = f"Past models that the server held to correct late updates{each}."
    yield figure("memory", "Past models held", caption, chart, {"rows": rows})
