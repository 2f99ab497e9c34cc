"""A sweep's sections of a report: the best settings and how many settings work."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import altair as alt

from tardygrad.report.loader import finite
from tardygrad.report.sweep_charts import group_legend, history, importance, short, slices
from tardygrad.results.blocks import Block, Code, Section, Table, with_suffix
from tardygrad.results.figure import WIDTH, figure, named_data, percent
from tardygrad.results.theme import INK, legend_colours, tips
from tardygrad.runs.history import is_locked
from tardygrad.runs.kinds import is_simulated
from tardygrad.runs.record import Row
from tardygrad.runs.record_values import printable
from tardygrad.runs.run import plural
from tardygrad.sweeps import Sweep, Trial, groups, remark
from tardygrad.sweeps.config import command, overrides
from tardygrad.sweeps.result import direction_note

TOP = 10  # trials in the table of the best


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
    columns = [Column(printable(sweep.goal), lambda trial: _shown(sweep.best)(trial and trial.value))]
    if sweep.best != name and any(trial.accuracy is not None for trial in sweep.trials):
        heading = f"test {printable(name.replace('_', ' '))}"
        columns.append(Column(heading, lambda trial: _shown(name)(trial and trial.accuracy)))
    if sweep.best != "loss" and any(trial.loss is not None for trial in sweep.trials):
        columns.append(Column("test loss", lambda trial: _number(trial and trial.loss)))
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
        rows.append((printable(group.name), *cells, *counts, _number(best and best.time), settings))
    return Table(heads, rows)


def _seconds(sweep: Sweep) -> str:
    facts = [row["facts"] for trial in sweep.trials for row in trial.seeds if row.get("facts")]
    simulated = is_simulated(sweep.config) or (facts and all(each.get("simulated") is True for each in facts))
    return "simulated seconds" if simulated else "seconds"


def _top(sweep: Sweep) -> Iterator[Block]:
    """The best trials of all groups with exact settings, and the command that runs the best one."""
    valued = [(trial.value, trial) for trial in sweep.trials if trial.value is not None]
    sign = -1.0 if sweep.higher else 1.0
    ranked = [trial for _, trial in sorted(valued, key=lambda pair: sign * pair[0])][:TOP]
    if not ranked:
        return
    scores = _scores(sweep)
    several = len({trial.group for trial in sweep.trials}) > 1
    yield f"The best {'trials' if len(ranked) > 1 else 'trial'}{' of all groups' * several}:"
    rows = [
        (
            str(trial.number),
            *[printable(trial.group)] * several,
            *(column.cell(trial) for column in scores),
            _number(trial.time),
            printable(" ".join(overrides(trial.params)), 400),
        )
        for trial in ranked
    ]
    heads = (column.heading for column in scores)
    yield Table(("trial", *["group"] * several, *heads, _seconds(sweep), "settings"), rows)
    best = ranked[0]
    if factory := sweep.config.get("factory"):
        arguments = ", ".join(f"{key}={value!r}" for key, value in best.params.items())
        yield Code(f"Run trial {best.number} again, in Python:", printable(f"{factory}({arguments}, seed=0)", 2000))
    elif "source" in sweep.config:
        run = shlex.join(command(sweep.config, best.params))
        yield Code(f"Run trial {best.number} again, for all its rounds:", printable(run, 2000))


def _shown(score: str) -> Callable[[float | None], str]:
    return _share if score == "accuracy" else _number


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


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
