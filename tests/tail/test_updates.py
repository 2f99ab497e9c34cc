"""The tail of updates in a run: it changes no bit, says the same after a stop, and looks at few coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.runs.record import read_lines
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


def test_few_coordinates_are_looked_at_and_always_the_same() -> None:
    one, other = (Updates(every=1, seed=3, parameters=10**6, buffer=2) for _ in range(2))
    assert len(one.sample) == PER_UPDATE
    assert torch.equal(one.sample, other.sample)
    assert len(Updates(every=1, seed=3, parameters=10**6, buffer=64).sample) == PER_ROUND // 64
    assert len(Updates(every=0, seed=3, parameters=10**6, buffer=2).sample) == 0
    assert len(Updates(every=1, seed=3, parameters=7, buffer=2).sample) == 7
