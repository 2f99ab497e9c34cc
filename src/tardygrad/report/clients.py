"""Figures of one run's clients: what they did when, their delays, refused updates and losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from tardygrad.report.blocks import Figure, Table
from tardygrad.report.downsample import Bar, sample
from tardygrad.report.figure import CLOCK, WIDTH, figure, log_scale, named_data
from tardygrad.report.loader import RunView, finite
from tardygrad.report.theme import INK, RED, class_colours, tips
from tardygrad.runs.record import Row

REASONS = 12  # most reasons that are drawn
SPANS = 120  # most spans of delays over time
TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000]  # of axes of delays


def timeline(run: RunView) -> Iterator[Figure | Table]:
    """When each client was working, idle or lost, when rounds were completed, and how each class spent its time."""
    working, away, stride, gap = run.bars
    bars, end = [*working, *away], run.history.time
    if not bars or not end:
        return
    begin = min(bar.start for bar in bars)
    clients = [run.history.names[client] for client in sorted({bar.client for bar in bars})]
    domain = [begin, max(end, begin + 1e-9)]
    side = alt.Axis(title="client", ticks=False, domain=False, grid=False, labelFontSize=9, labelOverlap=True)
    place = {
        "x": alt.X("start:Q", title=CLOCK, scale=alt.Scale(domain=domain, nice=False)),
        "x2": "end:Q",
        "y": alt.Y("client:O", axis=side, scale=alt.Scale(domain=clients)),
    }
    when = (("start:Q", "from (s)", ",.6~g"), ("end:Q", "to (s)", ",.6~g"))
    tooltip = tips("client:O", "class:N", ("what:N", "state"), *when)
    layers = [
        _bars("idle", color=INK, opacity=0.08).encode(**place),
        _bars("working", stroke=INK, strokeOpacity=0.9, strokeWidth=0.8).encode(
            **place, color=class_colours(list(run.classes)), tooltip=[*tooltip, *tips("jobs:Q")]
        ),
    ]
    if away:
        layers.append(_bars("lost", color=RED, height={"band": 0.3}).encode(**place, tooltip=tooltip))
    height = max(5, min(16, 480 // len(clients)))
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False, orient="top", titleAnchor="start")
    ticks = named_data("rounds").mark_tick(color=INK, thickness=1, opacity=0.6, aria=False)
    ticks = ticks.encode(x=alt.X("start:Q", title="rounds", scale=alt.Scale(domain=domain), axis=bare))
    chart = alt.vconcat(
        ticks.properties(width=WIDTH, height=14),
        alt.layer(*layers).properties(width=WIDTH, height=alt.Step(height)),
        spacing=6,
    )
    lost = ", thin red while lost" if away else ""
    notes = [f"One row per client: coloured while working, pale while idle{lost}. Ticks at the top are rounds."]
    if stride > 1:
        notes.append(f"One client in {stride} is drawn.")
    if gap >= 0:
        jobs = run.history.taken + run.history.refused.total()
        notes.append(f"{jobs:,} jobs are drawn as {len(bars):,} bars; gaps up to {gap:.3g} s are closed.")
    rounds = run.rounds.items
    if run.rounds.step > 1:
        notes.append(f"{len(rounds):,} of {len(run.history.rounds):,} rounds have a tick.")
    data = {
        "idle": [{"client": client, "start": begin, "end": end} for client in clients],
        "working": _rows(run, working, "working"),
        "lost": _rows(run, away, "lost"),
        "rounds": [{"start": row["time"]} for row in rounds],
    }
    yield figure("timeline", "Timeline of clients", " ".join(notes), chart, data)
    rows = []
    for name, own in run.classes.items():
        total = own.clients * end
        shares = (own.working / total, max(1 - (own.working + own.lost) / total, 0.0), own.lost / total)
        rows.append((name, own.clients, *(f"{share:.1%}" for share in shares)))
    yield Table(("class", "clients", "working", "idle", "lost"), rows)


def _bars(name: str, **style: Any) -> Any:
    return named_data(name).mark_bar(**{"height": {"band": 0.8}, "aria": False, **style})


def _rows(run: RunView, bars: list[Bar], what: str) -> Iterator[Row]:
    for client, start, end, jobs in bars:
        own = {"client": run.history.names[client], "class": run.class_of[client], "what": what}
        yield {**own, "start": finite(start), "end": finite(end), "jobs": jobs}


def delays(run: RunView) -> Iterator[Figure]:
    """A histogram of the delays of the updates used, per class."""
    delays = run.history.rounds.delays
    if not delays.size:
        return
    classes, edges = list(run.classes), [1]
    while edges[-1] <= delays.max():
        edges.append(max(edges[-1] + 1, round(edges[-1] * 1.19)))
    rows = [
        {
            "class": name,
            "order": order,
            "from": low - 0.5,
            "to": high - 0.5,
            "delay": str(low) if high == low + 1 else f"{low} to {high - 1}",
            "updates": int(number),
        }
        for order, (name, totals) in enumerate(run.classes.items())
        for (low, high), number in zip(pairwise(edges), np.histogram(totals.delays, edges)[0], strict=True)
        if number
    ]
    scale, axis = log_scale(domain=[0.5, edges[-1] - 0.5]), alt.Axis(values=TICKS, format=",d", grid=False)
    head = alt.Header(labelAngle=0, labelAlign="left", labelLimit=130)
    order = alt.EncodingSortField("order", op="min")
    chart = (
        named_data()
        .mark_rect(stroke=INK, strokeOpacity=0.3, strokeWidth=0.5)
        .encode(
            x=alt.X("from:Q", title="delay (rounds)", scale=scale, axis=axis),
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
        "How many updates had which delay: the number of rounds since the model they started from, at least 1. "
        "The delay axis is logarithmic, and each class has its own vertical scale."
    )
    table = Table(("class", "delay", "updates"), [(row["class"], row["delay"], row["updates"]) for row in rows])
    yield figure("delays", "Delays of the updates used", caption, chart, {"rows": rows}, table)


def delays_over_time(run: RunView) -> Iterator[Figure]:
    """Mean and largest delay of each class, in spans of equally many rounds."""
    rounds, rows = run.history.rounds, list[Row]()
    width = sample(range(len(rounds)), SPANS).step
    for start in range(0, len(rounds), width):
        span = slice(start, start + width)
        for name, totals in run.classes.items():
            own = totals.used[span]
            if own.any():
                last, delays = rounds.time[span][own.any(axis=1)].max(), rounds.delays[span][own]
                row = {"class": name, "round": start + width, "time": finite(last)}
                rows.append({**row, "mean": finite(delays.mean()), "most": int(delays.max())})
    if not rows:
        return
    tooltip = tips("class:N", ("round:Q", "up to round"), ("mean:Q", "mean delay", ".3~g"), ("most:Q", "largest delay"))
    base = named_data().encode(
        x=alt.X("time:Q", title=CLOCK, scale=alt.Scale(nice=False)),
        color=class_colours(list(run.classes), legend=alt.Legend(symbolType="circle")),
        tooltip=tooltip,
    )
    axis = alt.Axis(values=TICKS, format=",d")
    mean, most = (alt.Y(f, title="delay (rounds)", scale=log_scale(), axis=axis) for f in ("mean:Q", "most:Q"))
    chart = alt.layer(
        base.mark_line(strokeWidth=1.5, opacity=0.6, aria=False).encode(y=mean),
        base.mark_circle(size=24, aria=False).encode(y=mean),
        base.mark_point(size=16, shape="triangle-up", opacity=0.6, aria=False).encode(y=most),
    ).properties(width=WIDTH, height=240)
    over = f", over spans of {width} rounds" if width > 1 else ""
    caption = f"Mean delay (circles) and largest delay (triangles) of the updates used, by class{over}."
    yield figure("lateness", "Delays over time", caption, chart, {"rows": rows})


def trouble(run: RunView) -> Iterator[Figure]:
    """Refused updates and losses of clients, by class. The rarest reasons are counted together."""
    reasons = run.history.refused
    counts: Counter[tuple[str, str]] = Counter()
    for rank, (reason, _) in enumerate(reasons.most_common()):
        shown = reason if rank < REASONS else f"{len(reasons) - REASONS:,} others"
        for name, own in run.classes.items():
            counts[f"refused: {shown}", name] += own.refused[reason]
    for name, own in run.classes.items():
        counts["client lost", name] = own.losses
    rows = [{"what": what, "class": name, "number": number} for (what, name), number in counts.items() if number]
    if not rows:
        return
    chart = (
        named_data()
        .mark_bar()
        .encode(
            x=alt.X("number:Q", title="count", axis=alt.Axis(format="~s", tickMinStep=1)),
            y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
            color=class_colours(list(run.classes)),
            tooltip=tips("what:N", "class:N", ("number:Q", "count")),
        )
        .properties(width=WIDTH - 200, height=alt.Step(26))
    )
    caption = "Updates that the server refused, by reason, and clients that were lost; by class."
    table = Table(("what", "class", "count"), [(row["what"], row["class"], row["number"]) for row in rows])
    yield figure("trouble", "Refused updates and lost clients", caption, chart, {"rows": rows}, table)
