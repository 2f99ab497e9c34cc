"""Fleets: how long jobs take, what goes wrong when, and when updates arrive; every time worked out by hand."""

from __future__ import annotations

import math
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tardygrad as tg
from tardygrad import streams
from tardygrad.engines.fleet_clock import RoundTrips, finish
from tardygrad.fleet import Available, Crash, Fault, Fleet, Slow
from tests.golden.problem import Problem, Task

KINDS = {tg.Update: "update", tg.Lost: "lost", tg.Joined: "joined", tg.Asleep: "asleep", tg.Awake: "awake"}
LIGHT = settings(deadline=None, max_examples=60, derandomize=True)
GRID = (np.arange(20_000) + 0.5) / 20_000  # as good as many uniform draws
LAST = 1.0 - 2.0**-53  # the largest u a stream can give


def fleet_of(*seconds: float | tuple[float, ...], **settings: Any) -> Fleet:
    """One client per entry, with a fixed runtime or a trace."""
    traces = [one if isinstance(one, tuple) else (one,) for one in seconds]
    return Fleet(tuple(tg.Group(f"c{i}", 1, tg.Trace(trace)) for i, trace in enumerate(traces)), **settings)


def method_of(mode: str = "client", buffer: int = 1, **more: Any) -> tg.Method:
    return tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=buffer, mode=mode, **{"local_steps": 1} | more)


def history(
    fleet: Fleet, method: tg.Method | None = None, messages: int = 20, dimension: int = 1
) -> list[tuple[float, str, int]]:
    """The first messages of a run: when, what, from whom. Shorter if nothing more is under way."""
    method = method or method_of()
    task = Task(Problem(0, fleet.clients, dimension))
    server = tg.Server(method, task.init(0), clients=fleet.clients, seed=0)
    seen: list[tuple[float, str, int]] = []
    try:
        for event in tg.drive(server, tg.SimPool(task, method, fleet)):
            if event.message is not None:
                kind = KINDS[type(event.message)]
                seen.append((event.time, kind, event.message.client))
            if len(seen) == messages:
                break
    except tg.Starved:
        pass
    times = [time for time, _, _ in seen]
    assert times == sorted(times), "the clock went back"
    return seen


def simulated(fleet: Fleet, method: tg.Method | None = None, rounds: int = 1) -> tg.Run:
    task: Any = Task(Problem(0, fleet.clients, 1))
    return tg.simulate(method or method_of(), task, fleet, rounds=rounds, evaluate_every=0)


def arrivals(
    fleet: Fleet, client: int, method: tg.Method | None = None, messages: int = 20, **more: int
) -> list[float]:
    """When the client's updates arrive, among the first messages of a run."""
    return [t for t, kind, who in history(fleet, method, messages, **more) if kind == "update" and who == client]


# Runtime distributions.

RUNTIMES = [
    (tg.Uniform(2.0, 6.0), stats.uniform(2, 4)),
    (tg.LogNormal(3.0, 0.5), stats.lognorm(0.5, scale=3)),
    (tg.Exponential(4.0), stats.expon(scale=4)),
    (tg.Pareto(2.0, 3.0), stats.pareto(3, scale=2)),
]


@pytest.mark.parametrize(("runtime", "law"), RUNTIMES, ids=lambda one: type(one).__name__)
def test_a_draw_is_the_quantile_of_its_distribution(runtime: Any, law: Any) -> None:
    for u in (0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999):
        assert runtime.draw(u, 0) == pytest.approx(law.ppf(u), rel=1e-9)


@pytest.mark.parametrize(
    "runtime", [one for one, _ in RUNTIMES] + [tg.Integer(1, 8)], ids=lambda one: type(one).__name__
)
def test_draws_are_finite_not_negative_rising_in_u_and_blind_to_the_serial(runtime: Any) -> None:
    us = [0.0, 2.0**-53, *GRID[::100], LAST]
    times = [runtime.draw(u, 0) for u in us]
    assert all(0 <= time < math.inf for time in times)
    assert times == sorted(times)
    assert [runtime.draw(u, 7) for u in us] == times


def test_integers_are_whole_with_both_ends_as_likely_as_the_middle() -> None:
    values, counts = np.unique([tg.Integer(5, 8).draw(u, 0) for u in GRID], return_counts=True)
    assert values.tolist() == [5.0, 6.0, 7.0, 8.0]
    assert counts.tolist() == [5000] * 4


def test_a_trace_is_taken_in_order_and_from_the_start_again() -> None:
    trace = tg.Trace((3.0, 1.0, 2.0))
    assert [trace.draw(0.5, serial) for serial in range(7)] == [3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    assert trace.draw(0.0, 1) == trace.draw(LAST, 1)


def test_the_simulator_draws_each_runtime_from_the_jobs_own_stream() -> None:
    """Not from one generator in order of execution: client 1's second runtime is a function of (seed, 1, 1)."""
    fleet = Fleet((tg.Group("any", 2, tg.Exponential(5.0)),))
    for client in (0, 1):
        u = [streams.uniform(0, "runtime", client, serial) for serial in range(3)]
        expected = np.cumsum([tg.Exponential(5.0).draw(one, 0) for one in u])
        assert arrivals(fleet, client, messages=40)[:3] == pytest.approx(expected.tolist())


# Error texts.


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tg.Uniform(3, 2), "Uniform needs 0 <= low <= high < inf, got Uniform(low=3, high=2)."),
        (lambda: tg.Integer(5, 2), "low <= high < 2^53, got Integer(low=5, high=2)."),
        (lambda: tg.LogNormal(0, 1), "LogNormal needs 0 < median < inf and 0 <= sigma < inf, got "),
        (lambda: tg.Exponential(0), "Exponential needs 0 < mean < inf, got Exponential(mean=0)."),
        (lambda: tg.Pareto(0, 1), "Pareto needs 0 < minimum < inf and 0 < tail < inf, got Pareto(minimum=0, tail=1)."),
        (lambda: tg.Trace(()), "Trace needs at least one time, each finite and not negative, got Trace(seconds=(), "),
        (lambda: tg.Link(latency=-1), "Link needs 0 <= latency < inf, down > 0, up > 0, got Link(latency=-1, "),
        (lambda: tg.Group("a", 10, 2.0), "Pareto, Trace, Runtime, got 2.0. Use Uniform(...)."),  # type: ignore[arg-type]
        (lambda: Crash(0, 5, 5), "Crash needs 0 <= at < back < inf, got Crash(client=0, at=5, back=5)."),
        (lambda: Slow(0, 5, 4, 2), "Slow needs 0 <= at < until and factor > 0, got Slow(client=0, at=5, "),
        (lambda: Slow(0, 1), "Slow needs a finite `until` for a pause (use a crash for an endless one), got "),
        (lambda: Available(0, ()), "Available needs at least one window (start, end), in ascending"),
        (lambda: Available(0, ((1, 3),), 2), "Available needs a finite period, at least the end of the last window"),
        (lambda: Fault(0, -1, "nan"), "Fault needs job >= 0, got Fault(client=0, job=-1, "),
        (lambda: Fleet(()), "a fleet needs at least one client, got none."),
        (lambda: fleet_of(1.0, server_time=-1.0), "`server_time` must be finite and 0 or more, got -1."),
        (lambda: fleet_of(1.0, 1.0).crash(client=2, at=1), "`client` must be between 0 and 1, got Crash("),
        (lambda: fleet_of(1.0).during([(0, 1)], client=1), "`client` must be between 0 and 0, got Available("),
        (
            lambda: fleet_of(1.0).during([(0, 1)], client=0).during([(2, 3)], client=0),
            "`available` needs one list of windows per client, got 2 for client 0.",
        ),
        (lambda: Fleet.paper(stragglers="huge"), "`stragglers` must be one of mild, large, got 'huge'."),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_broken_rule_is_answered_with_the_rule_and_the_value(make: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=re.escape(text)):
        make()


# The paper's fleets.


@pytest.mark.parametrize(("clients", "split"), [(40, [17, 12, 11]), (10, [4, 3, 3]), (80, [34, 24, 22])])
def test_the_paper_splits_its_fleets_so(clients: int, split: list[int]) -> None:
    assert [group.clients for group in Fleet.paper(clients=clients).groups] == split


def test_the_papers_runtimes() -> None:
    mild, large = Fleet.paper(stragglers="mild"), Fleet.paper(stragglers="large")
    assert [group.runtime for group in mild.groups] == [tg.Integer(1, 2), tg.Integer(3, 5), tg.Integer(5, 8)]
    assert [group.runtime for group in large.groups] == [tg.Integer(1, 2), tg.Integer(3, 5), tg.Integer(20, 40)]
    smooth = Fleet.paper(stragglers="large", continuous=True)
    assert [group.runtime for group in smooth.groups] == [tg.Uniform(1, 2), tg.Uniform(3, 5), tg.Uniform(20, 40)]
    assert Fleet.paper() == large


# Traces from files.


def trace_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_trace_file_gives_one_client_per_name_with_its_times_in_order(tmp_path: Path) -> None:
    text = "client,seconds,class\nb,3,gpu\na,1.5,cpu\nb,4,gpu\na,2,cpu\n"
    fleet = Fleet.trace(trace_file(tmp_path, text))
    assert fleet.clients == 2
    assert fleet.classes == ("gpu", "cpu")  # in the order of first appearance
    assert [group.runtime for group in fleet.groups] == [tg.Trace((3.0, 4.0)), tg.Trace((1.5, 2.0))]
    assert history(fleet, messages=5) == [
        (1.5, "update", 1), (3.0, "update", 0), (3.5, "update", 1), (5.0, "update", 1), (7.0, "update", 0),
    ]  # fmt: skip


def test_the_class_column_may_be_missing_or_empty_and_others_are_ignored(tmp_path: Path) -> None:
    assert Fleet.trace(trace_file(tmp_path, "seconds,client\n1,0\n")).classes == ("traced",)
    assert Fleet.trace(str(trace_file(tmp_path, "client,note,seconds,class\n0,x,1,\n"))).classes == ("traced",)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("client,time\n0,1\n", "(it has no column 'seconds', only 'client', 'time')"),
        ("client,seconds\n0,soon\n", "(could not convert string to float: 'soon')"),
        ("client,seconds\n0,-1\n", "(a time must be finite and not negative, got -1.0 of client '0')"),
        (b"client,seconds\n\xff\xfe,1\n", "codec can't decode byte"),
    ],
)
def test_a_broken_trace_file_is_named_with_the_cause_and_the_fix(tmp_path: Path, text: str | bytes, cause: str) -> None:
    path = trace_file(tmp_path, text)
    with pytest.raises(tg.Invalid, match=re.escape(cause)) as caught:
        Fleet.trace(path)
    assert str(caught.value).startswith(f"{str(path)!r} cannot be read (")
    fix = "Give it the columns client, seconds (in seconds), or name the columns that it has."
    assert str(caught.value).endswith(fix)


def test_a_missing_trace_file_is_named(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    whys = {tmp_path / "none.csv": "No such file or directory", tmp_path: "Is a directory"}
    for path, why in (whys | {pipe: "it is a pipe or a device"}).items():
        text = f"a trace must be a readable CSV or JSON file, got {str(path)!r}: {why}."
        with pytest.raises(tg.Invalid, match=re.escape(text)):
            Fleet.trace(path)


# The way there and back, and the server's own time.

LINK = tg.Link(latency=0.5, down=8.0, up=16.0)  # d = 4: 16 bytes; 0.5 + 2 s down, 0.5 + 1 s up


def test_an_update_arrives_after_the_way_down_the_work_and_the_way_up() -> None:
    assert arrivals(fleet_of(3.0).linked(LINK), 0, messages=2, dimension=4) == [7.0, 14.0]


def test_a_compensating_client_sends_twice_as_much_up() -> None:
    assert arrivals(fleet_of(3.0).linked(LINK), 0, method_of(compensate=True), 2, dimension=4) == [8.0, 16.0]


def test_every_group_has_its_own_link() -> None:
    near, far = tg.Group("near", 1, tg.Trace((1.0,))), tg.Group("far", 1, tg.Trace((1.0,)), tg.Link(latency=2.0))
    assert history(Fleet((near, far)), messages=6)[-2:] == [(5.0, "update", 0), (5.0, "update", 1)]


def test_a_slow_computer_does_not_slow_the_way() -> None:
    """Down until 2.5, where the slow-down ends: 3 s of work are done at 5.5, and arrive at 7."""
    fleet = fleet_of(3.0).linked(LINK).slowed(client=0, at=0.0, until=2.5, factor=10.0)
    assert arrivals(fleet, 0, messages=1, dimension=4) == [7.0]


def test_updates_wait_for_the_server_one_after_the_other() -> None:
    """All three arrive at 1; half a second each. Client 0 is sent off again at 1.5, arrives at 2.5, is done at 3."""
    fleet = fleet_of(1.0, 1.0, 1.0, server_time=0.5)
    assert history(fleet, messages=6) == [
        (1.5, "update", 0), (2.0, "update", 1), (2.5, "update", 2),
        (3.0, "update", 0), (3.5, "update", 1), (4.0, "update", 2),
    ]  # fmt: skip


# Slow-downs, pauses, windows: `finish` by hand.

INF = math.inf


@st.composite
def troubles(draw: st.DrawFn) -> tuple[list[Slow], Available | None]:
    slow = []
    for _ in range(draw(st.integers(0, 3))):
        at, factor = draw(st.integers(0, 12)), draw(st.sampled_from([0.5, 2.0, 4.0, INF]))
        slow.append(Slow(0, at, at + draw(st.integers(1, 10)), factor))
    edges = sorted(draw(st.sets(st.integers(0, 16), min_size=2, max_size=6)))
    edges = edges[: len(edges) // 2 * 2]
    period = draw(st.none() | st.integers(edges[-1], 20))
    windows = tuple(zip(edges[::2], edges[1::2], strict=True))
    return slow, draw(st.none() | st.just(Available(0, windows, period)))


@LIGHT
@given(troubles(), st.integers(0, 40), st.integers(1, 40))
def test_finish_is_what_a_walk_over_the_seconds_gives(
    trouble: tuple[list[Slow], Available | None], start: int, seconds: int
) -> None:
    """Everything changes at whole seconds only, so the speed is constant in between, and all sums are exact."""
    slow, available = trouble
    left, time, expected = float(seconds), start, INF
    while time < 2000:
        speed = 1.0
        for one in slow:
            if one.at <= time < one.until:
                speed /= one.factor
        if available is not None:
            clock = time % available.period if available.period else time
            speed *= any(a <= clock < b for a, b in available.windows)
        if speed and left <= speed:
            expected = time + left / speed
            break
        left -= speed
        time += 1
    assert finish(start, seconds, slow, available) == expected


class Impatient(Available):
    """Windows that give up after a while."""

    def open_at(self, time: float) -> tuple[bool, float]:
        object.__setattr__(self, "asked", getattr(self, "asked", 0) + 1)
        assert self.asked < 10_000, "asked ten thousand times: it would go on for ever"  # type: ignore[attr-defined]
        return super().open_at(time)


@pytest.mark.parametrize(("period", "seconds"), [(3.3, 4.0), (1.1, 7.0), (0.7, 4 * 0.5)])
def test_periods_that_are_no_whole_numbers_do_not_hang(period: float, seconds: float) -> None:
    window = 0.5 if period < 1 else 1.0
    laps = math.ceil(seconds / window) - 1
    expected = laps * period + seconds - laps * window
    assert finish(0.0, seconds, (), Impatient(0, ((0.0, window),), period)) == pytest.approx(expected)


# The same in a run.


def test_a_slow_client_arrives_when_finish_says() -> None:
    assert arrivals(fleet_of(4.0).slowed(client=0, at=1, until=3, factor=2), 0, messages=2) == [5.0, 9.0]
    assert arrivals(fleet_of(4.0).slowed(client=0, at=6, until=10), 0, messages=3) == [4.0, 12.0, 16.0]
    assert arrivals(fleet_of(3.0).during([(0, 4)], client=0, period=10), 0, messages=7) == [3.0, 12.0, 21.0]
    assert arrivals(fleet_of(3.0).during([(2, 4), (6, 10)], client=0), 0, messages=7) == [7.0, 10.0]


# Crashes.


def test_a_client_that_comes_back_starts_anew() -> None:
    """Lost at 2 and back at 5 with nothing done: 4 s later it arrives, and its next job 4 s after that."""
    fleet = fleet_of(4.0, 20.0).crash(client=0, at=2.0, back=5.0)
    assert history(fleet, messages=4) == [
        (2.0, "lost", 0), (5.0, "joined", 0), (9.0, "update", 0), (13.0, "update", 0),
    ]  # fmt: skip


def test_a_client_that_crashes_while_it_waits_is_lost_but_its_update_counts() -> None:
    """Server-centric, M = 2 of 3: client 0 reports at 1, waits, crashes at 2; client 1 completes the round at 3."""
    fleet, method = fleet_of(1.0, 3.0, 9.0).crash(client=0, at=2.0), method_of("server", 2)
    assert history(fleet, method, messages=5) == [
        (1.0, "update", 0), (2.0, "lost", 0), (3.0, "update", 1), (6.0, "update", 1), (9.0, "update", 2),
    ]  # fmt: skip


def test_a_client_that_crashes_while_idle_gets_no_work_until_it_is_back() -> None:
    """Sync, M = 1 of 2: whoever is not sampled is idle. Client 0 is away from 0.5 to 6.5, and client 1 works alone."""
    fleet = fleet_of(1.0, 1.0).crash(client=0, at=0.5, back=6.5)
    lines = history(fleet, method_of("sync", 1), messages=40)
    alone = [client for time, kind, client in lines if kind == "update" and 0.5 < time <= 7]
    after = [client for time, kind, client in lines if kind == "update" and time > 8]
    assert set(alone) == {1}
    assert set(after) == {0, 1}


def test_a_crash_at_the_very_time_of_an_arrival_comes_first() -> None:
    fleet = fleet_of(4.0, 3.0).crash(client=0, at=4.0)
    assert history(fleet, messages=3) == [(3.0, "update", 1), (4.0, "lost", 0), (6.0, "update", 1)]


def test_a_crash_before_the_server_was_free_takes_the_job_that_was_sent_since() -> None:
    """Client 0's update arrives at 1 and is done at 3; the client is gone at 2, so what it was sent at 3 is lost."""
    fleet = fleet_of(1.0, 50.0, server_time=2.0).crash(client=0, at=2.0)
    assert history(fleet, messages=3) == [(3.0, "update", 0), (3.0, "lost", 0), (52.0, "update", 1)]


@pytest.mark.parametrize(
    ("second", "back"),
    [({"at": 3.0}, None), ({"at": 2.0, "back": 3.0}, 5.0), ({"at": 5.0}, None)],
    ids=["crashed for good meanwhile", "back from the inner crash only", "crashed for good as it comes back"],
)
def test_a_client_is_away_while_any_of_its_crashes_lasts(second: dict[str, float], back: float | None) -> None:
    fleet = fleet_of(1.5, 4.0).crash(client=0, at=1.0, back=5.0).crash(client=0, **second)
    assert arrivals(fleet, 0, messages=12)[:1] == ([] if back is None else [back + 1.5])


def test_a_run_goes_on_without_a_client_whose_windows_have_closed_for_good() -> None:
    """Sync, M = 2 of 3, client 0 only there for the first second: the other two could go on for ever."""
    fleet = fleet_of(2.0, 2.0, 2.0).during([(0, 1)], client=0)
    assert simulated(fleet, method_of("sync", 2), rounds=6).server.round == 6


def test_crashes_of_one_client_that_touch_are_one_absence() -> None:
    fleet = fleet_of(1.0, 1.0).crash(client=1, at=7).crash(client=0, at=1, back=5).crash(client=1, at=0, back=2)
    fleet = fleet.crash(client=0, at=5, back=6).crash(client=0, at=8, back=9).crash(client=1, at=8, back=99)
    assert fleet.absences == (Crash(0, 1, 6), Crash(0, 8, 9), Crash(1, 0, 2), Crash(1, 7))


def test_times_beyond_the_largest_number_are_no_key_error() -> None:
    """Two jobs of 1e308 s: the second would end at infinity."""
    with pytest.raises(tg.TardygradError):
        simulated(fleet_of(1e308), rounds=2)


# The same without an engine.


def test_a_journey_is_the_way_down_the_work_and_the_way_up() -> None:
    round_trips = RoundTrips(fleet_of(3.0, (1.0, 2.0)).linked(LINK), down=16, up=32, work=4)  # 2.5 s down, 2.5 s up
    assert round_trips.due(0, 0, seed=0, work=None, now=10.0) == round_trips.due(0, 0, 0, 4, 10.0) == 18.0
    assert round_trips.due(0, 0, seed=0, work=8, now=0.0) == 11.0
    assert [round_trips.due(1, serial, 0, None, 0.0) for serial in range(3)] == [6.0, 7.0, 6.0]


def test_a_journey_that_never_ends_is_cancelled_as_the_windows_close_or_loses_the_client() -> None:
    fleet = fleet_of(2.0, 2.0, 1e308).during([(0, 1), (4, 5)], client=0).slowed(client=1, at=1, until=3)
    round_trips = RoundTrips(fleet, 0, 0, 1)
    assert round_trips.due(1, 0, 0, None, now=0.0) == 4.0
    assert round_trips.due(0, 0, 0, None, now=0.0) == 5.0
    assert round_trips.due(0, 0, 0, None, now=0.5) == math.inf
    assert [round_trips.loses_client(0, now) for now in (0.5, 20.0)] == [False, True]
    assert round_trips.due(2, 0, 0, None, now=1e308) == math.inf
    assert round_trips.loses_client(2, 1e308)


# Order, work, and fleets as values.


def test_equal_times_are_taken_in_the_order_of_the_clients() -> None:
    fleet = fleet_of(2.0, 1.0, 2.0, 1.0)
    assert history(fleet, messages=8) == [
        (1.0, "update", 1), (1.0, "update", 3),
        (2.0, "update", 0), (2.0, "update", 1), (2.0, "update", 2), (2.0, "update", 3),
        (3.0, "update", 1), (3.0, "update", 3),
    ]  # fmt: skip


def test_the_runtime_scales_with_the_steps_of_the_job() -> None:
    """A trace says how long the method's K = 4 steps take; a job of 2 takes half, of 8 twice as long."""
    task: Any = Task(Problem(0, 4, 1))
    pool = tg.SimPool(task, method_of(local_steps=4), fleet_of(6.0, 6.0, 6.0, 6.0))
    for client, steps in enumerate((4, 2, 8, 1)):
        pool.submit(tg.Job(client, 0, 0, task.init(0), steps, None, 0))
    seen = []
    while (message := pool.next()) is not None:
        seen.append((pool.now, message.client))
    assert seen == [(1.5, 3), (3.0, 1), (6.0, 0), (12.0, 2)]


@pytest.mark.parametrize(
    ("mode", "rounds"),
    [
        ("server", [(2.0, (0, 1)), (4.0, (0, 1)), (5.0, (0, 2)), (6.0, (0, 1))]),
        ("client", [(2.0, (0, 0)), (3.0, (1, 0)), (4.0, (0, 1)), (5.0, (0, 2))]),
    ],
)
def test_rounds_end_when_their_last_update_arrives(mode: str, rounds: list[tuple[float, tuple[int, ...]]]) -> None:
    """Runtimes 1, 2, 5 and M = 2.

    Server-centric arrivals: 0 at 1, 1 at 2 | 0 at 3, 1 at 4 | 0 at 5, 2 at 5 | 0 at 6, 1 at 6.
    Client-centric arrivals: 0 at 1, 0 at 2 | 1 at 2, 0 at 3 | 0 at 4, 1 at 4 | 0 at 5, 2 at 5.
    """
    run = simulated(fleet_of(1.0, 2.0, 5.0), method_of(mode, 2), rounds=4)
    assert [(row["time"], row["clients"]) for row in run.metrics] == rounds


def test_a_fleet_is_a_value_and_each_change_makes_a_new_one() -> None:
    fleet = fleet_of(1.0, 2.0)
    changed = (
        fleet.crash(client=0, at=1.0, back=2.0)
        .slowed(client=1, at=3.0, factor=2.0)
        .slowed(client=1, at=1.0, until=2.0)
        .during([(0.0, 4.0)], client=0, period=8.0)
        .faulty(client=1, job=0, sends="nan")
        .faulty(client=1, job=0, sends="twice")
        .linked(tg.Link(latency=1.0))
    )
    assert fleet == fleet_of(1.0, 2.0)
    assert changed.crashes == (Crash(0, 1.0, 2.0),)
    assert changed.slow == (Slow(1, 3.0, INF, 2.0), Slow(1, 1.0, 2.0, INF))
    assert changed.available == (Available(0, ((0.0, 4.0),), 8.0),)
    assert changed.faults == (Fault(1, 0, "nan"), Fault(1, 0, "twice"))
    assert changed.sending("nan") == changed.sending("twice") == {(1, 0)}
    assert {group.link for group in changed.groups} == {tg.Link(latency=1.0)}
    assert changed.clients == 2


@LIGHT
@given(st.floats(0, 50), st.data())
def test_windows_say_when_they_change_next(time: float, data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, 16), min_size=2, max_size=2)))
    windows = Available(0, (tuple(edges),), data.draw(st.none() | st.integers(edges[-1], 20)))  # type: ignore[arg-type]
    is_open, change = windows.open_at(time)
    assert change > time
    for a, b in pairwise([time, (time + min(change, time + 100)) / 2]):
        assert windows.open_at(a)[0] == windows.open_at(b)[0] == is_open
