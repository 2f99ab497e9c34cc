"""A sweep's sections of a report: the best settings, how many settings work, and charts of its trials."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

from tardygrad.report.loader import finite
from tardygrad.results.blocks import Block, Code, Figure, LegendEntry, Section, Table, with_suffix
from tardygrad.results.figure import LABEL_EXPR, PANEL, WIDTH, figure, named_data, percent, wrapped
from tardygrad.results.table import score_text
from tardygrad.results.theme import BLUE, INK, legend_colours, method_legend, tips
from tardygrad.runs.history import is_locked
from tardygrad.runs.kinds import is_simulated
from tardygrad.runs.record import Row
from tardygrad.runs.record_values import printable
from tardygrad.runs.run import plural
from tardygrad.sweeps import Sweep, Trial, groups, remark
from tardygrad.sweeps.config import command, overrides
from tardygrad.sweeps.study import importances
from tardygrad.sweeps.trials import best_of, direction_note, ranked

TOP = 10  # trials in the table of the best
FIRST = ("method.lr", "method.local_lr")  # of the keys
CROSS = "M-1,-1L1,1M-1,1L1,-1"
SHAPES = {"pruned": "triangle-down", "diverged": CROSS, "starved or failed": "diamond", "finished": "square"}


def sweep_sections(sweep: Sweep, name: str, number: int, folder: Path | None = None) -> list[Section]:
    """The sections of a sweep, finished or not.

    Args:
        name: the name of its folder; empty if the page has it as its title.
        number: its number among several, from 1.
        folder: where it is, for the command that continues it.
    """
    suffix = "" if number == 1 else f"-{number}"
    titles = ("Best settings", "All trials")
    if name:
        titles = (f"Sweep {name}: best settings", f"Sweep {name}: all trials")
    best = [_progress(sweep), *_resume(sweep, folder), _best(sweep), *_top(sweep), *_workable(sweep)]
    charts = [*history(sweep), *importance(sweep), *slices(sweep)]
    scores = with_suffix(charts, suffix) or ["No trial has finished yet."]
    return [
        Section(f"sweep{suffix}", titles[0], with_suffix(best, suffix)),
        Section(f"space{suffix}", titles[1], scores),
    ]


def sweep_headline(sweep: Sweep) -> str:
    """The result of a sweep in one sentence."""
    done, best = len(sweep.trials), best_of(sweep)
    trials = plural(sweep.total, "trial") if done == sweep.total else f"{done} of {plural(sweep.total, 'trial')} so far"
    if best is None or best.value is None:
        return f"{trials}, none with a {printable(sweep.goal)}."
    counted = [group for group in groups(sweep) if group.share is not None]
    share = f"; {sum(g.workable for g in counted)} of {sum(g.judged for g in counted)} are workable" if counted else ""
    several = len({trial.group for trial in sweep.trials}) > 1
    which = f"Trial {best.number}{f' ({printable(best.group)})' * several}"
    value = score_text(sweep.best, best.value)
    return f"{which} is the best of {trials}, with a {printable(sweep.goal)} of {value}{share}."


def _progress(sweep: Sweep) -> str:
    statuses = [trial.status for trial in sweep.trials]
    pruned = f", {statuses.count('pruned')} of them pruned" if "pruned" in statuses else ""
    done = f"{len(statuses)} of {plural(sweep.total, 'trial')} are done{pruned}."
    warning = remark(sweep)
    note = f" Note: {printable(warning, 300)}." if warning else ""
    return f"{done} The best is chosen by {printable(sweep.goal)}{direction_note(sweep)}.{note}"


def _resume(sweep: Sweep, folder: Path | None) -> Iterator[Code]:
    """The command that continues a sweep which has trials to go and is not running."""
    if folder and len(sweep.trials) < sweep.total and not sweep.config.get("factory") and is_locked(folder) is False:
        yield Code("Continue the sweep:", f"tardygrad sweep {shlex.quote(printable(folder, 1000))}")


class Column(NamedTuple):
    """A score of trials in a table."""

    heading: str
    cell: Callable[[Trial | None], str]


def _scores(sweep: Sweep) -> list[Column]:
    """What the sweep optimizes, and the other scores that its trials have."""
    name = "accuracy" if sweep.score in ("loss", "time") else sweep.score
    columns = [Column(printable(sweep.goal), lambda trial: score_text(sweep.best, trial and trial.value))]
    if sweep.best != name and any(trial.accuracy is not None for trial in sweep.trials):
        heading = f"test {printable(name.replace('_', ' '))}"
        columns.append(Column(heading, lambda trial: score_text(name, trial and trial.accuracy)))
    if sweep.best != "loss" and any(trial.loss is not None for trial in sweep.trials):
        columns.append(Column("test loss", lambda trial: score_text("loss", trial and trial.loss)))
    return columns


def _best(sweep: Sweep) -> Table:
    """The best trial of every group."""
    scores, found = _scores(sweep), groups(sweep)
    others = [name for name in ("pruned", "other") if any(getattr(group, name) for group in found)]
    counted = ("workable", "trials", "diverged", *others)
    heads = ("group", *(column.heading for column in scores), *counted, _seconds(sweep), "settings")
    target = finite(sweep.config.get("target"))
    rows: list[tuple[str, ...]] = []
    for group in found:
        share = "–" if group.share is None else f"{group.workable} of {group.judged} ({group.share:.0%})"
        ends = (str(group.diverged), *(str(getattr(group, name)) for name in others))
        counts = (share, str(group.trials), *ends)
        best = group.best
        settings = "none" if sweep.best != "time" or target is None else f"none reached {target:g}"
        if best:
            settings = ", ".join(f"{printable(key)}={short(value)}" for key, value in best.params.items())
        cells = (column.cell(best) for column in scores)
        rows.append((printable(group.name), *cells, *counts, score_text("time", best and best.time), settings))
    return Table(heads, rows)


def _seconds(sweep: Sweep) -> str:
    facts = [row["facts"] for trial in sweep.trials for row in trial.seeds if row.get("facts")]
    simulated = is_simulated(sweep.config) or (facts and all(each.get("simulated") is True for each in facts))
    return "simulated seconds" if simulated else "seconds"


def _top(sweep: Sweep) -> Iterator[Block]:
    """The best trials of all groups with exact settings, and the command that runs the best one."""
    best = ranked(sweep, sweep.trials)[:TOP]
    if not best:
        return
    scores = _scores(sweep)
    several = len({trial.group for trial in sweep.trials}) > 1
    yield f"The best {'trials' if len(best) > 1 else 'trial'}{' of all groups' * several}:"
    rows = [
        (
            str(trial.number),
            *[printable(trial.group)] * several,
            *(column.cell(trial) for column in scores),
            score_text("time", trial.time),
            printable(" ".join(overrides(trial.params)), 400),
        )
        for trial in best
    ]
    heads = (column.heading for column in scores)
    yield Table(("trial", *["group"] * several, *heads, _seconds(sweep), "settings"), rows)
    first = best[0]
    if factory := sweep.config.get("factory"):
        arguments = ", ".join(f"{key}={value!r}" for key, value in first.params.items())
        yield Code(f"Run trial {first.number} again, in Python:", printable(f"{factory}({arguments}, seed=0)", 2000))
    elif "source" in sweep.config:
        run = shlex.join(command(sweep.config, first.params))
        yield Code(f"Run trial {first.number} again, for all its rounds:", printable(run, 2000))


def _workable(sweep: Sweep) -> Iterator[Block]:
    found = [group for group in groups(sweep) if group.share is not None]
    if not found:
        return
    if len(found) == 1:  # the table has its share
        yield f"{_criterion(sweep)} Failed trials do not count."
        return
    rows: list[Row] = [
        {"group": printable(group.name), "share": group.share, "count": f"{group.workable} of {group.judged}"}
        for group in found
    ]
    base = named_data().encode(
        x=alt.X("share:Q", title="share of workable settings", axis=percent(), scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("group:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
    )
    bar = base.mark_bar().encode(
        color=legend_colours("group:N", group_legend([group.name for group in found])),
        tooltip=tips("group:N", ("share:Q", "share", ".1%"), ("count:N", "settings")),
    )
    words = base.mark_text(align="left", dx=5, color=INK).encode(text="count:N")
    chart = alt.layer(bar, words).properties(width=WIDTH - 260, height=alt.Step(26))
    caption = f"{_criterion(sweep)} Failed trials do not count."
    table = Table(("group", "workable", "share"), [(row["group"], row["count"], f"{row['share']:.1%}") for row in rows])
    yield figure("workable", "Workable settings", caption, chart, {"rows": rows}, table)


def _criterion(sweep: Sweep) -> str:
    target, share = finite(sweep.config.get("target")), finite(sweep.config.get("workable"))
    if target is not None:
        return f"A setting is workable if its runs finished and reached {target:g}."
    score = printable(sweep.config.get("score", "score"))
    way = "most" if share is None else f"at least {share:.0%}"
    return (
        f"A setting is workable if its runs finished and their mean {score} covers {way} of the way from that of the "
        "initial model x_0 to that of the best setting."
    )


def history(sweep: Sweep) -> Iterator[Figure]:
    """The score of every trial in the order of their numbers, and the best one so far."""
    scored, unscored = _rows(sweep)
    if len(scored) < 2:
        return
    highest, best, last = sweep.higher, list[Row](), sweep.trials[-1].number
    for row in scored:
        if not best or (row["score"] > best[-1]["score"] if highest else row["score"] < best[-1]["score"]):
            best.append({"trial": row["trial"], "score": row["score"]})
    best.append({"trial": last, "score": best[-1]["score"]})
    legend, goal = _legend(sweep.trials), printable(sweep.goal)
    numbers = [trial.number for trial in sweep.trials]
    few = numbers if len(numbers) <= 10 else alt.Undefined  # there Vega would tick at halves
    axis = alt.Axis(format=",d", tickMinStep=1, values=few)
    x = alt.X("trial:Q", title="trial", scale=alt.Scale(nice=False, zero=False, padding=8), axis=axis)
    line = named_data("best").mark_line(interpolate="step-after", color=INK, opacity=0.7, strokeWidth=1.5, aria=False)
    layers = [line.encode(x=x, y=_level_axis(sweep, goal)), *_dots(sweep, unscored, x, title=goal, height=220)]
    chart = alt.layer(*layers).properties(width=WIDTH, height=220)
    caption = f"The {goal} of every trial, and the best one so far (line).{_unscored_note(sweep, unscored)}"
    data = {"rows": scored, "best": best} | ({"lost": unscored} if unscored else {})
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
    trials, sides = sweep.trials, _numeric_keys(sweep.trials)
    if not sides:
        return
    scored, unscored = _rows(sweep, sides)
    legend, goal, charts = _legend(trials), printable(sweep.goal), []
    for i, key in enumerate(sides):
        axis = alt.Axis(format="~g", labelOverlap="greedy", labelSeparation=6, grid=False, tickCount=6)
        x = alt.X(f"at{i}:Q", title=_bare(key), scale=_axis_scale(_is_log(sweep, key, trials), padding=8), axis=axis)
        place, title = (f"at{i}:Q", printable(key), ".5~g"), goal if i % 2 == 0 else None
        layers = _dots(sweep, unscored, x, place, title=title, height=200, opacity=0.75)
        charts.append(alt.layer(*layers).properties(width=PANEL - 20, height=200))
    caption = f"The {goal} against each setting, one dot per trial.{_unscored_note(sweep, unscored)}"
    if math.inf in (_level(trial, key) for trial in trials for key in sides):
        caption += " Infinite settings have no dot."
    data = {"rows": scored} | ({"lost": unscored} if unscored else {})
    shown = legend if len(legend) > 1 else []
    yield figure("slices", "Scores by setting", caption, alt.concat(*charts, columns=2), data, legend=shown)


def _rows(sweep: Sweep, keys: Sequence[str] = ()) -> tuple[list[Row], list[Row]]:
    """The trials with a score and those without, with their values of the keys."""
    found: tuple[list[Row], list[Row]] = [], []
    for trial in sweep.trials:
        score, end = finite(trial.value), "starved or failed"
        end = trial.status if trial.status in SHAPES else end
        row = {"trial": trial.number, "group": printable(trial.group), "score": score, "end": end}
        found[score is None].append(row | {f"at{i}": finite(_level(trial, key)) for i, key in enumerate(keys)})
    return found


def _dots(
    sweep: Sweep, lost: list[Row], x: alt.X, *place: tuple[str, ...], title: str | None, height: int, opacity: float = 1
) -> list[Any]:
    """A dot for each trial at its score; those without one, the data `lost`, are at the worst edge."""
    score = ("score:Q", printable(sweep.goal), _form(sweep))
    style = {
        "x": x,
        "color": legend_colours("group:N", _legend(sweep.trials)),
        "tooltip": tips("trial:Q", "group:N", *place, score, ("end:N", "status")),
    }
    layers = [
        named_data().mark_circle(size=42, opacity=opacity, aria=False).encode(y=_level_axis(sweep, title), **style)
    ]
    if lost:
        seen = [end for end in SHAPES if end in {row["end"] for row in lost}]
        shape = alt.Shape("end:N", title=None, scale=alt.Scale(domain=seen, range=[SHAPES[end] for end in seen]))
        worst = alt.value(height if sweep.higher else 0)
        marks = named_data("lost").mark_point(size=45, strokeWidth=1.4, aria=False)
        layers.append(marks.encode(y=worst, shape=shape, **style))
    return layers


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


def _level(trial: Trial, key: str) -> float | None:
    """A setting as a number, which may be infinite."""
    value = trial.params.get(key)
    return math.inf if value in ("inf", math.inf) else finite(value)


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


def _form(sweep: Sweep) -> str:
    """The format of scores."""
    return ".2~%" if sweep.best == "accuracy" else ".4~g"


def _level_axis(sweep: Sweep, title: str | None) -> alt.Y:
    """The position of scores."""
    scores = [score for trial in sweep.trials if (score := finite(trial.value)) is not None]
    log = not sweep.higher and bool(scores) and 0 < 20 * min(scores) < max(scores)
    axis = alt.Axis(format=_form(sweep), tickCount=5)
    return alt.Y("score:Q", title=title, scale=_axis_scale(log, padding=14), axis=axis)
