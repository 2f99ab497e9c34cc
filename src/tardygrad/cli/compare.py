"""`compare`: run a spec with several values of a key side by side, and compare the runs."""

from __future__ import annotations

from pathlib import Path

import typer

from tardygrad.cli import commands
from tardygrad.cli.demo_screen import follow
from tardygrad.cli.output import say, show, show_json, waiting
from tardygrad.cli.parallel_runs import ParallelRuns
from tardygrad.errors import Invalid
from tardygrad.runs.checks import quoted
from tardygrad.runs.record import Row, new_run_dir, require_new
from tardygrad.runs.signals import Signals
from tardygrad.runs.summary import Summary


def compare(options: commands.Compare) -> None:
    """Run the contenders, then print the library's comparison of their records."""
    from tardygrad.report.comparison import compare as compare_runs
    from tardygrad.report.groups import grouped
    from tardygrad.report.headline import headline
    from tardygrad.report.loader import read
    from tardygrad.sweeps.contenders import contenders

    specs, notes = contenders(options.source, options.overrides, seeds=options.seeds, trust=options.trust)
    first = next(iter(specs.values()))
    if first.run.rounds is None or not first.run.evaluate_every:
        rule = "a comparison is of test scores after so many rounds, and needs run.rounds and run.evaluate_every"
        raise Invalid(f"{rule}, got {first.run.rounds} and {first.run.evaluate_every}.")
    folder = require_new(Path(options.out)) if options.out else new_run_dir(f"{first.name}-compare")
    runs = ParallelRuns(specs, folder, options.jobs)
    for label in specs:
        require_new(runs.path(label))
    for note in notes:
        say(note)
    run_all(runs, first.run.rounds, f"{len(specs)} runs of {first.name}, in {folder}")
    with waiting("reading the records"):
        groups = grouped(read(runs.path(label)) for label in specs)
        found = compare_runs(groups, baseline=options.baseline, target=options.target)
    result = headline(groups, found)
    if options.json:
        rows = [dict(zip(found.page_table().headings, row, strict=True)) for row in found.page_table().rows]
        show_json({"out": str(folder), "result": result, "score": found.score, "target": found.target, "methods": rows})
        return
    show(str(found))
    show(typer.style(result, bold=True))
    show(f"report with: tardygrad report {quoted(folder)}")


def run_all(runs: ParallelRuns, rounds: int, title: str) -> tuple[dict[str, list[Row]], dict[str, Summary]]:
    """Run all with a live table; the metrics and the summary of each run."""
    metrics: dict[str, list[Row]] = {label: [] for label in runs.specs}
    summaries: dict[str, Summary] = {}
    with Signals(runs.stop) as signals:
        for label, message in follow(runs.go(), runs.specs, rounds, title):
            if isinstance(message, Summary):
                summaries[label] = message
            else:
                metrics[label].append(message)
    if signals.received is not None:
        for label, summary in summaries.items():
            if summary.status == "stopped":
                path = quoted(runs.path(label))
                say(f"{label} stopped at round {summary.rounds}; continue with: tardygrad resume {path}")
        raise typer.Exit(128 + signals.received)
    return metrics, summaries
