"""Figures that lay runs over each other: scores, losses, clipping, and who is heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.downsample import Thin
from tardygrad.report.figure import CLOCK, PANEL, SMALL, WIDTH, classes_of, drawn, figure, percent
from tardygrad.report.groups import Group, curve, names
from tardygrad.report.loader import RunView
from tardygrad.report.theme import INK, NAMED, below, class_colours, line_legend, method_colours, strokes, tips
from tardygrad.runs.record import Row

MANY = 60  # points of a line, beyond which it has no marks
POINTS, FEWEST = 3200, 40  # of all lines of a figure, and of one
AXES = {"round": "rounds", "time": CLOCK, "seconds": "real time (s)", "steps": "local steps"}


class Curve(NamedTuple):
    """What is drawn against rounds and time."""

    key: str
    title: str
    said: str
    rows: Callable[[RunView], list[Row]]
    value: Callable[[Row], float | None]
    percent: bool
    axes: tuple[str, ...]
    zeros: bool = True  # whether a run with nothing else is drawn


def learning(groups: list[Group]) -> Iterator[Figure]:
    """Every score and the training loss, against rounds, the clock, real time and local steps."""
    for number, name in enumerate(names(groups), 1):
        said = f"The test set's {name}, as often as it was taken."
        value = _score(name)
        yield from _drawn(
            groups,
            Curve(f"score-{number}", f"Test {name}", said, lambda run: run.scores, value, name == "accuracy", (*AXES,)),
        )
    said = "The clients' own loss while they work, mean over the updates of a round."
    yield from _drawn(groups, Curve("training-loss", "Training loss", said, _rounds, _fact("loss"), False, (*AXES,)))


def clipping(groups: list[Group]) -> Iterator[Figure]:
    """How much was clipped, by the server and by clients."""
    for key, title, said in (
        ("clipped", "Clipped by the server", "Share of the coordinates of Δ that the server clipped."),
        ("local_clipped", "Clipped by clients", "Share of the gradients' coordinates that clients clipped."),
    ):
        one = Curve(key.replace("_", "-"), title, said, _rounds, _fact(key), True, ("round", "time"), zeros=False)
        yield from _drawn(groups, one)


def _rounds(run: RunView) -> list[Row]:
    return run.rounds


def _score(name: str) -> Callable[[Row], float | None]:
    return lambda row: row["scores"].get(name)


def _fact(name: str) -> Callable[[Row], float | None]:
    return lambda row: row[name]


def _drawn(groups: list[Group], one: Curve) -> Iterator[Figure]:
    found = {group.name: curve(group, one.rows, one.value) for group in groups}
    if not one.zeros:
        found = {name: line for name, line in found.items() if any(point["value"] for point in line)}
    found, apart = _thinned(found)
    many = max(map(len, found.values()), default=0) > MANY
    points = [
        {**point, "width": (6 if below(group.label) and len(found) > 1 else 2) / (2 if many else 1)}
        for group in sorted(groups, key=lambda group: not below(group.label))
        for point in found.get(group.name, ())
    ]
    if not points:
        return
    axes = [axis for axis in one.axes if any(point.get(axis) is not None for point in points)]
    heads = [AXES[axis] for axis in axes]
    rows = [(point["group"], *(point.get(axis) for axis in axes), point["value"]) for point in points]
    if wide := _wide(points, one):
        least = min(point["value"] for point in points)
        points = [{**point, "low": max(point["low"], least)} for point in points]  # a logarithm needs more than 0
    caption = " ".join((one.said, *_notes(groups, one, apart), *_left(groups, found), *_equal(points)))
    table = Table(("run", *heads, one.title.lower()), rows)
    panels = _panels(groups, points, one, axes, wide=wide, many=many)
    yield figure(one.key, one.title, caption, panels, {"rows": points}, table)


def _thinned(found: dict[str, list[Row]]) -> tuple[dict[str, list[Row]], int]:
    """Lines that share the points of a figure, and how many of their own become one."""
    lines = {name: Thin[Row](max(FEWEST, POINTS // len(found))) for name in found}
    for name, points in found.items():
        for point in points:
            lines[name].add(point)
    return {name: line.kept for name, line in lines.items()}, max((line.step for line in lines.values()), default=1)


def _notes(groups: list[Group], one: Curve, apart: int) -> Iterator[str]:
    runs = [run for group in groups for run in group.runs]
    if len(runs) > len(groups):
        yield "Lines are means over seeds at each round, bands one standard deviation to either side."
    step = max(run.step if one.rows is _rounds else run.score_step for run in runs)
    if step * apart > 1:
        yield f"One in {step * apart} is drawn."
    missing = sum(one.value(row) is None for run in runs for row in one.rows(run))
    if missing:
        yield f"{missing} values that are missing or not finite are left out."
    if len(groups) > 1:
        yield "A click on the legend brings out one line."
    if len(groups) > NAMED:
        yield f"It names the first {NAMED}."


def _left(groups: list[Group], found: dict[str, list[Row]]) -> Iterator[str]:
    if len(found) < len(groups):
        names = ", ".join(group.name for group in groups if group.name not in found)
        yield f"Those that clip nothing there are left out: {names}."


def _equal(points: list[Row]) -> Iterator[str]:
    if len({(point["group"], point.get("time")) for point in points}) < len(points):
        yield "Where rounds have equal times, the line against time is their mean."


def _wide(points: list[Row], one: Curve) -> bool:
    """Whether a logarithmic scale shows more."""
    heights = [point["value"] for point in points]
    return not one.percent and min(heights) > 0 and max(heights) > 20 * min(heights)


def _panels(groups: list[Group], points: list[Row], one: Curve, axes: Sequence[str], *, wide: bool, many: bool) -> Any:
    """Curves of groups against each axis, the panels two in a row."""
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=False)
    axis_y = percent() if one.percent else alt.Axis(format=".3~g")
    title = one.title.lower()
    y = alt.Y("value:Q", title=title, scale=scale, axis=axis_y)
    value = ("value:Q", title, ".1%" if one.percent else ".4~g")
    shown = tips(("group:N", "run"), *((f"{axis}:Q", AXES[axis], ",.6~g") for axis in axes), value)
    highlight = alt.selection_point(name="highlight", fields=["group"], bind="legend")
    bands = any(len(group.runs) > 1 for group in groups)
    panels = []
    for axis in axes:
        spans = [point[axis] for point in points if (point.get(axis) or 0) > 0]
        far = axis == "time" and len(groups) > 1 and spans and max(spans) > 50 * min(spans)
        ratios = alt.Scale(type="log", nice=False, domainMin=min(spans, default=1), clamp=True)  # whatever is at 0
        scale_x = ratios if far else alt.Scale(nice=False)
        x = alt.X(f"{axis}:Q", title=AXES[axis], scale=scale_x, axis=alt.Axis(labelOverlap="greedy", labelSeparation=8))
        marked = _marked(groups, {point["group"] for point in points})
        base: Any = alt.Chart().encode(x=x, color=marked["color"])
        if len(groups) > 1:
            base = base.encode(opacity=alt.condition(highlight, alt.value(1.0), alt.value(0.12)))
        low = alt.Y("low:Q", title=title, scale=scale, axis=axis_y)
        band = base.mark_area(fillOpacity=0.18, strokeWidth=0, aria=False).encode(y=low, y2="high:Q")
        level = alt.Y("mean(value):Q", title=title, scale=scale, axis=axis_y) if axis == "time" else y  # many at once
        width = alt.StrokeWidth("width:Q", scale=None)
        line = base.mark_line(aria=False).encode(y=level, strokeWidth=width, strokeDash=marked["strokeDash"])
        dots = base.mark_circle(size=26, aria=len(points) <= SMALL).encode(y=y, tooltip=shown)
        if many:
            dots = dots.encode(opacity=alt.value(0))  # for their tips
        panels.append(alt.layer(*[band] * bands, line, dots).properties(width=PANEL, height=220))
    if len(groups) > 1:
        panels[0] = panels[0].add_params(highlight)
    return alt.concat(*panels, columns=2, data=alt.NamedData("rows"))


def _marked(groups: list[Group], drawn: set[str]) -> dict[str, Any]:
    """Colour and dash of every group, and a legend of those drawn; none where there is nothing to tell apart."""
    names, labels = [group.name for group in groups], [group.label for group in groups]
    columns = max(1, min(len(groups), 10, 90 // max(map(len, names))))
    values = [name for name in names if name in drawn][:NAMED]
    legend = line_legend(symbolStrokeWidth=3, symbolSize=300, columns=columns, values=values)
    shown = legend if len(groups) > 1 else None
    dashes = alt.Scale(domain=names, range=[list(stroke.dash) for stroke in strokes(labels)])
    return {
        "color": alt.Color("group:N", title=None, scale=method_colours(labels, names, INK), legend=shown),
        "strokeDash": alt.StrokeDash("group:N", title=None, scale=dashes, legend=shown),
    }


def heard(groups: list[Group]) -> Iterator[Figure]:
    """Who is heard: the classes' shares of clients, of updates and of the weight these were given."""
    classes = list(dict.fromkeys(name for group in groups for run in group.runs for name in classes_of(run)))
    rows: list[Row] = []
    for group in groups:
        for what, shares in _shares(group.runs).items():
            whole = sum(shares.values())
            rows += [
                {"group": group.name, "what": what, "class": name, "order": classes.index(name), "share": value / whole}
                for name, value in shares.items()
                if whole
            ]
    if not rows or len(classes) < 2:
        return
    alone = len(groups) == 1
    base = drawn().mark_bar(stroke=INK, strokeOpacity=0.3, strokeWidth=0.5)
    side = alt.Axis(labelLimit=400, ticks=False, domain=False)
    chart = base.encode(
        x=alt.X("share:Q", title=None, axis=percent(), scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("what:N" if alone else "group:N", title=None, sort=None, axis=side),
        color=class_colours(classes),
        order=alt.Order("order:Q"),
        tooltip=tips(("group:N", "run"), "class:N", ("what:N", "share of"), ("share:Q", "share", ".1%")),
    ).properties(height=alt.Step(26), width=WIDTH - 120 if alone else 170)
    if not alone:
        chart = chart.facet(column=alt.Column("what:N", title=None, sort=None), spacing=20)
    caption = (
        "Shares of the classes in the clients, in the updates used, and in the weight that these were given for their "
        "delays, which is divided by M."
    )
    if any(run.weights is None for group in groups for run in group.runs):
        caption += " Where no weights are recorded, as in older versions, they are left out."
    table = [(row["group"], row["what"], row["class"], f"{row['share']:.1%}") for row in rows]
    heads = ("run", "share of", "class", "share")
    yield figure("shares", "Shares of the classes", caption, chart, {"rows": rows}, Table(heads, table))


def _shares(runs: list[RunView]) -> dict[str, dict[str, float]]:
    clients = {name: float(use.clients) for name, use in runs[0].uses.items()}
    updates: dict[str, float] = {}
    weight: dict[str, float] = {}
    for run in runs:
        for name in classes_of(run):
            updates[name] = updates.get(name, 0.0) + run.updates[name]
            weight[name] = weight.get(name, 0.0) + (run.weights or {}).get(name, 0.0)
    return {"clients": clients, "updates": updates, "weight": weight}
