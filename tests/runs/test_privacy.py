"""Private runs: ε of every round, resumed, replayed and after a crash."""

from __future__ import annotations

import builtins
import json
import logging
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.special import log_ndtr, ndtr

import tardygrad as tg
from tardygrad.report.loader import read
from tardygrad.runs import accountant
from tardygrad.runs.accountant import Accountant, epsilon
from tests.runs.test_resume import fleet, method, task

pytest.importorskip("opacus")

OWN = tg.Privacy(clip=0.3, noise_multiplier=2.0)
HALOS = tg.halos(regions=2, local_lr=0.1, local_steps=2, every=3, region_period=2, privacy=OWN)


def exact(mu: float, delta: float) -> float:
    """ε from the definition, by bisection: the tail of the privacy loss of N(0, 1) against N(μ, 1)."""

    def exceeds(eps: float) -> bool:
        return bool(ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu)) > delta)

    low, high = 0.0, 1.0
    while exceeds(high):
        high *= 2
    for _ in range(200):
        low, high = ((low + high) / 2, high) if exceeds((low + high) / 2) else (low, (low + high) / 2)
    return high


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_epsilon_is_that_of_the_gaussian_mechanism(delta: float) -> None:
    for mu in (0.05, 0.3, 1.0, 3.0, 12.0, 25.0):
        found = epsilon(mu, delta)
        assert found == pytest.approx(exact(mu, delta), rel=1e-6, abs=1e-9)
        assert found <= mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)), "zCDP's bound is looser"


def test_epsilon_is_that_of_the_client_with_the_most_updates() -> None:
    """Each of its k updates in a round counts: k² in μ² = Σ k² / σ²."""
    run = tg.simulate(method(privacy=OWN), task(), fleet(), rounds=20, evaluate_every=0)
    squares: Counter[int] = Counter()
    for row in run.metrics:
        for client, k in Counter(row["clients"]).items():
            squares[client] += k * k
        assert row["epsilon"] == pytest.approx(exact(math.sqrt(max(squares.values())) / 2.0, 1e-5), rel=1e-6)
    assert squares[1] > sum(row["clients"].count(1) for row in run.metrics), "k was never above 1"
    assert run.accountant is not None
    assert squares[run.accountant.worst] == max(squares.values())  # type: ignore[index]
    assert f"privacy of each client: ε = {row['epsilon']:.3g}, δ = 1e-05" in str(run.summary())


@pytest.mark.parametrize(
    ("one", "own"),
    [(method(compensate=True, downplay=True), OWN), (HALOS, replace(OWN, noise_seed=3))],
    ids=["secret", "seeded"],
)
def test_a_private_run_resumes_and_replays_to_the_same_bits(one: tg.Method, own: tg.Privacy, tmp_path: Path) -> None:
    one = replace(one, privacy=own)
    run = tg.begin(one, task(), tg.SimPool(task(), one, fleet()), rounds=20, evaluate_every=0, checkpoint_every=4,
                   out=tmp_path / "run")  # fmt: skip
    for row in run.go():
        if row["round"] == 10:  # the last checkpoint is that of round 8
            shutil.copytree(tmp_path / "run", tmp_path / "killed")
    again = tg.resume(tmp_path / "killed", one, task(), tg.SimPool(task(), one, fleet()))
    for _ in again.go():
        pass
    assert torch.equal(again.x, run.x)
    assert again.summary().epsilon == run.summary().epsilon
    assert torch.equal(tg.replay(again).x, run.x)
    anew = tg.simulate(one, task(), fleet(), rounds=20, evaluate_every=0)
    assert torch.equal(anew.x, run.x) == (own.noise_seed is not None)
    other = replace(one, privacy=replace(own, clip=0.4))
    with pytest.raises(tg.RecordError, match=r"belongs to another run: its method is .*clip=0\.3"):
        tg.resume(tmp_path / "run", other, task(), tg.SimPool(task(), other, fleet()))


def test_rounds_that_a_crash_in_real_time_discards_are_accounted_for(tmp_path: Path) -> None:
    """They were released, and the rounds that replace them have other updates."""
    one, small = method(privacy=OWN), tg.tasks.quadratic(clients=6, dimension=3)
    settings: dict[str, Any] = {"evaluate_every": 0, "checkpoint_every": 8}
    with tg.ThreadPool(small, one, workers=1) as pool:
        run = tg.begin(one, small, pool, rounds=7, out=tmp_path / "run", **settings)  # checkpoints: round 4, the end
        for row in run.go():
            if row["round"] == 6:
                assert run._saver is not None
                run._saver.finish()
                shutil.copytree(tmp_path / "run", tmp_path / "killed")
    released = [row["clients"] for row in run.metrics[:6]]
    for _ in range(2):  # killed again before the next checkpoint
        with tg.ThreadPool(small, one, workers=1) as pool:
            again = tg.resume(tmp_path / "killed", one, small, pool, rounds=7)
            assert again.server.round == 4
            for row in again.go():
                if row["round"] == 5:
                    shutil.copytree(tmp_path / "killed", tmp_path / "copy")
        released += [row["clients"] for row in again.metrics[4:5]]
        shutil.rmtree(tmp_path / "killed")
        (tmp_path / "copy").rename(tmp_path / "killed")
    with tg.ThreadPool(small, one, workers=1) as pool:
        last = tg.resume(tmp_path / "killed", one, small, pool, rounds=4)
        for _ in last.go():
            pass
    assert last.server.round == 4
    expected = Accountant(OWN)
    expected.add(*released)
    assert last.accountant is not None
    assert last.accountant.squares == expected.squares
    assert last.summary().epsilon == expected.epsilon


def test_computing_epsilon_adds_no_handler_to_the_programs_log(monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = builtins.__import__, list(logging.root.handlers)

    def importing(name: str, *rest: Any) -> Any:
        if name.startswith("opacus"):  # as it does when it is first imported
            logging.root.addHandler(logging.NullHandler())
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    assert accountant._gdp()
    assert logging.root.handlers == before


def test_a_model_with_buffers_is_refused_before_training() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    data = tg.Shards((torch.randn(24, 3), torch.arange(24) % 2), tuple(torch.arange(24).split(2)))
    own = tg.TorchTask(net, loss=torch.nn.functional.cross_entropy, data=data)
    with pytest.raises(tg.Invalid, match=r"without buffers, such as BatchNorm's.*Use GroupNorm or LayerNorm"):
        tg.begin(method(privacy=OWN), own, fleet(), rounds=1, evaluate_every=0)


def test_an_epsilon_beyond_what_means_anything_is_written_as_null(tmp_path: Path) -> None:
    one = method(privacy=tg.Privacy(clip=0.3, noise_multiplier=1e-3))
    run = tg.simulate(one, task(), fleet(), rounds=2, evaluate_every=0, out=tmp_path / "run")
    assert run.metrics[-1]["epsilon"] == math.inf
    assert json.loads((tmp_path / "run/summary.json").read_text())["epsilon"] is None
    assert "ε > 500, δ = 1e-05" in str(run.summary())
    assert read(tmp_path / "run").privacy == "ε > 500, δ = 1e-05"
