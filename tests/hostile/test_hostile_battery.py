"""A few attacks of every kind; `make hostile` tries many more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile import arguments, commands, damage, disks, forgeries, kills, pages
from tests.hostile.verdicts import Tally


@pytest.mark.parametrize(
    ("attack", "tries"),
    [
        (damage.attack, 30),
        (forgeries.attack, 60),
        (kills.attack, 3),
        (commands.attack, 40),
        (arguments.attack, 100),
        (disks.attack, 3),
        (pages.attack, 60),
    ],
)
def test_every_attack_ends_with_the_right_result_or_a_refusal(
    attack: Callable[[Path, int], Tally], tries: int, tmp_path: Path
) -> None:
    tally = attack(tmp_path, tries)
    assert tally.faults == []
    assert tally.counts.total() == tries
