"""`demo`: compare five methods in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tardygrad.cli import commands
from tardygrad.cli.compare import run_all
from tardygrad.cli.demo_screen import show_results
from tardygrad.cli.output import show, show_json, waiting
from tardygrad.cli.parallel_runs import ParallelRuns
from tardygrad.errors import Invalid
from tardygrad.runs.record import Row, new_run_dir, replace, require_new
from tardygrad.runs.summary import Summary
from tardygrad.spec import spec

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
TITLE = "Five methods train a vision transformer on 40 clients, some of them very slow."
NOTE = (
    f"Accuracy is measured every {EVERY} rounds. SD-Clip² divides updates by their delays, so it uses three times the "
    "lr and a third of the clip of the other methods."
)


def demo(options: commands.Demo) -> None:
    """Run the five methods side by side, then print and write the comparison."""
    from tardygrad.cli.demo_figure import loss_curves
    from tardygrad.report.build import build
    from tardygrad.results.theme import write

    folder = require_new(Path(options.out)) if options.out else new_run_dir("demo")
    length = [f"run.rounds={options.rounds}", f"run.evaluate_every={EVERY}"]
    specs = {label: spec.load("digits", [*changes, *length]) for label, changes in METHODS.items()}
    parallel_runs = ParallelRuns(specs, folder, options.jobs)
    for label in METHODS:
        require_new(parallel_runs.path(label))
    picture, page = folder / "test-loss.png", folder / "report.html"
    for file in (picture, page):
        if file.exists():
            raise Invalid(f"the demo would overwrite {str(file)!r}. Choose another directory for --out.")
    metrics, summaries = run_all(parallel_runs, options.rounds, TITLE)
    sync = summaries["sync-Clip²"].time
    rows = [_row(label, metrics[label], summaries[label], sync) for label in METHODS]
    write(loss_curves(metrics), picture)
    with waiting("writing the report"):
        paths = [str(parallel_runs.path(label)) for label in METHODS]
        replace(page, build(paths, title="Demo", baseline="sync-Clip²", target=GOAL).html().encode())
    result = sentence(rows)
    if options.json:
        facts = {"out": str(folder), "figure": str(picture), "report": str(page), "result": result}
        show_json(facts | {"methods": rows})
    else:
        show_results(rows, GOAL)
        show(NOTE)
        show(typer.style(result, bold=True))
        show(f"figure  {picture}\nreport  {page}")
    if options.open:
        typer.launch(str(page))


def _row(label: str, metrics: list[Row], summary: Summary, sync: float) -> dict[str, Any]:
    reached = [row["time"] for row in metrics if row.get("test_accuracy", 0.0) >= GOAL]
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


def sentence(rows: list[dict[str, Any]]) -> str:
    """The result in one sentence: the same method with the same settings, asynchronous and synchronous."""
    times = {row["method"]: row["time_to_goal"] for row in rows}
    ours, sync = times["Clip²"], times["sync-Clip²"]
    if ours is None:
        return f"Asynchronous Clip² did not reach {GOAL:.0%} in so few rounds."
    reached = f"Asynchronous training (Clip²) reached {GOAL:.0%}"
    if sync is None:
        return f"{reached} after {ours:,.0f} simulated seconds; synchronous training with the same settings did not."
    return (
        f"{reached} {sync / ours:.0f} times sooner than synchronous training with the same settings: "
        f"after {ours:,.0f} simulated seconds instead of {sync:,.0f}."
    )
