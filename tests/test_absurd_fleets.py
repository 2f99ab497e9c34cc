"""Fleets with huge, infinite and zero times: they end soon, with the time that arithmetic gives or in one sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.engines import fleet_clock
from tardygrad.engines.fleet_clock import finish
from tardygrad.fleet import Available, Slow, SlowSpells
from tardygrad.runs.loop import clock_only
from tests.test_fleet import fleet_of, method_of

NIGHTS = Available(0, ((0.0, 4.0),), period=10.0)
HEAVY = tg.Fleet((tg.Group("heavy", 5, tg.Pareto(1.0, 0.05)),))  # half of its jobs take more than ten days


class Endless:
    def draw(self, u: float, serial: int) -> float:
        return math.inf


def times(fleet: tg.Fleet, rounds: int) -> list[float]:
    """When updates arrive."""
    server, pool = clock_only(method_of(), fleet)
    return [event.time for event in tg.drive(server, pool, rounds) if isinstance(event.message, tg.Update)]


def asleep(fleet: tg.Fleet) -> tg.Fleet:
    for client in range(fleet.clients):
        fleet = fleet.during([(0, 4)], client=client, period=10)
    return fleet


@pytest.mark.parametrize(
    ("seconds", "slow", "ends"),
    [
        (4e12, [], 1e13 - 6),
        (4e12, [Slow(0, 1e12, 2e12, 2.0)], 1.05e13 - 6),
        (4e12, [Slow(0, 0.0, 1e12)], 1.1e13 - 6),
        (4e12, [Slow(0, 0.0, factor=3.0), Slow(0, 1.0, factor=0.25)], 7.5e12),
        (1e290, [], 2.5e290),
        (1e308, [], math.inf),
        (math.inf, [Slow(0, 5.0, 9.0)], math.inf),
    ],
)
def test_a_job_of_millions_of_nights_ends_when_arithmetic_says(seconds: float, slow: list[Slow], ends: float) -> None:
    assert finish(0.0, seconds, slow, NIGHTS) == pytest.approx(ends, rel=1e-9)


def test_periods_that_are_skipped_change_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few changes that are followed one by one, against all of them."""
    windows = Available(0, ((0.5, 1.5), (3.0, 6.0)), period=7.0)
    slow = [Slow(0, 20.0, 90.0, 3.0), Slow(0, 50.0, 55.0), Slow(0, 300.0, factor=0.5)]
    jobs = [(start / 3, seconds * 7.31 + 0.013) for start in range(9) for seconds in range(1, 40)]
    exact = [finish(*job, slow, windows) for job in jobs]
    monkeypatch.setattr(fleet_clock, "CHANGES", 3)
    assert [finish(*job, slow, windows) for job in jobs] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("at_end", ["suspend", "cancel"])
@pytest.mark.parametrize(
    "fleet",
    [
        HEAVY,
        HEAVY.slowed(group="heavy", at=3, until=1e200, factor=3).slowed(client=0, at=5, factor=2),
        HEAVY.plus(SlowSpells("heavy", every=3, lasts=2, factor=4)).slowed(client=0, at=1, until=1e15),
        fleet_of(1e12).crash(client=0, at=1, back=1e13),
        tg.Fleet((tg.Group("endless", 2, Endless()),)),
    ],
    ids=["heavy tails", "slow-downs", "slow spells", "a long absence", "infinite runtimes"],
)
def test_a_run_does_not_go_night_by_night(fleet: tg.Fleet, at_end: Any) -> None:
    try:
        found = times(asleep(replace(fleet, at_window_end=at_end)), 5)
        assert found == sorted(found)
    except tg.Starved:
        assert at_end == "cancel" or fleet.clients == 2


def test_nights_that_are_skipped_leave_clients_as_they_were() -> None:
    """Jobs of a million nights and half a window, of clients in two time zones, and a third that is always awake."""
    fleet = fleet_of(4e6 + 2, 4e6 + 2, 3e7).during([(0, 4)], client=0, period=10)
    fleet = fleet.during([(5, 9)], client=1, period=10)
    assert times(fleet, 5) == [1e7 + 2, 1e7 + 7, 2e7 + 4, 2e7 + 9, 3e7]


@pytest.mark.parametrize("sigma", [1e5, 1e308])
def test_a_bandwidth_may_vary_beyond_what_a_float_can_hold(sigma: float) -> None:
    linked = fleet_of(1.0, 1.0).linked(tg.Link(down=1.0, up=1.0, sigma=sigma))
    assert tg.simulate(method_of(), tg.tasks.quadratic(clients=2), linked, rounds=1).status == "finished"


def test_a_run_without_rounds_needs_jobs_that_take_time() -> None:
    server, pool = clock_only(method_of(), fleet_of(1.0, 0.0))
    with pytest.raises(tg.Invalid, match="needs jobs that take time, got 1001 updates of client 1 at second 0"):
        list(tg.drive(server, pool, until=10.0))
    assert times(fleet_of(0.0), 3000) == [0.0] * 3000
