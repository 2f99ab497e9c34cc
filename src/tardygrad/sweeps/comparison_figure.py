"""The figure of a comparison: the mean score of each method against time, with confidence bands."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from tardygrad.errors import Invalid
from tardygrad.report.paper_figures import FONT, TEXT, WIDTHS
from tardygrad.report.theme import line_legend, method_colours, strokes, write
from tardygrad.runs.record import Row, to_json_value
from tardygrad.sweeps.statistics import estimate

if TYPE_CHECKING:
    from tardygrad.sweeps.comparison import Comparison, Contender

POINTS = 200  # times at which the curves are drawn


def write_figure(comparison: Comparison, path: Path, columns: int) -> Path:
    """Draw a comparison to a .pdf, .svg or .png file."""
    if path.suffix not in (".pdf", ".svg", ".png"):
        raise Invalid(f"a figure must be a file that ends in .pdf, .svg or .png, got {str(path)!r}.")
    widths = dict(enumerate(WIDTHS.values(), 1))
    if columns not in widths:
        raise Invalid(f"`columns` must be 1 or 2, got {columns!r}.")
    rows = [row for one in comparison.contenders for row in _curve(one, comparison.confidence)]
    return write(_chart(comparison, rows, widths[columns]), path)


def _chart(comparison: Comparison, rows: list[Row], width: int) -> Any:
    names = [one.name for one in comparison.contenders]
    share = comparison.score == "accuracy"
    axis = alt.Axis(format=".0%" if share else ".3~g", tickCount=5)
    legend = line_legend(columns=3 if width < 300 else 6, symbolStrokeWidth=2, symbolSize=80, columnPadding=8)
    title = f"test {comparison.score.replace('_', ' ')}"
    least = min((row["mean"] for row in rows), default=0.0)
    if least > 0 and not share:  # a band that goes down to 0 leaves the chart
        scale = alt.Scale(type="log", nice=False, domainMin=least / 2, clamp=True)
    else:
        scale = alt.Scale(zero=False, nice=False)
    base: Any = alt.Chart({"values": to_json_value(rows)}).encode(
        x=alt.X("time:Q", title="simulated time (s)", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=5)),
        color=alt.Color("method:N", title=None, scale=method_colours(names), legend=legend),
    )
    dash = alt.Scale(domain=names, range=[list(stroke.dash) for stroke in strokes(names)])
    bands = base.mark_area(fillOpacity=0.2, strokeWidth=0, interpolate="step-after").encode(
        y=alt.Y("low:Q", title=title, scale=scale, axis=axis), y2="high:Q"
    )
    lines = base.mark_line(strokeWidth=1.2, interpolate="step-after").encode(
        y=alt.Y("mean:Q", title=title, scale=scale, axis=axis),
        strokeDash=alt.StrokeDash("method:N", title=None, scale=dash, legend=legend),
    )
    layers = [bands, lines]
    if comparison.target is not None:
        rule = alt.Chart({"values": [{"target": comparison.target}]}).mark_rule(strokeDash=[3, 3], color="#808080")
        layers.append(rule.encode(y="target:Q"))
    fit = alt.AutoSizeParams(type="fit", contains="padding")
    small: Any = {"labelFontSize": TEXT, "titleFontSize": TEXT, "titleFontWeight": "normal"}
    chart = alt.layer(*layers).properties(width=width, height=0.65 * min(width, 320), autosize=fit, padding=2)
    return chart.configure(font=FONT, axis=small | {"gridColor": "#eeeeee"}, legend=small, view={"stroke": None})


def _curve(one: Contender, confidence: float) -> list[Row]:
    """The mean of a method's curves and its interval; between evaluations a run has the score of the last one."""
    curves = [run.curve for run in one.runs if run.curve]
    ends = [curve[-1][0] for curve in curves]
    if len(curves) < len(one.runs) or min(ends) <= 0:
        return []
    rows: list[Row] = []
    for i in range(POINTS + 1):
        time = min(ends) * i / POINTS
        values = [curve[bisect_right(curve, time, key=lambda point: point[0]) - 1][1] for curve in curves]
        mean, half_width = estimate(values, confidence)
        interval = {"low": mean - (half_width or 0.0), "high": mean + (half_width or 0.0)}
        rows.append({"method": one.name, "time": time, "mean": mean, **interval})
    return rows
