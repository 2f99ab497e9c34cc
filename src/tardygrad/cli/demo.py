"""`demo`: compare five methods in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tardygrad.cli.output import cell, round_progress, say, show, show_json, show_table, waiting
from tardygrad.cli.session import Signals
from tardygrad.engines.threads import torch_threads
from tardygrad.runs import run as runs
from tardygrad.runs.record import new_run_dir, replace, require_new
from tardygrad.runs.settings import Settings
from tardygrad.spec import spec
from tardygrad_command import commands

METHODS = {
    "sync-Clip²": ["method.mode=sync"],
    "Clip²": [],
    "SD-Clip²": ["method.downplay=true", "method.lr.peak=3.0", "method.lr.floor=0.3", "method.clip=0.001"],
    "DC-Clip²": ["method.compensate=true"],
    "SGDClip": ["method.kind=sgdclip", "method.clip="],
}
"""The overrides of the shipped spec `digits` for each method."""

EVERY = 10  # rounds between evaluations
GOAL = 0.9  # test accuracy to reach
NOTE = (
    f"Accuracy is measured every {EVERY} rounds. SD-Clip² divides updates by their delays, so it uses three times the "
    "lr and a third of the clip of the other methods."
)


def demo(options: commands.Demo) -> None:
    """Run the five methods, then print and write the comparison."""
    from tardygrad.cli.demo_figure import loss_curves
    from tardygrad.report.build import build
    from tardygrad.report.theme import write

    folder = require_new(Path(options.out)) if options.out else new_run_dir("demo")
    for label in METHODS:
        require_new(_path(folder, label))
    done: dict[str, runs.Run] = {}
    for label, changes in METHODS.items():
        done[label] = _run(label, folder, [*changes, f"run.rounds={options.rounds}", f"run.evaluate_every={EVERY}"])
    sync = done["sync-Clip²"].summary().time
    rows = [_row(label, run, sync) for label, run in done.items()]
    chart = loss_curves({label: run.metrics for label, run in done.items()})
    picture, page = write(chart, folder / "test-loss.png"), folder / "report.html"
    with waiting("writing the report"):
        report = build([str(run.path) for run in done.values()], title="Demo", baseline="sync-Clip²", target=GOAL)
        replace(page, report.html().encode())
    if options.json:
        show_json({"out": str(folder), "figure": str(picture), "report": str(page), "methods": rows})
        return
    goal = f"time to {GOAL:.0%} (s)>"
    columns = ("test accuracy>", goal, "simulated time (s)>", "speed-up of the rounds>", "mean delay>", "max delay>")
    show_table(("method", *columns), map(_cells, rows))
    show(f"{NOTE}\nfigure  {picture}\nreport  {page}")


def _path(folder: Path, label: str) -> Path:
    return folder / label.lower().replace("²", "2")


def _run(label: str, folder: Path, changes: list[str]) -> runs.Run:
    loaded = spec.load("digits", changes)
    with torch_threads(loaded.run.threads):
        built = loaded.build()
        with built.pool() as pool:
            out = _path(folder, label)
            settings: Settings = {**loaded.run.settings(), "out": out}
            run = runs.begin(built.method, built.task, pool, spec=loaded.resolved(), **settings)
            say(f"{label}: {run.server.method}")
            with Signals(run.stop) as signals:
                for _ in round_progress(run.go(), done=0, rounds=loaded.run.rounds):
                    pass
    if signals.received is not None:
        say(f"stopped at round {run.server.round}; continue with: tardygrad resume {out}")
        raise typer.Exit(128 + signals.received)
    return run


def _row(label: str, run: runs.Run, sync: float) -> dict[str, Any]:
    summary = run.summary()
    reached = [row["time"] for row in run.metrics if row.get("test_accuracy", 0.0) >= GOAL]
    return {
        "method": label,
        "accuracy": summary.accuracy,
        "time_to_goal": reached[0] if reached else None,
        "loss": summary.loss,
        "time": summary.time,
        "speed_up": sync / summary.time,
        "delay_mean": summary.delay_mean,
        "delay_max": summary.delay_max,
        "seconds": summary.seconds,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    times = (cell(row["time_to_goal"], ",.0f"), f"{row['time']:,.0f}", f"{row['speed_up']:.0f}x")
    return (row["method"], cell(row["accuracy"], ".1%"), *times, f"{row['delay_mean']:.1f}", str(row["delay_max"]))
