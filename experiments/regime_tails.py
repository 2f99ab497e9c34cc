"""Are gradients heavy-tailed in the paper's regime? A table and a picture, layer by layer, during training."""

from __future__ import annotations

from collections import Counter
from typing import Any

import altair as alt

from experiments.page import table
from experiments.regime import Regime, RegimePart
from tardygrad.core.method import MODE_TEXTS
from tardygrad.results import theme
from tardygrad.runs.record import Row, to_json_value

_HIGHEST = 6.0  # larger tail indices are drawn here: all of them mean a light tail


def picture(workload: str) -> str:
    """The path of a workload's picture, from the page."""
    return f"images/regime-tails-{workload}.svg"


def points(regime: Regime, part: RegimePart, workload: str) -> list[Row]:
    """The measured tails of a part and a workload: a row for each run, round and layer."""
    return [
        {"mode": MODE_TEXTS[line.mode], **tail._asdict()}
        for line in part.lines()
        if part.tails and line.workload == workload
        for result in regime.results(line).values()
        for tail in result.tails
    ]


def section(regime: Regime, part: RegimePart, workload: str) -> list[str]:
    """The picture and the table of a part and a workload; nothing before they are measured."""
    found = points(regime, part, workload)
    if not found:
        return []
    rows = []
    for mode, round in dict.fromkeys((row["mode"], row["round"]) for row in found):
        here = [row for row in found if (row["mode"], row["round"]) == (mode, round)]
        whole = next((row for row in here if row["layer"] == "all"), None)
        if whole is None:
            continue
        counts = Counter(row["verdict"] for row in here if row["layer"] != "all")
        verdicts = "; ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        rows.append((mode, str(round), _index(whole), _scaled(whole), verdicts))
    return [
        f"![Tail index of each layer's gradient noise at the start, in the middle and at the end]({picture(workload)})",
        "Where the tail index is below 2, the noise looks like one of infinite variance in the observed range, as the "
        "paper assumes; below 1 even its mean would be infinite, and no theorem applies. A verdict takes the error of "
        "the index into account ([how it is measured](tail.md)).",
        table(("mode", "round", "whole model", "each coordinate divided by its scale", "layers"), rows),
    ]


def _index(row: Row) -> str:
    if row["alpha"] is None:
        return str(row["verdict"])
    return f"{row['alpha']:.2f} ± {(row['high'] - row['low']) / 2:.2f}, {row['verdict']}"


def _scaled(row: Row) -> str:
    return "none: most gradients are 0" if row["scaled"] is None else f"{row['scaled']:.2f}, {row['scaled_verdict']}"


def chart(found: list[Row]) -> Any:
    """The tail index of every layer, from input to output: a panel for each mode, a colour for each round."""
    rounds = sorted({row["round"] for row in found})
    shown = [{**row, "layer": row["layer"].removeprefix("model.")} for row in found if row["layer"] != "all"]
    layers = list(dict.fromkeys(row["layer"] for row in shown))
    rows = [
        {**row, "alpha": min(row["alpha"], _HIGHEST), "after": f"round {row['round']}"}
        for row in shown
        if row["alpha"] is not None
    ]
    names = [f"round {number}" for number in rounds]
    shapes = alt.Scale(domain=names, range=["circle", "square", "triangle-up"][: len(names)])
    colours = alt.Scale(domain=names, range=[theme.ORANGE, theme.BLUE, theme.BLACK][: len(names)])
    legend = alt.Legend(title=None, orient="top", labelFontSize=12)
    dots = (
        alt.Chart({"values": to_json_value(rows)})
        .mark_point(size=45, filled=True, opacity=0.9)
        .encode(
            x=alt.X(
                "alpha:Q", title="tail index α of the noise (6: 6 or more)", scale=alt.Scale(domain=[0.0, _HIGHEST])
            ),
            y=alt.Y(
                "layer:N",
                sort=layers,
                title="layer, from input to output",
                axis=alt.Axis(labelLimit=330, maxExtent=400),
            ),
            color=alt.Color("after:N", scale=colours, legend=legend),
            shape=alt.Shape("after:N", scale=shapes, legend=legend),
        )
    )
    limit = alt.Chart({"values": [{"alpha": 2.0}]}).mark_rule(color=theme.RED, strokeDash=[4, 3]).encode(x="alpha:Q")
    modes = list(dict.fromkeys(row["mode"] for row in found))
    others = dots.encode(y=alt.Y("layer:N", sort=layers, title=None, axis=alt.Axis(labels=False, ticks=False)))
    panels = [
        ((others if number else dots).transform_filter(alt.datum.mode == mode) + limit).properties(
            title=f"{mode} (dashed: infinite variance to its left)", width=330, height=alt.Step(12)
        )
        for number, mode in enumerate(modes)
    ]
    return theme.image_style(alt.hconcat(*panels))
