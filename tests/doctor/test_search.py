"""The search: which settings are tried, what is counted, and what is no choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tardygrad as tg
from tardygrad.doctor.clock_run import UPDATES, run_clock, updates_to_simulate
from tardygrad.doctor.search import Candidate, ranked, search, settings, sizes
from tardygrad.doctor.search_chart import BEYOND, search_chart
from tardygrad.doctor.theorems import presets, tail_of, tolerance
from tardygrad.runs.events import Tail
from tests.doctor.planted import clip2, fleet, sgdclip

TWO = tg.Fleet((tg.Group("quick", 1, tg.Uniform(1.5, 1.5)), tg.Group("slow", 1, tg.Uniform(4.0, 4.0))))


def test_an_effective_update_is_counted_by_its_delay() -> None:
    """By hand, M = 1: the quick client arrives at 1.5, 3, 4.5 and 6 s, the slow one, which began from x_0, at 4 s."""
    seen = run_clock(clip2(buffer=1), TWO, rounds=5)
    delays = [1, 1, 3, 2, 1]  # at 1.5, 3, 4, 4.5 and 6 s
    assert (seen.time, seen.rounds) == (6.0, 5)
    assert seen.effective == pytest.approx(sum(1 / delay for delay in delays))
    assert (seen.delay_max, seen.delay_mean) == (3, pytest.approx(1.6))
    assert seen.per_effective == pytest.approx(6.0 / seen.effective)
    assert (seen.idle, seen.refused) == (0.0, 0.0)
    assert seen.waits == 3  # of the slow client's second job, from x_3


def test_rounds_that_wait_for_all_are_fresh_and_leave_the_quick_idle() -> None:
    seen = run_clock(clip2(buffer=2, mode="sync"), TWO, rounds=5)
    assert (seen.time, seen.delay_max, seen.effective) == (20.0, 1, 10.0)
    assert seen.idle == pytest.approx(1 - 5.5 / 8)


def test_refused_updates_are_counted() -> None:
    seen = run_clock(clip2(buffer=1, max_delay=2), TWO, rounds=8)
    assert seen.delay_max <= 2
    assert seen.refused > 0


def test_an_update_that_comes_twice_does_not_end_its_clients_next_job() -> None:
    once = run_clock(clip2(buffer=1), TWO, rounds=5)
    twice = run_clock(clip2(buffer=1), TWO.faulty(client=1, job=0, sends="twice"), rounds=5)
    assert twice == once._replace(refused=1 / 6)
    assert (twice.idle, twice.waits) == (0.0, 3)


def test_a_client_that_is_lost_has_no_job_any_more() -> None:
    seen = run_clock(clip2(buffer=1), TWO.crash(client=1, at=3.5), rounds=4)
    assert (seen.time, seen.idle) == (6.0, pytest.approx(2.5 / 12))


def test_a_simulation_is_bounded_however_long_the_run() -> None:
    assert run_clock(clip2(buffer=6), fleet(), rounds=10**9).rounds == UPDATES[0] // 6
    assert updates_to_simulate(fleet(slow=300.0)) == pytest.approx(3 * 300 * 11, rel=0.01)
    assert updates_to_simulate(fleet(slow=1e9)) == UPDATES[1]


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


def test_a_sync_method_is_not_tried_again_as_such() -> None:
    found = settings(clip2(mode="sync", buffer=6, concurrency=6), 12)
    assert [one.buffer for one in found if one.mode == "sync"].count(6) == 1


def test_the_fastest_comes_first_and_what_is_no_choice_last() -> None:
    method = clip2(buffer=1)
    tried = list(search(settings(method, 12), fleet(slow=30.0), rounds=60, bound=20))
    found = ranked(tried)
    assert [one.current for one in tried].count(True) == 1
    assert tried[0].current
    fine = [one for one in found if one.excluded is None]
    assert found[: len(fine)] == fine
    assert [one.seconds for one in fine] == sorted(one.seconds for one in fine)
    assert all(one.clock and one.clock.delay_max <= 20 for one in fine)
    late = [one for one in found if one.excluded]
    assert late
    assert {one.excluded for one in late} == {"its largest delay is above 20"}
    assert fine[0].method.buffer > 1


def test_one_slow_client_makes_asynchrony_the_choice_and_none_does_not() -> None:
    def best(of: tg.Fleet, **changes: object) -> Candidate:
        methods = [replace(clip2(buffer=4), **each) for each in ({}, {"mode": "sync", "buffer": 12}, changes)]  # type: ignore[arg-type]
        return ranked(list(search(methods, of, rounds=60, bound=1e9)))[0]

    assert best(fleet(slow=100.0), mode="server", buffer=11).method.mode == "server"
    constant = tg.Fleet((tg.Group("same", 12, tg.Uniform(1.5, 1.5)),))
    assert best(constant, mode="client", buffer=2).method.mode == "sync"


def test_a_setting_that_starves_is_no_choice() -> None:
    crashed = TWO.crash(client=1, at=1.0)
    (alone,) = search([clip2(buffer=2, mode="server")], crashed, rounds=5, bound=100)
    assert (alone.clock, alone.excluded, alone.seconds) == (None, "it starves", float("inf"))


def test_a_setting_that_the_method_cannot_have_is_no_choice() -> None:
    halves = tg.halos(regions=2, local_lr=0.1, local_steps=2)  # six clients in each
    found = {one.method.buffer: one.excluded for one in search(settings(halves, 12), fleet(), rounds=5, bound=1e9)}
    rule = "`buffer` must be at most the number of clients of the smallest region (6)"
    assert (found[6], found[7]) == (None, rule)


def test_the_tolerance_is_that_of_the_methods_theorem() -> None:
    assert tolerance(clip2(), 10_000, 1.5) == pytest.approx(100.0)  # T^(1/2), of the most tolerant schedule
    assert tolerance(clip2(), 10_000, 1.5, "theory-unknown-tail") < 100.0
    assert tolerance(sgdclip(), 1000, 1.5) == pytest.approx(10.0)  # T^(1/3)
    assert tolerance(clip2(downplay=True), 10, 1.5) == float("inf")
    assert tolerance(tg.fadas(local_lr=0.1, lr=0.1, tau_c=1, buffer=2, local_steps=1), 10, 1.5) == float("inf")
    assert [one.name for one in presets("Clip²", "theory-unknown-tail")] == ["clip2-unknown-tail"]
    assert [one.name for one in presets("DC-Clip²")] == ["dc-clip2"]


def test_the_tail_index_is_the_one_measured_the_specs_or_a_guess() -> None:
    noisy = {"task": {"noise": {"kind": "stable", "tail": 1.2}}}
    tail = Tail(9.0, 30, 1.7, 1.6, 1.8, "heavy-tailed, infinite variance", "hill", 900)
    assert tail_of(noisy, [tail]) == (1.7, "measured in round 30")
    assert tail_of(noisy, [tail._replace(high=2.2)]) == (1.2, "from the spec's noise")  # not clear
    assert tail_of(noisy, [tail._replace(round=None)]) == (1.7, "probed at x_0")
    assert tail_of(noisy, [tail._replace(verdict="light-tailed")]) == (1.2, "from the spec's noise")
    assert tail_of({"method": {"tail": 1.3}}) == (1.3, "from the spec's tail")
    assert tail_of({"task": {"noise": {"tail": 7}}}) == tail_of(None) == (1.5, "assumed")


@pytest.mark.parametrize(("bound", "named"), [(float("inf"), None), (3.0, {"values": [BEYOND]})])
def test_the_picture_names_the_bound_only_where_something_is_beyond_it(bound: float, named: object) -> None:
    tried = list(search(settings(clip2(buffer=1), 2), TWO, rounds=20, bound=bound))
    drawn = search_chart(tried).to_dict()["layer"][1]["encoding"]
    assert drawn["shape"]["legend"] == named
    assert drawn["color"]["legend"]["symbolType"] == "stroke", "no mode looks like a mark of the bound"
