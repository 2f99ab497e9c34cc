"""The tail of updates in a run: it changes no bit, says the same after a stop, and looks at few coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.errors import Invalid
from tardygrad.report.build import build
from tardygrad.report.page import figures
from tardygrad.runs.record import read_json, read_lines, write_json
from tardygrad.tail.updates import PER_ROUND, PER_UPDATE, Updates

FLEET = tg.Fleet.paper(clients=12)


def method(**how: Any) -> tg.Method:
    return tg.sgdclip(local_lr=1.0, lr=0.1, buffer=4, local_steps=1, **{"local_clip": float("inf")} | how)


def task(**noise: Any) -> Any:
    return tg.tasks.quadratic(clients=12, dimension=1000, noise=tg.Noise(**{"kind": "pareto", "tail": 1.5} | noise))


def tails(path: Path) -> list[dict[str, Any]]:
    return [row for row in read_lines(path / "events.jsonl") if row["event"] == "tail"]


def halt(run: tg.Run) -> None:
    """Stop within round 6, whose estimate is due."""
    if run.server.round == 5 and len(run.server.buffer) == 2:
        run.stop()


def test_a_run_with_estimates_has_the_same_bits_as_one_without(tmp_path: Path) -> None:
    runs = [
        tg.simulate(method(), task(), FLEET, rounds=20, tail_every=every, out=tmp_path / str(every))
        for every in (0, 1, 5)
    ]
    assert all(torch.equal(run.x.view(torch.int32), runs[0].x.view(torch.int32)) for run in runs)
    assert all(run.metrics == runs[0].metrics for run in runs)
    none, every, fifth = (tails(tmp_path / name) for name in "015")
    assert none == []
    assert [row["round"] for row in every] == list(range(1, 21))
    assert fifth == [row for row in every if row["round"] % 5 == 0]


def test_it_finds_the_tail_of_the_updates(tmp_path: Path) -> None:
    tg.simulate(method(), task(), FLEET, rounds=10, tail_every=5, out=tmp_path / "run")
    for row in tails(tmp_path / "run"):
        assert row["index"] == pytest.approx(1.5, rel=0.2)
        assert row["low"] < row["index"] < row["high"]
        assert row["verdict"] == "heavy-tailed, infinite variance"
        assert row["number"] == 4 * 1000


def test_clipped_updates_have_a_light_tail(tmp_path: Path) -> None:
    tg.simulate(method(local_clip=0.1), task(), FLEET, rounds=10, tail_every=10, out=tmp_path / "run")
    (row,) = tails(tmp_path / "run")
    assert row["verdict"] == "light-tailed"


def test_updates_that_are_all_the_same_have_no_tail(tmp_path: Path) -> None:
    tg.simulate(method(local_clip=0.0), task(), FLEET, rounds=4, tail_every=2, out=tmp_path / "run")
    assert [(row["index"], row["verdict"]) for row in tails(tmp_path / "run")] == [(None, None)] * 2


def test_a_run_stopped_within_a_round_goes_on_with_the_same_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tg.simulate(method(), task(), FLEET, rounds=12, tail_every=3, out=tmp_path / "whole")
    pool = tg.SimPool(task(), method(), FLEET)
    run = tg.begin(method(), task(), pool, rounds=12, tail_every=3, out=tmp_path / "cut")
    sample = run._sample_tail
    monkeypatch.setattr(run, "_sample_tail", lambda turn: (sample(turn), halt(run)))
    for _ in run.go():
        pass
    assert run.server.round == 5
    again = tg.resume(tmp_path / "cut", method(), task(), tg.SimPool(task(), method(), FLEET))
    for _ in again.go():
        pass
    assert torch.equal(again.x, whole.x)
    assert tails(tmp_path / "cut") == tails(tmp_path / "whole")


def test_a_record_from_before_there_were_estimates_goes_on(tmp_path: Path) -> None:
    run = tg.begin(method(), task(), tg.SimPool(task(), method(), FLEET), rounds=6, out=tmp_path / "run")
    for row in run.go():
        if row["round"] == 3:
            run.stop()
    asked = read_json(tmp_path / "run/spec.json")
    del asked["run"]["tail_every"]
    write_json(tmp_path / "run/spec.json", asked)
    again = tg.resume(tmp_path / "run", method(), task(), tg.SimPool(task(), method(), FLEET))
    for _ in again.go():
        pass
    assert again.status == "finished"
    assert tails(tmp_path / "run") == []


def test_the_report_draws_the_index_where_there_is_one(tmp_path: Path) -> None:
    for every in (0, 2):
        tg.simulate(method(), task(), FLEET, rounds=6, tail_every=every, out=tmp_path / str(every))
    drawn = {one.key: one for one in figures(build([str(tmp_path / "2")]).sections)}
    rows = drawn["tail-index"].chart["datasets"]["rows"]
    assert [row["round"] for row in rows] == [2, 4, 6]
    assert [row["index"] for row in rows] == pytest.approx([row["index"] for row in tails(tmp_path / "2")], rel=1e-5)
    assert "tail-index" not in {one.key for one in figures(build([str(tmp_path / "0")]).sections)}


def test_few_coordinates_are_looked_at_and_always_the_same() -> None:
    one, other = (Updates(every=1, seed=3, parameters=10**6, buffer=2) for _ in range(2))
    assert len(one.sample) == PER_UPDATE
    assert torch.equal(one.sample, other.sample)
    assert len(Updates(every=1, seed=3, parameters=10**6, buffer=64).sample) == PER_ROUND // 64
    assert len(Updates(every=0, seed=3, parameters=10**6, buffer=2).sample) == 0
    assert len(Updates(every=1, seed=3, parameters=7, buffer=2).sample) == 7


def test_how_often_must_be_a_count() -> None:
    with pytest.raises(Invalid, match="`tail_every` must be a whole number, 0 or more, got -1"):
        tg.simulate(method(), task(), FLEET, rounds=2, tail_every=-1)
