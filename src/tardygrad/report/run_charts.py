"""Charts of one run: what its clients did when, their delays and scores, its machines, and the tails of its updates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from tardygrad.report.groups import seconds_of
from tardygrad.report.loader import POINTS, Bar, RunView, finite, sample
from tardygrad.results.blocks import Figure, LegendEntry, Table
from tardygrad.results.figure import LABEL_EXPR, PANEL, WIDTH, figure, log_scale, named_data, percent, wrapped
from tardygrad.results.table import score_text
from tardygrad.results.theme import BLUE, INK, RED, class_colours, class_legend, tips
from tardygrad.runs.events import ClientEvaluation
from tardygrad.runs.record import Row

REASONS = 12  # most reasons that are drawn
SPANS = 120  # most spans of delays over time
UNIT_BINS = 40  # largest delay for which a histogram has a bar per delay
IDLE, ASLEEP = "#80808040", "#7B78B8"  # which show on light and on dark ground
TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000]  # of axes of delays
DRAWN = 40  # most machines that are drawn
NAMED = 10  # worst clients that are listed
QUANTILES = (0.1, 0.5, 0.9)
SMALLEST = 1e-12  # smallest share on a logarithmic axis


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


def machines(run: RunView) -> Iterator[Figure]:
    """Seconds per local step on each machine; nothing if there is only one."""
    known = run.history.machines
    if len(known) < 2:
        return
    fastest = known[-1].median
    rows = [
        {
            "machine": machine.name,
            "workers": machine.workers,
            "updates": machine.updates,
            **{name: finite(getattr(machine, name)) for name in ("low", "median", "high")},
            "ratio": finite(machine.median / fastest) if fastest > 0 else None,
        }
        for machine in known[:DRAWN]
    ]
    y = alt.Y("machine:N", title=None, sort=None, axis=alt.Axis(labelLimit=180))
    seconds = (("median:Q", "s per local step", ".3~g"), ("low:Q", "10% quantile", ".3~g"))
    tooltip = tips("machine:N", "workers:Q", "updates:Q", *seconds, ("high:Q", "90% quantile", ".3~g"))
    base = named_data().encode(y=y, tooltip=tooltip)
    axis = alt.Axis(format="~g")
    chart = alt.layer(
        base.mark_rule(color=INK, opacity=0.6, aria=False).encode(
            x=alt.X("low:Q", title="seconds per local step", axis=axis, scale=alt.Scale(zero=True)), x2="high:Q"
        ),
        base.mark_circle(color=BLUE, size=90, opacity=1).encode(x="median:Q"),
    ).properties(width=WIDTH - 180, height=alt.Step(26))
    more = f" The slowest {DRAWN} of {len(known):,} machines are drawn." if len(known) > DRAWN else ""
    caption = (
        "Median (dot) and 10% to 90% quantile (line) of the time that a machine's workers took for a local step, "
        f"without the time that jobs waited for a free worker.{more}"
    )
    cells = [
        (row["machine"], row["workers"], row["updates"], f"{row['median']:.3g}", f"{row['ratio'] or 1:.2f}")
        for row in rows
    ]
    table = Table(("machine", "workers", "updates", "s per local step", "times the fastest"), cells)
    yield figure("machines", "Speed of the machines", caption, chart, {"rows": rows}, table)


def distribution(run: RunView) -> Iterator[Figure | Table]:
    """The clients by their score in the last evaluation, with quantiles, and a table of the worst ones."""
    last = run.history.client_evaluations[-1]
    name = _score(last)
    if name is None:
        return
    values = np.array(last.by_client[name], dtype=float)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    lower = run.history.directions.prefers_lower(name)
    order = order[::-1] if lower else order  # the worst first
    drawn = sample([*enumerate(order.tolist(), 1)], POINTS)
    rows = [{**_client(run, client), "rank": rank, "value": finite(values[client])} for rank, client in drawn.items]
    quantiles = _quantiles(values[known])
    levels = [{"rank": 0.5, "value": finite(level), "what": f"{share:.0%} quantile"} for share, level in quantiles]
    title, shown = f"{name} of each client", ".1%" if name == "accuracy" else ".4~g"
    axis = percent() if name == "accuracy" else alt.Axis(format=".3~g")
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=axis)
    ranks = alt.Scale(domain=[0.5, len(order) + 0.5], nice=False)
    ticks = alt.Axis(tickMinStep=1, format=",d", grid=False)
    x = alt.X("rank:Q", title="clients, the worst first", scale=ranks, axis=ticks)
    points = (
        named_data()
        .mark_circle(size=max(16, min(60, 4000 // len(rows))), opacity=0.9, aria=len(rows) <= 120)
        .encode(
            x=x,
            y=y,
            color=class_colours(list(run.classes)),
            tooltip=tips("client:N", "class:N", ("value:Q", name, shown)),
        )
    )
    rules = named_data("levels").mark_rule(color=INK, strokeDash=[4, 3], opacity=0.6, aria=False).encode(y=y)
    side = 12 if lower else -6  # of the lines: where the points of the worst clients are not
    words = named_data("levels").mark_text(align="left", dx=4, dy=side, color=INK, aria=False)
    words = words.encode(x=x, y=y, text="what:N")
    chart = alt.layer(rules, points, words).properties(width=WIDTH, height=260)
    notes = [
        f"The model of round {last.round:,}, evaluated on the {last.on} data of each of {len(known):,} clients.",
        "Dashed lines are quantiles over the clients.",
    ]
    if note := run.history.directions.note(name):
        notes.append(f"{note[0].upper()}{note[1:]}.")
    if drawn.step > 1:
        notes.append(f"One client in {drawn.step} is drawn.")
    if missing := len(values) - len(known):
        notes.append(f"{missing:,} clients have no finite score.")
    yield figure(
        "client-scores",
        f"Distribution over the clients: {name}",
        " ".join(notes),
        chart,
        {"rows": rows, "levels": levels},
        legend=class_legend(list(run.classes)),
    )
    worst = [(run.history.names[c], c, run.class_of[c], score_text(name, values[c])) for c in order[:NAMED].tolist()]
    yield Table(("worst clients", "number", "class", f"{last.on} {name}"), worst)


def over_rounds(run: RunView) -> Iterator[Figure]:
    """Quantiles of the clients' scores in each evaluation."""
    evaluations, step = sample(run.history.client_evaluations, POINTS)
    name = _score(evaluations[-1])
    rows = []
    for evaluation in evaluations:
        values = np.array(evaluation.by_client.get(name or "", ()), dtype=float)
        if len(known := values[np.isfinite(values)]):
            low, middle, high = (finite(level) for _, level in _quantiles(known))
            worst = finite(known.max() if run.history.directions.prefers_lower(name or "") else known.min())
            rows.append({"round": evaluation.round, "low": low, "middle": middle, "high": high, "worst": worst})
    if name is None or len(rows) < 2:
        return
    shown = ".1%" if name == "accuracy" else ".4~g"
    axis = percent() if name == "accuracy" else alt.Axis(format=".3~g")

    def level(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=f"{name} of the clients", scale=alt.Scale(zero=False), axis=axis)

    numbers = (("middle", "median"), ("low", "10% quantile"), ("high", "90% quantile"), ("worst", "worst client"))
    tooltip = tips("round:Q", *((f"{field}:Q", title, shown) for field, title in numbers))
    base = named_data().encode(x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1)), tooltip=tooltip)
    chart = alt.layer(
        base.mark_area(color=BLUE, fillOpacity=0.18, aria=False).encode(y=level("low"), y2="high:Q"),
        base.mark_line(color=BLUE, strokeWidth=2, aria=False).encode(y=level("middle")),
        base.mark_circle(color=BLUE, size=30, aria=len(rows) <= 120).encode(y=level("middle")),
        base.mark_point(color=INK, shape="triangle-down", size=30, aria=False).encode(y=level("worst")),
    ).properties(width=WIDTH, height=220)
    every = f" One evaluation in {step} is drawn." if step > 1 else ""
    caption = f"Median over the clients (line), 10% to 90% quantile (band) and the worst client (triangles).{every}"
    cells = [tuple(row[field] for field in ("round", "middle", "low", "high", "worst")) for row in rows]
    table = Table(("round", "median", "10% quantile", "90% quantile", "worst client"), cells)
    yield figure("client-scores-rounds", f"Clients over the rounds: {name}", caption, chart, {"rows": rows}, table)


def _score(evaluation: ClientEvaluation) -> str | None:
    """The score that is drawn: the accuracy, else one that is not the loss, else the loss."""
    known = [name for name, values in evaluation.by_client.items() if np.isfinite(np.array(values, float)).any()]
    return min(known, key=lambda name: {"accuracy": 0, "loss": 2}.get(name, 1), default=None)


def _quantiles(values: NDArray[np.float64]) -> list[tuple[float, float]]:
    return [(share, float(np.quantile(values, share))) for share in QUANTILES]


def _client(run: RunView, client: int) -> dict[str, str]:
    return {"client": run.history.names[client], "class": run.class_of[client]}


def tail(run: RunView) -> Iterator[Figure]:
    """The tail of the updates' norms."""
    if run.tail is None:
        return
    tail, error, number, edge, share, points = run.tail
    fit = [{"norm": norm, "share": max(share * (norm / edge) ** -tail, SMALLEST)} for norm in (edge, points[0][0])]
    place = {
        "x": alt.X("norm:Q", title="‖δ‖", scale=log_scale()),
        "y": alt.Y(
            "share:Q", title="share of larger updates", scale=log_scale(), axis=alt.Axis(format="~%", tickCount=4)
        ),
    }
    tooltip = tips(("norm:Q", "‖δ‖", ".4~g"), ("share:Q", "share of larger updates", ".3~%"))
    chart = alt.layer(
        named_data().mark_circle(color=BLUE, size=24, opacity=1, aria=False).encode(**place, tooltip=tooltip),
        named_data("fit").mark_line(color=RED, strokeDash=[6, 3], aria=False).encode(**place),
    ).properties(width=PANEL + 120, height=260)
    caption = (
        f"Hill's estimate of the tail index of ‖δ‖ from the {number:,} largest values is {tail:.2f} ± {error:.2f} "
        "(dashed). A smaller index means a heavier tail; below 2 the variance is infinite."
    )
    if run.history.clients_clip:
        caption += " Local clipping bounds updates, so they say little about the noise of the gradients."
    data = {"rows": [{"norm": norm, "share": beyond} for norm, beyond in points], "fit": fit}
    table = Table(("‖δ‖", "share of larger updates"), points)
    yield figure("tail", "Tail of the updates", caption, chart, data, table)


def indices(run: RunView) -> Iterator[Figure]:
    """The tail index of the updates over time, if the run estimated it."""
    estimates, step = sample(run.history.tails, POINTS)
    tails: list[Row] = [
        {"round": tail.round, "few": tail.verdict == "too few to tell"}
        | {name: finite(getattr(tail, name)) for name in ("time", "index", "low", "high")}
        for tail in estimates
    ]
    rows = [row for row in tails if row["index"] is not None]
    if not rows:
        return
    least, most = (pick(row["index"] for row in rows) for pick in (min, max))
    log = least > 0 and most > 20 * least
    bottom = least if log else -math.inf  # a logarithmic axis needs bands above 0
    points = [
        {key: row[key] for key in ("round", "time", "index", "few")}
        | {end: max(row["index"] if row[end] is None else row[end], bottom) for end in ("low", "high")}
        for row in rows
    ]
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    seconds = seconds_of([run])
    chart = alt.concat(
        *(_panel(axis, title, scale) for axis, title in (("round", "rounds"), ("time", seconds))), columns=2
    )
    heads = ("rounds", seconds, "tail index", "from", "to", "too few to tell")
    cells = [(*(row[key] for key in ("round", "time", "index", "low", "high")), "yes" * row["few"]) for row in rows]
    data = {"rows": points, "edge": [{"at": 2, "text": "below 2: infinite variance"}]}
    notes = [
        "Estimated every run.tail_every rounds from a sample of the updates' coordinates. "
        "Below 2 the variance is infinite."
    ]
    if any(row["low"] is not None for row in tails):
        notes.append("The band is the confidence interval.")
    if any(row["few"] for row in tails):
        notes.append("Hollow points: too few values to tell.")
    if step > 1:
        notes.append(f"One value in {step} is drawn.")
    if missing := sum(row["index"] is None for row in tails):
        notes.append(f"{missing} missing or non-finite values are not shown.")
    yield figure("tail-index", "Tail index of updates", " ".join(notes), chart, data, Table(heads, cells))


def _panel(axis: str, title: str, scale: alt.Scale) -> Any:
    def y(key: str) -> alt.Y:
        return alt.Y(f"{key}:Q", title="tail index", scale=scale, axis=alt.Axis(format=".3~g"))

    shown = [(f"{key}:Q", key, ".3~g") for key in ("index", "low", "high")]
    tooltip = tips((f"{axis}:Q", title, ",.6~g"), *shown)
    base = named_data().encode(x=alt.X(f"{axis}:Q", title=title, scale=alt.Scale(nice=False)))
    edge = named_data("edge").encode(y=y("at"))
    return alt.layer(
        base.mark_area(color=BLUE, opacity=0.18, aria=False).encode(y=y("low"), y2="high:Q"),
        edge.mark_rule(color=RED, strokeDash=[6, 3], aria=False),
        edge.mark_text(color=RED, align="right", dx=-4, dy=-7, aria=False).encode(x=alt.value(PANEL), text="text:N"),
        base.mark_line(color=BLUE, strokeWidth=1.5, aria=False).encode(y=y("index")),
        base.mark_point(color=BLUE, fill=BLUE, size=30, opacity=1, aria=False).encode(
            y=y("index"), tooltip=tooltip, fillOpacity=alt.condition(alt.datum.few, alt.value(0), alt.value(1))
        ),
    ).properties(width=PANEL, height=220)


def memory(run: RunView) -> Iterator[Figure]:
    """The past models that the server kept for delay compensation."""
    if not run.history.rounds.snapshots.any():
        return
    rows = [{"round": row["round"], "held": row["snapshots"]} for row in run.rounds.items]
    dots = alt.OverlayMarkDef(size=16, color=BLUE)
    chart = named_data().mark_line(color=BLUE, interpolate="step-after", point=dots, aria=False)
    chart = chart.encode(
        x=alt.X("round:Q", title="rounds", scale=alt.Scale(nice=False)),
        y=alt.Y("held:Q", title="past models", axis=alt.Axis(tickMinStep=1)),
        tooltip=tips("round:Q", ("held:Q", "past models")),
    ).properties(width=WIDTH, height=180)
    size = f", {4 * run.history.parameters:,} bytes each" if run.history.parameters else ""
    caption = f"Past models that the server kept to compensate delayed updates{size}."
    yield figure("memory", "Past models", caption, chart, {"rows": rows})
