"""Jobs computed several at once: the same to rounding, repeatable and resumable to the bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tardygrad as tg
from tardygrad.core.algorithm import work
from tardygrad.core.batching import work_together
from tardygrad.engines.sim import pool as sim

FLEET = tg.Fleet.paper(clients=8).crash(client=3, at=7.0, back=20.0).crash(client=0, at=4.0)


@cache
def task(module: nn.Module | None = None, **settings: Any) -> tg.TorchTask:
    torch.manual_seed(0)
    x = torch.randn(100, 6)
    data = (x, (x.sum(1) > 0).long())
    module = module or nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    settings = {"loss": nn.functional.cross_entropy, "data": tg.shard(data, clients=8), "test": data} | settings
    return tg.TorchTask(module, **({"batch_size": 5} | settings))


def method(**how: Any) -> tg.Method:
    settings = {"local_lr": 0.3, "local_clip": 0.5, "lr": 1.0, "clip": 0.1, "buffer": 3, "local_steps": 4}
    if "local_epochs" in how:
        del settings["local_steps"]
    return tg.clip2(**({"mode": "client", "compensate": True} | settings | how))


NOISE = tg.Noise("student", tail=1.5, scale=0.05)


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ({}, {"noise": NOISE}),
        ({"local_epochs": 2}, {"batch_size": 7}),
        ({"mode": "sync"}, {"batch_size": 50}),
        ({"mode": "server", "downplay": True}, {}),
    ],
)
def test_a_batched_run_is_the_unbatched_one_to_rounding(how: Any, settings: Any) -> None:
    alone = tg.simulate(method(**how), task(**settings), FLEET, rounds=25)
    at_once = tg.simulate(method(**how), task(**settings), FLEET, rounds=25, batch=4)
    assert torch.allclose(alone.x, at_once.x, atol=1e-5)
    assert alone.summary().time == at_once.summary().time
    assert (alone.x - task().init(0)).abs().max() > 0.05


def test_updates_that_are_computed_at_once_are_those_of_each_alone() -> None:
    here, one = task(batch_size=7), method(local_epochs=1)
    server = tg.Server(one, here.init(0), clients=8, seed=0)
    jobs = server.dispatch()
    assert len({len(rows) for rows in here.data.rows}) == 2  # 12 and 13: batches of 7, then of 5 and of 6
    for job, update in zip(jobs, work_together(jobs, here, one), strict=True):
        wanted = work(job, here, one)
        assert (update[:3], update.steps) == (wanted[:3], wanted.steps)
        assert torch.allclose(update.delta, wanted.delta, atol=1e-6)
        assert torch.allclose(update.curvature, wanted.curvature, atol=1e-6)  # type: ignore[arg-type]
        assert update.loss == pytest.approx(wanted.loss, rel=1e-5)


def test_frozen_and_tied_weights_stay_what_they_are() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
            self.second.weight = self.first.weight
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(torch.tanh(self.second(torch.tanh(self.first(x)))))

    module = Tied()
    runs = [tg.simulate(method(), task(module), FLEET, rounds=20, batch=batch) for batch in (1, 4)]
    assert torch.allclose(runs[0].x, runs[1].x, atol=1e-5)


def test_nothing_is_computed_that_no_round_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[tuple[int, int]]] = []
    perform = sim.perform_together

    def watched(jobs: Any, *rest: Any) -> Any:
        groups.append([(job.client, job.serial) for job in jobs])
        return perform(jobs, *rest)

    monkeypatch.setattr(sim, "perform_together", watched)
    fleet = tg.Fleet.paper(clients=8)
    run = tg.simulate(method(), task(), fleet, rounds=10, batch=4)
    assert sum(map(len, groups)) == run.summary().updates == 30
    assert len({name for group in groups for name in group}) == 30
    assert len(groups) < 15
    assert max(map(len, groups)) == 4


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Linear(6, 2)), r"draws random numbers \(dropout\)"),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), r"keeps buffers \(BatchNorm\)"),
    ],
)
def test_modules_with_state_are_refused(module: nn.Module, what: str) -> None:
    with pytest.raises(tg.Invalid, match=f"computed together only by a module without state, got .* {what}"):
        tg.SimPool(task(module), method(), FLEET, batch=2)


def test_a_batch_is_a_number_for_one_worker() -> None:
    with pytest.raises(tg.Invalid, match="`batch` must be a whole number, 1 or more, got 0"):
        tg.SimPool(task(), method(), FLEET, batch=0)
    with pytest.raises(tg.Invalid, match="`batch` above 1 needs workers=1, got batch=2 with workers=2"):
        tg.SimPool(task(), method(), FLEET, batch=2, workers=2)


def test_a_task_must_know_how() -> None:
    quadratic = tg.tasks.quadratic(clients=8)
    with pytest.raises(tg.Invalid, match=r"`batch` above 1 needs a task with `gradients`, got Quadratic. Use batch=1."):
        tg.SimPool(quadratic, method(), FLEET, batch=2)


def test_an_error_names_the_clients() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of cheese")

    with pytest.raises(tg.WorkFailed, match=r"client 1, job 0, from round 0; client .* failed: RuntimeError: out of"):
        tg.simulate(method(), task(loss=loss), FLEET, rounds=5, batch=3, evaluate_every=0)


@pytest.mark.parametrize("engine", [{"workers": 2}, {"batch": 3}], ids=str)
def test_the_look_ahead_ends_a_little_after_the_present(engine: Any) -> None:
    with tg.SimPool(task(), method(), FLEET, rounds=10**9, **engine) as pool:
        run = tg.begin(method(), task(), pool, rounds=10**9, evaluate_every=0)
        for row in run.go():
            if row["round"] == 3:
                run.stop()
        ahead = pool._prefetcher or pool._batcher
        assert ahead is not None
        assert ahead.lookahead is not None
        assert 3 <= ahead.lookahead._server.round < 3 + sim.WINDOW
    assert run.server.round == 3


@pytest.mark.parametrize("window", [0, 5])
def test_batches_are_the_same_after_a_resume_where_jobs_outlast_the_look_ahead(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim, "WINDOW", window)
    settings: Any = {"rounds": 20, "evaluate_every": 0, "checkpoint_every": 1}
    whole = tg.simulate(method(), task(), FLEET, batch=3, **settings)
    run = tg.begin(
        method(), task(), tg.SimPool(task(), method(), FLEET, batch=3, rounds=20), out=tmp_path / "run", **settings
    )
    for row in run.go():
        if row["round"] == 11:
            run.stop()
    again = tg.resume(tmp_path / "run", method(), task(), tg.SimPool(task(), method(), FLEET, batch=3, rounds=20))
    list(again.go())
    assert torch.equal(again.x, whole.x)
