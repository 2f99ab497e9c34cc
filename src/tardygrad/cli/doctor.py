"""`doctor`: diagnose a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tardygrad.cli.output import show, show_json, show_table, waiting
from tardygrad.cli.run import run_dir
from tardygrad.cli.session import torch_threads
from tardygrad.runs.run import plural

if TYPE_CHECKING:
    from rich.table import Table

    from tardygrad.doctor.finding import Finding


def doctor(folder: str, probe: bool, json: bool) -> None:
    """Examine a run and print the findings."""
    from tardygrad.doctor.examine import examine

    with torch_threads(1), waiting("examining the run"):
        seen = examine(run_dir(folder), probed=probe)
    if json:
        findings = [finding._asdict() for finding in seen.findings]
        show_json(seen._asdict() | {"healthy": seen.healthy, "findings": findings})
        return
    show(f"{seen.method}: {seen.status} after {plural(seen.rounds, 'round')}, {seen.time:g} s on the clock")
    for finding in seen.findings:
        show_table(_table(finding))
    verdict, names = ("healthy: nothing wrong with", seen.clean) if seen.healthy else ("checked:", seen.checks)
    show(f"{verdict} {', '.join(names)}")


def _table(finding: Finding) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=8, no_wrap=True)
    table.add_column()
    table.add_row(finding.severity, escape(f"{finding.cause}: {finding.says}"))
    for word, text in (("do", finding.advice), ("expect", finding.expected)):
        if text:
            table.add_row(word, escape(text))
    return table
