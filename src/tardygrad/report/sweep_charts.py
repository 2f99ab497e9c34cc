"""Charts of a sweep's settings: heat maps of grids, slices of random samples, and parallel coordinates."""

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

CELLS, FACETS, LINES = 16, 64, 600  # most values on a side of a heat map, heat maps of a group, trials drawn as lines
WIDE, ROW = 6, 4  # most heat maps in a row: one per value of a key, or one per combination of values
FIRST = ("method.lr", "method.local_lr")  # preferred sides of a heat map
CROSS = "M-1,-1L1,1M-1,1L1,-1"
SHAPES = {"pruned": "triangle-down", "diverged": CROSS, "starved or failed": "diamond", "finished": "square"}


def sweep_charts(sweep: Sweep) -> Iterator[Figure]:
    """The scores by setting: as heat maps or, with one key or too many values, against each key; and side by side."""
    trials = _done(sweep)
    sides = _numeric_keys(trials)
    if sides:
        sampled = any(isinstance(values, dict) for values in sweep.space.values())
        many = any(len({_level(trial, key) for trial in trials}) > CELLS for key in sides)
        yield from (_slices if len(sides) == 1 or sampled or many else _heat_maps)(sweep, trials, sides)
        yield from _parallel(sweep, trials, sides)


def history(sweep: Sweep) -> Iterator[Figure]:
    """The score of every trial in the order of their numbers, and the best one so far."""
    trials = _done(sweep)
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


def _heat_maps(sweep: Sweep, trials: list[Trial], sides: list[str]) -> Iterator[Figure]:
    """The scores of a grid over two keys; the other keys select the heat map."""
    across, up = sides[:2]
    others = _other_keys(trials, sides[:2])
    names = {key: _names(trials, key) for key in (across, up, *others)}
    rows: list[Row] = []
    for trial in trials:
        values = {key: names[key][repr(trial.params.get(key))] for key in names}
        place = {
            "row": values[others[0]] if len(others) == 2 else printable(trial.group),
            "column": values[others[-1]] if others else "",
            "others": ", ".join(f"{_bare(key)} {values[key]}" for key in others),
        }
        state = {"status": printable(trial.status), "mark": "" if trial.status == "finished" else "×"}
        rows.append({**_row(trial), **state, **place, "across": values[across], "up": values[up]})
    wide = len(names[across])
    room = max((WIDTH - 100) // (22 * wide), 1)  # heat maps that fit side by side
    in_grid = 0 < len(others) <= 2 and len(names[others[-1]]) <= min(room, WIDE)  # rows and columns of heat maps
    by_group = others and not (in_grid and len(others) == 1)  # one figure for each group
    columns = len(names[others[-1]]) if in_grid else min(room, ROW)
    cell = alt.Step(max(min((WIDTH - 100) // (wide * columns), 40), 12))
    chart = _heat_map(sweep, across, up, names).properties(width=cell, height=cell)
    head = alt.Header(labelLimit=220, labelFontSize=11, titleFontSize=12)
    if in_grid:
        first, last = others[0] if len(others) == 2 else None, others[-1]
        side = alt.Header(labelLimit=200, labelFontSize=11, titleFontSize=12, labelAngle=0, labelAlign="left")
        order = list(names[first].values()) if first else None
        row = alt.Row("row:N", title=_bare(first) if first else None, sort=order, header=side)
        column = alt.Column("column:N", title=_bare(last), sort=list(names[last].values()), header=head)
        chart = chart.facet(row=row, column=column, spacing=8)
    else:
        field = "others:N" if others else "group:N"
        chart = chart.facet(alt.Facet(field, title=None, sort=None, header=head), columns=columns, spacing=8)
    for number, group in enumerate(dict.fromkeys(row["group"] for row in rows) if by_group else [None], 1):
        own = [row for row in rows if group in (None, row["group"])]
        facets = list(dict.fromkeys(row["others"] for row in own))
        shown = own if in_grid else [row for row in own if row["others"] in facets[:FACETS]]
        caption = (
            f"The {printable(sweep.goal)} of every setting, {printable(across)} against {printable(up)}. "
            "Brighter is better; × marks trials that diverged, starved, failed or were pruned."
        )
        if len(shown) < len(own):
            caption += f" Only the first {FACETS} of {len(facets)} combinations of the other settings are drawn."
        title = "Scores of settings" if group is None else f"Scores of settings: {group}"
        yield figure("settings" if number == 1 else f"settings-g{number}", title, caption, chart, {"rows": shown})


def _heat_map(sweep: Sweep, across: str, up: str, names: dict[str, dict[str, str]]) -> Any:
    axis = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=1, titlePadding=6, labelFontSize=11)
    goal = printable(sweep.goal)
    sides, score = (("across:N", printable(across)), ("up:N", printable(up))), ("score:Q", goal, _form(sweep))
    base: Any = alt.Chart().encode(
        x=alt.X("across:O", title=_bare(across), sort=list(names[across].values()), axis=axis),
        y=alt.Y("up:O", title=_bare(up), sort=list(names[up].values())[::-1], axis=axis),
        tooltip=tips("group:N", "trial:Q", *sides, ("others:N", "with"), score, "status:N"),
    )
    legend = alt.Legend(gradientLength=200, titleFontWeight="normal", format=_form(sweep))
    colour = alt.Color("score:Q", title=goal, scale=_score_scale(sweep), legend=legend)
    cells = base.mark_rect(stroke=INK, strokeOpacity=0.2, aria=False).encode(color=colour)
    crosses = base.mark_text(color=INK, fontSize=13, aria=False).encode(text="mark:N")
    return alt.layer(cells, crosses, data=alt.NamedData("rows"))


def _slices(sweep: Sweep, trials: list[Trial], sides: list[str]) -> Iterator[Figure]:
    """The score against every key, one point per trial."""
    rows: list[Row] = [
        {**_row(trial), "end": _end(trial)} | {f"at{i}": _level(trial, key) for i, key in enumerate(sides)}
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


def _parallel(sweep: Sweep, trials: list[Trial], sides: list[str]) -> Iterator[Figure]:
    """Parallel coordinates: a line per trial through its settings and its score, workable trials on top."""
    drawn = sorted(trials[:: math.ceil(len(trials) / LINES)], key=lambda trial: trial.workable is True)
    goal = printable(sweep.goal)
    levels = {_bare(key): [_level(trial, key) for trial in drawn] for key in sides}
    levels[goal] = [finite(trial.value) for trial in drawn]
    places = {key: _places(values) for key, values in levels.items()}
    rows = [
        {
            "trial": trial.number,
            "group": printable(trial.group),
            "key": key,
            "order": order,
            "at": at,
            "value": _share(levels[key][i]) if key == goal and sweep.best == "accuracy" else _value(levels[key][i]),
            "workable": "workable" if trial.workable else "not workable",
        }
        for i, trial in enumerate(drawn)
        for order, key in enumerate(levels)
        if (at := places[key][i]) is not None
    ]
    bare = alt.Axis(values=[0, 1], title="smallest to largest", labels=False, grid=False)
    names, order = alt.Axis(labelAngle=0, labelLimit=140, grid=True), alt.EncodingSortField("order", op="min")
    place = {
        "x": alt.X("key:N", title=None, sort=order, axis=names),
        "y": alt.Y("at:Q", axis=bare, scale=alt.Scale(domain=[-0.1, 1.1])),
    }
    scale = alt.Scale(domain=["workable", "not workable"], range=[BLUE, "#999999"])
    lines = named_data().mark_line(strokeWidth=1.3, point=alt.OverlayMarkDef(size=18), aria=False)
    lines = lines.encode(
        **place,
        detail="trial:N",
        color=alt.Color("workable:N", title=None, scale=scale, legend=alt.Legend(symbolOpacity=1)),
        opacity=alt.condition("datum.workable === 'workable'", alt.value(1.0), alt.value(0.4)),
        tooltip=tips("trial:Q", "group:N", ("key:N", "setting"), "value:N", ("workable:N", "is")),
    )
    words = [
        named_data(name).mark_text(dy=dy, fontSize=11, color=INK, aria=False).encode(**place, text="value:N")
        for name, dy in (("least", 12), ("most", -11))
    ]
    few = f" {len(drawn)} of {len(trials)} trials are drawn." if len(drawn) < len(trials) else ""
    caption = (
        "One line per trial through its settings and its score. Each axis goes from the smallest to the largest value, "
        f"on a logarithmic scale if all are positive.{few}"
    )
    chart = alt.layer(lines, *words).properties(width=WIDTH, height=300)
    data: dict[str, list[Row]] = {"rows": rows, "least": [], "most": []}
    for row in {(row["key"], row["at"]): row for row in rows}.values():
        if row["at"] in (0, 1):
            data["most" if row["at"] else "least"].append({key: row[key] for key in ("key", "order", "at", "value")})
    yield figure("parallel", "Settings side by side", caption, chart, data)


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


def _share(level: float | None) -> str:
    return "" if level is None else f"{level:.1%}"


def _value(level: float | None) -> str:
    return "" if level is None else "∞" if level == math.inf else f"{level:.4g}"


def _done(sweep: Sweep) -> list[Trial]:
    return [trial for trial in sweep.trials if trial.state in ("finished", "pruned")]


def _row(trial: Trial) -> Row:
    return {"trial": trial.number, "group": printable(trial.group), "score": finite(trial.value)}


def _level(trial: Trial, key: str) -> float | None:
    """A setting as a number, which may be infinite."""
    value = trial.params.get(key)
    return math.inf if value in ("inf", math.inf) else finite(value)


def _end(trial: Trial) -> str:
    if trial.state == "pruned":
        return "pruned"
    return trial.status if trial.status in ("finished", "diverged") else "starved or failed"


def _numeric_keys(trials: list[Trial]) -> list[str]:
    """The keys with several numbers as values, learning rates first."""
    keys = dict.fromkeys(key for trial in trials for key in trial.params)
    found = [key for key in keys if len({_level(trial, key) for trial in trials} - {None}) > 1]
    return sorted(found, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))


def _other_keys(trials: list[Trial], sides: list[str]) -> list[str]:
    """The keys, besides the sides, in which trials of one group differ."""
    keys = dict.fromkeys(key for trial in trials for key in trial.params if key not in sides)
    seen = {key: {(trial.group, repr(trial.params.get(key))) for trial in trials} for key in keys}
    return [key for key in keys if len(seen[key]) > len({group for group, _ in seen[key]})]


def _names(trials: list[Trial], key: str) -> dict[str, str]:
    """The values of a key in order, each with a unique short name."""
    levels = {repr(trial.params.get(key)): (_level(trial, key), short(trial.params.get(key))) for trial in trials}
    ordered = sorted(levels, key=lambda value: (levels[value][0] is None, levels[value][0] or 0.0))
    ambiguous = len({name for _, name in levels.values()}) < len(levels)
    return {value: printable(value, 40) if ambiguous else levels[value][1] for value in ordered}


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
    return _axis_scale(_score_scale(sweep).type == "log", padding=14)


def _score_scale(sweep: Sweep) -> Any:
    """Colours of scores: brighter is better."""
    scores = sorted(score for trial in _done(sweep) if (score := finite(trial.value)) is not None)
    low, high = (scores[0], scores[-1]) if scores else (0.0, 1.0)
    minimize = not sweep.higher
    log = minimize and low > 0 and high > 20 * low
    return alt.Scale(type="log" if log else "linear", scheme="viridis", domain=[low, high], reverse=minimize)


def _places(levels: list[float | None]) -> list[float | None]:
    """Values as positions from 0 to 1, logarithmic if all are positive; infinity is a step above the others."""
    known = [level for level in levels if level is not None and level < math.inf]
    top = 0.9 if math.inf in levels else 1.0
    by = math.log if known and min(known) > 0 else float
    low, high = (by(min(known)), by(max(known))) if known else (0.0, 0.0)

    def place(level: float) -> float:
        return 1.0 if level == math.inf else round(top * (by(level) - low) / ((high - low) or 1.0), 4)

    return [None if level is None else place(level) for level in levels]
