"""The figure of a comparison: the mean score of each method against time, with confidence bands."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from tardygrad.errors import Invalid
from tardygrad.results.figure import (
    FONT,
    HIGHLIGHT,
    LABEL_EXPR,
    TEXT,
    WIDTHS,
    fitted_names,
    highlighted,
    named_data,
    quoted,
)
from tardygrad.results.statistics import confidence_interval
from tardygrad.results.theme import BLACK, GREY, INK, line_legend, method_colours, strokes, tips, write
from tardygrad.runs.record import Row, to_json_value

if TYPE_CHECKING:
    from tardygrad.results.comparison import Comparison, Contender

POINTS = 200  # times at which the curves are drawn


def write_figure(comparison: Comparison, path: Path, columns: int) -> Path:
    """Draw a comparison to a .pdf, .svg or .png file."""
    if path.suffix not in (".pdf", ".svg", ".png"):
        raise Invalid(f"a figure must be a file that ends in .pdf, .svg or .png, got {str(path)!r}.")
    widths = dict(enumerate(WIDTHS.values(), 1))
    if columns not in widths:
        raise Invalid(f"`columns` must be 1 or 2, got {columns!r}.")
    return write(paper_chart(comparison, widths[columns]), path)


def paper_chart(comparison: Comparison, width: int) -> str:
    """The figure in a width of so many points, as JSON for Vega-Lite."""
    names, columns = fitted_names([contender.name for contender in comparison.contenders], width)
    size: Any = {"symbolStrokeWidth": 2, "symbolSize": 80, "columnPadding": 8}
    legend = line_legend(columns=columns, labelExpr=LABEL_EXPR, labelLimit=0, **size)
    fit = alt.AutoSizeParams(type="fit", contains="padding")
    small: Any = {"labelFontSize": TEXT, "titleFontSize": TEXT, "titleFontWeight": "normal"}
    chart = mean_chart(comparison, names, legend=legend)
    chart = chart.properties(width=width, height=0.65 * min(width, 320), autosize=fit, padding=2)
    chart = chart.configure(font=FONT, axis=small | {"gridColor": "#eeeeee"}, legend=small, view={"stroke": None})
    return json.dumps(quoted(chart.to_dict()) | {"datasets": to_json_value(mean_curves(comparison, names))})


def mean_curves(comparison: Comparison, names: Sequence[str]) -> dict[str, list[Row]]:
    """The data of `mean_chart`."""
    rows = [
        row | {"method": name}
        for contender, name in zip(comparison.contenders, names, strict=True)
        for row in mean_curve(contender, comparison.confidence)
    ]
    return {"rows": rows, "target": [] if comparison.target is None else [{"target": comparison.target}]}


def mean_chart(comparison: Comparison, names: Sequence[str], *, legend: alt.Legend | None = None) -> Any:
    """The mean score of each method against time, its interval as a band, and the target as a line.

    Args:
        names: what the methods are called.
        legend: None: it is for a page, which has the legend, highlights lines and shows tips.
    """
    labels, page = [contender.name for contender in comparison.contenders], legend is None
    share = comparison.score == "accuracy"
    axis = alt.Axis(format=".2~%" if share else ".3~g", tickCount=5)
    title = f"test {comparison.score}"
    least = min((row["mean"] for row in mean_curves(comparison, names)["rows"]), default=0.0)
    if least > 0 and not share:  # a band that goes down to 0 leaves the chart
        scale = alt.Scale(type="log", nice=False, domainMin=least / 2, clamp=True)
    else:
        scale = alt.Scale(zero=False, nice=False)
    colours = method_colours(labels, names, INK if page else BLACK)
    dashes = alt.Scale(domain=list(names), range=[list(stroke.dash) for stroke in strokes(labels)])
    base = named_data().encode(
        x=alt.X("time:Q", title=comparison.seconds, scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=5)),
        color=alt.Color("method:N", title=None, scale=colours, legend=legend),
        **({"opacity": highlighted("method")} if page else {}),
    )
    level = alt.Y("mean:Q", title=title, scale=scale, axis=axis)
    bands = base.mark_area(fillOpacity=0.2, strokeWidth=0, interpolate="step-after", aria=False).encode(
        y=alt.Y("low:Q", title=title, scale=scale, axis=axis), y2="high:Q"
    )
    lines = base.mark_line(strokeWidth=2 if page else 1.2, interpolate="step-after", aria=False).encode(
        y=level, strokeDash=alt.StrokeDash("method:N", title=None, scale=dashes, legend=legend)
    )
    rule = named_data("target").mark_rule(strokeDash=[3, 3], color=GREY, aria=False).encode(y="target:Q")
    chart = alt.layer(bands, lines, *[rule] * (comparison.target is not None))
    if not page:
        return chart
    form = ".2%" if share else ".4~g"
    interval = (("low:Q", "from", form), ("high:Q", "to", form))
    tooltip = tips("method:N", ("time:Q", comparison.seconds, ",.4~g"), ("mean:Q", "mean", form), *interval)
    dots = base.mark_circle(size=26, aria=False).encode(y=level, tooltip=tooltip, opacity=alt.value(0))
    return alt.layer(*chart.layer, dots).add_params(HIGHLIGHT)


def mean_curve(contender: Contender, confidence: float) -> list[Row]:
    """The mean of a method's curves against time, with its interval at each time.

    Between evaluations a run has the score of the last one, and a run that has finished keeps its last score. The curve
    ends where a run diverges or starves: the mean of the others would flatter the method.
    """
    if not all(run.curve for run in contender.runs):
        return []
    broken = [run.curve[-1][0] for run in contender.runs if run.status != "finished"]
    begin = max(run.curve[0][0] for run in contender.runs)
    end = min(broken) if broken else max(run.time for run in contender.runs)
    rows: list[Row] = []
    for i in range(POINTS + 1 if end > begin else 0):
        time = begin + (end - begin) * i / POINTS
        values = [run.curve[bisect_right(run.curve, time, key=lambda point: point[0]) - 1][1] for run in contender.runs]
        mean, half_width, _ = confidence_interval(values, confidence)
        interval = {"low": mean - half_width, "high": mean + half_width} if half_width else {}
        rows.append({"method": contender.name, "time": time, "mean": mean, **interval})
    return rows
