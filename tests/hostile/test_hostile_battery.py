"""A few attacks of every kind; `make hostile` tries many more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile import arguments, commands, damage, disks, kills, pages
from tests.hostile.verdicts import Ended, Tally

TRIES = {
    damage.attack: 30, damage.swap: 12, kills.attack: 3, commands.attack: 40, arguments.attack: 100, disks.attack: 3,
    disks.move: 2, pages.attack: 60,
}  # fmt: skip


@pytest.mark.parametrize(
    "attack", TRIES, ids=lambda attack: f"{attack.__module__.rpartition('.')[2]} {attack.__name__}"
)
def test_every_attack_ends_with_the_right_result_or_a_refusal(
    attack: Callable[[Path, int], Tally], tmp_path: Path
) -> None:
    tally = attack(tmp_path, TRIES[attack])
    assert tally.faults == []
    assert tally.counts.total() == TRIES[attack]


def test_only_a_zero_or_an_error_in_one_line_is_no_fault() -> None:
    assert Ended(0, "", "").verdict == "right"
    assert Ended(2, "", "error: too large\n").verdict == "refused"
    assert Ended(2, "", "too large\n").verdict == Ended(3, "", "error: too large\n").verdict == "wrong"
    assert Ended(None, "", "", "hung").verdict == "hung"
