"""Own datasets, collates, streams, losses and evaluations: what they draw repeats, and what they change is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import tardygrad as tg
from tardygrad.core.messages import Job

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 2
METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=3)
FLEET = tg.Fleet.paper(clients=2)


def task(module: Any = None, **settings: Any) -> tg.TorchTask:
    given = {"data": tg.shard((X, Y), clients=2), "loss": F.cross_entropy, "test": (X, Y), "batch_size": 8} | settings
    return tg.TorchTask(module or (lambda: nn.Linear(3, 2)), **given)


def stacked(rows: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def torch_noise(rows: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = stacked(rows)
    return x * (torch.rand_like(x) > 0.15), y


def numpy_noise(rows: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = stacked(rows)
    return x * float(np.random.rand()), y


class Stream(IterableDataset[Any]):
    """Rows that are scaled at random."""

    def __init__(self, rows: int = 24) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return ((X[i] * torch.rand(1), Y[i]) for i in range(self.rows))


class Skipping(Stream):
    """Can skip, and draws for the rows that it skips, as `datasets.IterableDataset` with a random `map` does."""

    def skip(self, number: int) -> Any:
        return islice(iter(self), number, None)


def own_batches(job: Job) -> Iterator[Any]:
    while True:
        yield X[:8] * torch.rand(1), Y[:8]


DRAWING: dict[str, dict[str, Any]] = {
    "collate of a dataset": {"data": [TensorDataset(X, Y)] * 2, "collate": torch_noise},
    "collate with NumPy": {"data": [TensorDataset(X, Y)] * 2, "collate": numpy_noise},
    "collate in processes": {"data": [TensorDataset(X, Y)] * 2, "collate": torch_noise, "num_workers": 1},
    "collate of a stream": {"data": [Stream()] * 2, "collate": torch_noise},
    "function of the job": {"data": own_batches, "clients": 2},
}


@pytest.mark.parametrize("name", DRAWING)
def test_what_own_code_draws_repeats(name: str) -> None:
    run = tg.simulate(METHOD, task(**DRAWING[name]), FLEET, rounds=4, evaluate_every=0)
    assert torch.equal(run.x, tg.replay(run).x)


def test_each_pass_over_a_stream_draws_other_numbers() -> None:
    each = task(data=[Stream(8)] * 2)
    first, second, third = (batch.data[0][0] for batch in each.batches(Job(0, 0, 0, each.init(0), 3, None, seed=0)))
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize("stream", [Stream, Skipping])
@pytest.mark.parametrize("used", [False, True])
def test_a_resumed_stream_repeats_even_if_it_skips_or_its_task_was_used(
    stream: Callable[[], Any], used: bool, tmp_path: Path
) -> None:
    def go(each: tg.TorchTask, path: Path, stop: int | None, seed: int = 1) -> tg.Run:
        run = tg.begin(METHOD, each, tg.SimPool(each, METHOD, FLEET), rounds=8, seed=seed, out=path, checkpoint_every=1)
        for row in run.go():
            if row["round"] == stop:
                run.stop()
        return run

    whole = go(task(data=[stream()] * 2), tmp_path / "whole", None)
    go(task(data=[stream()] * 2), tmp_path / "run", 4)
    again = task(data=[stream()] * 2)
    if used:
        go(again, tmp_path / "other", 4, seed=0)
    run = tg.resume(tmp_path / "run", METHOD, again, tg.SimPool(again, METHOD, FLEET))
    for _ in run.go():
        pass
    assert torch.equal(run.x, whole.x)


def test_threads_that_read_and_threads_that_train_do_not_disturb_each_other() -> None:
    class Augmented(Dataset[Any]):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, i: int) -> Any:
            scale = torch.rand(3)
            F.gelu(torch.ones(20_000))  # such as decoding a picture
            return X[i] * scale + torch.rand(3), Y[i]

    each = task(data=[Augmented()] * 4, test=None)
    with tg.ThreadPool(each, METHOD, workers=4) as pool:
        run = tg.train(METHOD, each, pool, rounds=12, evaluate_every=0)
    assert torch.equal(run.x, tg.replay(run).x)


class Net(nn.Module):
    """With a frozen part and a part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.base.requires_grad_(False)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.base(x)))


def loss_of(module: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(module(batch[0]), batch[1])


def freezes(module: Any) -> None:
    module.head.weight.requires_grad_(False)


def replaces(module: Any) -> None:
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (replaces, "the loss must use the module that the task trains"),
        (freezes, "must not replace or freeze parameters"),
    ],
)
def test_a_loss_leaves_the_module_as_it_was(change: Callable[[Any], Any], text: str) -> None:
    def loss(module: nn.Module, batch: Any) -> Tensor:
        change(module)
        return loss_of(module, batch)

    with pytest.raises(tg.WorkFailed, match=text):
        tg.simulate(METHOD, task(Net, loss=loss), FLEET, rounds=2, evaluate_every=0)


def merges(module: Any, test: Any) -> None:
    module.base.weight.data += 0.1  # as `merge_adapter` of peft


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (merges, "`evaluate` must not change frozen parameters, which all jobs share, got `base.weight`"),
        (lambda module, test: module.double(), "must not change frozen parameters"),
        (lambda module, test: module.requires_grad_(True), "must not change frozen parameters"),
        (lambda module, test: test[0].sub_(0.5), "an evaluation must not change the test set"),
    ],
)
def test_an_own_evaluation_changes_nothing(change: Callable[[Any, Any], Any], text: str) -> None:
    def evaluate(module: nn.Module, test: Any) -> dict[str, float]:
        change(module, test)
        return {"loss": 0.0}

    with pytest.raises(tg.Invalid, match=text):
        tg.simulate(METHOD, task(Net, test=(X.clone(), Y), evaluate=evaluate), FLEET, rounds=2, evaluate_every=1)


def test_an_evaluation_weights_batches_by_their_rows() -> None:
    rows = [{"words": [1] * (1 + 99 * (i == 10)), "y": float(i == 10)} for i in range(11)]

    def flat(rows: list[Any]) -> dict[str, Tensor]:
        sizes = torch.tensor([len(row["words"]) for row in rows])
        words = torch.cat([torch.tensor(row["words"]) for row in rows])
        return {"words": words, "offsets": sizes.cumsum(0) - sizes, "y": torch.tensor([row["y"] for row in rows])}

    def loss(module: nn.Module, batch: Any) -> Tensor:
        return (batch["y"] + 0 * module(batch["words"], batch["offsets"]).sum()).mean()

    each = task(lambda: nn.EmbeddingBag(4, 2), data=[rows, rows], loss=loss, test=rows, collate=flat, evaluate_batch=10)
    assert each.evaluate(each.init(0), None)["loss"] == pytest.approx(1 / 11)
