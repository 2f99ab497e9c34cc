"""Modules of random parts, trained as by a plain loop, or refused."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.verdicts import Tally
from tests.tasks.generated_modules import case, outcome

VERDICTS = {"equal": "right", "both fail": "right", "refused": "refused"}


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Train modules of random parts."""
    tally = Tally("own modules")
    for number in range(seed, seed + tries):
        found = outcome(case(number))
        tally.add(VERDICTS.get(found, "wrong"), case(number), found)
    return tally
