"""The machines of a run on several of them: which one is slow."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt

from tardygrad.report.loader import RunView, finite
from tardygrad.results.blocks import Figure, Table
from tardygrad.results.figure import WIDTH, figure, named_data
from tardygrad.results.theme import BLUE, INK, tips

DRAWN = 40  # most machines that are drawn


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
