"""Where the settings of a sweep lie: heat maps of grids, slices of what was drawn, and parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from tardygrad.report.blocks import Figure
from tardygrad.report.figure import PANEL, WIDTH, drawn, figure
from tardygrad.report.loader import finite, text
from tardygrad.report.theme import BLUE, INK, method_colours, tips
from tardygrad.runs.record import Row
from tardygrad.sweep import Sweep, Trial

CELLS, FACETS, LINES = 16, 64, 600  # values on a side of a heat map, heat maps of a group, trials as lines
WIDE, ROW = 6, 4  # heat maps side by side: of the values of one key, of combinations
FIRST = ("method.lr", "method.local_lr")  # the sides of a heat map
CROSS = "M-1,-1L1,1M-1,1L1,-1"


def heat(sweep: Sweep) -> Iterator[Figure]:
    """The scores of a grid, a cell each; two more keys are the rows and columns of heat maps, of many each has one."""
    trials = _done(sweep)
    sides = _sides(trials)
    if len(sides) < 2 or _sliced(sweep, sides):
        return
    across, up = sides[:2]
    others = _others(trials, sides[:2])
    names = {key: _names(trials, key) for key in (across, up, *others)}
    rows: list[Row] = []
    for trial in trials:
        told = {key: names[key][repr(trial.params.get(key))] for key in names}
        rows.append(
            {
                "across": told[across],
                "up": told[up],
                "row": told[others[0]] if len(others) == 2 else text(trial.group),
                "column": told[others[-1]] if others else "",
                "others": ", ".join(f"{_bare(key)} {told[key]}" for key in others),
                "group": text(trial.group),
                "score": finite(trial.value),
                "mark": "" if trial.status == "finished" else "×",
                "status": text(trial.status),
                "trial": trial.number,
            }
        )
    wide = len(names[across])
    room = max((WIDTH - 100) // (22 * wide), 1)  # heat maps that a line has room for
    placed = 0 < len(others) <= 2 and len(names[others[-1]]) <= min(room, WIDE)
    apart = others and not (placed and len(others) == 1)  # a figure for each group
    columns = len(names[others[-1]]) if placed else min(room, ROW)
    cell = max(min((WIDTH - 100) // (wide * columns), 40), 12)
    base = _cells(sweep, (across, up), (list(names[across].values()), list(names[up].values())), cell)
    for number, group in enumerate(dict.fromkeys(row["group"] for row in rows) if apart else [None], 1):
        own = [row for row in rows if group in (None, row["group"])]
        facets = list(dict.fromkeys(row["others"] for row in own))
        shown = own if placed else [row for row in own if row["others"] in facets[:FACETS]]
        caption = (
            f"The {text(sweep.goal)} of every setting, {text(across)} against {text(up)}; the brighter the better, "
            "and × is one that diverged, starved, failed or was pruned."
        )
        if len(shown) < len(own):
            caption += f" Of {len(facets)} combinations of the other settings the first {FACETS} are drawn."
        title = "Scores of settings" if group is None else f"Scores of settings: {group}"
        chart = _placed(base, others, names) if placed else _lined(base, "others" if others else "group", columns)
        yield figure("settings" if number == 1 else f"settings-g{number}", title, caption, chart, {"rows": shown})


def _cells(sweep: Sweep, keys: tuple[str, str], orders: tuple[list[str], list[str]], cell: int) -> Any:
    """One heat map."""
    axis = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=1, titlePadding=6, labelFontSize=11)
    base: Any = alt.Chart().encode(
        x=alt.X("across:O", title=_bare(keys[0]), sort=orders[0], axis=axis),
        y=alt.Y("up:O", title=_bare(keys[1]), sort=orders[1][::-1], axis=axis),
        tooltip=tips(
            "group:N",
            "trial:Q",
            ("across:N", text(keys[0])),
            ("up:N", text(keys[1])),
            ("others:N", "with"),
            ("score:Q", text(sweep.goal), ".4~g"),
            "status:N",
        ),
    )
    colour = alt.Color("score:Q", title=text(sweep.goal), scale=_scale(sweep), legend=alt.Legend(gradientLength=200))
    rect = base.mark_rect(stroke=INK, strokeOpacity=0.2, aria=False).encode(color=colour)
    cross = base.mark_text(color=INK, fontSize=13, aria=False).encode(text="mark:N")
    size = alt.Step(cell)
    return alt.layer(rect, cross, data=alt.NamedData("rows")).properties(width=size, height=size)


def _placed(chart: Any, others: list[str], names: dict[str, dict[str, str]]) -> Any:
    """Heat maps in rows and columns: the values of two keys, or the groups and those of one key."""
    keyed = len(others) == 2
    head = alt.Header(labelLimit=220, labelFontSize=11, titleFontSize=12)
    side = alt.Header(labelLimit=200, labelFontSize=11, titleFontSize=12, labelAngle=0, labelAlign="left")
    row = alt.Row(
        "row:N",
        title=_bare(others[0]) if keyed else None,
        sort=list(names[others[0]].values()) if keyed else None,
        header=side,
    )
    column = alt.Column("column:N", title=_bare(others[-1]), sort=list(names[others[-1]].values()), header=head)
    return chart.facet(row=row, column=column, spacing=8)


def _lined(chart: Any, field: str, columns: int) -> Any:
    """Heat maps one after the other, in lines."""
    head = alt.Header(labelLimit=220, labelFontSize=11)
    return chart.facet(alt.Facet(f"{field}:N", title=None, sort=None, header=head), columns=columns, spacing=8)


def slices(sweep: Sweep) -> Iterator[Figure]:
    """The score against every key, a point for each trial."""
    trials = _done(sweep)
    sides = _sides(trials)
    if not sides or not (len(sides) == 1 or _sliced(sweep, sides)):
        return
    rows: list[Row] = [
        {f"at{i}": _level(trial, key) for i, key in enumerate(sides)}
        | {"score": finite(trial.value), "group": text(trial.group), "end": _end(trial), "trial": trial.number}
        for trial in trials
    ]
    scored, lost = ([row for row in rows if (row["score"] is None) is none] for none in (False, True))
    labels = list(dict.fromkeys(trial.group for trial in trials))
    heads = [label.partition(",")[0] for label in labels]
    scale = group_colours(labels, heads if len(set(heads)) == len(heads) else labels)
    shapes = {"pruned": "triangle-down", "diverged": CROSS, "starved or failed": "diamond", "finished": "square"}
    seen = [end for end in shapes if end in {row["end"] for row in lost}]
    ends = alt.Scale(domain=seen, range=[shapes[end] for end in seen])
    height, level = 200, _axis(_scale(sweep).type == "log", padding=14)
    charts = []
    for i, key in enumerate(sides):
        axis = alt.Axis(format="~g", labelOverlap="greedy", labelSeparation=6, grid=False, tickCount=6)
        score = ("score:Q", text(sweep.goal), ".4~g")
        shown = tips("trial:Q", "group:N", (f"at{i}:Q", text(key), ".5~g"), score, ("end:N", "status"))
        x = alt.X(f"at{i}:Q", title=_bare(key), scale=_axis(_by_ratio(sweep, key, trials), padding=8), axis=axis)
        colour = alt.Color("group:N", title=None, scale=scale)
        y = alt.Y("score:Q", title=text(sweep.goal), scale=level, axis=alt.Axis(format="~g", tickCount=5))
        dots = drawn().mark_circle(size=42, opacity=0.75, aria=False).encode(x=x, y=y, color=colour, tooltip=shown)
        marks = drawn("lost").mark_point(size=45, strokeWidth=1.4, aria=False)
        worst = alt.value(height if sweep.best == "accuracy" else 0)
        shape = alt.Shape("end:N", title=None, scale=ends)
        layers = [dots, marks.encode(x=x, y=worst, color=colour, shape=shape, tooltip=shown)] if lost else [dots]
        charts.append(alt.layer(*layers).properties(width=PANEL - 20, height=height))
    edge = "bottom" if sweep.best == "accuracy" else "top"
    caption = f"The {text(sweep.goal)} against each setting, a dot per trial; those without a score are at the {edge}."
    data = {"rows": scored, "lost": lost} if lost else {"rows": scored}
    yield figure("slices", "Scores by setting", caption, alt.concat(*charts, columns=2), data)


def parallel(sweep: Sweep) -> Iterator[Figure]:
    """A line through the settings of each trial; workable ones lie on top."""
    trials = _done(sweep)
    sides = _sides(trials)
    if not sides:
        return
    lines = sorted(trials[:: math.ceil(len(trials) / LINES)], key=lambda trial: trial.workable is True)
    levels = {_bare(key): [_level(trial, key) for trial in lines] for key in sides}
    levels[text(sweep.goal)] = [finite(trial.value) for trial in lines]
    places = {key: _places(values) for key, values in levels.items()}
    rows = [
        {
            "trial": trial.number,
            "group": text(trial.group),
            "key": key,
            "order": order,
            "at": at,
            "value": _value(levels[key][i]),
            "workable": "workable" if trial.workable else "not workable",
        }
        for i, trial in enumerate(lines)
        for order, key in enumerate(levels)
        if (at := places[key][i]) is not None
    ]
    ends = [
        {"key": row["key"], "order": row["order"], "at": row["at"], "value": row["value"]}
        for row in {(row["key"], row["at"]): row for row in rows if row["at"] in (0.0, 1.0)}.values()
    ]
    order = alt.EncodingSortField("order", op="min")
    x = alt.X("key:N", title=None, sort=order, axis=alt.Axis(labelAngle=0, labelLimit=140, grid=True))
    none = alt.Axis(values=[0, 1], title="least to most", labels=False, grid=False)
    y = alt.Y("at:Q", axis=none, scale=alt.Scale(domain=[-0.1, 1.1]))
    which = ["workable", "not workable"]
    base = drawn().mark_line(strokeWidth=1.3, opacity=0.5, point=alt.OverlayMarkDef(size=18), aria=False)
    drawing = base.encode(
        x=x,
        y=y,
        detail="trial:N",
        color=alt.Color("workable:N", title=None, scale=alt.Scale(domain=which, range=[BLUE, "#999999"])),
        tooltip=tips("trial:Q", "group:N", ("key:N", "setting"), "value:N", ("workable:N", "is")),
    )
    words = [
        drawn(name).mark_text(dy=dy, fontSize=11, color=INK, aria=False).encode(x=x, y=y, text="value:N")
        for name, dy in (("least", 12), ("most", -11))
    ]
    few = f" {len(lines)} of {len(trials)} trials are drawn." if len(lines) < len(trials) else ""
    caption = (
        "A line per trial through its settings and its score, each from its least value to its largest, by ratios "
        f"where all are positive.{few}"
    )
    chart = alt.layer(drawing, *words).properties(width=WIDTH, height=300)
    data = {"rows": rows} | {name: [row for row in ends if row["at"] == at] for name, at in (("least", 0), ("most", 1))}
    yield figure("parallel", "Settings side by side", caption, chart, data)


def group_colours(groups: list[str], labels: list[str] | None = None) -> alt.Scale:
    """The colours of groups: those of their methods, or of other labels."""
    known = labels or [group.partition(",")[0] for group in groups]
    return method_colours(known, [text(group) for group in groups], INK)


def short(value: Any) -> str:
    """A setting in few characters."""
    number = finite(value)
    if isinstance(value, bool):
        return str(value).lower()
    return text(value, 20) if number is None else f"{number:.3g}"


def _bare(key: str) -> str:
    return text(key).removeprefix("method.")


def _value(level: float | None) -> str:
    return "" if level is None else "∞" if level == math.inf else f"{level:.4g}"


def _done(sweep: Sweep) -> list[Trial]:
    return [trial for trial in sweep.trials if trial.state in ("finished", "pruned")]


def _level(trial: Trial, key: str) -> float | None:
    """A setting as a number; infinity is one."""
    value = trial.params.get(key)
    return math.inf if value in ("inf", math.inf) else finite(value)


def _end(trial: Trial) -> str:
    if trial.state == "pruned":
        return "pruned"
    return trial.status if trial.status in ("finished", "diverged") else "starved or failed"


def _sides(trials: list[Trial]) -> list[str]:
    """The keys that were swept over numbers, the rates first."""
    keys = dict.fromkeys(key for trial in trials for key in trial.params)
    found = [key for key in keys if len({_level(trial, key) for trial in trials} - {None}) > 1]
    return sorted(found, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), list(keys).index(key)))


def _sliced(sweep: Sweep, sides: list[str]) -> bool:
    """Whether the values are too many for cells, or anywhere in a range."""
    many = any(len({_level(trial, key) for trial in _done(sweep)}) > CELLS for key in sides)
    return many or any(isinstance(values, dict) for values in sweep.space.values())


def _others(trials: list[Trial], sides: list[str]) -> list[str]:
    """The keys that set trials of one group apart, besides those on the sides."""
    keys = dict.fromkeys(key for trial in trials for key in trial.params if key not in sides)
    seen = {key: {(trial.group, repr(trial.params.get(key))) for trial in trials} for key in keys}
    return [key for key in keys if len(seen[key]) > len({group for group, _ in seen[key]})]


def _names(trials: list[Trial], key: str) -> dict[str, str]:
    """The values of a key in order, exact ones to short ones, no two of them alike."""
    levels = {repr(trial.params.get(key)): (_level(trial, key), short(trial.params.get(key))) for trial in trials}
    ordered = sorted(levels, key=lambda one: (levels[one][0] is None, levels[one][0] or 0.0))
    alike = len({name for _, name in levels.values()}) < len(levels)
    return {one: text(one, 40) if alike else levels[one][1] for one in ordered}


def _by_ratio(sweep: Sweep, key: str, trials: list[Trial]) -> bool:
    """Whether an axis is logarithmic: as the range says, or if the values are far apart."""
    values = sweep.space.get(key)
    there = [level for trial in trials if (level := _level(trial, key)) is not None and level < math.inf]
    if not there or min(there) <= 0:
        return False
    return values.get("log") is True if isinstance(values, dict) else max(there) > 20 * min(there)


def _axis(ratios: bool, padding: int) -> alt.Scale:
    kind: dict[str, Any] = {"type": "log"} if ratios else {"type": "linear", "zero": False}
    return alt.Scale(**kind, nice=False, padding=padding)


def _scale(sweep: Sweep) -> Any:
    """Colours of scores: bright is good."""
    scores = sorted(one for trial in _done(sweep) if (one := finite(trial.value)) is not None)
    low, high = (scores[0], scores[-1]) if scores else (0.0, 1.0)
    far = sweep.best != "accuracy" and low > 0 and high > 20 * low
    small = sweep.best != "accuracy"  # is better
    return alt.Scale(type="log" if far else "linear", scheme="viridis", domain=[low, high], reverse=small)


def _places(levels: list[float | None]) -> list[float | None]:
    """Values as places between 0 and 1, by ratios if all are positive; infinity is a step beyond the others."""
    there = [level for level in levels if level is not None and level < math.inf]
    top = 0.9 if math.inf in levels else 1.0
    by = math.log if there and min(there) > 0 else float
    low, high = (by(min(there)), by(max(there))) if there else (0.0, 0.0)

    def place(level: float) -> float:
        return 1.0 if level == math.inf else round(top * (by(level) - low) / ((high - low) or 1.0), 4)

    return [None if level is None else place(level) for level in levels]
