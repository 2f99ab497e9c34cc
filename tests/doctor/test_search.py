"""The search: which settings are tried, what is counted, and what is no choice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import tardygrad as tg
from tardygrad.doctor.clock_run import STALENESS, UPDATES, run_clock, updates_to_simulate
from tardygrad.doctor.search import changes, rank_settings, settings, sizes
from tardygrad.doctor.theorems import TailIndex, presets, tail_of, tolerance
from tardygrad.runs.events import TailEstimate
from tardygrad.runs.loop import trained_rounds
from tests.doctor.planted import clip2, fleet, sgdclip

TWO = tg.Fleet((tg.Group("quick", 1, tg.Uniform(1.5, 1.5)), tg.Group("slow", 1, tg.Uniform(4.0, 4.0))))


def test_late_updates_count_less() -> None:
    """By hand, M = 1: the quick client arrives at 1.5, 3, 4.5 and 6 s, the slow one, which began from x_0, at 4 s."""
    seen = run_clock(clip2(buffer=1), TWO, rounds=5)
    delays = [1, 1, 3, 2, 1]  # at 1.5, 3, 4, 4.5 and 6 s
    assert (seen.time, seen.rounds) == (6.0, 5)
    assert (seen.delay_max, seen.delay_mean) == (3, pytest.approx(1.6))
    assert seen.effective == pytest.approx(5 / (1 + STALENESS * 0.6))
    downplayed = run_clock(clip2(buffer=1, downplay=True), TWO, rounds=5)
    weight, squares = sum(1 / delay for delay in delays), sum(1 / delay**2 for delay in delays)
    assert (seen.lag, seen.averaged) == (pytest.approx(1.6), pytest.approx(1.0))
    assert (downplayed.lag, downplayed.averaged) == (pytest.approx(1.0), pytest.approx(weight / squares))
    assert downplayed.effective == pytest.approx(weight * (weight / squares) ** 0.5)
    assert seen.per_effective == pytest.approx(6.0 / seen.effective)
    assert (seen.idle, seen.refused) == (0.0, 0.0)
    assert seen.waits == 3  # of the slow client's second job, from x_3


def test_an_update_that_comes_twice_does_not_end_its_clients_next_job() -> None:
    once = run_clock(clip2(buffer=1), TWO, rounds=5)
    twice = run_clock(clip2(buffer=1), TWO.faulty(client=1, job=0, sends="twice"), rounds=5)
    assert twice == once._replace(refused=1 / 6)
    assert (twice.idle, twice.waits) == (0.0, 3)


def test_a_simulation_is_bounded_however_long_the_run() -> None:
    assert run_clock(clip2(buffer=6), fleet(), rounds=10**9).rounds == UPDATES[0] // 6
    assert updates_to_simulate(fleet(slow=300.0)) == pytest.approx(3 * 300 * 11, rel=0.01)
    assert updates_to_simulate(fleet(slow=1e9)) == UPDATES[1]


def test_a_simulation_that_is_cut_short_covers_whole_days_of_a_fleet_that_sleeps() -> None:
    """Twelve clients of about 1 s that are awake for the first 500 of 1,000 s, in which they send 6,000 updates."""
    day = fleet().diurnal(period=1000, awake=0.5, spread=0)
    for mode, buffer in (("client", 1), ("client", 6), ("sync", 12)):
        found = run_clock(clip2(mode=mode, buffer=buffer), day, rounds=10**9)
        assert found.time == pytest.approx(1000, rel=0.003)
    assert run_clock(clip2(), day, rounds=100).rounds == 100, "a short run is simulated as it is"
    once = fleet().during([(0, 100), (300, math.inf)], client=0)
    assert (once.period, fleet().period) == (300, 0)


@pytest.mark.parametrize("clients", [1, 2, 5, 12, 40, 1000])
def test_every_setting_is_a_method_and_none_is_tried_twice(clients: int) -> None:
    found = settings(clip2(buffer=1, mode="server"), clients)
    assert found[0] == clip2(buffer=1, mode="server") or found[0].buffer == 1
    names = [(one.mode, one.buffer, one.concurrency) for one in found]
    assert len(set(names)) == len(names)
    assert {one.buffer for one in found} == set(sizes(clients, 1))
    assert len(sizes(clients, 1)) <= 13
    assert all(one.dispatch == "random" for one in found[1:] if one.concurrency)
    assert all(one.mode != "server" or not one.concurrency or one.concurrency >= one.buffer for one in found)


def test_a_delay_above_the_theorys_is_a_warning_and_one_above_the_users_limit_is_ruled_out() -> None:
    method, of = clip2(buffer=4), fleet(5, slow=30.0)
    free = rank_settings(method, of, rounds=60)
    warned = rank_settings(method, of, rounds=60, tolerated=20)
    assert [one._replace(warning=None) for one in warned.settings] == free.settings
    late = [one.clock is not None and one.clock.delay_max > 20 for one in warned.settings]
    assert [one.warning == "its largest delay is above 20" for one in warned.settings] == late
    assert any(late)
    limited = rank_settings(method, of, rounds=60, max_delay=20)
    fine = [one for one in limited.settings if one.excluded is None]
    assert limited.settings[: len(fine)] == fine
    assert all(one.clock and one.clock.delay_max <= 20 for one in fine)
    assert {one.excluded for one in limited.settings[len(fine) :]} == {"its largest delay is above 20"}


def test_settings_are_compared_for_the_work_of_the_current_one() -> None:
    ranking = rank_settings(clip2(buffer=4, mode="sync"), fleet(5, slow=30.0), rounds=60)
    current, best = ranking.current, ranking.best
    assert current.clock
    assert (current.rounds, current.seconds) == (60, pytest.approx(60 * current.clock.per_round))
    assert best
    assert best.clock
    work = [one.rounds * one.clock.effective / one.clock.rounds for one in (current, best) if one.clock]
    assert work[1] == pytest.approx(work[0], rel=0.5 / best.rounds)
    assert [one.seconds for one in ranking.settings] == sorted(one.seconds for one in ranking.settings)
    assert ranking.faster(current) == pytest.approx(current.seconds / best.seconds)


SIX = tg.Fleet((tg.Group("quick", 5, tg.Uniform(0.9, 1.1)), tg.Group("slow", 1, tg.Uniform(9.0, 11.0))))


def test_six_clients_of_which_one_is_slow_get_the_advice_that_is_fastest_in_truth() -> None:
    """A delay bound with an invented constant used to rule out all settings in which more than three clients work."""
    now = tg.clip2(local_lr=0.1, local_clip=1.0, lr=0.3, clip=0.1, buffer=6, local_steps=5, mode="sync")
    task = tg.tasks.quadratic(clients=6, dimension=20)

    def seconds(method: tg.Method) -> float:
        """Simulated seconds to a loss that the current setting reaches in 100 rounds."""
        return next(
            now
            for now, server in trained_rounds(method, task, SIX, seed=0, until=1000.0)
            if task.evaluate(server.x, None)["loss"] < 0.1
        )

    once_advised = replace(now, mode="client", concurrency=3, dispatch="random")
    once_excluded = replace(now, mode="client")
    assert seconds(once_excluded) < 0.5 * seconds(once_advised)
    ranking = rank_settings(now, SIX, rounds=100, tolerated=10)
    assert ranking.best
    assert ranking.sync
    assert ranking.best.warning == "its largest delay is above 10"
    assert seconds(ranking.best.method) <= seconds(once_excluded)
    assert changes(ranking.best.method, now)[0] == "method.mode=client"
    assert f"times as fast as the best synchronous setting ({ranking.sync.seconds:.0f} s)" in ranking.answer()


@pytest.mark.parametrize("downplay", [False, True])
def test_with_a_run_that_works_only_what_is_clearly_better_and_safe_is_recommended(downplay: bool) -> None:
    now = sgdclip(buffer=4, mode="sync", downplay=downplay)
    ranking = rank_settings(now, fleet(4, slow=20.0), rounds=60, cautious=True)
    assert ranking.best
    assert ranking.best.clock
    assert ranking.best.clock.lag <= 2
    assert (ranking.best is ranking.settings[0], ranking.caveat is None) == (downplay, downplay)
    even = rank_settings(replace(now, mode="client"), fleet(4), rounds=60, cautious=True)
    assert even.best is even.current
    assert even.answer().endswith("; no other setting is clearly better") == (even.best is not even.settings[0])


def test_a_setting_that_starves_is_no_choice() -> None:
    crashed = TWO.crash(client=1, at=1.0)
    alone = rank_settings(clip2(buffer=2, mode="server"), crashed, rounds=5).current
    assert (alone.clock, alone.excluded, alone.seconds) == (None, "it starves", float("inf"))


def test_a_setting_that_the_method_cannot_have_is_no_choice() -> None:
    halves = tg.halos(regions=2, local_lr=0.1, local_steps=2)  # six clients in each
    found = {one.method.buffer: one.excluded for one in rank_settings(halves, fleet(), rounds=5).settings}
    rule = "`buffer` must be at most the number of clients of the smallest region (6)"
    assert (found[6], found[7]) == (None, rule)


def test_the_tolerance_is_that_of_the_methods_theorem() -> None:
    tail = TailIndex(1.5, "assumed")
    assert tolerance(clip2(), 10_000, tail).delay == pytest.approx(100.0)  # T^(1/2), of the most tolerant schedule
    assert tolerance(clip2(), 10_000, tail, "theory-unknown-tail").delay < 100.0
    assert tolerance(sgdclip(), 1000, tail).delay == pytest.approx(10.0)  # T^(1/3)
    assert tolerance(clip2(downplay=True), 10, tail) == (math.inf, "the method downplays late updates")
    fadas = tg.fadas(local_lr=0.1, lr=0.1, tau_c=1, buffer=2, local_steps=1)
    assert tolerance(fadas, 10, tail) == (math.inf, "no theorem covers this method")
    assert [one.name for one in presets("Clip²", "theory-unknown-tail")] == ["clip2-unknown-tail"]
    assert [one.name for one in presets("DC-Clip²")] == ["dc-clip2"]


def test_the_tail_index_is_the_one_measured_the_specs_or_a_guess() -> None:
    noisy = {"task": {"noise": {"kind": "stable", "tail": 1.2}}}
    tail = TailEstimate(9.0, 30, 1.7, 1.6, 1.8, "heavy-tailed, infinite variance", "hill", 900)
    assert tail_of(noisy, [tail]) == (1.7, "measured in round 30")
    assert tail_of(noisy, [tail._replace(high=2.2)]) == (1.2, "from the spec's noise")  # not clear
    assert tail_of(noisy, [tail._replace(round=None)]) == (1.7, "probed at x_0")
    assert tail_of(noisy, [tail._replace(verdict="light-tailed")]) == (1.2, "from the spec's noise")
    assert tail_of({"method": {"tail": 1.3}}) == (1.3, "from the spec's tail")
    assert tail_of({"task": {"noise": {"tail": 7}}}) == tail_of(None) == (1.5, "assumed")
