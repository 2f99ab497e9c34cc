"""Fleets as in reality: dropout, shared slow-downs, days and nights, varying bandwidth, traces with names."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.engines.fleet_clock import RoundTrips, Spells, matched
from tardygrad.fleet import AvailabilityFile, Available, Diurnal, Slow, SlowSpells
from tardygrad.runs.export import export
from tardygrad.runs.history import read_history
from tardygrad.runs.loop import clock_only
from tardygrad.spec import spec
from tests.test_fleet import arrivals, fleet_of, history, method_of, simulated

TWO = tg.Fleet((tg.Group("phone", 10, tg.Trace((1.0,))), tg.Group("rack", 10, tg.Trace((1.0,)))))


@dataclass(frozen=True)
class Coin:
    """A distribution of one's own: short or long."""

    short: float
    long: float = 10.0

    def draw(self, u: float, serial: int) -> float:
        return self.short if u < 0.5 else self.long


class Bad:
    def __init__(self, seconds: Any) -> None:
        self.seconds = seconds

    def draw(self, u: float, serial: int) -> Any:
        return self.seconds


def counts(fleet: tg.Fleet, messages: int = 2000) -> tuple[int, int]:
    seen = [kind for _, kind, _ in history(fleet, messages=messages)]
    return seen.count("update"), seen.count("lost")


# A probability per job.


def test_a_dropped_job_is_lost_within_its_duration_and_its_client_gets_another() -> None:
    taken, lost = counts(TWO.dropping(0.2))
    assert lost / (taken + lost) == pytest.approx(0.2, abs=0.03)
    seen = history(fleet_of(1.0).dropping(0.5), messages=60)
    last, times = 0.0, []
    for time, kind, _ in seen:
        if kind in ("update", "lost"):
            times.append((kind, time - last))
            last = time
    assert {round(took, 9) for kind, took in times if kind == "update"} == {1.0}
    lengths = [took for kind, took in times if kind == "lost"]
    assert all(0 < took < 1 for took in lengths)
    assert max(lengths) - min(lengths) > 0.5
    assert {kind for _, kind, _ in seen} == {"update", "lost", "joined"}


def test_a_group_has_a_dropout_of_its_own_and_a_crash_takes_the_job_first() -> None:
    fleet = replace(TWO, groups=(replace(TWO.groups[0], dropout=0.5), TWO.groups[1]))
    assert {client for _, kind, client in history(fleet, messages=400) if kind == "lost"} <= set(range(10))
    assert fleet.dropouts == (0.5,) * 10 + (0.0,) * 10
    crashed = fleet_of(5.0, 5.0).dropping(0.9).crash(client=0, at=0.0)
    assert [line for line in history(crashed, messages=6) if line[2] == 0] == [(0.0, "lost", 0)]


# Slow together.


def test_a_group_is_slow_together() -> None:
    fleet = TWO.slowed(group="phone", at=0, until=10, factor=4)
    first = {client: time for time, _, client in reversed(history(fleet, messages=40))}
    assert [first[client] for client in (0, 9, 10, 19)] == [4.0, 4.0, 1.0, 1.0]


def test_random_spells_are_shared_by_a_group_and_change_with_the_seed() -> None:
    law = SlowSpells("phone", every=20, lasts=5, factor=4)
    spells = Spells(law, 0, seed=0)
    time, slow, changes = 0.0, 0.0, 0
    while time < 20_000:
        factor, change = spells.at(time)
        slow += (change - time) * (factor == 4)
        time, changes = change, changes + 1
    assert slow / time == pytest.approx(0.2, abs=0.03)  # 5 of 25 s
    assert spells.at(3.0) == Spells(law, 0, seed=0).at(3.0) != Spells(law, 0, seed=1).at(3.0)
    trips = RoundTrips(TWO.plus(SlowSpells("phone", every=20, lasts=5, factor=4)), 0, 0, 1)
    dues = [[trips.due(client, 0, 0, None, now) - now for now in range(200)] for client in (0, 9, 10)]
    assert dues[0] == dues[1] != dues[2]
    assert max(dues[0]) == pytest.approx(4.0)
    assert set(dues[2]) == {1.0}


def test_a_slow_down_is_of_a_client_or_of_a_group_that_exists() -> None:
    with pytest.raises(tg.Invalid, match="Slow needs either `client` or `group`, got Slow"):
        Slow(0, 1.0, 2.0, 2.0, "phone")
    with pytest.raises(tg.Invalid, match="`group` must be one of phone, rack, got 'phones'"):
        TWO.slowed(group="phones", at=0, factor=2)
    with pytest.raises(tg.Invalid, match="SlowSpells needs 0 < every < inf, 0 < lasts < inf and factor > 0"):
        SlowSpells("phone", every=0, lasts=1, factor=2)


# Days and nights.


def test_a_diurnal_pattern_has_the_share_awake_at_any_time_of_the_day() -> None:
    fleet = tg.Fleet((tg.Group("phone", 200, tg.Trace((1.0,))),)).diurnal(period=100, awake=0.3)
    for time in (0.0, 25.0, 50.0, 75.0, 110.0):
        assert sum(entry.open_at(time)[0] for entry in fleet.available) == pytest.approx(60, abs=4)
    together = TWO.diurnal(period=100, awake=0.3, spread=0.0, group="rack")
    assert together.available == tuple(Available(c, ((0.0, 30.0),), 100) for c in range(10, 20))
    assert Diurnal(awake=1.0).windows(7) == ((0.0, 86_400.0),)
    with pytest.raises(tg.Invalid, match="Diurnal needs 0 < period < inf, 0 < awake <= 1 and 0 <= spread <= 1"):
        Diurnal(awake=0.0)


# Bandwidth.


def test_the_bandwidth_of_each_message_varies_around_that_of_the_link() -> None:
    link = tg.Link(latency=1.0, down=100.0, up=100.0, sigma=0.5)
    trips = RoundTrips(fleet_of(0.0).linked(link), down=1000, up=0, work=1)
    times = sorted(trips.due(0, serial, 0, None, 0.0) - 2.0 for serial in range(2001))
    assert times[1000] == pytest.approx(10.0, rel=0.05)  # the median
    assert times[1683] / times[1000] == pytest.approx(math.exp(0.5), rel=0.06)  # one sigma
    with pytest.raises(tg.Invalid, match="Link needs 0 <= sigma < inf"):
        tg.Link(sigma=-1)


# Seeds.


# Distributions of one's own.


def test_an_own_distribution_works_in_python_in_specs_and_in_records(tmp_path: Path) -> None:
    fleet = tg.Fleet((tg.Group("own", 40, Coin(1.0)),))
    times = arrivals(fleet, 3, messages=600)
    assert {b - a for a, b in pairwise([0.0, *times])} == {1.0, 10.0}
    runtime = "{kind='tests.test_real_fleets:Coin', short=1}"
    given = f"fleet={{kind='groups', groups=[{{name='own', clients=40, runtime={runtime}}}]}}"
    loaded = spec.load("quadratic", [given])
    assert loaded.build().fleet == fleet
    assert spec.parse(json.loads(json.dumps(loaded.resolved())), trust=True).build().fleet == fleet
    task = tg.tasks.quadratic(clients=40, dimension=4)
    tg.simulate(method_of(), task, fleet, rounds=2, out=tmp_path / "run", evaluate_every=0)
    assert spec.load(tmp_path / "run", trust=True).build().fleet == fleet
    with pytest.raises(tg.Invalid, match=r"only if you trust it, got 'tests\.test_real_fleets:Coin'"):
        spec.load(tmp_path / "run")
    for wrong in (-1.0, [1.0], 10**400):
        rule = f"`draw` of a runtime must return seconds, 0 or more, got {re.escape(str(wrong))}"
        with pytest.raises(tg.Invalid, match=rule):
            simulated(tg.Fleet((tg.Group("bad", 1, Bad(wrong)),)))


# Traces.


class Named(tg.Task):
    """A task whose clients have names."""

    def __init__(self, *ids: str) -> None:
        self.ids, self.clients = ids, len(ids)


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_a_trace_keeps_the_numbers_of_clients_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "client,seconds\n2,3\n0,1\n1,2\n2,4\n")
    fleet = tg.Fleet.trace(path)
    assert fleet.ids == ("0", "1", "2")
    assert [group.runtime for group in fleet.groups] == [tg.Trace((1.0,)), tg.Trace((2.0,)), tg.Trace((3.0, 4.0))]
    assert arrivals(fleet, 2, messages=6)[0] == 3.0


def test_numbers_that_are_not_those_of_the_task_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "client,seconds\n2,3\n0,1\n1,2\n10,4\n")
    text = "task and fleet must have the same clients, got '3' of the task missing in the fleet and '10' of the fleet "
    with pytest.raises(tg.Invalid, match=text + "missing in the task"):
        history(tg.Fleet.trace(path))
    assert arrivals(tg.Fleet.trace(path, keep_ids=False), 3, messages=20)[0] == 4.0


def test_names_are_matched_with_those_of_the_tasks_clients(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "who,took,kind\nb,2,x\na,1,y\nc,3,x\n")
    fleet = tg.Fleet.trace(path, client="who", seconds="took", group="kind").crash(client=0, at=5)
    assert fleet.ids == ("b", "a", "c")
    found = matched(fleet, Named("c", "b", "a"))  # type: ignore[arg-type]
    assert found.classes == ("x", "x", "y")
    assert [group.runtime.draw(0.5, 0) for group in found.groups] == [3.0, 2.0, 1.0]
    assert found.crashes[0].client == 1
    with pytest.raises(tg.Invalid, match="got 'd' of the task missing in the fleet and 'b' of the fleet missing in"):
        matched(fleet, Named("c", "d", "a"))  # type: ignore[arg-type]


def test_names_of_any_characters_are_those_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["tab\tid", "esc\x1b[31m", "new\nline", "nb\u00a0space", "<b>"]
    rows = "".join(f'"{name}",{1 + number},"cl\tass"\n' for number, name in enumerate(names))
    (tmp_path / "times.csv").write_text("client,seconds,class\n" + rows, "utf-8")
    given = ["fleet={kind='trace', path='times.csv'}", "task.clients=", "method.buffer=2", "run.rounds=4"]
    recorded = spec.load("quadratic", given)
    built = recorded.build()
    run = tg.begin(built.method, built.task, built.fleet, rounds=4, out=tmp_path / "run")
    for _ in run.go():
        pass
    again = spec.parse(json.loads(json.dumps(recorded.resolved())))
    assert again.build().fleet == built.fleet
    found = read_history(tmp_path / "run")
    assert found.ids == tuple(names)
    export([tmp_path / "run"], tmp_path / "tables", ["csv"])
    with (tmp_path / "tables/updates.csv").open(newline="", encoding="utf-8") as file:
        updates = list(csv.DictReader(file))
    assert {row["id"] for row in updates} == {names[int(row["client"])] for row in updates}
    assert found.names == ("tab id", "esc [31m", "new line", "nb space", "<b>")
    again_run = tg.resume(
        tmp_path / "run", built.method, built.task, tg.SimPool(built.task, built.method, built.fleet), rounds=6
    )
    assert [row["round"] for row in again_run.go()] == [5, 6]


def test_capacities_and_hours_of_devices_as_fedscale_has_them(tmp_path: Path) -> None:
    """60 ms for a sample, 100 samples, three times a forward pass: 18 s; 8 Mbit/s is a million bytes per second."""
    devices = {"0": {"computation": 60.0, "communication": 8000.0}, "1": {"computation": 5.0, "communication": 800.0}}
    capacities = written(tmp_path / "capacity.json", json.dumps(devices))
    fleet = tg.Fleet.trace(capacities, samples=100)
    assert [group.runtime for group in fleet.groups] == [tg.Trace((18.0,)), tg.Trace((1.5,))]
    assert [group.link.up for group in fleet.groups] == [1e6, 1e5]
    with pytest.raises(tg.Invalid, match="needs `samples`: how many samples a job has"):
        tg.Fleet.trace(capacities)
    hours = {"1": {"active": [10, 50], "inactive": [20, 60], "finish_time": 100, "duration": 20}}
    behaviour = written(tmp_path / "hours.json", json.dumps(hours))
    awake = fleet.plus(AvailabilityFile(str(behaviour)))
    assert awake.available == (Available(1, ((10.0, 20.0), (50.0, 60.0)), 100.0),)


def test_windows_of_a_file_in_a_spec_are_copied_into_the_record(tmp_path: Path) -> None:
    written(tmp_path / "hours.csv", "device,from,to\n3,0,10\n3,5,20\n1,30,40\n")
    table = "availability={path='hours.csv', client='device', start='from', end='to', period=50}"
    text = f"[task]\nkind='quadratic'\n[fleet]\nkind='paper'\nclients=8\n{table}\n"
    method = "[method]\nkind='sgdclip'\nlocal_lr=0.1\nlocal_clip=1\nlr=1\nbuffer=2\nlocal_steps=1\n"
    loaded = spec.load(written(tmp_path / "own.toml", text + method + "[run]\nrounds=2\n"))
    fleet = loaded.build().fleet
    assert fleet is not None
    assert fleet.available == (Available(1, ((30.0, 40.0),), 50), Available(3, ((0.0, 20.0),), 50))
    resolved = loaded.resolved()
    (tmp_path / "hours.csv").unlink()
    assert spec.parse(resolved).build().fleet == fleet
    written(tmp_path / "hours.csv", "device,from,to\n8,0,10\n")
    with pytest.raises(tg.Invalid, match=r"events must be of clients that the task has, '0', .* got those of '8'"):
        spec.load(tmp_path / "own.toml").build()
    written(tmp_path / "hours.csv", "device,to\n8,0\n")
    wrong = "no column 'from', only 'device', 'to'). Give it the columns device, from, to ("
    with pytest.raises(tg.Invalid, match=re.escape(wrong)):
        spec.load(tmp_path / "own.toml")
    for rows, wrong in (("", "it has no rows"), ("8,5,2\n", "0 <= start < end < inf, got 5 to 2 of client '8'")):
        written(tmp_path / "hours.csv", f"device,from,to\n{rows}")
        with pytest.raises(tg.Invalid, match=re.escape(wrong)):
            spec.load(tmp_path / "own.toml")


@pytest.mark.parametrize(
    ("task_ids", "fleet_ids", "rows", "expected"),
    [
        ("abc", "", "b,0,1\na,0,2\nc,0,3\n", {0: 2, 1: 1, 2: 3}),
        ("abc", "cab", "b,0,1\na,0,2\n", {0: 2, 1: 1}),
        ("210", "", "0,0,1\n1,0,2\n", {1: 2, 2: 1}),
        ("", "", "2,0,1\n0,0,2\n", {0: 2, 2: 1}),
        ("", "", "b,0,1\na,0,2\nc,0,3\n", {0: 1, 1: 2, 2: 3}),  # names that nothing else has: in the order of the file
        ("", "bac", "a,0,1\n", {1: 1}),
    ],
)
def test_hours_go_to_the_client_of_that_name(
    task_ids: str, fleet_ids: str, rows: str, expected: dict[int, float], tmp_path: Path
) -> None:
    hours = AvailabilityFile(str(written(tmp_path / "hours.csv", f"client,start,end\n{rows}")))
    fleet = replace(fleet_of(1.0, 2.0, 3.0), ids=tuple(fleet_ids)).plus(hours)
    task: Any = Named(*task_ids) if task_ids else tg.tasks.quadratic(clients=3)
    assert {number: one.windows[0][1] for number, one in matched(fleet, task).windows.items()} == expected


def test_all_of_it_survives_a_spec_and_a_clock() -> None:
    given = (
        "fleet={kind='groups', groups=[{name='a', clients=40, dropout=0.2, runtime={kind='trace', seconds=[1, 2], "
        "resample=true}}], dropout=0.1, slow_spells=[{group='a', every=5, lasts=1, factor=3}], "
        "slow=[{group='a', at=1, until=2}], diurnal={period=20, awake=0.7}, link={sigma=0.3}}"
    )
    loaded = spec.load("quadratic", [given])
    fleet = loaded.build().fleet
    assert fleet is not None
    assert spec.parse(json.loads(json.dumps(loaded.resolved()))).build().fleet == fleet
    server, pool = clock_only(method_of(buffer=3), fleet)
    assert list(tg.drive(server, pool, 50))[-1].time > 1
