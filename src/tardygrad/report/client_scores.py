"""Figures of a run's scores on the data of each client: how they are distributed, and which clients are worst."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import numpy as np
from numpy.typing import NDArray

from tardygrad.report.downsample import sample
from tardygrad.report.loader import POINTS, RunView, finite
from tardygrad.results.blocks import Figure, Table
from tardygrad.results.figure import WIDTH, figure, named_data, percent
from tardygrad.results.theme import BLUE, INK, class_colours, class_legend, tips
from tardygrad.runs.events import ClientEvaluation

NAMED = 10  # worst clients that are listed
QUANTILES = (0.1, 0.5, 0.9)


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
    worst = [(run.history.names[c], c, run.class_of[c], _shown(name, values[c])) for c in order[:NAMED].tolist()]
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


def _shown(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "accuracy" else f"{value:.4g}"
