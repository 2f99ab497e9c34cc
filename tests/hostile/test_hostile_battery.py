"""A few attacks of every kind; `make hostile` tries many more."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.hostile import arguments, commands, damage, disks, kills, pages
from tests.hostile.verdicts import Ended

TRIES = {damage: 30, kills: 3, commands: 40, arguments: 100, disks: 3, pages: 60}


@pytest.mark.parametrize("module", TRIES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_attack_ends_with_the_right_result_or_a_refusal(module: ModuleType, tmp_path: Path) -> None:
    tally = module.attack(tmp_path, TRIES[module])
    assert tally.faults == []
    assert tally.counts.total() == TRIES[module]


def test_only_a_zero_or_an_error_in_one_line_is_no_fault() -> None:
    assert Ended(0, "", "").verdict == "right"
    assert Ended(2, "", "error: too large\n").verdict == "refused"
    assert Ended(2, "", "too large\n").verdict == Ended(3, "", "error: too large\n").verdict == "wrong"
    assert Ended(None, "", "", "hung").verdict == "hung"
