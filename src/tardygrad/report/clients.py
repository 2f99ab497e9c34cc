"""Figures of one run's clients: what they did when, their delays, refused updates and losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from tardygrad.report.downsample import Bar, sample
from tardygrad.report.groups import seconds_of
from tardygrad.report.loader import RunView, finite
from tardygrad.results.blocks import Figure, LegendEntry, Table
from tardygrad.results.figure import LABEL_EXPR, WIDTH, figure, log_scale, named_data, wrapped
from tardygrad.results.theme import INK, RED, class_colours, class_legend, tips
from tardygrad.runs.record import Row

REASONS = 12  # most reasons that are drawn
SPANS = 120  # most spans of delays over time
UNIT_BINS = 40  # largest delay for which a histogram has a bar per delay
IDLE, ASLEEP = "#80808040", "#7B78B8"  # which show on light and on dark ground
TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000]  # of axes of delays


def timeline(run: RunView) -> Iterator[Figure | Table]:
    """When each client was working, idle, asleep or lost, when rounds ended, and how each class spent its time."""
    working, asleep, away, stride, gap = run.bars
    bars, end = [*working, *asleep, *away], run.history.time
    if not bars or not end:
        return
    begin = min(bar.start for bar in bars)
    clients = [run.history.names[client] for client in sorted({bar.client for bar in bars})]
    domain = [begin, max(end, begin + 1e-9)]
    side = alt.Axis(title="client", ticks=False, domain=False, grid=False, labelFontSize=9, labelOverlap=True)
    place = {
        "x": alt.X("start:Q", title=seconds_of([run]), scale=alt.Scale(domain=domain, nice=False)),
        "x2": "end:Q",
        "y": alt.Y("client:O", axis=side, scale=alt.Scale(domain=clients)),
    }
    when = (("start:Q", "from (s)", ",.6~g"), ("end:Q", "to (s)", ",.6~g"))
    tooltip = tips("client:O", "class:N", ("what:N", "state"), *when)
    layers = [
        _bars("idle", color=IDLE).encode(**place),
        _bars("working", stroke=INK, strokeOpacity=0.9, strokeWidth=0.8).encode(
            **place, color=class_colours(list(run.classes)), tooltip=[*tooltip, *tips("jobs:Q")]
        ),
    ]
    absent = {"asleep": (asleep, ASLEEP), "lost": (away, RED)}
    for state, (found, colour) in absent.items():
        if found:
            layers.append(_bars(state, color=colour, height={"band": 0.3}).encode(**place, tooltip=tooltip))
    height = max(5, min(16, 480 // len(clients)))
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False, orient="top", titleAnchor="start")
    ticks = named_data("rounds").mark_tick(color=INK, thickness=1, opacity=0.6, aria=False)
    ticks = ticks.encode(x=alt.X("start:Q", title="rounds", scale=alt.Scale(domain=domain), axis=bare))
    chart = alt.vconcat(
        ticks.properties(width=WIDTH, height=14),
        alt.layer(*layers, width=WIDTH, height=alt.Step(height)),
        spacing=6,
    )
    notes = ["One row per client, in the colour of its class while it is working. Ticks at the top are rounds."]
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
        **{state: _rows(run, found, state) for state, (found, _) in absent.items() if found},
        "rounds": [{"start": row["time"]} for row in rounds],
    }
    legend = [*class_legend(list(run.classes), least=1), LegendEntry("idle", IDLE)]
    legend += [LegendEntry(state, colour) for state, (found, colour) in absent.items() if found]
    yield figure("timeline", "Timeline of clients", " ".join(notes), chart, data, legend=legend)
    rows, states = [], ["working", "idle", *(["asleep"] if asleep else []), "lost"]
    for name, own in run.classes.items():
        total = own.clients * end
        idle = max(total - own.working - own.asleep - own.lost, 0.0)
        spent = {"working": own.working, "idle": idle, "asleep": own.asleep, "lost": own.lost}
        rows.append((name, own.clients, *(f"{spent[state] / total:.1%}" for state in states)))
    yield Table(("class", "clients", *states), rows)


def _bars(name: str, **style: Any) -> Any:
    return named_data(name).mark_bar(**{"height": {"band": 0.8}, "aria": False, **style})


def _rows(run: RunView, bars: list[Bar], what: str) -> Iterator[Row]:
    for client, start, end, jobs in bars:
        own = {"client": run.history.names[client], "class": run.class_of[client], "what": what}
        yield {**own, "start": finite(start), "end": finite(end), "jobs": jobs}


def delays(run: RunView) -> Iterator[Figure]:
    """A histogram of the delays of the updates used, per class: bars of one width, so that areas are shares."""
    largest = run.history.rounds.delays.max(initial=0)
    if not largest:
        return
    fine = largest <= UNIT_BINS
    edges = list(range(1, largest + 2)) if fine else [2**i for i in range(int(largest).bit_length() + 1)]
    names = [str(low) if high == low + 1 else f"{low:,}–{high - 1:,}" for low, high in pairwise(edges)]
    rows = [
        {
            "class": f"{name}: {len(totals.delays):,} updates",
            "colour": name,
            "order": order,
            "delay": delay,
            "updates": int(number),
            "share": finite(number / len(totals.delays)),
        }
        for order, (name, totals) in enumerate(run.classes.items())
        for delay, number in zip(names, np.histogram(totals.delays, edges)[0], strict=True)
        if number
    ]
    bins = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=6)
    band = alt.Scale(domain=names, paddingInner=0, paddingOuter=0.1)
    head = alt.Header(labelAnchor="start", labelLimit=0, labelPadding=4)
    order = alt.EncodingSortField("order", op="min")
    chart = (
        named_data()
        .mark_bar(stroke=INK, strokeOpacity=0.3, strokeWidth=0.5)
        .encode(
            x=alt.X("delay:O", title="delay (rounds)", sort=None, scale=band, axis=bins),
            y=alt.Y("share:Q", title=None, axis=alt.Axis(tickCount=3, format=".0%")),
            color=class_colours(list(run.classes), "colour:N"),
            tooltip=tips(("colour:N", "class"), "delay:O", ("updates:Q", "updates", ","), ("share:Q", "share", ".2~%")),
        )
        .properties(width=WIDTH, height=max(44, 200 // len(run.classes)))
        .facet(alt.Facet("class:N", title=None, sort=order, header=head), columns=1, spacing=8)
    )
    caption = (
        "The share of each class's updates that had a delay: the number of rounds since the model they started from, "
        "at least 1. "
    )
    caption += "Each bar is one delay." if fine else "Each bar covers twice as many delays as the one before it."
    caption += " All bars have the same width and all classes the same scale, so equal areas are equal shares."
    if unused := [name for name, totals in run.classes.items() if not len(totals.delays)]:
        caption += f" No update of {' and '.join(unused)} was used."
    table = Table(("class", "delay", "updates"), [(row["colour"], row["delay"], row["updates"]) for row in rows])
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
        x=alt.X("time:Q", title=seconds_of([run]), scale=alt.Scale(nice=False)),
        color=class_colours(list(run.classes)),
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
    yield figure("lateness", "Delays over time", caption, chart, {"rows": rows}, legend=class_legend(list(run.classes)))


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
    rows = [
        {"what": wrapped(what), "class": name, "number": number} for (what, name), number in counts.items() if number
    ]
    if not rows:
        return
    chart = (
        named_data()
        .mark_bar()
        .encode(
            x=alt.X("number:Q", title="count", axis=alt.Axis(format="~s", tickMinStep=1)),
            y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=0, labelExpr=LABEL_EXPR)),
            color=class_colours(list(run.classes)),
            tooltip=tips("what:N", "class:N", ("number:Q", "count")),
        )
        .properties(width=WIDTH - 200, height=alt.Step(26))
    )
    caption = "Updates that the server refused, by reason, and clients that were lost; by class."
    table = Table(("what", "class", "count"), [(row["what"], row["class"], row["number"]) for row in rows])
    legend = class_legend(list(run.classes))
    yield figure("trouble", "Refused updates and lost clients", caption, chart, {"rows": rows}, table, legend)
