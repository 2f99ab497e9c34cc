"""Figures of one run's clients: what they did when, how late they were, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import altair as alt

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.downsample import Bar
from tardygrad.report.figure import CLOCK, WIDTH, classes_of, drawn, figure
from tardygrad.report.loader import RunView, finite
from tardygrad.report.theme import INK, RED, class_colours, tips
from tardygrad.runs.record import Row

REASONS = 12  # that are drawn
TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000]  # on axes of delays


def timeline(story: RunView) -> Iterator[Figure]:
    """Every client's time: working, idle, lost; and the rounds."""
    every = [*story.working, *story.away]
    if not every:
        return
    begin, end = min(bar.start for bar in every), story.time
    shown = sorted({bar.client for bar in every})
    x = alt.X("start:Q", title=CLOCK, scale=alt.Scale(domain=[begin, max(end, begin + 1e-9)], nice=False))
    side = alt.Axis(title="client", ticks=False, domain=False, grid=False, labelFontSize=9, labelOverlap=True)
    y = alt.Y("client:O", axis=side, scale=alt.Scale(domain=shown))
    when = (("start:Q", "from (s)", ",.6~g"), ("end:Q", "to (s)", ",.6~g"))
    tooltip = tips("client:O", "class:N", ("what:N", "was"), *when)
    place = {"x": x, "x2": "end:Q", "y": y}
    layers = [
        _bars("idle", color=INK, opacity=0.08).encode(**place),
        _bars("working", stroke=INK, strokeOpacity=0.9, strokeWidth=0.8).encode(
            **place, color=class_colours(classes_of(story)), tooltip=[*tooltip, *tips("jobs:Q")]
        ),
    ]
    if story.away:
        gone = _bars("lost", color=RED, height={"band": 0.3})
        layers.append(gone.encode(**place, tooltip=tooltip))
    height = max(5, min(16, 480 // len(shown)))
    bars = alt.layer(*layers).properties(width=WIDTH, height=alt.Step(height))
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False, orient="top", titleAnchor="start")
    strip = (
        drawn("rounds")
        .mark_tick(color=INK, thickness=1, opacity=0.6, aria=False)
        .encode(
            x=alt.X("start:Q", title="rounds made", scale=alt.Scale(domain=[begin, max(end, begin + 1e-9)]), axis=bare)
        )
    )
    chart = alt.vconcat(strip.properties(width=WIDTH, height=14), bars, spacing=6)
    lost = ", thin and red while it is lost" if story.away else ""
    said = f"A row per client: coloured while it works, job by job, pale while idle{lost}. A tick above is a round."
    caption = " ".join((said, *_thinned(story)))
    data = {
        "idle": [{"client": one, "start": begin, "end": end} for one in shown],
        "working": _rows(story, story.working, "working"),
        "lost": _rows(story, story.away, "lost"),
        "rounds": [{"start": finite(time)} for time in story.advances],
    }
    yield figure("timeline", "Timeline of clients", caption, chart, data)


def _bars(name: str, **style: Any) -> Any:
    return drawn(name).mark_bar(**{"height": {"band": 0.8}, "aria": False, **style})


def _rows(story: RunView, bars: list[Bar], what: str) -> Iterator[Row]:
    for client, start, end, jobs in bars:
        own = {"client": client, "class": story.class_of(client), "what": what}
        yield {**own, "start": finite(start), "end": finite(end), "jobs": jobs}


def _thinned(story: RunView) -> Iterator[str]:
    if story.stride > 1:
        yield f"One client in {story.stride} is drawn."
    if story.gap >= 0:
        drawn = len(story.working) + len(story.away)
        yield f"{story.jobs:,} jobs are drawn as {drawn:,} bars, without gaps of {story.gap:.3g} s or less."
    if story.made > len(story.advances):
        yield f"{len(story.advances):,} of {story.made:,} rounds have a tick."


def uses(story: RunView) -> Table:
    """How each class spent its time."""
    rows = []
    for name, use in story.uses.items():
        whole = use.clients * story.time
        if whole > 0:
            shares = (use.working / whole, max(1 - (use.working + use.lost) / whole, 0.0), use.lost / whole)
            rows.append((name, use.clients, *(f"{share:.1%}" for share in shares)))
    return Table(("class", "clients", "working", "idle", "lost"), rows)


def delays(story: RunView) -> Iterator[Figure]:
    """How many of the updates used had which delay."""
    if not story.delays:
        return
    classes, edges = classes_of(story), [1]
    while edges[-1] <= max(delay for _, delay in story.delays):
        edges.append(max(edges[-1] + 1, round(edges[-1] * 1.19)))
    bins: Counter[tuple[int, int]] = Counter()
    for (name, delay), number in story.delays.items():
        bins[classes.index(name), max(edge for edge in edges if edge <= max(delay, 1))] += number
    after = dict(pairwise(edges))
    rows = [
        {
            "class": classes[which],
            "order": which,
            "from": low - 0.5,
            "to": after[low] - 0.5,
            "delay": str(low) if after[low] == low + 1 else f"{low} to {after[low] - 1}",
            "updates": number,
        }
        for (which, low), number in sorted(bins.items())
    ]
    scale = alt.Scale(type="log", domain=[0.5, edges[-1] - 0.5], nice=False)
    head = alt.Header(labelAngle=0, labelAlign="left", labelLimit=130)
    order = alt.EncodingSortField("order", op="min")
    base = drawn().mark_rect(stroke=INK, strokeOpacity=0.3, strokeWidth=0.5)
    chart = (
        base.encode(
            x=alt.X(
                "from:Q", title="delay (rounds)", scale=scale, axis=alt.Axis(values=TICKS, format=",d", grid=False)
            ),
            x2="to:Q",
            y=alt.Y("updates:Q", title=None, axis=alt.Axis(tickCount=3, format="~s")),
            y2=alt.datum(0),
            color=class_colours(classes, legend=None),
            tooltip=tips("class:N", "delay:N", ("updates:Q", "updates", ",")),
        )
        .properties(width=WIDTH - 110, height=max(44, 200 // len(classes)))
        .facet(row=alt.Row("class:N", title="updates used, by class", sort=order, header=head), spacing=8)
        .resolve_scale(y="independent")
    )
    caption = (
        "How many updates were used with which delay, in rounds since the model that they started from; a fresh one "
        "has 1. The axis is logarithmic, and every class has a scale of its own."
    )
    table = Table(("class", "delay", "updates"), [(row["class"], row["delay"], row["updates"]) for row in rows])
    yield figure("delays", "Delays of the updates used", caption, chart, {"rows": rows}, table)


def lateness(story: RunView) -> Iterator[Figure]:
    """When updates were how late."""
    if not story.lateness:
        return
    rows = [
        {"class": name, "round": last, "time": finite(time), "mean": finite(max(mean, 1.0)), "most": max(most, 1)}
        for name, last, time, mean, most in story.lateness
    ]
    base = drawn().encode(
        x=alt.X("time:Q", title=CLOCK, scale=alt.Scale(nice=False)),
        color=class_colours(classes_of(story), legend=alt.Legend(symbolType="circle")),
        tooltip=tips(
            "class:N", ("round:Q", "up to round"), ("mean:Q", "mean delay", ".3~g"), ("most:Q", "largest delay")
        ),
    )
    axis = alt.Axis(values=TICKS, format=",d")
    mean, most = (
        alt.Y(f"{of}:Q", title="delay (rounds)", scale=alt.Scale(type="log", nice=False), axis=axis)
        for of in ("mean", "most")
    )
    chart = alt.layer(
        base.mark_line(strokeWidth=1.5, opacity=0.6, aria=False).encode(y=mean),
        base.mark_circle(size=24, aria=False).encode(y=mean),
        base.mark_point(size=16, shape="triangle-up", opacity=0.6, aria=False).encode(y=most),
    ).properties(width=WIDTH, height=240)
    span = min(last for _, last, *_ in story.lateness)
    spans = f", over spans of {span} rounds" if span > 1 else ""
    caption = f"Mean delay of the updates used of each class (circles), and the largest (triangles){spans}."
    yield figure("lateness", "Delays over time", caption, chart, {"rows": rows})


def trouble(story: RunView) -> Iterator[Figure]:
    """Refused updates and losses of clients, by class; of many reasons the rarer ones are one."""
    reasons: Counter[str] = Counter()
    for (reason, _), number in story.refused.items():
        reasons[reason] += number
    most = [reason for reason, _ in reasons.most_common(REASONS)]
    shown = dict.fromkeys(reasons, f"{len(reasons) - REASONS:,} others") | {reason: reason for reason in most}
    refused: Counter[tuple[str, str]] = Counter()
    for (reason, name), number in sorted(story.refused.items(), key=lambda one: one[0][0] not in most):
        refused[shown[reason], name] += number
    rows: list[Row] = [
        {"what": f"refused: {reason}", "class": name, "number": number} for (reason, name), number in refused.items()
    ]
    rows += [{"what": "client lost", "class": name, "number": number} for name, number in story.lost.items()]
    if not rows:
        return
    base = drawn().mark_bar()
    chart = base.encode(
        x=alt.X("number:Q", title="how often", axis=alt.Axis(format="~s", tickMinStep=1)),
        y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
        color=class_colours(classes_of(story)),
        tooltip=tips("what:N", "class:N", ("number:Q", "how often")),
    ).properties(width=WIDTH - 200, height=alt.Step(26))
    caption = "Updates that the server refused, by reason, and losses of clients; both by class."
    table = Table(("what", "class", "how often"), [(row["what"], row["class"], row["number"]) for row in rows])
    yield figure("trouble", "How often, by class", caption, chart, {"rows": rows}, table)
