"""Examine a run: run all checks and collect their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

from tardygrad.doctor import client_checks, convergence_checks, delay_checks, tail_checks
from tardygrad.doctor.finding import Finding, Severity
from tardygrad.doctor.what_if import WhatIf
from tardygrad.errors import Invalid
from tardygrad.own_code import check_trust
from tardygrad.runs.events import TailEstimate, tail_event
from tardygrad.runs.history import History, read_history
from tardygrad.runs.record import read_json, reading_record
from tardygrad.runs.tables import why_no_spec
from tardygrad.spec import spec
from tardygrad.tail.probe import probe

Check = Callable[[History, WhatIf], Finding | None]

# by name, the most important first; `rounds` calls its finding "no rounds"
CHECKS: dict[str, Check] = {
    "failure": client_checks.failure,
    "rounds": client_checks.no_rounds,
    "divergence": convergence_checks.divergence,
    "starvation": client_checks.starvation,
    "not finite": client_checks.not_finite,
    "delays": delay_checks.delays,
    "tail": tail_checks.tails,
    "progress": convergence_checks.progress,
    "overfitting": convergence_checks.overfitting,
    "swings": convergence_checks.swings,
    "outer clip": convergence_checks.outer_clip,
    "local clip": convergence_checks.local_clip,
    "refusals": client_checks.refusals,
    "lost clients": client_checks.lost_clients,
    "idle": client_checks.idle,
    "server": client_checks.server_bound,
    "dead weight": client_checks.dead_weight,
    "machines": client_checks.slow_machine,
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
    resume: str | None  # how to continue the run, if it was stopped or killed

    @property
    def healthy(self) -> bool:
        """Whether there are no findings except notes."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def clean(self) -> list[str]:
        """The checks without any finding."""
        causes = {finding.cause.removeprefix("no ") for finding in self.findings} | {"noise"}
        return [name for name in self.checks if name not in causes]


def examine(path: Path, *, probed: bool = False, trust: bool = False) -> Examined:
    """Read a record and run all checks.

    Args:
        probed: also build the task and measure the noise of its gradients.
        trust: whether to import code that the record names, to probe and to score x_0. Without the code of a method,
            some advice has no numbers.
    """
    history, found = read_history(path), list[Finding]()
    if probed:
        if not trust:
            check_trust(history.spec or history.described, str(path))
        tail = _probed(history)
        if tail is None or tail.index is None:
            few = "there are too few samples of the gradient noise at x_0 to estimate a tail index."
            found.append(Finding("note", "tail", few))
        else:
            history = replace(history, tails=[*history.tails, tail])
            found.append(tail_checks.tail_finding(history, tail, "the gradient noise at x_0"))
    with reading_record(path):
        what_if = WhatIf(history, trust=trust)
        found += [finding for check in CHECKS.values() if (finding := check(history, what_if))]
    skipped = convergence_checks.skipped_checks(history)
    skipped |= set() if len(history.machines) > 1 else {"machines"}
    skipped |= set() if client_checks.server_time(history) else {"server"}
    skipped |= set() if history.evaluations else {"overfitting", "swings"}
    skipped |= set() if history.status == "failed" else {"failure"}
    skipped |= set() if client_checks.faults(history) else {"not finite"}
    checks = [name for name in CHECKS if name not in skipped] + ["noise"] * probed
    facts = (str(path), history.method, history.state, len(history.rounds), history.time)
    return Examined(*facts, checks, in_order(found), history.resume_hint)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, most important first."""
    severities, checks = get_args(Severity), list(CHECKS)
    return sorted(
        findings,
        key=lambda finding: (severities.index(finding.severity), checks.index(finding.cause.removeprefix("no "))),
    )


def _probed(history: History) -> TailEstimate | None:
    """The tail of the gradient noise at x_0, as in `tardygrad tail RUN --at init`."""
    if history.spec is None:
        why = why_no_spec(read_json(history.path / "spec.json"))
        raise Invalid(f"--probe needs a run with a spec, and the one in {str(history.path)!r} {why}")
    recorded = spec.parse(history.spec, trust=True)  # `examine` has asked
    task, seed = recorded.build().task, recorded.run.seed
    found = probe(task, task.init(seed), module_buffers=task.init_module_buffers(), seed=seed).whole.tail
    return tail_event(0.0, None, found) if found else None
