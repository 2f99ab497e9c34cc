"""The chart of a search: seconds against M, one line per mode."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from tardygrad.doctor.search import MODES, Candidate, Ranking
from tardygrad.results.theme import BLACK, BLUE, ORANGE, RED, image_style, line_legend
from tardygrad.runs.record import to_json_value

COLOURS = (BLACK, BLUE, ORANGE)  # of MODES
WITHIN, BEYOND = "within the tolerated delay", "beyond the tolerated delay"


def search_chart(ranking: Ranking) -> Any:
    """The settings in which all clients work; rings mark the current and the best setting."""
    timed = sorted((each for each in ranking.settings if each.seconds < math.inf), key=lambda each: each.method.buffer)
    all_work = [each for each in timed if each.method.concurrency is None or each.method.mode == "sync"]
    points = [_point(setting) for setting in all_work]
    modes = line_legend(symbolStrokeWidth=2, symbolSize=200, orient="right")
    bound = alt.Legend(values=[BEYOND]) if any(point["bound"] == BEYOND for point in points) else None
    log = alt.Scale(type="log", nice=False, padding=20)
    measured = f"simulated seconds to {ranking.goal}" if ranking.goal else "predicted seconds for the same work"
    base = alt.Chart({"values": to_json_value(points)}).encode(
        x=alt.X("M:Q", title="buffer M (updates)", scale=log),
        y=alt.Y("seconds:Q", title=measured, scale=log),
        color=alt.Color("mode:N", title="mode", scale=alt.Scale(domain=list(MODES), range=list(COLOURS)), legend=modes),
        tooltip=["mode:N", "M:Q", "working:N", "seconds:Q", "largest delay:Q"],
    )
    shapes = alt.Scale(domain=[WITHIN, BEYOND], range=["circle", "cross"])
    shape = alt.Shape("bound:N", title=None, scale=shapes, legend=bound)
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(shape=shape)
    rings = {"now": ranking.current, "best": ranking.best}
    marked = [{"name": name, **_point(each)} for name, each in rings.items() if each and each.seconds < math.inf]
    ring = alt.Chart({"values": to_json_value(marked)}).encode(
        x="M:Q", y="seconds:Q", tooltip=["name:N", "mode:N", "working:N"]
    )
    note = ring.mark_text(dy=-18, color=RED, fontSize=12).encode(text="name:N")
    ring = ring.mark_point(size=300, shape="circle", stroke=RED, strokeWidth=2)
    chart = alt.layer(base.mark_line(strokeWidth=2), dots, ring, note).properties(width=480, height=320)
    return image_style(chart)


def _point(setting: Candidate) -> dict[str, Any]:
    return {
        "mode": setting.method.mode,
        "M": setting.method.buffer,
        "working": str(setting.method.concurrency or "all"),
        "seconds": setting.seconds,
        "largest delay": setting.clock.delay_max if setting.clock else None,
        "bound": BEYOND if setting.excluded or setting.warning else WITHIN,
    }
