"""A sweep's part of a report: best settings, how many settings work at all, and where they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from tardygrad.figures import colours
from tardygrad.record import Row
from tardygrad.report.blocks import Block, Figure, Part, Table
from tardygrad.report.figure import BLUE, INK, WIDTH, drawn, figure, percent
from tardygrad.report.read import finite, text
from tardygrad.sweep import Sweep, Trial, groups

CELLS, FACETS, LINES = 16, 16, 600  # values on a side of a heat map, heat maps in a row, trials as lines
FIRST = ("method.lr", "method.local_lr")  # the sides of a heat map


def sweep_parts(sweep: Sweep, name: str, number: int) -> list[Part]:
    """A sweep, as far as it has come.

    Args:
        name: its folder's.
        number: which it is of several, from 1.
    """
    done = sum(trial.state in ("finished", "pruned") for trial in sweep.trials)
    said = f"{done} of {sweep.total} trials are done. The best is chosen by {text(sweep.goal)}."
    best: list[Block] = [said, Table(*_best(sweep)), *_workable(sweep)]
    where: list[Block] = [*_heat(sweep), *_parallel(sweep)]
    mark = "" if number == 1 else f"-{number}"
    marked = [
        [one._replace(key=one.key + mark) if isinstance(one, Figure) else one for one in blocks]
        for blocks in (best, where)
    ]
    return [
        Part(f"sweep{mark}", f"Sweep {name}: best settings", marked[0]),
        Part(f"space{mark}", f"Sweep {name}: where they lie", marked[1] or ["No trial is done yet."]),
    ]


def _best(sweep: Sweep) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    own_goal = text(sweep.goal) not in ("test accuracy", "test loss")  # which stand there anyway
    goal = (text(sweep.goal),) if own_goal else ()
    heads = ("group", "trials", "diverged", "workable", *goal, "test accuracy", "test loss", "time (s)", "settings")
    rows: list[tuple[str, ...]] = []
    for group in groups(sweep):
        share = "–" if group.share is None else f"{group.workable} of {_judged(sweep, group.name)} ({group.share:.0%})"
        own = (text(group.name), f"{group.done} of {group.trials}", str(group.diverged), share)
        if group.best is None:
            rows.append((*own, *("–" for _ in goal), "–", "–", "–", "none"))
            continue
        best = group.best
        accuracy = "–" if best.accuracy is None else f"{best.accuracy:.1%}"
        scores = (accuracy, _number(best.loss), _number(best.time))
        settings = ", ".join(f"{text(key)}={_short(value)}" for key, value in best.params.items())
        rows.append((*own, *(_number(best.value) for _ in goal), *scores, settings))
    return heads, rows


def _judged(sweep: Sweep, group: str) -> int:
    return sum(trial.workable is not None for trial in sweep.trials if trial.group == group)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _workable(sweep: Sweep) -> Iterator[Figure]:
    found = [group for group in groups(sweep) if group.share is not None]
    if not found:
        return
    rows = [
        {"group": text(group.name), "share": group.share, "said": f"{group.workable} of {_judged(sweep, group.name)}"}
        for group in found
    ]
    domain = [row["group"] for row in rows]
    strokes = colours(group.name.partition(",")[0] for group in found)
    ink = [INK if stroke.colour == "#000000" else stroke.colour for stroke in strokes]
    base = drawn().encode(
        x=alt.X("share:Q", title="share of workable settings", axis=percent(), scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("group:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
    )
    bar = base.mark_bar().encode(
        color=alt.Color("group:N", legend=None, scale=alt.Scale(domain=domain, range=ink)),
        tooltip=[alt.Tooltip("group:N"), alt.Tooltip("share:Q", format=".1%"), alt.Tooltip("said:N", title="settings")],
    )
    words = base.mark_text(align="left", dx=5, color=INK).encode(text="said:N")
    chart = alt.layer(bar, words).properties(width=WIDTH - 260, height=alt.Step(26))
    caption = (
        "How many settings work: those that ended and came near enough to the best of all. Pruned trials do not count."
    )
    table = Table(("group", "workable", "share"), [(row["group"], row["said"], f"{row['share']:.1%}") for row in rows])
    yield figure("workable", "Workable settings", caption, chart, {"rows": rows}, table)


def _sides(trials: list[Trial]) -> list[str]:
    """The keys that were swept over numbers, the rates first."""
    keys = dict.fromkeys(key for trial in trials for key in trial.params)
    found = [key for key in keys if len({_level(trial, key) for trial in trials} - {None}) > 1]
    return sorted(found, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), list(keys).index(key)))


def _others(trials: list[Trial], sides: list[str]) -> list[str]:
    """The keys that set trials of one group apart, besides those on the sides."""
    keys = dict.fromkeys(key for trial in trials for key in trial.params if key not in sides)
    seen = {key: {(trial.group, _short(trial.params.get(key))) for trial in trials} for key in keys}
    return [key for key in keys if len(seen[key]) > len({group for group, _ in seen[key]})]


def _level(trial: Trial, key: str) -> float | None:
    """A setting as a number; infinity is one."""
    value = trial.params.get(key)
    return math.inf if value in ("inf", math.inf) else finite(value)


def _done(sweep: Sweep) -> list[Trial]:
    return [trial for trial in sweep.trials if trial.state in ("finished", "pruned")]


def _scale(sweep: Sweep) -> Any:
    """Colours of scores: dark is good."""
    scores = sorted(one for trial in _done(sweep) if (one := finite(trial.value)) is not None)
    low, high = (scores[0], scores[-1]) if scores else (0.0, 1.0)
    far = sweep.best != "accuracy" and low > 0 and high > 20 * low
    small = sweep.best != "accuracy"  # is better, and the better is the brighter
    return alt.Scale(type="log" if far else "linear", scheme="viridis", domain=[low, high], reverse=small)


def _heat(sweep: Sweep) -> Iterator[Figure]:
    trials = _done(sweep)
    sides = _sides(trials)
    if len(sides) < 2:
        return
    across, up = sides[:2]
    others = _others(trials, sides[:2])
    rows: list[Row] = []
    for trial in trials:
        rest = ", ".join(f"{_bare(key)} {_short(trial.params.get(key))}" for key in others)
        rows.append(
            {
                "across": _level(trial, across),
                "up": _level(trial, up),
                "others": rest,
                "group": text(trial.group),
                "score": finite(trial.value),
                "mark": "" if trial.status == "finished" else "×",
                "status": text(trial.status),
                "trial": trial.number,
            }
        )
    facets = list(dict.fromkeys(row["others"] for row in rows))
    shown = [row for row in rows if row["others"] in facets[:FACETS]]
    grid = max(len({row[side] for row in shown}) for side in ("across", "up")) <= CELLS
    kind = "O" if grid else "Q"
    scale = alt.Undefined if grid else alt.Scale(type="log" if _positive(shown) else "linear", nice=False)
    axis = alt.Axis(format="~g", labelAngle=0, labelOverlap="greedy", labelSeparation=4, titlePadding=8)
    base: Any = alt.Chart().encode(
        x=alt.X(f"across:{kind}", title=_bare(across), scale=scale, axis=axis),
        y=alt.Y(f"up:{kind}", title=_bare(up), scale=scale, axis=axis, sort="descending" if grid else alt.Undefined),
        tooltip=[
            alt.Tooltip("group:N"),
            alt.Tooltip("trial:Q"),
            alt.Tooltip("across:Q", title=text(across), format="~g"),
            alt.Tooltip("up:Q", title=text(up), format="~g"),
            alt.Tooltip("others:N", title="with"),
            alt.Tooltip("score:Q", title=text(sweep.goal), format=".4~g"),
            alt.Tooltip("status:N"),
        ],
    )
    colour = alt.Color("score:Q", title=text(sweep.goal), scale=_scale(sweep), legend=alt.Legend(gradientLength=200))
    mark = base.mark_rect(stroke=INK, strokeOpacity=0.2, aria=False) if grid else base.mark_circle(size=70, aria=False)
    cross = base.mark_text(color=INK, fontSize=13, aria=False).encode(text="mark:N")
    step = alt.Step(40 if len({row["across"] for row in shown}) <= 6 else 26)
    size: dict[str, Any] = {"width": step, "height": step} if grid else {"width": 220, "height": 220}
    chart = alt.layer(mark.encode(color=colour), cross, data=alt.NamedData("rows")).properties(**size)
    head, side = (
        alt.Header(labelLimit=220, labelFontSize=11),
        alt.Header(labelLimit=200, labelAngle=0, labelAlign="left"),
    )
    placed: dict[str, Any] = {"row": alt.Row("group:N", title=None, sort=None, header=side)}
    if others:
        placed["column"] = alt.Column("others:N", title=None, sort=None, header=head)
    caption = (
        f"The {text(sweep.goal)} of every setting, {text(across)} against {text(up)}, a row for each group; the darker "
        "the better, and × is one that diverged, starved or was pruned."
    )
    if len(facets) > FACETS:
        caption += f" Of {len(facets)} combinations of the other settings the first {FACETS} are drawn."
    yield figure("settings", "Scores of settings", caption, chart.facet(**placed, spacing=10), {"rows": shown})


def _short(value: Any) -> str:
    number = finite(value)
    if isinstance(value, bool):
        return str(value).lower()
    return text(value, 20) if number is None else f"{number:.3g}"


def _bare(key: str) -> str:
    return text(key).removeprefix("method.")


def _positive(rows: list[Row]) -> bool:
    return all((row[side] or 0) > 0 for row in rows for side in ("across", "up"))


def _parallel(sweep: Sweep) -> Iterator[Figure]:
    trials = _done(sweep)
    sides = _sides(trials)
    if not sides:
        return
    lines = trials[:: math.ceil(len(trials) / LINES)]
    places = {key: _places([_level(trial, key) for trial in lines]) for key in sides}
    score = _places([finite(trial.value) for trial in lines])
    rows = [
        {
            "trial": trial.number,
            "group": text(trial.group),
            "key": _bare(key),
            "order": order,
            "at": at[i],
            "value": "∞" if shown == math.inf else f"{shown:.4g}",
            "workable": "workable" if trial.workable else "not workable",
        }
        for i, trial in enumerate(lines)
        for order, (key, at, shown) in enumerate(
            [*((key, places[key], _level(trial, key)) for key in sides), (text(sweep.goal), score, finite(trial.value))]
        )
        if at[i] is not None
    ]
    order = alt.EncodingSortField("order", op="min")
    ends = alt.Axis(values=[0, 1], title="least to most", labels=False, grid=False)
    base = drawn().mark_line(strokeWidth=1.3, opacity=0.45, point=alt.OverlayMarkDef(size=18), aria=False)
    chart = base.encode(
        x=alt.X("key:N", title=None, sort=order, axis=alt.Axis(labelAngle=0, labelLimit=140, grid=True)),
        y=alt.Y("at:Q", axis=ends, scale=alt.Scale(domain=[-0.03, 1.03])),
        detail="trial:N",
        color=alt.Color(
            "workable:N", title=None, scale=alt.Scale(domain=["workable", "not workable"], range=[BLUE, "#999999"])
        ),
        tooltip=[
            alt.Tooltip("trial:Q"),
            alt.Tooltip("group:N"),
            alt.Tooltip("key:N", title="setting"),
            alt.Tooltip("value:N"),
            alt.Tooltip("workable:N", title="is"),
        ],
    ).properties(width=WIDTH, height=280)
    few = f" {len(lines)} of {len(trials)} trials are drawn." if len(lines) < len(trials) else ""
    caption = (
        "A line per trial through its settings and its score, each from its least value to its largest, by ratios "
        f"where all are positive.{few}"
    )
    yield figure("parallel", "Settings side by side", caption, chart, {"rows": rows})


def _places(levels: list[float | None]) -> list[float | None]:
    """Values as places between 0 and 1, by ratios if all are positive; infinity is a step beyond the others."""
    there = [level for level in levels if level is not None and level < math.inf]
    top = 0.9 if math.inf in levels else 1.0
    by = math.log if there and min(there) > 0 else float
    low, high = (by(min(there)), by(max(there))) if there else (0.0, 0.0)

    def place(level: float) -> float:
        return 1.0 if level == math.inf else round(top * (by(level) - low) / ((high - low) or 1.0), 4)

    return [None if level is None else place(level) for level in levels]
