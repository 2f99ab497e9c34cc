"""What a user's own dataset, loss, module, loop or evaluation does must repeat, and must not leak into other jobs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.engines.ray.places import Places

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


def test_what_jobs_share_must_not_be_changed() -> None:
    def teacher(module: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            module.frozen.weight.mul_(0.9)
        return F.cross_entropy(module(batch[0]), batch[1])

    rule = r"a pass must not change frozen parameters, .* got `frozen\.weight`"
    with pytest.raises(tg.Invalid, match=rule):
        delta(task(loss=teacher))

    def swaps(module: Any, job: Job) -> None:
        module.frozen.weight.data = module.frozen.weight.data + 1

    method = tg.clip2(lr=1.0, clip=0.5, buffer=2, local_steps=3)
    with pytest.raises(tg.Invalid, match=r"`train` must not change frozen parameters, .* got `frozen\.weight`"):
        delta(tg.TrainerTask(Pair(), train=swaps, clients=2), method=method)

    class Own(tg.TorchTask):
        def batches(self, job: Job) -> Any:
            job.x.mul_(0)  # type: ignore[union-attr]
            return super().batches(job)

    own = Own(Pair(), data=tg.shard((X, Y), clients=2), loss=F.cross_entropy)
    with pytest.raises(tg.WorkFailed, match=r"must not change `job\.x`"):
        tg.simulate(METHOD, own, tg.Fleet.paper(clients=2), rounds=1, evaluate_every=0)

    inplace = task(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)))
    with pytest.raises(tg.Invalid, match="an evaluation must not change the test set"):
        inplace.evaluate(inplace.init(0), None)


@pytest.mark.parametrize("how", ["numpy", "data", "in place", "buffers"])
def test_functions_of_the_job_have_a_model_of_their_own(how: str) -> None:
    def spoil(job: Any) -> None:
        change = {"numpy": lambda: job.x.numpy().fill(7), "data": lambda: job.x.data.fill_(7)}
        change |= {"in place": lambda: job.x.fill_(7), "buffers": lambda: job.module_buffers.floats.fill_(7)}
        change[how]()

    def batches(job: Job) -> Any:
        spoil(job)
        return [(X, Y)] * 3

    def train(module: nn.Module, job: Job) -> None:
        spoil(job)
        for p in module.parameters():
            p.data -= 0.1

    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    loop = tg.clip2(lr=1.0, clip=0.5, buffer=2, local_steps=3)
    for own, method in (
        (task(net, data=batches, clients=2), METHOD),
        (tg.TrainerTask(net, train=train, clients=2), loop),
    ):
        start, buffers = own.init(0), own.init_module_buffers()
        assert buffers
        job = Job(0, 0, 0, start.clone(), 3, None, 0, buffers.clone())
        tg.work(job, own, method)
        assert torch.equal(job.x, start)  # type: ignore[arg-type]
        assert torch.equal(job.module_buffers.floats, buffers.floats)  # type: ignore[union-attr]


def test_settings_of_torch_are_restored_after_jobs_and_evaluations() -> None:
    def change() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(threads + 1)
        torch.use_deterministic_algorithms(True)
        torch.set_default_device("meta")
        torch.autograd.set_detect_anomaly(True)
        torch.set_autocast_enabled("cpu", True)
        torch.set_float32_matmul_precision("medium")

    def settings() -> list[Any]:
        own = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_device()
        return [*own, torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(),
                torch.is_autocast_enabled("cpu"), torch.backends.mkldnn.matmul.fp32_precision]  # fmt: skip

    def loss(module: nn.Module, batch: Any) -> Tensor:
        value = F.cross_entropy(module(batch[0]), batch[1])
        change()
        return value

    def evaluate(module: nn.Module, test: Any) -> dict[str, float]:
        change()
        return {"loss": 0.0}

    threads, fleet = torch.get_num_threads(), tg.Fleet.paper(clients=2)
    before, once = settings(), tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=1)
    for own in (task(loss=loss, test=None), task(evaluate=evaluate)):
        tg.simulate(once, own, fleet, rounds=2, evaluate_every=1 if own.can_evaluate else 0)
        assert settings() == before


class Halves(nn.Linear):
    """Changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


def test_a_module_that_changes_its_input_changes_no_batch_of_ones_own() -> None:
    class Batches:
        rows = X.clone()

        def __iter__(self) -> Any:
            return iter([(self.rows, Y)])

    def batches(job: Job) -> Any:
        return [(Batches.rows, Y)] * 3

    net, rows = Halves(3, 2), [(Batches.rows, Y)]
    passed_on = {"collate": lambda rows: rows[0], "evaluate_batch": 1, "batch_size": 1, "data": [rows] * 2}
    for own in (
        task(net, test=Batches()),
        task(net, test=rows, **passed_on),
        task(net, test=Batches(), data=batches, clients=2),
    ):
        assert own.evaluate(own.init(0), None) == own.evaluate(own.init(0), None)
        delta(own)
        assert torch.equal(Batches.rows, X)


def hooked() -> nn.Module:
    net = nn.Linear(3, 2)
    net.weight.register_hook(torch.zeros_like)
    return net


OUTSIDE = nn.Linear(3, 2)


class NoLength:
    def __getitem__(self, row: int) -> Any:
        return X[row], Y[row]


UNEQUAL = [{"x": X[0], "labels": Y[0]}, {"x": X[1], "extra": X[1], "labels": Y[1]}]


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*weight_norm")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: task(hooked()), "a parameter must have no hooks, .* got some on `weight`"),
        (
            lambda: task(torch.jit.script(nn.Linear(3, 2))),
            "torch.jit modules cannot be trained here, got one at 'the top'",
        ),
        (
            lambda: delta(task(OUTSIDE, loss=lambda module, batch: F.cross_entropy(OUTSIDE(batch[0]), batch[1]))),
            "the loss must use the module that the task trains, .* got `weight` of another Linear",
        ),
        (
            lambda: delta(task(data=[[{"input": X[0], "user": 1, "labels": Y[0]}]] * 2)),
            r"are arguments of Pair.forward \(x\), got `input`. Remove that column",
        ),
        (lambda: delta(task(data=[UNEQUAL[::-1]] * 2)), "the rows of a batch must have the same structure"),
        (lambda: task(nn.utils.weight_norm(nn.Linear(3, 2))), "a module must be one that can be copied: RuntimeError"),
        (lambda: Places(task(), {0: "a", "0": "b"}), "`place` must be different clients, got 0, '0'"),
    ],
)
def test_what_would_train_or_test_something_else_is_refused(make: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=text):
        make()


def test_a_dataset_that_ends_early_is_an_error() -> None:
    with pytest.raises(tg.Invalid, match="a row for every number below its length, got StopIteration"):
        delta(task(data=[Ends(), Ends()]))
    short = task(test=Ends(), evaluate_batch=4)
    with pytest.raises(tg.Invalid, match="got 3 batches in its length, and rows for 1"):
        short.evaluate(short.init(0), None)


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
    scalar[0] = (torch.zeros(2, 40), X, Y)  # such as the edges of a graph
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
        (lambda: task(data=[(X, Y)] * 2), "got tuple for client 0. Use TensorDataset"),
        (lambda: task(data=[BadLength(), Ends()]), "the dataset of client 0 must have a length .* OSError: gone"),
        (lambda: task(test=(X.numpy(), Y.numpy())), r"Use torch.from_numpy\(array\)"),
        (lambda: tg.shard((X, Y), by=3), "`by` must be a string or a list"),
        (lambda: tg.shard((X[:2], Y[:2]), by=[float("nan"), 1.0]), "got nan in row 0"),
        (
            lambda: tg.shard(Ends(), clients=2, how="label", labels=[[1], [1, 2]] * 6),
            "labels that are integers",
        ),
        (lambda: task(parameter_groups=lambda m: [{"params": [1]}]), "one of the module's, and in one group only"),
        (lambda: no_gradient("none"), "got NoneType"),
    ],
)
def test_what_cannot_be_right_is_refused(make: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=text):
        make()
