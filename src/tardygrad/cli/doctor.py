"""`doctor`: diagnose a run."""

from __future__ import annotations

from tardygrad.cli.output import as_objects, show, show_json, show_table, waiting
from tardygrad.cli.run import run_dir
from tardygrad.cli.session import torch_threads
from tardygrad.runs.run import plural
from tardygrad_command import commands


def doctor(options: commands.Doctor) -> None:
    """Examine a run and print the findings."""
    from tardygrad.doctor.examine import examine

    with torch_threads(1), waiting("examining the run"):
        seen = examine(run_dir(options.folder), probed=options.probe, trust=options.trust)
    if options.json:
        show_json(as_objects(seen) | {"healthy": seen.healthy})
        return
    show(f"{seen.method}: {seen.status} after {plural(seen.rounds, 'round')}, {seen.time:g} s on the clock")
    rows: list[tuple[str, str]] = []
    for finding in seen.findings:
        rows.append((f"{finding.severity:8}", f"{finding.cause}: {finding.says}"))
        rows += [(word, text) for word, text in (("do", finding.advice), ("expect", finding.expected)) if text]
    if rows:
        show_table(("", ""), rows, header=False)
    verdict, names = ("healthy: nothing wrong with", seen.clean) if seen.healthy else ("checked:", seen.checks)
    show(f"{verdict} {', '.join(names)}")
    if seen.resume:
        show(f"continue the run: {seen.resume}")
