"""Figures of one run's vectors: the tail of the updates' norms, and the past models that the server kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from tardygrad.report.downsample import sample
from tardygrad.report.groups import seconds_of
from tardygrad.report.loader import POINTS, RunView, finite
from tardygrad.results.blocks import Figure, Table
from tardygrad.results.figure import PANEL, WIDTH, figure, log_scale, named_data
from tardygrad.results.theme import BLUE, RED, tips
from tardygrad.runs.record import Row

SMALLEST = 1e-12  # smallest share on a logarithmic axis


def tail(run: RunView) -> Iterator[Figure]:
    """The tail of the updates' norms."""
    if run.tail is None:
        return
    tail, error, number, edge, share, points = run.tail
    fit = [{"norm": norm, "share": max(share * (norm / edge) ** -tail, SMALLEST)} for norm in (edge, points[0][0])]
    place = {
        "x": alt.X("norm:Q", title="‖δ‖", scale=log_scale()),
        "y": alt.Y(
            "share:Q", title="share of larger updates", scale=log_scale(), axis=alt.Axis(format="~%", tickCount=4)
        ),
    }
    tooltip = tips(("norm:Q", "‖δ‖", ".4~g"), ("share:Q", "share of larger updates", ".3~%"))
    chart = alt.layer(
        named_data().mark_circle(color=BLUE, size=24, opacity=1, aria=False).encode(**place, tooltip=tooltip),
        named_data("fit").mark_line(color=RED, strokeDash=[6, 3], aria=False).encode(**place),
    ).properties(width=PANEL + 120, height=260)
    caption = (
        f"Hill's estimate of the tail index of ‖δ‖ from the {number:,} largest values is {tail:.2f} ± {error:.2f} "
        "(dashed). A smaller index means a heavier tail; below 2 the variance is infinite."
    )
    if run.history.clients_clip:
        caption += " Local clipping bounds updates, so they say little about the noise of the gradients."
    data = {"rows": [{"norm": norm, "share": beyond} for norm, beyond in points], "fit": fit}
    table = Table(("‖δ‖", "share of larger updates"), points)
    yield figure("tail", "Tail of the updates", caption, chart, data, table)


def indices(run: RunView) -> Iterator[Figure]:
    """The tail index of the updates over time, if the run estimated it."""
    estimates, step = sample(run.history.tails, POINTS)
    tails: list[Row] = [
        {"round": tail.round, "few": tail.verdict == "too few to tell"}
        | {name: finite(getattr(tail, name)) for name in ("time", "index", "low", "high")}
        for tail in estimates
    ]
    rows = [row for row in tails if row["index"] is not None]
    if not rows:
        return
    least, most = (pick(row["index"] for row in rows) for pick in (min, max))
    log = least > 0 and most > 20 * least
    bottom = least if log else -math.inf  # a logarithmic axis needs bands above 0
    points = [
        {key: row[key] for key in ("round", "time", "index", "few")}
        | {end: max(row["index"] if row[end] is None else row[end], bottom) for end in ("low", "high")}
        for row in rows
    ]
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    seconds = seconds_of([run])
    chart = alt.concat(
        *(_panel(axis, title, scale) for axis, title in (("round", "rounds"), ("time", seconds))), columns=2
    )
    heads = ("rounds", seconds, "tail index", "from", "to", "too few to tell")
    cells = [(*(row[key] for key in ("round", "time", "index", "low", "high")), "yes" * row["few"]) for row in rows]
    data = {"rows": points, "edge": [{"at": 2, "text": "below 2: infinite variance"}]}
    notes = [
        "Estimated every run.tail_every rounds from a sample of the updates' coordinates. "
        "Below 2 the variance is infinite."
    ]
    if any(row["low"] is not None for row in tails):
        notes.append("The band is the confidence interval.")
    if any(row["few"] for row in tails):
        notes.append("Hollow points: too few values to tell.")
    if step > 1:
        notes.append(f"One value in {step} is drawn.")
    if missing := sum(row["index"] is None for row in tails):
        notes.append(f"{missing} missing or non-finite values are not shown.")
    yield figure("tail-index", "Tail index of updates", " ".join(notes), chart, data, Table(heads, cells))


def _panel(axis: str, title: str, scale: alt.Scale) -> Any:
    def y(key: str) -> alt.Y:
        return alt.Y(f"{key}:Q", title="tail index", scale=scale, axis=alt.Axis(format=".3~g"))

    shown = [(f"{key}:Q", key, ".3~g") for key in ("index", "low", "high")]
    tooltip = tips((f"{axis}:Q", title, ",.6~g"), *shown)
    base = named_data().encode(x=alt.X(f"{axis}:Q", title=title, scale=alt.Scale(nice=False)))
    edge = named_data("edge").encode(y=y("at"))
    return alt.layer(
        base.mark_area(color=BLUE, opacity=0.18, aria=False).encode(y=y("low"), y2="high:Q"),
        edge.mark_rule(color=RED, strokeDash=[6, 3], aria=False),
        edge.mark_text(color=RED, align="right", dx=-4, dy=-7, aria=False).encode(x=alt.value(PANEL), text="text:N"),
        base.mark_line(color=BLUE, strokeWidth=1.5, aria=False).encode(y=y("index")),
        base.mark_point(color=BLUE, fill=BLUE, size=30, opacity=1, aria=False).encode(
            y=y("index"), tooltip=tooltip, fillOpacity=alt.condition(alt.datum.few, alt.value(0), alt.value(1))
        ),
    ).properties(width=PANEL, height=220)


def memory(run: RunView) -> Iterator[Figure]:
    """The past models that the server kept for delay compensation."""
    if not run.history.rounds.snapshots.any():
        return
    rows = [{"round": row["round"], "held": row["snapshots"]} for row in run.rounds.items]
    dots = alt.OverlayMarkDef(size=16, color=BLUE)
    chart = named_data().mark_line(color=BLUE, interpolate="step-after", point=dots, aria=False)
    chart = chart.encode(
        x=alt.X("round:Q", title="rounds", scale=alt.Scale(nice=False)),
        y=alt.Y("held:Q", title="past models", axis=alt.Axis(tickMinStep=1)),
        tooltip=tips("round:Q", ("held:Q", "past models")),
    ).properties(width=WIDTH, height=180)
    size = f", {4 * run.history.parameters:,} bytes each" if run.history.parameters else ""
    caption = f"Past models that the server kept to compensate delayed updates{size}."
    yield figure("memory", "Past models", caption, chart, {"rows": rows})
