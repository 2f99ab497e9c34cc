"""Charts of a sweep: its history, the importance of its settings, and the scores by setting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from tardygrad.report.loader import finite
from tardygrad.results.blocks import Figure, LegendEntry, Table
from tardygrad.results.figure import LABEL_EXPR, PANEL, WIDTH, figure, named_data, wrapped
from tardygrad.results.theme import BLUE, INK, legend_colours, method_legend, tips
from tardygrad.runs.record import Row
from tardygrad.runs.record_values import printable
from tardygrad.sweeps import Sweep, Trial
from tardygrad.sweeps.importance import importances

FIRST = ("method.lr", "method.local_lr")  # of the keys
CROSS = "M-1,-1L1,1M-1,1L1,-1"
SHAPES = {"pruned": "triangle-down", "diverged": CROSS, "starved or failed": "diamond", "finished": "square"}


def history(sweep: Sweep) -> Iterator[Figure]:
    """The score of every trial in the order of their numbers, and the best one so far."""
    trials = sweep.trials
    rows = [{**_row(trial), "end": _end(trial)} for trial in trials]
    scored, unscored = ([row for row in rows if (row["score"] is None) is none] for none in (False, True))
    if len(scored) < 2:
        return
    highest, best = sweep.higher, list[Row]()
    for row in scored:
        if not best or (row["score"] > best[-1]["score"] if highest else row["score"] < best[-1]["score"]):
            best.append({"trial": row["trial"], "score": row["score"]})
    best.append({"trial": rows[-1]["trial"], "score": best[-1]["score"]})
    legend, goal, height = _legend(trials), printable(sweep.goal), 220
    few = [row["trial"] for row in rows] if len(rows) <= 10 else alt.Undefined  # there Vega would tick at halves
    axis = alt.Axis(format=",d", tickMinStep=1, values=few)
    x = alt.X("trial:Q", title="trial", scale=alt.Scale(nice=False, zero=False, padding=8), axis=axis)
    y = alt.Y("score:Q", title=goal, scale=_level_scale(sweep), axis=_level_axis(sweep))
    style = {
        "color": legend_colours("group:N", legend),
        "tooltip": tips("trial:Q", "group:N", ("score:Q", goal, _form(sweep)), ("end:N", "status")),
    }
    line = named_data("best").mark_line(interpolate="step-after", color=INK, opacity=0.7, strokeWidth=1.5, aria=False)
    layers = [line.encode(x=x, y=y), named_data().mark_circle(size=42, opacity=1, aria=False).encode(x=x, y=y, **style)]
    data = {"rows": scored, "best": best}
    if unscored:
        layers.append(_unscored(sweep, unscored, height).encode(x=x, **style))
        data["lost"] = unscored
    chart = alt.layer(*layers).properties(width=WIDTH, height=height)
    caption = f"The {goal} of every trial, and the best one so far (line).{_unscored_note(sweep, unscored)}"
    yield figure("history", "History of the sweep", caption, chart, data, legend=legend if len(legend) > 1 else ())


def importance(sweep: Sweep) -> Iterator[Figure]:
    """How much of the variance of the scores each setting explains."""
    shares = importances(sweep)
    if not shares:
        return
    rows = [{"key": wrapped(_bare(key)), "share": finite(share)} for key, share in shares.items()]
    base = named_data().encode(
        x=alt.X("share:Q", title="importance", axis=alt.Axis(format=".0%", tickCount=5), scale=alt.Scale(domainMin=0)),
        y=alt.Y("key:N", title=None, sort=None, axis=alt.Axis(labelLimit=0, labelExpr=LABEL_EXPR)),
        tooltip=tips(("key:N", "setting"), ("share:Q", "importance", ".1%")),
    )
    words = base.mark_text(align="left", dx=4, color=INK).encode(text=alt.Text("share:Q", format=".0%"))
    chart = alt.layer(base.mark_bar(color=BLUE), words).properties(width=WIDTH - 260, height=alt.Step(26))
    caption = (
        f"The share of the variance of the {printable(sweep.goal)} that each setting explains (functional "
        "ANOVA, as Optuna computes it). Trials without a score are left out, so a setting that "
        "decides whether a run diverges may count too little."
    )
    table = Table(("setting", "importance"), [(_bare(key), f"{share:.1%}") for key, share in shares.items()])
    yield figure("importance", "Importance of the settings", caption, chart, {"rows": rows}, table)


def slices(sweep: Sweep) -> Iterator[Figure]:
    """The score against every key with several numbers as values, one point per trial."""
    trials = sweep.trials
    sides = _numeric_keys(trials)
    if not sides:
        return
    rows: list[Row] = [
        {**_row(trial), "end": _end(trial)} | {f"at{i}": finite(_level(trial, key)) for i, key in enumerate(sides)}
        for trial in trials
    ]
    scored, unscored = ([row for row in rows if (row["score"] is None) is none] for none in (False, True))
    legend, goal, height = _legend(trials), printable(sweep.goal), 200
    colour = legend_colours("group:N", legend)
    charts = []
    for i, key in enumerate(sides):
        axis = alt.Axis(format="~g", labelOverlap="greedy", labelSeparation=6, grid=False, tickCount=6)
        place, score = (f"at{i}:Q", printable(key), ".5~g"), ("score:Q", goal, _form(sweep))
        style = {"color": colour, "tooltip": tips("trial:Q", "group:N", place, score, ("end:N", "status"))}
        x = alt.X(f"at{i}:Q", title=_bare(key), scale=_axis_scale(_is_log(sweep, key, trials), padding=8), axis=axis)
        title = goal if i % 2 == 0 else None
        y = alt.Y("score:Q", title=title, scale=_level_scale(sweep), axis=_level_axis(sweep))
        layers = [named_data().mark_circle(size=42, opacity=0.75, aria=False).encode(x=x, y=y, **style)]
        if unscored:
            layers.append(_unscored(sweep, unscored, height).encode(x=x, **style))
        charts.append(alt.layer(*layers).properties(width=PANEL - 20, height=height))
    caption = f"The {goal} against each setting, one dot per trial.{_unscored_note(sweep, unscored)}"
    if math.inf in (_level(trial, key) for trial in trials for key in sides):
        caption += " Infinite settings have no dot."
    data = {"rows": scored, "lost": unscored} if unscored else {"rows": scored}
    shown = legend if len(legend) > 1 else []
    yield figure("slices", "Scores by setting", caption, alt.concat(*charts, columns=2), data, legend=shown)


def _unscored(sweep: Sweep, rows: list[Row], height: int) -> Any:
    """Marks of the trials without a score, at the worst edge of a chart of this height; the data are `lost`."""
    seen = [end for end in SHAPES if end in {row["end"] for row in rows}]
    scale = alt.Scale(domain=seen, range=[SHAPES[end] for end in seen])
    marks = named_data("lost").mark_point(size=45, strokeWidth=1.4, aria=False)
    worst = alt.value(height if sweep.higher else 0)
    return marks.encode(y=worst, shape=alt.Shape("end:N", title=None, scale=scale))


def _unscored_note(sweep: Sweep, rows: list[Row]) -> str:
    edge = "bottom" if sweep.higher else "top"
    return f" Trials without a score are at the {edge}." if rows else ""


def _legend(trials: list[Trial]) -> list[LegendEntry]:
    """The groups of the trials: in the colours of their methods, if these differ."""
    groups = list(dict.fromkeys(trial.group for trial in trials))
    methods = [group.partition(",")[0] for group in groups]
    return group_legend(groups, methods if len(set(methods)) == len(methods) else groups)


def group_legend(groups: list[str], labels: list[str] | None = None) -> list[LegendEntry]:
    """The names and colours of groups: the colours of their methods, or of other labels."""
    known = labels or [group.partition(",")[0] for group in groups]
    return [entry._replace(dash=None) for entry in method_legend(known, [printable(group) for group in groups])]


def short(value: Any) -> str:
    """A setting in few characters."""
    number = finite(value)
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value, 20) if number is None else f"{number:.3g}"


def _bare(key: str) -> str:
    return printable(key).removeprefix("method.")


def _row(trial: Trial) -> Row:
    return {"trial": trial.number, "group": printable(trial.group), "score": finite(trial.value)}


def _level(trial: Trial, key: str) -> float | None:
    """A setting as a number, which may be infinite."""
    value = trial.params.get(key)
    return math.inf if value in ("inf", math.inf) else finite(value)


def _end(trial: Trial) -> str:
    return trial.status if trial.status in ("finished", "diverged", "pruned") else "starved or failed"


def _numeric_keys(trials: list[Trial]) -> list[str]:
    """The keys with several numbers as values, learning rates first."""
    keys = dict.fromkeys(key for trial in trials for key in trial.params)
    found = [key for key in keys if len({_level(trial, key) for trial in trials} - {None}) > 1]
    return sorted(found, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))


def _is_log(sweep: Sweep, key: str, trials: list[Trial]) -> bool:
    """Whether an axis is logarithmic: as the sweep's range says, or if the values are far apart."""
    values = sweep.space.get(key)
    known = [level for trial in trials if (level := _level(trial, key)) is not None and level < math.inf]
    if not known or min(known) <= 0:
        return False
    return values.get("log") is True if isinstance(values, dict) else max(known) > 20 * min(known)


def _axis_scale(log: bool, padding: int) -> alt.Scale:
    kind: dict[str, Any] = {"type": "log"} if log else {"type": "linear", "zero": False}
    return alt.Scale(**kind, nice=False, padding=padding)


def _level_axis(sweep: Sweep) -> alt.Axis:
    return alt.Axis(format=_form(sweep), tickCount=5)


def _form(sweep: Sweep) -> str:
    """The format of scores."""
    return ".2~%" if sweep.best == "accuracy" else ".4~g"


def _level_scale(sweep: Sweep) -> alt.Scale:
    """The position of scores."""
    scores = [score for trial in sweep.trials if (score := finite(trial.value)) is not None]
    return _axis_scale(not sweep.higher and bool(scores) and 0 < 20 * min(scores) < max(scores), padding=14)
