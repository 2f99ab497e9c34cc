"""What a user's own dataset, loss, module, loop or evaluation does must repeat, and must not leak into other jobs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import tardygrad as tg
from tardygrad.core.messages import Job

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 2
METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=3)


class Pair(nn.Module):
    """A frozen and a trained layer; draws random numbers only if a batch is small."""

    def __init__(self, small: int = 0) -> None:
        super().__init__()
        self.frozen, self.trained, self.small = nn.Linear(3, 4), nn.Linear(4, 2), small
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.frozen(x)
        return self.trained(F.dropout(h) if len(x) < self.small else h)


class Ends(Dataset[Any]):
    """Says that it has 12 rows, and has 7."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> Any:
        return (X[row], Y[row]) if row < 7 else next(iter(()))


def task(module: Any = None, **settings: Any) -> tg.TorchTask:
    torch.manual_seed(0)
    given = {"data": tg.shard((X, Y), clients=2), "loss": F.cross_entropy, "test": (X, Y), "batch_size": 8} | settings
    return tg.TorchTask(module or Pair(), **given)


def delta(made: Any, serial: int = 0, method: tg.Method = METHOD) -> Tensor:
    job = Job(0, serial, 0, made.init(0), method.local_steps, method.local_epochs, seed=0)
    return tg.work(job, made, method).delta


def test_random_numbers_of_later_passes_and_of_other_generators_repeat() -> None:
    def mixed(module: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(module(batch[0]) * np.random.rand() * random.random(), batch[1])

    for made in (lambda: task(lambda: Pair(small=5)), lambda: task(loss=mixed)):
        own = made()
        first = delta(own)  # batches of 8 and 4 rows
        np.random.seed(7)
        random.seed(7)
        torch.manual_seed(7)
        state = torch.get_rng_state()
        assert torch.equal(delta(own), first)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(delta(made()), first)


def test_an_evaluation_repeats_and_leaves_the_training_alone() -> None:
    class Draws(Pair):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.rand(1)

    drawing = task(Draws())
    assert drawing.evaluate(drawing.init(0), None) == drawing.evaluate(drawing.init(0), None)

    def spoils(module: Any, test: Any) -> dict[str, float]:
        module.frozen = nn.Linear(3, 4)
        return {"loss": 0.0}

    spoilt = task(evaluate=spoils)
    first = delta(spoilt)
    spoilt.evaluate(spoilt.init(0), None)
    assert torch.equal(delta(spoilt), first)


def test_what_jobs_share_must_not_be_changed() -> None:
    def teacher(module: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            module.frozen.weight.mul_(0.9)
        return F.cross_entropy(module(batch[0]), batch[1])

    with pytest.raises(tg.Invalid, match=r"the loss must not change frozen parameters, .* got `frozen\.weight`"):
        delta(task(loss=teacher))

    def swaps(module: Any, job: Job) -> None:
        module.frozen.weight.data = module.frozen.weight.data + 1

    method = tg.clip2(lr=1.0, clip=0.5, buffer=2, local_steps=3)
    with pytest.raises(tg.Invalid, match=r"`train` must not change frozen parameters, .* got `frozen\.weight`"):
        delta(tg.TrainerTask(Pair(), train=swaps, clients=2), method=method)

    def batches(job: Job) -> Any:
        job.x.mul_(0)
        return [(X, Y)] * 3

    with pytest.raises(tg.WorkFailed, match=r"must not change `job\.x`"):
        tg.simulate(METHOD, task(data=batches, clients=2), tg.Fleet.paper(clients=2), rounds=1)

    inplace = task(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)))
    with pytest.raises(tg.Invalid, match="an evaluation must not change the test set"):
        inplace.evaluate(inplace.init(0), None)


def test_a_dataset_that_ends_early_is_an_error() -> None:
    with pytest.raises(tg.Invalid, match="a row for every number below its length, got StopIteration"):
        delta(task(data=[Ends(), Ends()]))
    short = task(test=Ends(), evaluate_batch=4)
    with pytest.raises(tg.Invalid, match="got 3 batches in its length, and rows for 1"):
        short.evaluate(short.init(0), None)


def test_openers_may_draw() -> None:
    def open_(client: int) -> Any:
        return TensorDataset(X + torch.rand(1), Y)

    assert torch.equal(*(delta(task(data=open_, clients=2)) for _ in range(2)))


def test_one_logit_has_no_accuracy_and_scalars_do_not_count_as_rows() -> None:
    def binary(output: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output[:, 0], target.float())

    one = task(nn.Linear(3, 1), loss=binary)
    assert set(one.evaluate(one.init(0), None)) == {"loss"}
    scalar = [(torch.tensor(0.0), X, Y)]

    class Second(Pair):
        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            return super().forward(x)

    class Batches:
        def __iter__(self) -> Any:
            return iter(scalar)

    with_scalar, plain = task(Second(), test=Batches()), task()
    assert with_scalar.evaluate(with_scalar.init(0), None) == plain.evaluate(plain.init(0), None)


class BadLength(Ends):
    def __len__(self) -> int:
        raise OSError("gone")


def no_gradient(how: str) -> Any:
    own = task()
    wrong = {"short": torch.zeros(1), "double": own.init(0).double(), "none": None}[how]
    own.gradient = lambda x, batch, module_buffers: (torch.tensor(0.0), wrong)  # type: ignore[method-assign]
    return delta(own)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: task(data=[(X, Y)] * 2), "got a tuple of tensors for client 0. Use TensorDataset"),
        (lambda: task(data=["a/path", "b/path"]), "every client needs a dataset"),
        (lambda: task(data=[BadLength(), Ends()]), "the dataset of client 0 must have a length .* OSError: gone"),
        (lambda: task(test=BadLength()), "`test` must have a length that Python can read"),
        (lambda: task(test=(X.numpy(), Y.numpy())), r"Use torch.from_numpy\(array\)"),
        (lambda: task(test={"x": X}), "`test` must be tensors .* got dict"),
        (lambda: tg.shard((X, Y), by=3), "`by` must name a column"),
        (lambda: tg.shard((X[:4], Y[:4]), by=["1", 1, "2", "2"]), "distinct as text, got '1' and 1"),
        (lambda: tg.shard((X[:2], Y[:2]), by=[float("nan"), 1.0]), "got nan in row 0"),
        (lambda: tg.shard((X[:2], Y[:2]), by=X[:2]), "`by` must have one value per row"),
        (
            lambda: tg.shard(Ends(), clients=2, how="label", labels=[[1], [1, 2]] * 6),
            "labels that are integers",
        ),
        (lambda: task(parameter_groups=lambda m: [{"params": [1]}]), "got `params` with an item of type int"),
        (lambda: no_gradient("short"), r"of the form of x, torch.float32 \[10\], got torch.float32 \[1\]"),
        (lambda: no_gradient("double"), "got torch.float64"),
        (lambda: no_gradient("none"), "got NoneType"),
    ],
)
def test_what_cannot_be_right_is_refused(make: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=text):
        make()


def test_parameter_groups_take_what_torch_optim_takes() -> None:
    made = task(nn.Linear(3, 2), parameter_groups=lambda m: [{"params": m.weight}, {"params": [("bias", m.bias)]}])
    assert [group.slices for group in made.groups] == [(slice(0, 6),), (slice(6, 8),)]
