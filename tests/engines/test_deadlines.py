"""Deadlines: who is overdue, and who is not yet known well enough to say."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from tardygrad.engines.real_time import OWN, Deadlines


def after(times: Iterable[tuple[int, float]], *, patience: float = 10.0, grace: float = 0.0) -> Deadlines:
    deadlines = Deadlines(patience, grace)
    for client, seconds in times:
        deadlines.took(client, seconds)
    return deadlines


def test_a_client_is_judged_by_its_own_times_from_three_on() -> None:
    own = [(0, 1.0), (0, 2.0), (0, 4.0)]  # median 2, distances 1, 0, 2
    assert after(own).limit(0) == 2.0 + 10.0 * 1.0
    assert after([*own, *((1, 100.0) for _ in range(10))]).limit(0) == 12.0


def test_with_fewer_by_those_of_all_clients_from_five_on_and_else_not_at_all() -> None:
    four = [(client, 1.0 + client) for client in range(4)]  # 1, 2, 3, 4
    assert after(four).limit(9) == math.inf
    five = [*four, (4, 5.0)]
    assert after(five).limit(9) == after(five).limit(0) == 3.0 + 10.0 * 1.0


def test_nobody_has_less_than_the_grace() -> None:
    assert after([(0, 0.01)] * 3, grace=30.0).limit(0) == 30.0


def test_only_the_last_times_count() -> None:
    assert after([(0, 1000.0)] * OWN + [(0, 1.0)] * OWN).limit(0) == 1.0


def test_a_new_time_moves_the_limits_of_its_client_and_of_those_unknown() -> None:
    deadlines = after([(0, 1.0)] * 5)
    assert deadlines.limit(0) == deadlines.limit(1) == 1.0
    for _ in range(20):
        deadlines.took(0, 3.0)
    assert deadlines.limit(0) == deadlines.limit(1) == 3.0


@pytest.mark.parametrize("times", [[], [(0, 1.0)] * 10])
def test_infinite_patience_waits_for_ever(times: list[tuple[int, float]]) -> None:
    assert after(times, patience=math.inf).limit(0) == math.inf
