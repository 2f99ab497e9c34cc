"""Pictures of the paper's regime: scores against simulated time, and against what a part of the plan changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import altair as alt

from experiments import regime_tails as tails
from experiments.accuracy_plot import score_panels
from experiments.regime import Line, Regime, RegimePart
from experiments.trials import mean_time
from tardygrad.results import theme
from tardygrad.runs.record import Row
from tardygrad.sweeps.store import StoredResult

CURVES = ("SGDClip", "Clip²")
"""The methods in pictures of scores against time, synchronous and client-centric."""
_SCORE = "test score (%), mean over seeds"


class Axis(NamedTuple):
    """What a part of the plan changes: the title of an axis, and its value in a spec; None: not on this axis."""

    title: str
    value: Callable[[dict[str, Any]], float | None]


def _slowness(spec: dict[str, Any]) -> float | None:
    if spec["fleet"]["kind"] != "groups":
        return None
    fast, slow = (group["runtime"]["low"] for group in spec["fleet"]["groups"])
    return float(slow / fast)


AXES = {
    "buffers": Axis("M, updates per round", lambda spec: float(spec["method"]["buffer"])),
    "slowness": Axis("how many times as slow the stragglers are", _slowness),
    "rates": Axis("local rate η_ℓ", lambda spec: float(spec["method"]["local_lr"])),
}


def curves_path(workload: str) -> str:
    """The path of a workload's picture, from the page."""
    return f"images/regime-{workload}.svg"


def effects_path(part: RegimePart) -> str:
    """The path of a part's picture, from the page."""
    return f"images/regime-{part.name}.svg"


def write_pictures(regime: Regime, folder: Path) -> None:
    """Draw the workloads whose lines are done with every seed, what parts change, and the tails of gradients."""
    for workload in pictured(regime):
        theme.write(_curves(regime, workload), folder / curves_path(workload))
    for part in regime.plan.parts.values():
        if part.name in AXES and (found := effects(regime, part)):
            theme.write(_effects_chart(part, found), folder / effects_path(part))
        for workload in part.workloads:
            if points := tails.points(regime, part, workload):
                theme.write(tails.chart(points), folder / tails.picture(workload))


def pictured(regime: Regime) -> list[str]:
    """The workloads whose curves are done with every seed."""
    cells = regime.plan.parts["cells"]
    return [
        workload
        for workload in cells.workloads
        if all(len(regime.results(line)) == len(cells.seeds) for line in _shown(regime, workload))
    ]


def _shown(regime: Regime, workload: str) -> list[Line]:
    lines = regime.plan.parts["cells"].lines()
    return [line for line in lines if line.workload == workload and line.mode != "server" and line.method in CURVES]


def effects(regime: Regime, part: RegimePart) -> list[Row]:
    """The mean score of each line with what the part changes, for the seeds of the part; empty until all are done."""
    if any(len(regime.results(line)) < len(part.seeds) for line in part.lines()):
        return []
    rows = []
    for line in part.with_unchanged():
        value = AXES[part.name].value(regime.runs(line)[0].spec)
        scores = [result.accuracy or 0.0 for seed, result in regime.results(line).items() if seed in part.seeds]
        if value is not None and scores:
            rows.append({"method": line.method, "value": value, "score": mean(scores)})
    return rows


def _effects_chart(part: RegimePart, found: list[Row]) -> Any:
    values = sorted({row["value"] for row in found})
    axis = alt.Axis(values=values, format="~g")
    chart = theme.method_lines(found, part.methods).encode(
        x=alt.X("value:Q", title=AXES[part.name].title, axis=axis, scale=alt.Scale(type="log", nice=False, padding=12)),
        y=alt.Y("score:Q", title=_SCORE, scale=alt.Scale(zero=False)),
    )
    return theme.image_style(chart.properties(title=f"{part.title} ({', '.join(part.workloads)})"))


def _mean_curve(results: Iterable[StoredResult]) -> list[tuple[float, float]]:
    """Simulated time and score after each evaluated round, means over the seeds that reached it."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    for result in results:
        for number, time, _, score in result.curve:
            if score is not None:
                rounds.setdefault(number, []).append((time, score))
    return [(mean(time for time, _ in seeds), mean(score for _, score in seeds)) for _, seeds in sorted(rounds.items())]


def _early(regime: Regime, line: Line) -> list[tuple[float, float]]:
    """Time and score of runs of the part `early` that end sooner and are else the same, means over their seeds."""
    part = regime.plan.parts.get("early")
    found = []
    for short in part.lines() if part else ():
        results = list(regime.results(short).values())
        if short._replace(part=line.part, change="") == line and results:
            found.append((mean_time(results), mean(each.accuracy or 0.0 for each in results)))
    return found


def _curves(regime: Regime, workload: str) -> Any:
    points = [
        {"method": line.method, "mode": line.mode, "fleet": line.stragglers, "time": time, "score": score}
        for line in _shown(regime, workload)
        for time, score in sorted(_early(regime, line) + _mean_curve(regime.results(line).values()))
    ]
    titles = {
        fleet: f"{workload}, {fleet} stragglers, client-centric (dashed: synchronous)"
        for fleet in regime.plan.parts["cells"].fleets
    }
    return theme.image_style(score_panels(points, CURVES, _SCORE, titles).resolve_scale(y="shared"))
