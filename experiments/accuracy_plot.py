"""Plots that several pages share: accuracies with their spread, and scores against simulated time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tardygrad.results.theme import method_colours, method_lines
from tardygrad.runs.record import Row


def accuracy_row(name: str, method: str, accuracy: float, spread: float | None) -> Row:
    """A row of the plot: its name, and the method whose colour it has."""
    low, high = max(accuracy - (spread or 0.0), 0.0), min(accuracy + (spread or 0.0), 100.0)
    return {"name": name, "method": method, "accuracy": accuracy, "low": low, "high": high}


class AccuracyPlot:
    """The parts of a plot: rows, colours, the axis of accuracies from `least` to 100 %, and bars of the spread."""

    def __init__(self, rows: list[Row], title: str, least: float = 0.0) -> None:
        self.title, self.scale = title, alt.Scale(domain=[least, 100])
        order = [row["name"] for row in rows]
        axis = alt.Axis(labelLimit=220)
        self.base: Any = alt.Chart({"values": rows}).encode(y=alt.Y("name:N", title=None, sort=order, axis=axis))
        labels = list(dict.fromkeys(row["method"] for row in rows))
        self.colour = alt.Color("method:N", scale=method_colours(labels), legend=None)
        self.bars = self.base.mark_rule(strokeWidth=2).encode(x=self.x("low"), x2="high:Q", color=self.colour)

    def x(self, key: str) -> Any:
        """The axis of accuracies for a key of the rows."""
        return alt.X(f"{key}:Q", title=self.title, scale=self.scale)


def score_panels(points: list[Row], methods: Sequence[str], score: str, titles: Mapping[str, str]) -> Any:
    """Scores against simulated time, with dashed lines for synchronous runs.

    Args:
        points: a row for each evaluation, with its method, mode, fleet, time and score.
        score: the title of the axis.
        titles: those of the panels, by fleet.
    """
    dashes = alt.Scale(domain=["client", "sync"], range=[[1, 0], [4, 2]])
    chart = method_lines(points, methods).encode(
        x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("score:Q", title=score, scale=alt.Scale(zero=False)),
        strokeDash=alt.StrokeDash("mode:N", scale=dashes, legend=None),
    )
    panels = (
        chart.transform_filter(alt.datum.fleet == fleet).properties(title=title) for fleet, title in titles.items()
    )
    return alt.hconcat(*panels)
