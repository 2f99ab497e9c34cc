"""The chart of a noise probe: the distribution of the noise, and Hill's index for every k."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import altair as alt

from tardygrad.results.theme import BLACK, BLUE, GREY, ORANGE, image_style, line_legend
from tardygrad.runs.record import Row, to_json_value
from tardygrad.tail.estimate import Tail
from tardygrad.tail.probe import Probe

NOISE, SCALED = "noise", "noise, each coordinate divided by its scale"
GAUSS, POWER = "Gaussian", "power law with the estimated index"
COLOURS = {NOISE: BLUE, SCALED: ORANGE, GAUSS: GREY, POWER: BLACK}
DASHES = {NOISE: [1, 0], SCALED: [1, 0], GAUSS: [6, 3], POWER: [2, 2]}
MIN_AXIS_END, MAX_AXIS_END = 4.0, 12.0  # of the axis of indices; from 12 on, tails are light
SIDES = {"width": 360, "height": 300}


def drawn(found: Probe) -> Any:
    """Both panels, side by side."""
    lines = {NOISE: _upper_half(found.survival), SCALED: _upper_half(found.scaled_survival), GAUSS: _gauss(found)}
    lines[POWER] = _power(found.whole.tail, lines[NOISE])
    shown = [law for law in COLOURS if lines[law]]
    legend = line_legend(symbolStrokeWidth=3, symbolOpacity=1, columns=4, labelLimit=320)
    scale = alt.Scale(domain=shown, range=[COLOURS[law] for law in shown])
    colour = alt.Color("law:N", title=None, scale=scale, legend=legend)
    dash = alt.StrokeDash("law:N", title=None, scale=alt.Scale(domain=shown, range=[DASHES[law] for law in shown]))
    left = _sizes(lines).encode(color=colour, strokeDash=dash)
    both = alt.hconcat(left, _indices({NOISE: found.whole.tail, SCALED: found.whole.scaled}, colour))
    return image_style(both)


def _across(field: str, title: str) -> Any:
    axis = alt.Axis(labelOverlap="greedy", labelSeparation=10)
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(type="log", nice=False), axis=axis)


def _sizes(lines: dict[str, list[tuple[float, float]]]) -> Any:
    """The share of coordinates beyond each size of noise."""
    rows = [{"law": law, "size": v, "share": share} for law, points in lines.items() for v, share in points]
    axis = alt.Axis(format=".0e", tickCount=6)
    chart = alt.Chart({"values": to_json_value(rows)}, title="Share of coordinates with larger noise").mark_line(
        strokeWidth=2
    )
    return chart.encode(
        x=_across("size", "size of the noise (median = 1)"),
        y=alt.Y("share:Q", title="share of coordinates beyond", scale=alt.Scale(type="log"), axis=axis),
    ).properties(**SIDES)


def _indices(tails: dict[str, Tail | None], colour: Any) -> Any:
    """Hill's index for every k."""
    rows: list[Row] = [
        {"law": law, "k": k, "index": index, "low": low, "high": min(high, MAX_AXIS_END)}
        for law, tail in tails.items()
        for k, index, low, high in (tail.curve if tail else ())
        if index < MAX_AXIS_END
    ]
    height = alt.Scale(domain=[0, max([MIN_AXIS_END, *(row["high"] for row in rows)])], nice=False)
    base: Any = alt.Chart({"values": to_json_value(rows)}, title="Hill’s tail index with 95 % confidence band")
    base = base.encode(x=_across("k", "k (number of largest coordinates used)"), color=colour)
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", scale=height), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=alt.Y("index:Q", title="tail index", scale=height))
    edge: Any = alt.Chart({"values": [{"index": 2, "text": "infinite variance below 2"}]})
    edge = edge.encode(y=alt.Y("index:Q", scale=height))
    rule = edge.mark_rule(strokeDash=[4, 4], color=BLACK)
    words = edge.mark_text(align="left", baseline="bottom", dy=-3).encode(x=alt.value(6), text="text:N")
    return alt.layer(band, line, rule, words).properties(**SIDES)


def _upper_half(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The sizes above the median, in units of the median."""
    if not points:
        return []
    middle = min(points, key=lambda point: abs(point[1] - 0.5))[0]
    return [(v / middle, share) for v, share in points if v >= middle]


def _gauss(found: Probe) -> list[tuple[float, float]]:
    shares = [share for _, share in found.survival if share <= 0.5]
    unit = NormalDist().inv_cdf(0.75)
    return [(NormalDist().inv_cdf(1 - share / 2) / unit, share) for share in shares]


def _power(tail: Tail | None, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A power law through the smallest of the k largest sizes."""
    if tail is None or tail.index is None or not tail.verdict.startswith("heavy") or not tail.k:
        return []
    far = [(v, share) for v, share in points if share <= tail.k / tail.number]
    if not far:
        return []
    v, share = far[-1]
    return [(size, share * (size / v) ** -tail.index) for size in (v, points[0][0])]
