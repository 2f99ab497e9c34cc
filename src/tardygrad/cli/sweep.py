"""`sweep`: run a spec with many settings."""

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
from tardygrad.sweep import GroupSummary, Sweep, Trial, groups, read, remark

if TYPE_CHECKING:
    from tardygrad.sweep.runner import Runner


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
    from tardygrad.sweep.config import build_task, configure, saved_config
    from tardygrad.sweep.runner import Runner, check_same

    given: dict[str, Any] = {"over": over, "sampler": sampler, "trials": trials, "seeds": seeds, "best": best}
    given |= {"budget": budget, "target": target, "prune": prune or None, "workable": workable}
    given = {name: value for name, value in given.items() if value is not None}
    with torch_threads(1):
        if (Path(source) / "sweep.json").is_file():
            if more := [*(overrides or ()), *(f"--{name}" for name in given), *(["--out"] if out else [])]:
                rule = "a sweep continues with the settings it was started with"
                raise Invalid(f"{rule}, got {more[0]!r} too. Give its folder and --jobs only.")
            folder, config = Path(source), saved_config(Path(source))
            with waiting(f"preparing {config.spec['task']['kind']}; the first time may take minutes"):
                tasks = build_task(config)
        else:
            with waiting("preparing the task; the first time may take minutes"):
                config, tasks = configure(source, overrides or (), **given)
            folder = Path(out) if out else new_run_dir(f"{config.name}-sweep")
            if (folder / "sweep.json").is_file():
                check_same(folder, config)
        before = read(folder).trials if (folder / "sweep.json").is_file() else None
        done = sum(trial.status is not None for trial in before or ())
        left = "" if before is None else f": {done} done, {config.trials - done} to go"
        say(f"{plural(config.trials, 'trial')} of {config.name}, in {folder}{left}")
        runner = Runner(folder, config, tasks, jobs)
        with Signals(runner) as signals:
            for _ in _progress(runner, done, [trial.value for trial in before or () if trial.value is not None]):
                pass
    _show(read(folder), folder, json=json)
    if signals.came is not None:
        say(f"stopped after {plural(runner.done, 'trial')}; continue with: tardygrad sweep {folder}")
        raise typer.Exit(128 + signals.came)


def _progress(runner: Runner, done: int, values: list[float]) -> Iterator[Row]:
    """The result of each trial, with a progress bar on a terminal.

    Args:
        done: number of trials finished in earlier sessions.
        values: their values.
    """
    if not sys.stderr.isatty():
        yield from runner.go()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("trial"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    best = TextColumn("{task.fields[best]}", markup=False)
    with Progress(*columns, TimeRemainingColumn(), best, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=runner.config.trials, completed=done, rate="", best="")
        for result in runner.go():
            values += [] if result["value"] is None else [result["value"]]
            shown = f"best {(max if runner.config.best == 'accuracy' else min)(values):.4g}" if values else ""
            speed = bar.tasks[0].speed
            bar.update(task, completed=runner.done, rate=f"{60 * speed:.3g}/min" if speed else "", best=shown)
            yield result


def _show(sweep: Sweep, folder: Path, *, json: bool) -> None:
    rows = groups(sweep)
    if json:
        trials = [trial._asdict() for trial in sweep.trials]
        found = {
            **sweep._asdict(),
            "trials": trials,
            "groups": [_row(group) for group in rows],
            "remark": remark(sweep),
        }
        show_json({"out": str(folder), **found})
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("group", box=None, pad_edge=False)
    others = [name for name in ("pruned", "other") if any(getattr(group, name) for group in rows)]
    for name in ("trials", "finished", "diverged", *others, "workable", "best"):
        table.add_column(name, justify="right")
    table.add_column("with")
    for group in rows:
        counts = (
            f"{group.done}/{group.trials}",
            *(str(getattr(group, name)) for name in ("finished", "diverged", *others)),
        )
        workable = "–" if group.share is None else f"{group.workable}/{group.judged} {group.share:6.1%}"
        table.add_row(escape(group.name), *counts, workable, _value(group, sweep), escape(_setting(group.best)))
    show_table(table)
    for trial in [trial for trial in sweep.trials if trial.status == "failed"][:1]:
        say(f"trial {trial.number} failed: {trial.reason}")
    if words := remark(sweep):
        show(words)
    show(f"best by {sweep.goal}; report with: tardygrad report {folder}")


def _row(group: GroupSummary) -> Row:
    return group._asdict() | {"best": group.best and {"number": group.best.number, "params": group.best.params}}


def _value(group: GroupSummary, sweep: Sweep) -> str:
    if group.best is None or group.best.value is None:
        return f"none reached {sweep.config['target']:g}" if sweep.best == "time" and group.done else ""
    return f"{group.best.value:.1%}" if sweep.best == "accuracy" else f"{group.best.value:.4g}"


def _setting(trial: Trial | None) -> str:
    """The numeric settings of a point."""
    if trial is None:
        return ""
    numbers = [(key, value) for key, value in trial.params.items() if type(value) in (int, float)]
    return " ".join(f"{key.rpartition('.')[2]}={value:.4g}" for key, value in numbers)
