"""Updates that are not finite: the error, the summary and the doctor name the client, the place and the cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tardygrad as tg
from tardygrad.core.messages import as_vector
from tardygrad.doctor.examine import examine

IDS = [f"hospital_{i:02}" for i in range(12)]


def task(spoil: Callable[[int, Tensor], None], loss: Any = nn.functional.mse_loss, module: Any = None) -> tg.TorchTask:
    """Twelve clients with 14 rows of 3 features, spoilt."""
    data = {}
    for i, name in enumerate(IDS):
        rows = torch.randn(14, 3, generator=torch.Generator().manual_seed(i))
        target = rows.sum(1, keepdim=True)
        spoil(i, rows)
        data[name] = torch.utils.data.TensorDataset(rows, target)
    return tg.TorchTask(module or nn.Linear(3, 1), data=data, loss=loss, batch_size=14)


def column(client: int, rows: Tensor) -> None:
    rows[:, 1] = math.nan


def few_rows(client: int, rows: Tensor) -> None:
    if client in (3, 11):
        rows[5, 2] = rows[9, 0] = math.nan


def nothing(client: int, rows: Tensor) -> None:
    pass


FLEET = tg.Fleet((tg.Group("all", 12, tg.Uniform(0.5, 1.5)),))


@pytest.mark.parametrize("engine", ["simulator", "processes", "threads"])
def test_a_column_of_nan_is_blamed_on_the_data(engine: str) -> None:
    method, spoilt = tg.fedbuff(buffer=4, local_steps=2, local_lr=0.1, lr=1.0), task(column)
    pools: dict[str, Any] = {
        "simulator": lambda: tg.SimPool(spoilt, method, FLEET),
        "processes": lambda: tg.SimPool(spoilt, method, FLEET, workers=2),
        "threads": lambda: tg.ThreadPool(spoilt, method),
    }
    with pools[engine]() as pool, pytest.raises(tg.Starved) as caught:
        tg.train(method, spoilt, pool, rounds=5, evaluate_every=0)
    first = r"The inputs of client hospital_\d\d have NaN in 14 of the 14 rows of batch 1 of job 0, first at \[0, 1\]: "
    caught.match(first + "fill or drop those rows. ")
    caught.match("9 other clients sent updates that are not finite.$")


def test_clients_with_rows_of_nan_are_named_by_summary_and_doctor(tmp_path: Path) -> None:
    method = tg.fedbuff(buffer=4, local_steps=2, local_lr=0.1, lr=1.0)
    run = tg.simulate(method, task(few_rows), FLEET, rounds=30, evaluate_every=0, out=tmp_path / "run")
    sentences = [
        f"he inputs of client {name} have NaN in 2 of the 14 rows of batch 1 of job 0" for name in (IDS[3], IDS[11])
    ]
    assert all(sentence in str(run.summary()) for sentence in sentences)
    (finding,) = [each for each in examine(tmp_path / "run").findings if each.cause == "not finite"]
    assert (finding.severity, finding.advice) == ("warning", "fill or drop those rows")
    assert all(sentence in finding.says for sentence in sentences)
    again = tg.replay(run)
    assert torch.equal(again.x, run.x)


@pytest.mark.parametrize(
    ("loss", "local_lr", "says", "overflows"),
    [
        (nn.functional.mse_loss, 1e30, "overflow", True),
        (lambda out, y: (out - out).sqrt().mean(), 0.1, "gradient of client .* is NaN in the first step", False),
        (lambda out, y: (out - out).log().mean(), 0.1, "loss of client .* is infinity in the first step", False),
    ],
)
def test_the_loss_the_gradient_and_the_steps_are_told_apart(
    loss: Any, local_lr: float, says: str, overflows: bool, tmp_path: Path
) -> None:
    method = tg.fedbuff(buffer=4, local_steps=3, local_lr=local_lr, lr=1.0)
    with pytest.raises(tg.Starved, match=says):
        tg.simulate(method, task(nothing, loss), FLEET, rounds=5, evaluate_every=0, out=tmp_path / "run")
    severe = {each.cause for each in examine(tmp_path / "run").findings if each.severity == "severe"}
    assert severe == {"no rounds", "divergence" if overflows else "not finite"}


def test_jobs_computed_together_say_so_too() -> None:
    rows = torch.randn(24, 3)
    rows[7, 1] = math.inf
    shards = tg.shard((rows, rows.sum(1, keepdim=True)), clients=4)
    together = tg.TorchTask(nn.Linear(3, 1), data=shards, loss=nn.functional.mse_loss, batch_size=6)
    fleet = tg.Fleet((tg.Group("all", 4, tg.Uniform(1.0, 1.0)),))
    method = tg.fedavg(local_steps=1, local_lr=0.1, buffer=3, mode="server")
    run = tg.simulate(method, together, fleet, rounds=8, batch=4, evaluate_every=0)
    assert "have infinity in 1 of the 6 rows of batch" in str(run.summary())


class Plain(tg.Task):
    """A task of one's own: NumPy rows in a mapping, and a loss that is a number."""

    clients, parameters = 2, 3

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def init(self, seed: int) -> Tensor:
        return torch.zeros(3)

    def batches(self, job: tg.Job) -> Any:
        return iter([{"label": np.ones(4), "features": self.rows}])

    def gradient(self, x: Tensor, batch: Any, module_buffers: Any) -> Any:
        rows = torch.tensor(batch["features"])
        return float(rows.sum()), rows.sum(0)

    def evaluate(self, x: Tensor, module_buffers: Any) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            math.nan,
            "the values of 'features' of client 1 have NaN in 1 of the 4 rows of batch 1 of job 0, first at [2, 0]",
        ),
        (3e38, "the loss of client 1 is infinity in the first step, at the initial model, on finite data"),
    ],
)
def test_a_task_of_ones_own_is_looked_into(row: float, says: str) -> None:
    rows = np.zeros((4, 3), np.float32)
    rows[2] = row
    rows.flags.writeable = False
    job = tg.Job(1, 0, 0, torch.zeros(3), 1, None, 0)
    method = tg.sgdclip(local_lr=0.1, local_clip=float("inf"), lr=1.0, buffer=1, local_steps=1)
    update = tg.work(job, cast(tg.Task, Plain(rows)), method)
    assert update.fault.startswith(says)


def test_a_private_client_does_not_say_so() -> None:
    method = tg.fedavg(local_steps=1, local_lr=0.1, buffer=12, privacy=tg.Privacy(clip=1.0, noise_multiplier=1.0))
    jobs = tg.serve(method, torch.zeros(4), clients=12, seed=0).dispatch()
    update = tg.work(next(job for job in jobs if job.client == 3), task(few_rows), method)
    assert not as_vector(update.delta).isfinite().all()
    assert not update.fault
