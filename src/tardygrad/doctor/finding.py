"""What the doctor finds, as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from tardygrad.runs.record import Row

Severity = Literal["severe", "warning", "note"]
"""It spoils the run; it costs; it is worth knowing."""

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
"""What is looked at, the worst first."""


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    severity: Severity
    cause: Cause
    says: str
    advice: str | None = None
    expected: str | None = None  # of the advice, on the clock of the fitted fleet
    numbers: Row | None = None  # what the sentences are made from


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The most important first."""
    severities, causes = get_args(Severity), get_args(Cause)
    return sorted(findings, key=lambda one: (severities.index(one.severity), causes.index(one.cause)))
