"""The demo's chart: test loss against rounds and against simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tardygrad.results.theme import image_style, method_lines, tips
from tardygrad.runs.record import Row


def loss_curves(runs: Mapping[str, list[Row]]) -> Any:
    """Two panels of curves.

    Args:
        runs: the metrics of each run (`Run.metrics`) by method label.
    """
    points = [
        {"method": name, "round": row["round"], "time": row["time"], "loss": row["test_loss"]}
        for name, rows in runs.items()
        for row in rows
        if row.get("test_loss") is not None
    ]
    highlight = alt.selection_point(fields=["method"], bind="legend")
    time, loss = ("time:Q", "simulated seconds", ",.0f"), ("loss:Q", "test loss", ".3f")
    base = method_lines(points, list(runs)).encode(
        y=alt.Y("loss:Q", title="test loss", scale=alt.Scale(type="log")),
        opacity=alt.condition(highlight, alt.value(1.0), alt.value(0.15)),
        tooltip=tips(("method:N", "method"), ("round:Q", "round"), time, loss),
    )
    by_round = base.encode(x=alt.X("round:Q", title="rounds")).add_params(highlight)
    by_time = base.encode(x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log")))
    return image_style(alt.hconcat(by_round, by_time))
