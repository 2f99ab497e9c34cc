"""`compare`: run a spec with several values of a key side by side, and compare the runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tardygrad.cli import commands
from tardygrad.cli.output import say, show, show_json, waiting
from tardygrad.cli.parallel_runs import ParallelRuns, run_all
from tardygrad.errors import Invalid
from tardygrad.runs.checks import quoted
from tardygrad.runs.record import Row, new_run_dir, require_new

if TYPE_CHECKING:
    from tardygrad.report.build import Report


def compare(options: commands.Compare) -> None:
    """Run the contenders, then print the library's comparison of their records."""
    from tardygrad.report.build import build
    from tardygrad.sweeps.contenders import contenders

    specs, notes = contenders(options.source, options.overrides, seeds=options.seeds, trust=options.trust)
    first = next(iter(specs.values()))
    if first.run.rounds is None or not first.run.evaluate_every:
        rule = "a comparison is of test scores after so many rounds, and needs run.rounds and run.evaluate_every"
        raise Invalid(f"{rule}, got {first.run.rounds} and {first.run.evaluate_every}.")
    folder = require_new(Path(options.out)) if options.out else new_run_dir(f"{first.name}-compare")
    runs = ParallelRuns(specs, folder, options.jobs)
    for note in notes:
        say(note)
    run_all(runs, first.run.rounds, f"{len(specs)} runs of {first.name}, in {folder}")
    with waiting("reading the records"):
        found = build(runs.paths, baseline=options.baseline, target=options.target)
    if options.json:
        show_json(facts(found, folder))
        return
    show(str(found.compared))
    show(typer.style(found.results[0], bold=True))
    show(f"report with: tardygrad report {quoted(folder)}")


def facts(found: Report, folder: Path) -> Row:
    """A comparison of runs as JSON."""
    assert found.compared is not None
    table, score, target = found.compared.page_table(), found.compared.score, found.compared.target
    rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    return {"out": str(folder), "result": found.results[0], "score": score, "target": target, "methods": rows}
