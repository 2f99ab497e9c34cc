"""Findings of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from tardygrad.runs.record import Row

Severity = Literal["severe", "warning", "note"]
"""severe: the result is unusable; warning: the run wastes time or accuracy; note: good to know."""

Cause = Literal[
    "no rounds",
    "divergence",
    "starvation",
    "delays",
    "tail",
    "outer clip",
    "local clip",
    "progress",
    "refusals",
    "losses",
    "idle",
    "dead weight",
]
"""The subjects of the checks, most important first."""


class Finding(NamedTuple):
    """One problem: what is wrong with evidence, what to change, and what to expect of the change."""

    severity: Severity
    cause: Cause
    says: str
    advice: str | None = None
    expected: str | None = None  # effect of the advice, simulated on the fitted fleet
    numbers: Row | None = None  # the evidence as data


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, most important first."""
    severities, causes = get_args(Severity), get_args(Cause)
    return sorted(findings, key=lambda finding: (severities.index(finding.severity), causes.index(finding.cause)))
