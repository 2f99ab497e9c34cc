"""Fitted fleets: the planted distributions come out, and so does their clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tardygrad as tg
from tardygrad.doctor import fit_runtimes
from tardygrad.doctor.clock_run import run_clock
from tardygrad.doctor.fit_runtimes import fit_fleet
from tardygrad.doctor.what_if import WhatIf
from tardygrad.runs.history import History
from tardygrad.runs.history import read_history as read
from tardygrad.runs.record import FORMAT
from tardygrad.spec.spec import parse
from tests.doctor.planted import clip2, fleet, record


@pytest.mark.parametrize("mode", ["client", "server"])
def test_the_fitted_fleet_has_the_clock_of_the_planted_one(mode: str, tmp_path: Path) -> None:
    planted = tg.Fleet(
        (
            tg.Group("fast", 5, tg.LogNormal(1.0, 0.3)),
            tg.Group("slow", 3, tg.Uniform(6.0, 9.0)),
            tg.Group("odd", 2, tg.Exponential(3.0)),
        )
    )
    method = clip2(buffer=3, mode=mode)
    fitted = fit_fleet(read(record(tmp_path / "run", method, planted, rounds=300))).fleet
    ours, theirs = (run_clock(method, each, rounds=300, seed=5) for each in (fitted, planted))
    assert ours.time == pytest.approx(theirs.time, rel=0.1)
    assert ours.delay_mean == pytest.approx(theirs.delay_mean, rel=0.1)
    assert ours.effective == pytest.approx(theirs.effective, rel=0.1)


def made_up(tmp_path: Path, *times: list[float], classes: list[tuple[str, int]] | None = None) -> History:
    """A record whose clients had jobs of just these times, one after the other; a negative one never came back."""
    rows = []
    for client, own in enumerate(times):
        now = 0.0
        for serial, seconds in enumerate(own):
            rows.append({"event": "dispatch", "time": now, "client": client, "serial": serial, "round": 0})
            now += abs(seconds)
            facts = {"client": client, "serial": serial, "round": 0, "delay": 1, "steps": 1, "loss": 1.0}
            rows += [{"event": "arrival", "time": now, **facts}] if seconds >= 0 else []
    rows.sort(key=lambda row: row["time"])
    rows.append({"event": "join", "time": 100.0, "client": 0, "round": 0})
    tmp_path.joinpath("events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"spec": None, "method": "Clip²", "classes": classes or [], "run": {}, "versions": {}}
    tmp_path.joinpath("spec.json").write_text(json.dumps({"format": FORMAT, "id": "made up", **asked}))
    return read(tmp_path)


MANY = [1.1, 0.9, 1.05, 0.95, 1.0, 1.02]


def test_a_client_draws_from_its_own_times_or_from_those_of_its_class(tmp_path: Path) -> None:
    def sources(*times: list[float], classes: list[tuple[str, int]] | None = None) -> list[str]:
        return [one.source for one in fit_fleet(made_up(tmp_path, *times, classes=classes)).clients]

    assert sources(MANY, [1.2], classes=[("a", 2)]) == ["own", "class"]
    assert sources(MANY, [1.2], classes=[("a", 1), ("b", 1)]) == ["own", "everyone"]
    assert sources(MANY, [], classes=[("a", 2)]) == ["own", "class"]
    own, few = (one.runtime for one in fit_fleet(made_up(tmp_path, MANY, [50.0])).clients)
    assert own.seconds == pytest.approx(sorted(MANY), abs=1e-3)
    assert few.draw(0.5, 0) == pytest.approx(50.0)
    assert 0.1 < few.seconds[-1] / few.seconds[0] - 1 < 0.3
    assert fit_fleet(made_up(tmp_path, [2.5] * 6)).clients[0].runtime == tg.Trace((2.5,), resample=True)
    heavy = [1.0 / (1 - i / 300) ** 0.7 for i in range(300)]
    fitted = fit_fleet(made_up(tmp_path, heavy)).clients[0].runtime
    assert len(fitted.seconds) == 100
    assert np.mean(fitted.seconds) == pytest.approx(np.mean(heavy), rel=0.01), "the tail is not cut off"


def test_many_clients_of_similar_speed_share_their_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_runtimes, "MANY", 8)
    times = [[1.5 + 0.01 * client] * 6 for client in range(20)] + [[30.0, 31.0, 33.0], [30.5, 32.0], [0.0], []]
    for classes in ([("all", 24)], [(f"c{number}", 1) for number in range(24)]):
        monkeypatch.setattr(fit_runtimes, "CLASSES", len(classes) if len(classes) == 1 else 5)
        found = fit_fleet(made_up(tmp_path, *times, classes=classes)).clients
        assert len({one.runtime for one in found[:20]}) == 1
        assert found[20].runtime.draw(0.5, 0) == pytest.approx(31.0, rel=0.1)
        assert {one.source for one in found[:22]} == {"own"}
        assert found[23].source != "own"


def test_a_job_that_never_came_back_took_at_least_as_long_as_it_was_out(tmp_path: Path) -> None:
    slow = fit_fleet(made_up(tmp_path, MANY, [-1000.0])).clients[1]  # seen until second 100
    assert slow.runtime.draw(0.5, 0) == pytest.approx(100.0)
    assert slow.at_least
    assert not fit_fleet(made_up(tmp_path, MANY, [60.0, -1.0])).clients[1].at_least
    twice = fit_fleet(made_up(tmp_path, MANY, [30.0, 65.0, -5.0])).clients[1]  # the third takes the smaller of the two
    assert twice.runtime.draw(0.5, 0) == pytest.approx(30.0)
    times = [1.5, 2.5, 3.5, 4.5]
    with_open = fit_fleet(made_up(tmp_path, MANY, [*times, -3.0])).clients[1]
    assert (with_open.source, with_open.jobs) == ("own", 4)
    assert fit_fleet(made_up(tmp_path, MANY, [], classes=[("a", 2)])).clients[1].lost is None


def test_less_work_is_counted_as_such(tmp_path: Path) -> None:
    """DyLU gives slow clients fewer steps, and a simulated job of fewer steps is as much shorter."""
    method = tg.dn_dylu(local_lr=0.1, lr=0.5, period=4, local_steps=8, mode="client")
    planted = tg.Fleet((tg.Group("fast", 3, tg.Uniform(1.5, 1.5)), tg.Group("slow", 1, tg.Uniform(6.5, 6.5))))
    found = fit_fleet(read(record(tmp_path / "run", method, planted, rounds=100))).clients
    assert [one.runtime.draw(0.5, 0) for one in found] == pytest.approx([1.5] * 3 + [6.5])


def test_losses_are_counted(tmp_path: Path) -> None:
    crashed = fleet(6).crash(client=2, at=10.0, back=12.0).crash(client=2, at=20.0, back=22.0)
    found = fit_fleet(read(record(tmp_path / "run", clip2(buffer=3), crashed, rounds=60))).clients
    assert 0.05 < (found[2].lost or 0) < 0.15
    assert [one.lost for one in found if one.client != 2] == [0.0] * 5


def test_a_record_without_a_job_cannot_be_fitted(tmp_path: Path) -> None:
    with pytest.raises(tg.Invalid, match=r"--fit needs a run with at least one finished job, got .* with none"):
        fit_fleet(made_up(tmp_path, [], []))


class Two:
    """A runtime that no record can name."""

    def draw(self, u: float, serial: int) -> float:
        return 2.0 + u


def test_clients_sleep_in_a_fitted_fleet_as_they_did_in_the_run(tmp_path: Path) -> None:
    """A synchronous run of two clients hardly feels that most clients are asleep, but an asynchronous one would."""
    groups = tuple(tg.Group("own", 1, tg.Uniform(1.0 + k, 1.2 + k)) for k in range(6))
    planted = tg.Fleet(groups, at_window_end="cancel", ids=("5", "3", "4", "0", "1", "2"))
    for client in range(5):
        planted = planted.during([(10 * client, 10 * client + 20)], client=client, period=60)
    wait, go = clip2(buffer=2, mode="sync"), clip2(buffer=1, mode="client")
    history = read(record(tmp_path / "run", wait, planted, rounds=150))
    fitted = fit_fleet(history).fleet
    assert fitted.windows[5].windows == ((0.0, 20.0),)
    assert fitted.windows[0].windows == ((30.0, 50.0),)
    assert fitted.at_window_end == "cancel"
    assert 2 not in fitted.windows
    truth = run_clock(go, read_back(history), rounds=300, seed=5)
    assert run_clock(go, fitted, rounds=300, seed=5).time == pytest.approx(truth.time, rel=0.05)
    awake = run_clock(go, replace(fitted, available=()), rounds=300, seed=5)
    assert awake.time < 0.6 * truth.time

    unnamed = replace(fleet(3), groups=(tg.Group("own", 3, Two()),)).during([(0, 5)], client=0, period=10)
    history = read(record(tmp_path / "unnamed", wait, unnamed, rounds=20))
    with pytest.raises(tg.Invalid, match=r"a fit needs to know when clients are awake, got a record of sleeping"):
        fit_fleet(history)
    assert WhatIf(history).fleet is None  # so the doctor does not advise


def read_back(history: History) -> tg.Fleet:
    fleet = parse(history.spec or {}).build().fleet
    assert fleet is not None
    return fleet
