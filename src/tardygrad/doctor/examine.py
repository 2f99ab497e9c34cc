"""Examine a run: run all checks and collect their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

from tardygrad.doctor.client_checks import dead_weight, idle, losses, no_rounds, refusals, starvation, unknown_events
from tardygrad.doctor.convergence_checks import divergence, heavy, local_clip, outer_clip, progress, tails, unknown
from tardygrad.doctor.delay_checks import delays
from tardygrad.doctor.finding import Finding, Severity
from tardygrad.doctor.what_if import WhatIf
from tardygrad.errors import Invalid
from tardygrad.runs.events import Tail, tail_event
from tardygrad.runs.history import History, read_history
from tardygrad.runs.record import reading_record
from tardygrad.spec import spec
from tardygrad.tail.probe import probe

Check = Callable[[History, WhatIf], Finding | None]

# by name, the most important first; `rounds` calls its finding "no rounds"
CHECKS: dict[str, Check] = {
    "rounds": no_rounds,
    "divergence": divergence,
    "starvation": starvation,
    "delays": delays,
    "tail": tails,
    "outer clip": outer_clip,
    "local clip": local_clip,
    "progress": progress,
    "refusals": refusals,
    "losses": losses,
    "idle": idle,
    "dead weight": dead_weight,
    "events": unknown_events,
}


class Examined(NamedTuple):
    """The result of an examination."""

    run: str
    method: str
    status: str
    rounds: int
    time: float
    checks: list[str]
    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """Whether there are no findings except notes."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def clean(self) -> list[str]:
        """The checks without any finding."""
        causes = {finding.cause.removeprefix("no ") for finding in self.findings} | {"noise"}
        return [name for name in self.checks if name not in causes]


def examine(path: Path, *, probed: bool = False) -> Examined:
    """Read a record and run all checks.

    Args:
        probed: also build the task and measure the noise of its gradients.
    """
    history, found = read_history(path), list[Finding]()
    if probed:
        tail = _probed(history)
        if tail is None or tail.index is None:
            few = "there are too few samples of the gradient noise at x_0 to estimate a tail index."
            found.append(Finding("note", "tail", few))
        else:
            history = replace(history, tails=[*history.tails, tail])
            found.append(heavy(history, tail, "the gradient noise at x_0"))
    with reading_record(path):
        what_if = WhatIf(history)
        found += [finding for check in CHECKS.values() if (finding := check(history, what_if))]
    checks = [*(name for name in CHECKS if name not in unknown(history)), *(["noise"] if probed else [])]
    status = "running" if history.going else history.status
    rounds = len(history.rounds)
    return Examined(str(path), history.method, status, rounds, history.time, checks, in_order(found))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, most important first."""
    severities, checks = get_args(Severity), list(CHECKS)
    return sorted(
        findings,
        key=lambda finding: (severities.index(finding.severity), checks.index(finding.cause.removeprefix("no "))),
    )


def _probed(history: History) -> Tail | None:
    """The tail of the gradient noise at x_0, as in `tardygrad tail RUN --at init`."""
    if history.spec is None:
        raise Invalid(f"--probe needs a run with a spec, got {str(history.path)!r}, started from Python. Leave it out.")
    recorded = spec.parse(history.spec)
    task, seed = recorded.build().task, recorded.run.seed
    found = probe(task, task.init(seed), module_buffers=task.init_module_buffers(), seed=seed).whole.tail
    return tail_event(0.0, None, found) if found else None
