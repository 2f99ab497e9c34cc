"""Figures that compare groups of runs: scores, losses, clipping, and the influence of each class of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isnan
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import altair as alt

from tardygrad.report.groups import SeedGroup, mean_curve, score_names, seconds_of
from tardygrad.report.loader import RunView, Sample, sample
from tardygrad.results.blocks import Figure, Table
from tardygrad.results.figure import (
    HIGHLIGHT,
    LABEL_EXPR,
    PANEL,
    SMALL,
    WIDTH,
    figure,
    highlighted,
    named_data,
    percent,
    wrapped,
)
from tardygrad.results.theme import (
    BLACK,
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

    groups: list[SeedGroup]  # those that are drawn, in the order in which they are
    points: dict[str, list[Row]]  # by axis: as from `mean_curve`, with `width`
    axes: dict[str, str]  # to their titles
    log: bool  # whether the values need a logarithmic axis
    log_time: bool  # whether the times do
    many: bool  # too many points to show each
    step: int  # one value in this many is drawn
    cut: bool  # whether a band ends where its values would be impossible

    @property
    def partial(self) -> bool:
        """Whether a part of a line is the mean of only some runs of its group."""
        number = {group.name: len(group.runs) for group in self.groups}
        return any(point["runs"] < number[point["group"]] for line in self.points.values() for point in line)


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


def privacy(groups: list[SeedGroup]) -> Iterator[Figure]:
    """How much privacy the private runs have spent."""
    private = [group for group in groups if any(run.privacy for run in group.runs)]
    caption = "ε of the client with the most updates, after each round."
    if private:
        yield from _figure(private, Curve("epsilon", "Privacy ε", caption, ROUNDS, itemgetter("epsilon")))


def _score(name: str) -> Callable[[Row], float | None]:
    return lambda row: row["scores"].get(name)


def lines_of(groups: list[SeedGroup], curve: Curve) -> Lines | None:
    """The means over the runs of every group; None if there is nothing to draw."""
    drawn = [group for group in groups if any(_values(group, curve))] if not curve.zeros else list(groups)
    drawn.sort(key=lambda group: not drawn_wide(group.label))
    axes, limit = _axes(drawn, curve), max(FEWEST, POINTS // max(len(drawn), 1))
    lines = {
        axis: [sample(mean_curve(group, axis, curve.rows, curve.value), limit) for group in drawn] for axis in axes
    }
    every = [line for own in lines.values() for line in own]
    values = [point["value"] for line in every for point in line.items]
    if not values:
        return None
    many = max(len(line.items) for line in every) > MANY
    log = not curve.percent and min(values) > 0 and max(values) > 20 * min(values)
    bottom = min(values) if log else 0.0 if min(values) >= 0 else -inf
    top = 1.0 if curve.percent else inf
    bands = [point for line in every for point in line.items if "low" in point]
    cut = any(point["low"] < bottom or point["high"] > top for point in bands)

    def point_of(group: SeedGroup, point: Row) -> Row:
        width = (6 if drawn_wide(group.label) and len(drawn) > 1 else 2) / (2 if many else 1)
        width /= 1 if point["runs"] == len(group.runs) else 2
        band = {"low": max(point["low"], bottom), "high": min(point["high"], top)} if "low" in point else {}
        return point | band | {"width": width}

    points = {
        axis: [point_of(group, point) for group, line in zip(drawn, own, strict=True) for point in line.items]
        for axis, own in lines.items()
    }
    times = [point["time"] for point in points.get("time", ()) if point["time"] > 0]
    far = len(groups) > 1 and bool(times) and max(times) > 50 * min(times)
    return Lines(drawn, points, axes, log, far, many, max(line.step for line in every), cut)


def _values(group: SeedGroup, curve: Curve) -> Iterator[float | None]:
    return (curve.value(row) for run in group.runs for row in curve.rows(run).items)


def _axes(groups: list[SeedGroup], curve: Curve) -> dict[str, str]:
    """The axes that say something: not times of different kinds of clocks, nor local steps that rounds determine."""
    runs = [run for group in groups for run in group.runs]
    known = {"round": "rounds", "time": seconds_of(runs), "steps": "local steps"}
    per_round = [row["steps"] / row["round"] for run in runs for row in curve.rows(run).items]
    useless = {"steps"} if not per_round or max(per_round) <= 1.02 * min(per_round) else set()
    useless |= {"time"} if len({run.history.simulated for run in runs}) > 1 else set()
    return {axis: known[axis] for axis in curve.axes if axis not in useless}


def _x(axis: str, lines: Lines, **options: Any) -> alt.X:
    """The position of points on an axis."""
    least = min((point[axis] for point in lines.points[axis] if point[axis] > 0), default=1)
    log = alt.Scale(type="log", nice=False, domainMin=least, clamp=True)  # also shows time 0
    scale = log if axis == "time" and lines.log_time else alt.Scale(nice=False)
    ticks = alt.Axis(labelOverlap="greedy", labelSeparation=8, **options)
    return alt.X(f"{axis}:Q", title=lines.axes[axis], scale=scale, axis=ticks)


def _figure(groups: list[SeedGroup], curve: Curve) -> Iterator[Figure]:
    lines = lines_of(groups, curve)
    if lines is None:
        return
    notes = _notes(groups, curve, lines)
    legend = []
    if len(groups) > 1:
        entries = method_legend([group.label for group in groups], [group.name for group in groups])
        legend = [entry for entry, group in zip(entries, groups, strict=True) if group in lines.groups]
    caption, drawn = (
        " ".join((curve.caption, *notes)),
        panels(groups, lines, curve, lines.axes, width=PANEL, height=220),
    )
    chart = alt.concat(*drawn, columns=2, params=[HIGHLIGHT.param] if len(groups) > 1 else alt.Undefined)
    yield figure(curve.key, curve.title, caption, chart, lines.points, _table(curve, lines), legend)


def _table(curve: Curve, lines: Lines) -> Table:
    """The values by round, with the mean time and the mean local steps of the same runs."""
    others = [axis for axis in lines.axes if axis != "round"]
    rows = []
    for group in lines.groups:
        means = [mean_curve(group, "round", curve.rows, itemgetter(axis)) for axis in others]
        places = [{point["round"]: point["value"] for point in line} for line in means]
        for point in lines.points["round"]:
            if point["group"] == group.name:
                at = [place.get(point["round"]) for place in places]
                rows.append((group.name, point["round"], *at, point["value"], *[point["runs"]] * lines.partial))
    return Table(("run", *lines.axes.values(), curve.title.lower(), *["runs"] * lines.partial), rows)


def how_to_read(groups: list[SeedGroup]) -> Iterator[str]:
    """What the lines of all figures mean, if they are means or several."""
    notes = []
    if any(len(group.runs) > 1 for group in groups):
        notes.append("Lines are means over the runs of a method, and bands are one standard deviation on either side.")
        notes.append("Against time, a run that has finished keeps its last value.")
    if len(groups) > 1:
        notes.append("Click an entry of a legend to highlight its line.")
    if notes:
        yield " ".join(notes)


def _notes(groups: list[SeedGroup], curve: Curve, lines: Lines) -> list[str]:
    notes, runs = [], [run for group in groups for run in group.runs]
    if lines.partial:
        why = "because the others made fewer rounds, diverged or have not finished"
        notes.append(f"Where a line is thin, it is the mean of fewer runs, {why}.")
    if lines.cut:
        where = "0% and 100%" if curve.percent else "the smallest mean" if lines.log else "0"
        notes.append(f"Bands end at {where}.")
    step = lines.step * max(curve.rows(run).step for run in runs)
    if step > 1:
        notes.append(f"One value in {step} is drawn.")
    if missing := sum(value is None for group in groups for value in _values(group, curve)):
        notes.append(f"{missing} missing or non-finite values are not shown.")
    if omitted := [group.name for group in groups if group not in lines.groups]:
        notes.append(f"Not shown because nothing was clipped: {', '.join(omitted)}.")
    if any(len({row["time"] for row in own}) < len(own) for run in runs if (own := curve.rows(run).items)):
        notes.append("Rounds at the same time are averaged in the line against time.")
    if lines.log_time:
        notes.append("The time axis is logarithmic.")
    return notes


def panels(
    groups: list[SeedGroup],
    lines: Lines,
    curve: Curve,
    axes: Iterable[str],
    *,
    names: Sequence[str] = (),
    legend: alt.Legend | None = None,
    **size: Any,
) -> list[Any]:
    """The curves against each axis, two panels in a row.

    Args:
        names: what the groups are called in a figure for papers, whose points have them; empty: it is for a page,
            which has the legend, highlights lines and shows tips.
        size: width and height of a panel.
    """
    page, title, labels = not names, curve.title.lower(), [group.label for group in groups]
    field, known = ("group", [group.name for group in groups]) if page else ("name", names)
    scale = alt.Scale(type="log") if lines.log else alt.Scale(zero=False)
    axis_y = percent() if curve.percent else alt.Axis(format=".3~g")
    bands = any(len(group.runs) > 1 for group in groups)
    shown = [("value:Q", title, ".1%" if curve.percent else ".4~g"), *[("runs:Q", "runs")] * bands]
    colours = method_colours(labels, known, INK if page else BLACK)
    dashes = alt.Scale(domain=list(known), range=[list(stroke.dash) for stroke in strokes(labels)])
    found = []
    for number, axis in enumerate(axes):

        def level(field: str, title: str | None = title if number % 2 == 0 else None) -> alt.Y:
            return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis_y)

        base: Any = named_data(axis).encode(
            x=_x(axis, lines, **({} if page else {"tickCount": 5})),
            color=alt.Color(f"{field}:N", title=None, scale=colours, legend=legend),
            detail="runs:N",
        )
        if page and len(groups) > 1:
            base = base.encode(opacity=highlighted("group"))
        band = base.mark_area(fillOpacity=0.18, strokeWidth=0, aria=False).encode(y=level("low"), y2="high:Q")
        line = base.mark_line(aria=False).encode(
            y=level("value"),
            strokeWidth=alt.StrokeWidth("width:Q", scale=None),
            strokeDash=alt.StrokeDash(f"{field}:N", title=None, scale=dashes, legend=legend),
        )
        tooltip = tips(("group:N", "run"), (f"{axis}:Q", lines.axes[axis], ",.6~g"), *shown)
        dots = base.mark_circle(size=26, aria=len(lines.points[axis]) <= SMALL)
        dots = dots.encode(y=level("value"), tooltip=tooltip)
        if lines.many or (bands and axis != "round"):  # of seeds that were not evaluated at the same times
            dots = dots.encode(opacity=alt.value(0))  # invisible, but with tooltips
        found.append(alt.layer(*[band] * bands, line, *[dots] * page, **size))
    return found


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
