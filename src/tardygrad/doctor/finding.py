"""Findings of the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tardygrad.runs.record import Row

Severity = Literal["severe", "warning", "note"]
"""severe: the result is unusable; warning: the run wastes time or accuracy; note: good to know."""

NOT_SIMULATED = "rounds take as long as before; the effect on the loss is not simulated, --try measures it"
"""The expected effect of a change that does not affect the clock."""


class Finding(NamedTuple):
    """One problem: what is wrong with evidence, what to change, and what to expect of the change."""

    severity: Severity
    cause: str  # the name of the check
    says: str
    advice: str | None = None
    expected: str | None = None  # effect of the advice, simulated on the fitted fleet
    numbers: Row | None = None  # the evidence as data
    overrides: Sequence[str] = ()  # that follow the advice, for `tardygrad run RUN`
