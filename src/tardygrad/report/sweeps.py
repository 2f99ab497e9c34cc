"""A sweep's part of a report: best settings, and how many settings work at all; space.py says where they lie."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import altair as alt

from tardygrad.report.blocks import Block, Code, Figure, Part, Table
from tardygrad.report.figure import WIDTH, drawn, figure, percent
from tardygrad.report.loader import finite, text
from tardygrad.report.sweep_charts import group_colours, heat, parallel, short, slices
from tardygrad.report.theme import INK, tips
from tardygrad.runs.record import Row
from tardygrad.runs.run import plural
from tardygrad.sweep import Sweep, groups, remark
from tardygrad.sweep.config import command, overrides

TOP = 10  # trials in the table of the best


def sweep_parts(sweep: Sweep, name: str, number: int) -> list[Part]:
    """A sweep, as far as it has come.

    Args:
        name: its folder's.
        number: which it is of several, from 1.
    """
    best: list[Block] = [_said(sweep), Table(*_best(sweep)), *_top(sweep), *_workable(sweep)]
    where: list[Block] = [*heat(sweep), *slices(sweep), *parallel(sweep)]
    mark = "" if number == 1 else f"-{number}"
    marked = [
        [one._replace(key=one.key + mark) if isinstance(one, Figure) else one for one in blocks]
        for blocks in (best, where)
    ]
    return [
        Part(f"sweep{mark}", f"Sweep {name}: best settings", marked[0]),
        Part(f"space{mark}", f"Sweep {name}: where they lie", marked[1] or ["No trial is done yet."]),
    ]


def _said(sweep: Sweep) -> str:
    states = [trial.state for trial in sweep.trials]
    pruned = f", {states.count('pruned')} of them pruned" if "pruned" in states else ""
    done = f"{states.count('finished') + states.count('pruned')} of {plural(sweep.total, 'trial')} are done{pruned}."
    words = remark(sweep)
    beware = f" Beware: {text(words, 300)}." if words else ""
    return f"{done} The best is chosen by {text(sweep.goal)}.{beware}"


def _best(sweep: Sweep) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    own_goal = text(sweep.goal) not in ("test accuracy", "test loss")  # which stand there anyway
    goal = (text(sweep.goal),) if own_goal else ()
    found = groups(sweep)
    others = [name for name in ("pruned", "other") if any(getattr(group, name) for group in found)]
    heads = ("group", "trials", "diverged", *others, "workable", *goal, "test accuracy", "test loss", "time (s)")
    target = finite(sweep.asked.get("target"))
    rows: list[tuple[str, ...]] = []
    for group in found:
        share = "–" if group.share is None else f"{group.workable} of {group.judged} ({group.share:.0%})"
        counts = (str(group.diverged), *(str(getattr(group, name)) for name in others))
        own = (text(group.name), f"{group.done} of {group.trials}", *counts, share)
        best = group.best
        if best is None:
            none = "none" if sweep.best != "time" or target is None or not group.done else f"none reached {target:g}"
            rows.append((*own, *("–" for _ in goal), "–", "–", "–", none))
            continue
        scores = (_share(best.accuracy), _number(best.loss), _number(best.time))
        settings = ", ".join(f"{text(key)}={short(value)}" for key, value in best.params.items())
        rows.append((*own, *(_number(best.value) for _ in goal), *scores, settings))
    return (*heads, "settings"), rows


def _top(sweep: Sweep) -> Iterator[Block]:
    """The best trials of all groups, to the last digit, and what runs the first of them."""
    valued = [(trial.value, trial) for trial in sweep.trials if trial.value is not None and trial.state == "finished"]
    sign = -1.0 if sweep.best == "accuracy" else 1.0
    ranked = [trial for _, trial in sorted(valued, key=lambda one: sign * one[0])][:TOP]
    if not ranked:
        return
    shown = _share if sweep.best == "accuracy" else _number
    yield "The best trials of all:" if len(ranked) > 1 else "The best trial of all:"
    yield Table(
        ("trial", "group", text(sweep.goal), *(["test loss"] if sweep.best != "loss" else []), "time (s)", "settings"),
        [
            (
                str(trial.number),
                text(trial.group),
                shown(trial.value),
                *([_number(trial.loss)] if sweep.best != "loss" else []),
                _number(trial.time),
                text(" ".join(overrides(trial.params)), 400),
            )
            for trial in ranked
        ],
    )
    best = ranked[0]
    if run := command(sweep.asked, best.params):
        yield Code(f"To run trial {best.number}, for all its rounds:", text(shlex.join(run), 2000))
    else:
        said = f"To run trial {best.number}, add these to `tardygrad run` and what else the sweep was asked:"
        yield Code(said, text(shlex.join(overrides(best.params)), 2000))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _workable(sweep: Sweep) -> Iterator[Figure]:
    found = [group for group in groups(sweep) if group.share is not None]
    if not found:
        return
    rows: list[Row] = [
        {"group": text(group.name), "share": group.share, "said": f"{group.workable} of {group.judged}"}
        for group in found
    ]
    base = drawn().encode(
        x=alt.X("share:Q", title="share of workable settings", axis=percent(), scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("group:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
    )
    bar = base.mark_bar().encode(
        color=alt.Color("group:N", legend=None, scale=group_colours([group.name for group in found])),
        tooltip=tips("group:N", ("share:Q", "share", ".1%"), ("said:N", "settings")),
    )
    words = base.mark_text(align="left", dx=5, color=INK).encode(text="said:N")
    chart = alt.layer(bar, words).properties(width=WIDTH - 260, height=alt.Step(26))
    caption = f"How many settings work: those that ended and {_near(sweep)}. Trials that failed do not count."
    table = Table(("group", "workable", "share"), [(row["group"], row["said"], f"{row['share']:.1%}") for row in rows])
    yield figure("workable", "Workable settings", caption, chart, {"rows": rows}, table)


def _near(sweep: Sweep) -> str:
    target, share = finite(sweep.asked.get("target")), finite(sweep.asked.get("workable"))
    if target is not None:
        return f"reached {target:g}"
    score = text(sweep.asked.get("score", "score"))
    way = "near enough" if share is None else f"at least {share:g} of the way"
    return f"came {way} from the {score} of x_0 to the best of all"
