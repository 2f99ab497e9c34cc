"""Availability: a client outside its windows is asleep. It gets no job; what happens to its last one is a setting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.runs.events import Dispatch, Sleep, Wake, read_events
from tardygrad.runs.history import read_history
from tardygrad.runs.loop import clock_only
from tests.test_fleet import KINDS, fleet_of, method_of

SECOND = tg.Fleet((tg.Group("one", 10, tg.Trace((1.0,))),))
MODES = [("client", {"concurrency": 3, "dispatch": "random"}), ("server", {"concurrency": 3}), ("sync", {})]

ENDINGS: list[Any] = ["suspend", "cancel"]


def seconds(fleet: tg.Fleet, method: tg.Method, rounds: int) -> float:
    server, pool = clock_only(method, fleet)
    for _ in tg.drive(server, pool, rounds):
        pass
    return pool.now


def messages(fleet: tg.Fleet, count: int, method: tg.Method | None = None) -> list[tuple[Any, ...]]:
    """The first messages: when, what, from whom, and for a client that falls asleep what happens to its job."""
    method = method or method_of()
    found: list[tuple[Any, ...]] = []
    for event in tg.drive(*clock_only(method, fleet)):
        if event.message is not None:
            job = (event.message.job,) if isinstance(event.message, tg.Asleep) else ()
            found.append((event.time, KINDS[type(event.message)], event.message.client, *job))
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("at_end", ENDINGS)
@pytest.mark.parametrize(("mode", "settings"), MODES, ids=[mode for mode, _ in MODES])
def test_no_job_is_sent_to_a_client_that_is_asleep(mode: str, settings: Any, at_end: Any, tmp_path: Path) -> None:
    """Not at the start either, when clients 5 to 9 are asleep."""
    fleet = tg.Fleet(SECOND.groups, at_window_end=at_end)
    for client in range(10):
        windows = [(0, 3)] if client < 5 else [(2, 6)]
        fleet = fleet.during(windows, client=client, period=7)
    task: Any = tg.tasks.quadratic(clients=10, dimension=4)
    run = tg.simulate(method_of(mode, 2, **settings), task, fleet, rounds=60, out=tmp_path / "run", evaluate_every=0)
    assert run.status == "finished"
    asleep: set[int] = set()
    slept, sent = 0, 0
    for event in read_events(tmp_path / "run" / "events.jsonl"):
        if isinstance(event, Sleep):
            asleep.add(event.client)
            slept += 1
        elif isinstance(event, Wake):
            asleep.remove(event.client)
        elif isinstance(event, Dispatch):
            assert event.client not in asleep
            sent += 1
    assert slept > 30
    assert sent > 100


def test_what_happens_to_a_job_at_the_end_of_a_window_is_a_setting() -> None:
    """Windows of 4 s in 10, jobs of 3 s: the second is at work when the window ends at 4."""
    fleet = fleet_of(3.0)
    rest = {
        "suspend": [(12.0, "update", 0), (14.0, "asleep", 0, "suspend")],  # 1 s before the night, 2 s after it
        "cancel": [(13.0, "update", 0), (14.0, "asleep", 0, "cancel")],  # begins again at 10
    }
    for at_end in ENDINGS:
        expected: list[Any] = [(3.0, "update", 0), (4.0, "asleep", 0, at_end), (10.0, "awake", 0), *rest[at_end]]
        fleet = tg.Fleet(fleet.groups, at_window_end=at_end).during([(0, 4)], client=0, period=10)
        assert messages(fleet, len(expected)) == expected


def test_an_update_that_arrives_as_the_window_ends_counts_and_its_client_gets_no_job() -> None:
    for at_end in ENDINGS:
        fleet = replace(fleet_of(2.0, 50.0), at_window_end=at_end).during([(0, 4)], client=0, period=100)
        assert messages(fleet, 5) == [
            (2.0, "update", 0), (4.0, "asleep", 0, "finish"), (4.0, "update", 0),
            (50.0, "update", 1), (100.0, "awake", 0),
        ]  # fmt: skip


def test_a_suspended_job_takes_no_slot_but_a_synchronous_round_waits_for_it() -> None:
    """One slot. Client 0's job of 3 s is suspended from 1 to 100: client 1 works meanwhile, unless rounds are sync."""
    fleet = fleet_of(3.0, 5.0).during([(0, 1), (100, 200)], client=0)
    one = method_of("client", 1, concurrency=1)
    assert messages(fleet, 3, one) == [(1.0, "asleep", 0, "suspend"), (6.0, "update", 1), (11.0, "update", 1)]
    server, pool = clock_only(method_of("sync", 2), fleet)
    assert [event.time for event in tg.drive(server, pool, 1)][-1] == 102.0


def test_a_sleeper_that_crashes_is_back_asleep_or_awake_as_its_windows_say() -> None:
    fleet = fleet_of(3.0, 50.0).during([(0, 4), (20, 30)], client=0)
    assert messages(fleet.crash(client=0, at=6, back=10), 5) == [
        (3.0, "update", 0), (4.0, "asleep", 0, "suspend"), (6.0, "lost", 0), (10.0, "asleep", 0, "suspend"),
        (20.0, "awake", 0),
    ]  # fmt: skip
    assert messages(fleet.crash(client=0, at=6, back=21), 4)[2:] == [(6.0, "lost", 0), (21.0, "joined", 0)]


def test_windows_that_meet_are_one_and_a_window_that_never_ends_is_no_sleep() -> None:
    assert messages(fleet_of(3.0).during([(0, 8)], client=0, period=8), 9) == messages(fleet_of(3.0), 9)
    night = messages(fleet_of(3.0).during([(0, 3), (5, 8)], client=0, period=8), 12)
    assert [line[0] for line in night if line[1] == "asleep"] == [3.0, 11.0, 19.0]


def test_a_run_that_can_never_go_on_says_so() -> None:
    """Jobs of 3 s in windows of 1 s, always cancelled; and clients that wait for one that is lost."""
    short = replace(fleet_of(3.0, 3.0), at_window_end="cancel").during([(0, 1)], client=0, period=2)
    short = short.during([(0, 1)], client=1, period=2)
    with pytest.raises(tg.Starved, match=r"the last \d+ jobs were lost or cancelled .*2 asleep"):
        seconds(short, method_of(), 1)
    waiting = fleet_of(1.0, 1.0, 1.0).crash(client=2, at=0.5)
    for client in (0, 1):
        waiting = waiting.during([(0, 2)], client=client, period=5)
    with pytest.raises(tg.Starved, match=r"no job is in flight \(2 of 3 updates received; .* 1 lost"):
        seconds(waiting, method_of("server", 3), 1)


@pytest.mark.parametrize(("mode", "at_end"), [("sync", "cancel"), ("server", "suspend"), ("client", "cancel")])
def test_a_run_with_sleepers_is_resumed_and_replayed_to_the_same_bits(mode: str, at_end: Any, tmp_path: Path) -> None:
    fleet = replace(tg.Fleet.paper(clients=8), at_window_end=at_end)
    for client in range(8):
        fleet = fleet.during([(client, client + 9)], client=client, period=20)
    method, task = method_of(mode, 2, compensate=True), tg.tasks.quadratic(clients=8, dimension=4)
    settings: Any = {"rounds": 30, "checkpoint_every": 7, "evaluate_every": 0}
    whole = tg.simulate(method, task, fleet, out=tmp_path / "whole", **settings)
    part = tg.begin(method, task, tg.SimPool(task, method, fleet), out=tmp_path / "part", **settings)
    for row in part.go():
        if row["round"] == 17:
            part.stop()
    again = tg.resume(tmp_path / "part", method, task, tg.SimPool(task, method, fleet))
    for _ in again.go():
        pass
    assert again.x.equal(whole.x)
    files = [[*read_events(tmp_path / name / "events.jsonl")] for name in ("whole", "part")]
    assert [e[:4] for e in files[0]] == [e[:4] for e in files[1]]
    assert tg.replay(whole).x.equal(whole.x)


def test_a_history_tells_sleep_from_work_and_from_loss(tmp_path: Path) -> None:
    """Client 0 is asleep from 4 to 10 in the middle of a job of 3 s; client 1 is lost at 5."""
    fleet = fleet_of(3.0, 8.0).during([(0, 4)], client=0, period=10).crash(client=1, at=5)
    task: Any = tg.tasks.quadratic(clients=2, dimension=4)
    tg.simulate(method_of(), task, fleet, rounds=2, out=tmp_path / "run", evaluate_every=0)
    record = read_history(tmp_path / "run")
    assert record.random_fleet is False
    first, second = record.by_client
    assert first.asleep == [(4.0, 10.0)]
    assert [job.seconds for job in first.jobs] == [*first.seconds, 0.0] == [3.0, 3.0, 0.0]
    assert (first.working_seconds, first.asleep_seconds, first.lost_seconds) == (6.0, 6.0, 0.0)
    assert (second.away, second.asleep, second.lost) == ([(5.0, 12.0)], [], True)
