"""`doctor`: diagnose a run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tardygrad.cli import commands
from tardygrad.cli.output import as_objects, counted, show, show_json, show_table, waiting
from tardygrad.cli.run import run_dir
from tardygrad.engines.threads import torch_threads
from tardygrad.runs.history import read_history
from tardygrad.runs.run import plural

if TYPE_CHECKING:
    from tardygrad.doctor.try_change import TriedChange


def doctor(options: commands.Doctor) -> None:
    """Examine a run, try the suggested changes if asked to, and print the findings."""
    from tardygrad.doctor.examine import examine

    path = run_dir(options.folder)
    with torch_threads(1), waiting("examining the run"):
        seen = examine(path, probed=options.probe, trust=options.trust)
    changes = list(dict.fromkeys(tuple(finding.overrides) for finding in seen.findings if finding.overrides))
    trials = _try(options, changes) if options.trial else {}
    if options.json:
        facts = as_objects(seen) | {"healthy": seen.healthy}
        for finding in facts["findings"]:
            trial = trials.get(tuple(finding["overrides"]))
            finding["trial"] = as_objects(trial) | {"faster": trial.faster, "worse": trial.worse} if trial else None
        show_json(facts)
        return
    show(f"{seen.method}: {seen.status} after {plural(seen.rounds, 'round')}, {seen.time:g} s on the clock")
    rows: list[tuple[str, str]] = []
    for finding in seen.findings:
        trial = trials.get(tuple(finding.overrides))
        rows.append((f"{finding.severity:8}", f"{finding.cause}: {finding.says}"))
        texts = {"do": finding.advice, "expect": finding.expected, "tried": str(trial) if trial else None}
        rows += [(word, text) for word, text in texts.items() if text]
    if rows:
        show_table(("", ""), rows, header=False)
    verdict, names = ("healthy: nothing wrong with", seen.clean) if seen.healthy else ("checked:", seen.checks)
    show(f"{verdict} {', '.join(names)}")
    if options.trial and not changes:
        show("nothing to try: no finding suggests a change of settings")
    good = [change for change in changes if change not in trials or not trials[change].worse]
    if good:
        show(f"change the run: tardygrad run {shlex.join([options.folder, *good[0]])}")
    if seen.resume:
        show(f"continue the run: {seen.resume}")


def _try(options: commands.Doctor, changes: list[tuple[str, ...]]) -> dict[tuple[str, ...], TriedChange]:
    """Train with each change."""
    from tardygrad.doctor.try_change import try_change

    history = read_history(run_dir(options.folder))
    with torch_threads(1):
        tried = counted(changes, total=len(changes), what="trying changes")
        return {change: try_change(history, change, trust=options.trust) for change in tried}
