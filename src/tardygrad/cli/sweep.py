"""`sweep`: run a spec with many settings."""

from __future__ import annotations

from pathlib import Path

import typer

from tardygrad.cli import commands
from tardygrad.cli.output import as_objects, say, show, show_json, show_table, waiting
from tardygrad.engines.processes import process_count
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Invalid
from tardygrad.runs.checks import quoted
from tardygrad.runs.record import Row, new_run_dir
from tardygrad.runs.run import plural
from tardygrad.sweeps import GroupSummary, Sweep, groups, read, remark
from tardygrad.sweeps.compare import is_comparison, read_comparison
from tardygrad.sweeps.trials import sweep_table

SETTINGS = ("over", "sampler", "trials", "seeds", "best", "budget", "target", "prune", "workable")


def sweep(options: commands.Sweep) -> None:
    """Run a spec with many settings, or continue a sweep."""
    from tardygrad.sweeps.config import build_task, configure, saved_config
    from tardygrad.sweeps.runner import check_same, run_sweep

    source, overrides, out = options.source, options.overrides, options.out
    settings = {name: getattr(options, name) for name in SETTINGS}
    given = {name: value for name, value in settings.items() if value is not None and value is not False}
    jobs = process_count("jobs", options.jobs)
    with torch_threads(1):
        if (Path(source) / "sweep.json").is_file():
            _show_python_sweep(Path(source), json=options.json)
            if more := [*overrides, *(f"--{name}" for name in given), *(["--out"] if out else [])]:
                rule = "a sweep continues with the settings it was started with"
                raise Invalid(f"{rule}, got {more[0]!r} too. Give its folder and --jobs only.")
            folder, config = Path(source), saved_config(Path(source), trust=options.trust)
            with waiting(f"preparing {config.spec['task']['kind']}; the first time may take minutes"):
                tasks = build_task(config)
        else:
            with waiting("preparing the task; the first time may take minutes"):
                config, tasks = configure(source, overrides, **given, trust=options.trust)
            folder = Path(out) if out else new_run_dir(f"{config.name}-sweep")
            check_same(folder, config)
        left = ""
        if (folder / "sweep.json").is_file():
            done = len(read(folder).trials)
            left = f": {done} done, {config.trials - done} to go"
        say(f"{plural(config.trials, 'trial')} of {config.name}, in {folder}{left}")
        found, signal = run_sweep(config, tasks, folder, jobs=jobs)
    _show(found, folder, json=options.json)
    if signal is not None:
        say(f"stopped after {plural(len(found.trials), 'trial')}; continue with: tardygrad sweep {quoted(folder)}")
        raise typer.Exit(128 + signal)
    if all(trial.status == "failed" for trial in found.trials):
        raise typer.Exit(1)


def _show_python_sweep(folder: Path, *, json: bool) -> None:
    """Show the results of a sweep or comparison that was started in Python, where alone it can continue, and end."""
    found = read(folder)
    if factory := found.config.get("factory"):
        compared = is_comparison(folder)
        if compared and not json:
            show(f"{read_comparison(folder)}\nreport with: tardygrad report {quoted(folder)}")
        else:
            _show(found, folder, json=json)
        if left := found.total - len(found.trials):
            what, call = ("run", "compare(") if compared else ("trial", f"sweep({factory}, ")
            how = f"tardygrad.{call}..., out={str(folder)!r})"
            say(f"{plural(left, what)} to go; it was started in Python, so continue it there: {how}")
        raise typer.Exit


def _show(sweep: Sweep, folder: Path, *, json: bool) -> None:
    if json:
        found = {**as_objects(sweep), "groups": [_row(group) for group in groups(sweep)], "remark": remark(sweep)}
        show_json({"out": str(folder), **found})
        return
    headings, rows, notes, _ = sweep_table(sweep)
    show_table([f"{name}>" if name not in ("group", "with") else name for name in headings], rows)
    for trial in [trial for trial in sweep.trials if trial.status == "failed"][:1]:
        say(f"trial {trial.number} failed: {trial.reason}")
    show("\n".join(notes) + f"; report with: tardygrad report {quoted(folder)}")


def _row(group: GroupSummary) -> Row:
    return group._asdict() | {"best": group.best and {"number": group.best.number, "params": group.best.params}}
