"""Figures that compare groups of runs: scores, losses, clipping, and the influence of each class of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isnan
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import altair as alt

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.downsample import Sample, sample
from tardygrad.report.figure import LABEL_EXPR, PANEL, SMALL, WIDTH, figure, named_data, percent, wrapped
from tardygrad.report.groups import SeedGroup, mean_curve, score_names, seconds_of
from tardygrad.report.loader import RunView
from tardygrad.report.theme import (
    INK,
    class_colours,
    class_legend,
    drawn_wide,
    method_colours,
    method_legend,
    strokes,
    tips,
)
from tardygrad.runs.record import Row

MANY = 60  # longer lines have no visible points
POINTS, FEWEST = 3200, 40  # most points of a figure, shared by its lines; least points of a line
ROUNDS, SCORES = attrgetter("rounds"), attrgetter("scores")  # of a RunView


class Curve(NamedTuple):
    """A quantity to draw."""

    key: str
    title: str
    caption: str
    rows: Callable[[RunView], Sample[Row]]
    value: Callable[[Row], float | None]
    percent: bool = False
    axes: tuple[str, ...] = ("round", "time", "steps")
    zeros: bool = True  # draw runs whose values are all 0


class Lines(NamedTuple):
    """A quantity of every group as points to draw."""

    points: list[Row]  # group, value, low, high, width, and the position on every axis
    axes: dict[str, str]  # to their titles
    log: bool  # whether the values need a logarithmic axis
    log_time: bool  # whether the times do
    many: bool  # too many points to show each
    step: int  # one value in this many is drawn


def learning(groups: list[SeedGroup]) -> Iterator[Figure]:
    """Every score and the training loss."""
    for curve in learning_curves(groups):
        yield from _figure(groups, curve)


def learning_curves(groups: list[SeedGroup]) -> Iterator[Curve]:
    """Every score and the training loss."""
    for number, name in enumerate(score_names(groups), 1):
        title, caption, share = f"Test {name}", f"The {name} on the test set.", name == "accuracy"
        yield Curve(f"score-{number}", title, caption, SCORES, _score(name), share)
    caption = "Training loss of the clients, averaged over the updates of a round."
    yield Curve("training-loss", "Training loss", caption, ROUNDS, itemgetter("loss"))


def clipping(groups: list[SeedGroup]) -> Iterator[Figure]:
    """How much the server and the clients clipped."""
    for field, title, what in (
        ("clipped", "Clipped by the server", "the coordinates of Δ that the server clipped"),
        ("local_clipped", "Clipped by clients", "the gradients' coordinates that the clients clipped"),
    ):
        key, caption, axes = field.replace("_", "-"), f"Share of {what}.", ("round", "time")
        yield from _figure(groups, Curve(key, title, caption, ROUNDS, itemgetter(field), True, axes, zeros=False))


def _score(name: str) -> Callable[[Row], float | None]:
    return lambda row: row["scores"].get(name)


def lines_of(groups: list[SeedGroup], curve: Curve) -> Lines | None:
    """The means over the runs of every group; None if there is nothing to draw."""
    lines = {group.name: mean_curve(group, curve.rows, curve.value) for group in groups}
    if not curve.zeros:
        lines = {name: line for name, line in lines.items() if any(point["value"] for point in line)}
    samples = {name: sample(line, max(FEWEST, POINTS // len(lines))) for name, line in lines.items()}
    many = max((len(line.items) for line in samples.values()), default=0) > MANY
    points = [
        {**point, "width": (6 if drawn_wide(group.label) and len(lines) > 1 else 2) / (2 if many else 1)}
        for group in sorted(groups, key=lambda group: not drawn_wide(group.label))
        for point in (samples[group.name].items if group.name in samples else ())
    ]
    if not points:
        return None
    values = [point["value"] for point in points]
    log = not curve.percent and min(values) > 0 and max(values) > 20 * min(values)
    if log:  # bands must stay above 0
        points = [{**point, "low": max(point["low"], min(values))} for point in points]
    times = [point["time"] for point in points if (point.get("time") or 0) > 0]
    far = len(groups) > 1 and bool(times) and max(times) > 50 * min(times)
    step = max(line.step for line in samples.values())
    return Lines(points, _axes(groups, points, curve.axes), log, far, many, step)


def _axes(groups: list[SeedGroup], points: list[Row], axes: Sequence[str]) -> dict[str, str]:
    """The axes that say something new: local steps do not where all runs make equally many in every round."""
    seconds = seconds_of(run for group in groups for run in group.runs)
    known = {"round": "rounds", "time": seconds, "steps": "local steps"}
    per_round = [steps / point["round"] for point in points if (steps := point.get("steps")) is not None]
    constant = not per_round or max(per_round) <= 1.02 * min(per_round)
    return {axis: known[axis] for axis in axes if axis != "steps" or not constant}


def x_of(axis: str, lines: Lines, **options: Any) -> alt.X:
    """The position of points on an axis."""
    least = min((point[axis] for point in lines.points if (point.get(axis) or 0) > 0), default=1)
    log = alt.Scale(type="log", nice=False, domainMin=least, clamp=True)  # also shows time 0
    scale = log if axis == "time" and lines.log_time else alt.Scale(nice=False)
    ticks = alt.Axis(labelOverlap="greedy", labelSeparation=8, **options)
    return alt.X(f"{axis}:Q", title=lines.axes[axis], scale=scale, axis=ticks)


def _figure(groups: list[SeedGroup], curve: Curve) -> Iterator[Figure]:
    lines = lines_of(groups, curve)
    if lines is None:
        return
    points = lines.points
    rows = [(point["group"], *(point.get(axis) for axis in lines.axes), point["value"]) for point in points]
    table = Table(("run", *lines.axes.values(), curve.title.lower()), rows)
    drawn = {point["group"] for point in points}
    notes = _notes(groups, curve, lines.step)
    if not curve.zeros and (omitted := [group.name for group in groups if group.name not in drawn]):
        notes.append(f"Not shown because nothing was clipped: {', '.join(omitted)}.")
    if len({(point["group"], point.get("time")) for point in points}) < len(points):
        notes.append("Rounds at the same time are averaged in the line against time.")
    if lines.log_time:
        notes.append("The time axis is logarithmic.")
    legend = []
    if len(groups) > 1:
        entries = method_legend([group.label for group in groups], [group.name for group in groups])
        legend = [entry for entry in entries if entry.name in drawn]
    caption, chart = " ".join((curve.caption, *notes)), _panels(groups, lines, curve)
    yield figure(curve.key, curve.title, caption, chart, {"rows": points}, table, legend)


def _notes(groups: list[SeedGroup], curve: Curve, sampled: int) -> list[str]:
    notes, runs = [], [run for group in groups for run in group.runs]
    if len(runs) > len(groups):
        notes.append("Lines are means over seeds, bands are one standard deviation.")
    step = sampled * max(curve.rows(run).step for run in runs)
    if step > 1:
        notes.append(f"One value in {step} is drawn.")
    missing = sum(curve.value(row) is None for run in runs for row in curve.rows(run).items)
    if missing:
        notes.append(f"{missing} missing or non-finite values are not shown.")
    if len(groups) > 1:
        notes.append("Click an entry of the legend to highlight its line.")
    return notes


def _panels(groups: list[SeedGroup], lines: Lines, curve: Curve) -> Any:
    """The curves against each axis, two panels in a row."""
    title, compared = curve.title.lower(), len(groups) > 1
    scale = alt.Scale(type="log") if lines.log else alt.Scale(zero=False)
    axis_y = percent() if curve.percent else alt.Axis(format=".3~g")
    value = ("value:Q", title, ".1%" if curve.percent else ".4~g")
    shown = tips(("group:N", "run"), *((f"{axis}:Q", name, ",.6~g") for axis, name in lines.axes.items()), value)
    highlight = alt.param(name="highlight", value=None)  # the page sets it to a group's name
    lit = "highlight === null || datum.group === highlight"
    bands = any(len(group.runs) > 1 for group in groups)
    colour, dash = _colour_and_dash(groups)
    panels = []
    for number, axis in enumerate(lines.axes):

        def level(field: str, title: str | None = title if number % 2 == 0 else None) -> alt.Y:
            return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis_y)

        base: Any = alt.Chart().encode(x=x_of(axis, lines), color=colour)
        if compared:
            base = base.encode(opacity=alt.condition(lit, alt.value(1.0), alt.value(0.12)))
        band = base.mark_area(fillOpacity=0.18, strokeWidth=0, aria=False).encode(y=level("low"), y2="high:Q")
        line = base.mark_line(aria=False).encode(
            y=level("mean(value)" if axis == "time" else "value"),  # several rounds may have the same time
            strokeWidth=alt.StrokeWidth("width:Q", scale=None),
            strokeDash=dash,
        )
        dots = base.mark_circle(size=26, aria=len(lines.points) <= SMALL).encode(y=level("value"), tooltip=shown)
        if lines.many:
            dots = dots.encode(opacity=alt.value(0))  # invisible, but with tooltips
        panels.append(alt.layer(*[band] * bands, line, dots).properties(width=PANEL, height=220))
    chart = alt.concat(*panels, columns=2, data=alt.NamedData("rows"))
    return chart.add_params(highlight) if compared else chart


def _colour_and_dash(groups: list[SeedGroup]) -> tuple[alt.Color, alt.StrokeDash]:
    """Encodings of the groups; the page has the legend."""
    names, labels = [group.name for group in groups], [group.label for group in groups]
    dashes = alt.Scale(domain=names, range=[list(stroke.dash) for stroke in strokes(labels)])
    return (
        alt.Color("group:N", scale=method_colours(labels, names, INK), legend=None),
        alt.StrokeDash("group:N", scale=dashes, legend=None),
    )


def shares(groups: list[SeedGroup]) -> Iterator[Figure]:
    """Each class's share of the clients, the updates and their weight."""
    classes = list(dict.fromkeys(name for group in groups for run in group.runs for name in run.classes))
    rows: list[Row] = []
    for group in groups:
        for what, amounts in _amounts(group.runs).items():
            total, own = sum(amounts.values()), {"group": wrapped(group.name), "what": what}
            rows += [
                {**own, "class": name, "order": classes.index(name), "share": value / total}
                for name, value in amounts.items()
                if total
            ]
    if not rows or len(classes) < 2:
        return
    alone = len(groups) == 1
    side = alt.Axis(labelLimit=0, ticks=False, domain=False, labelExpr=LABEL_EXPR)
    height = 26 if alone else 14 * max(2, 1 + max(row["group"].count("\n") for row in rows))
    bars = named_data().mark_bar(stroke=INK, strokeOpacity=0.3, strokeWidth=0.5)
    chart = bars.encode(
        x=alt.X("share:Q", title=None, axis=percent(), scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("what:N" if alone else "group:N", title=None, sort=None, axis=side),
        color=class_colours(classes),
        order=alt.Order("order:Q"),
        tooltip=tips(("group:N", "run"), "class:N", ("what:N", "share of"), ("share:Q", "share", ".1%")),
    ).properties(height=alt.Step(height), width=WIDTH - 120 if alone else 170)
    if not alone:
        chart = chart.facet(column=alt.Column("what:N", title=None, sort=None), spacing=20)
    caption = (
        "Each class's share of the clients, of the updates used, and of the weight that these updates had because of "
        "their delays (before the division by M)."
    )
    if any(isnan(own.weight) for group in groups for run in group.runs for own in run.classes.values()):
        caption += " Weights are not shown where the record has none."
    cells = [(row["group"], row["what"], row["class"], f"{row['share']:.1%}") for row in rows]
    table = Table(("run", "share of", "class", "share"), cells)
    yield figure("shares", "Shares of the classes", caption, chart, {"rows": rows}, table, class_legend(classes))


def _amounts(runs: list[RunView]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {"clients": {}, "updates": {}, "weight": {}}
    for run in runs:
        for name, own in run.classes.items():
            amounts = (own.clients, len(own.delays), 0.0 if isnan(own.weight) else own.weight)
            for what, amount in zip(found, amounts, strict=True):
                found[what][name] = found[what].get(name, 0.0) + amount
    return found
