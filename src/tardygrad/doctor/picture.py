"""The picture of a search: time for an effective update against M, a line for every mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from tardygrad.doctor.search import MODES, Tried, ranked
from tardygrad.report.theme import BLACK, BLUE, ORANGE, RED, image_style, line_legend
from tardygrad.runs.record import plain

COLOURS = (BLACK, BLUE, ORANGE)  # of MODES
WITHIN, BEYOND = "within the delay bound", "beyond the delay bound"


def picture(tried: Sequence[Tried]) -> Any:
    """The settings with all clients at work; crosses are no choice, rings are the present setting and the best one."""
    all_at_work = sorted((one for one in tried if one.clock), key=lambda one: one.method.buffer)
    points = [_point(one) for one in all_at_work if one.method.concurrency is None or one.method.mode == "sync"]
    modes = line_legend(symbolStrokeWidth=2, symbolSize=200, orient="right")
    bound = alt.Legend(values=[BEYOND]) if any(point["bound"] == BEYOND for point in points) else None
    log = alt.Scale(type="log", nice=False, padding=20)
    base = alt.Chart({"values": plain(points)}).encode(
        x=alt.X("M:Q", title="buffer M (updates)", scale=log),
        y=alt.Y("seconds:Q", title="simulated seconds per effective update", scale=log),
        color=alt.Color("mode:N", title="mode", scale=alt.Scale(domain=list(MODES), range=list(COLOURS)), legend=modes),
        tooltip=["mode:N", "M:Q", "at work:N", "seconds:Q", "largest delay:Q"],
    )
    shapes = alt.Scale(domain=[WITHIN, BEYOND], range=["circle", "cross"])
    shape = alt.Shape("bound:N", title=None, scale=shapes, legend=bound)
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(shape=shape)
    best = next((one for one in ranked(tried) if one.excluded is None), None)
    rings = {"now": next((one for one in tried if one.current and one.clock), None), "best": best}
    marked = [{"name": name, **_point(one)} for name, one in rings.items() if one]
    ring = alt.Chart({"values": plain(marked)}).encode(
        x="M:Q", y="seconds:Q", tooltip=["name:N", "mode:N", "at work:N"]
    )
    note = ring.mark_text(dy=-18, color=RED, fontSize=12).encode(text="name:N")
    ring = ring.mark_point(size=300, shape="circle", stroke=RED, strokeWidth=2)
    chart = alt.layer(base.mark_line(strokeWidth=2), dots, ring, note).properties(width=480, height=320)
    return image_style(chart)


def _point(one: Tried) -> dict[str, Any]:
    return {
        "mode": one.method.mode,
        "M": one.method.buffer,
        "at work": str(one.method.concurrency or "all"),
        "seconds": one.seconds,
        "largest delay": one.clock.delay_max if one.clock else None,
        "bound": WITHIN if one.excluded is None else BEYOND,
    }
