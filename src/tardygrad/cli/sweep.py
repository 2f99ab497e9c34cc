"""`sweep`: a spec with many settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tardygrad.cli.output import say, show, show_json, show_table, waiting
from tardygrad.cli.run import new_run_dir
from tardygrad.cli.session import Signals, torch_threads
from tardygrad.errors import Invalid
from tardygrad.runs.record import Row
from tardygrad.runs.run import plural
from tardygrad.sweep import Group, Sweep, Trial, groups, read, remark

if TYPE_CHECKING:
    from tardygrad.sweep.runner import Crew


def sweep(
    source: str,
    overrides: list[str] | None,
    over: list[str] | None,
    sampler: str | None,
    trials: int | None,
    seeds: int | None,
    best: str | None,
    budget: float | None,
    target: float | None,
    prune: bool,
    workable: float | None,
    jobs: int,
    out: str | None,
    json: bool,
) -> None:
    """Run a spec with many settings, or continue a sweep."""
    from tardygrad.sweep.config import again, ask, build
    from tardygrad.sweep.runner import Crew, same

    given: dict[str, Any] = {"over": over, "sampler": sampler, "trials": trials, "seeds": seeds, "best": best}
    given |= {"budget": budget, "target": target, "prune": prune or None, "workable": workable}
    given = {name: value for name, value in given.items() if value is not None}
    with torch_threads(1):
        if (Path(source) / "sweep.json").is_file():
            if more := [*(overrides or ()), *(f"--{name}" for name in given), *(["--out"] if out else [])]:
                raise Invalid(f"a sweep goes on as it was asked, got {more[0]!r} too. Give its folder and --jobs only.")
            folder, asked = Path(source), again(Path(source))
            with waiting(f"preparing {asked.spec['task']['kind']}; the first time may take minutes"):
                task = build(asked)
        else:
            with waiting("preparing the task; the first time may take minutes"):
                asked, task = ask(source, overrides or (), **given)
            folder = Path(out) if out else new_run_dir(f"{asked.name}-sweep")
            if (folder / "sweep.json").is_file():
                same(folder, asked)
        before = read(folder).trials if (folder / "sweep.json").is_file() else None
        done = sum(trial.status is not None for trial in before or ())
        left = "" if before is None else f": {done} done, {asked.trials - done} to go"
        say(f"{plural(asked.trials, 'trial')} of {asked.name}, in {folder}{left}")
        crew = Crew(folder, asked, task, jobs)
        with Signals(crew) as signals:
            for _ in _progress(crew, done, [trial.value for trial in before or () if trial.value is not None]):
                pass
    _show(read(folder), folder, json=json)
    if signals.came is not None:
        say(f"stopped after {plural(crew.done, 'trial')}; go on with: tardygrad sweep {folder}")
        raise typer.Exit(128 + signals.came)


def _progress(crew: Crew, done: int, values: list[float]) -> Iterator[Row]:
    """What came of each trial, with a bar on the terminal.

    Args:
        done: trials of earlier sittings.
        values: theirs.
    """
    if not sys.stderr.isatty():
        yield from crew.go()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("trial"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    best = TextColumn("{task.fields[best]}", markup=False)
    with Progress(*columns, TimeRemainingColumn(), best, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=crew.asked.trials, completed=done, rate="", best="")
        for result in crew.go():
            values += [] if result["value"] is None else [result["value"]]
            shown = f"best {(max if crew.asked.best == 'accuracy' else min)(values):.4g}" if values else ""
            speed = bar.tasks[0].speed
            bar.update(task, completed=crew.done, rate=f"{60 * speed:.3g}/min" if speed else "", best=shown)
            yield result


def _show(sweep: Sweep, folder: Path, *, json: bool) -> None:
    rows = groups(sweep)
    if json:
        trials = [trial._asdict() for trial in sweep.trials]
        found = {**sweep._asdict(), "trials": trials, "groups": [_row(one) for one in rows], "remark": remark(sweep)}
        show_json({"out": str(folder), **found})
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("group", box=None, pad_edge=False)
    others = [name for name in ("pruned", "other") if any(getattr(one, name) for one in rows)]
    for name in ("trials", "finished", "diverged", *others, "workable", "best"):
        table.add_column(name, justify="right")
    table.add_column("with")
    for one in rows:
        counts = (f"{one.done}/{one.trials}", *(str(getattr(one, name)) for name in ("finished", "diverged", *others)))
        workable = "–" if one.share is None else f"{one.workable}/{one.judged} {one.share:6.1%}"
        table.add_row(escape(one.name), *counts, workable, _value(one, sweep), escape(_setting(one.best)))
    show_table(table)
    for trial in [trial for trial in sweep.trials if trial.status == "failed"][:1]:
        say(f"trial {trial.number} failed: {trial.reason}")
    if words := remark(sweep):
        show(words)
    show(f"best by {sweep.goal}; report with: tardygrad report {folder}")


def _row(group: Group) -> Row:
    return group._asdict() | {"best": group.best and {"number": group.best.number, "params": group.best.params}}


def _value(group: Group, sweep: Sweep) -> str:
    if group.best is None or group.best.value is None:
        return f"none reached {sweep.asked['target']:g}" if sweep.best == "time" and group.done else ""
    return f"{group.best.value:.1%}" if sweep.best == "accuracy" else f"{group.best.value:.4g}"


def _setting(trial: Trial | None) -> str:
    """What of a point its group does not say."""
    if trial is None:
        return ""
    numbers = [(key, value) for key, value in trial.params.items() if type(value) in (int, float)]
    return " ".join(f"{key.rpartition('.')[2]}={value:.4g}" for key, value in numbers)
