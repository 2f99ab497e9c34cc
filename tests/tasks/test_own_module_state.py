"""Modules with a mode or state of their own, and functions that use another module than the one they are given."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tardygrad as tg
from tardygrad.core.messages import Job
from tests.tasks import generated_modules

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 2
METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=3)
TWO_STEPS = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2)
FLEET = tg.Fleet.paper(clients=2)


def task(module: Any, **settings: Any) -> tg.TorchTask:
    given = {"data": tg.shard((X, Y), clients=2), "loss": F.cross_entropy, "test": (X, Y), "batch_size": 8} | settings
    return tg.TorchTask(module, **given)


def delta(own: Any, serial: int = 0, method: tg.Method = METHOD) -> Tensor:
    job = Job(0, serial, 0, own.init(0), method.local_steps, None, 0, own.init_module_buffers())
    return tg.work(job, own, method).delta


class FrozenNorm(nn.Module):
    """Keeps its BatchNorm in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


class Merging(nn.Linear):
    """An adapter that is merged into the frozen weight in evaluation mode, as in loralib."""

    def __init__(self, inputs: int = 3, outputs: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(1, inputs)), nn.Parameter(torch.randn(outputs, 1))
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            sign = -1 if mode else 1
            self.weight.data += sign * (self.b @ self.a).detach()
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        plain = super().forward(x)
        return plain if self.merged else plain + x @ self.a.T @ self.b.T


@pytest.mark.parametrize("mode", [True, False])
def test_a_modules_own_train_keeps_its_batchnorm_frozen(mode: bool) -> None:
    torch.manual_seed(0)
    own = FrozenNorm()
    if not mode:
        own.eval()
    made, buffers = task(own), None
    buffers = made.init_module_buffers()
    assert buffers
    for serial in range(2):
        job = Job(0, serial, 0, made.init(0), 3, None, 0, buffers.clone())
        update = tg.work(job, made, METHOD)
        made.evaluate(made.init(0), buffers)
        assert update.module_buffers
        assert torch.equal(update.module_buffers.floats, buffers.floats)
    train = tg.TrainerTask(own, train=lambda module, job: float(module.norm.training), clients=2)
    method = tg.clip2(lr=1.0, clip=0.5, buffer=2, local_steps=3)
    assert tg.work(Job(0, 0, 0, train.init(0), 3, None, 0, buffers.clone()), train, method).loss == 0.0


@pytest.mark.parametrize("merged", [False, True])
def test_adapters_that_eval_merges_are_merged_with_the_weights_that_are_evaluated(merged: bool) -> None:
    torch.manual_seed(0)
    module = Merging()
    plain = Merging()
    plain.load_state_dict(module.state_dict())
    if merged:
        module.eval()
    weight = module.weight.clone()
    own = task(module)
    first = delta(own)
    for scale in (1.0, 0.1, 3.0):
        x = own.init(0) * scale
        plain.train()
        nn.utils.vector_to_parameters(x, [p for p in plain.parameters() if p.requires_grad])
        loss = F.cross_entropy(plain.eval()(X), Y).item()
        assert own.evaluate(x, None)["loss"] == pytest.approx(loss, rel=1e-5)
        assert F.cross_entropy(own.module(x)(X), Y).item() == pytest.approx(loss, rel=1e-5)
        assert torch.equal(delta(own), first)  # the evaluation left nothing behind
    assert torch.equal(module.weight, weight)
    assert module.merged == merged


class Counting(nn.Linear):
    """Its output changes at the third pass, counted by a plain attribute."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.calls, self.seen = 0, {"last": [0.0]}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        self.seen["last"][0] = float(x.mean())
        return super().forward(x) * (1.0 if self.calls < 3 else 0.5)


def test_a_job_is_a_plain_loop_over_a_fresh_copy_of_the_module() -> None:
    torch.manual_seed(0)
    module = Counting()
    own = task(module)
    with pytest.warns(UserWarning, match="`calls` of Counting changed, and every job starts from the module as"):
        first = delta(own)
    with warnings.catch_warnings(action="ignore"):
        assert torch.equal(delta(own), first)
        own.evaluate(own.init(0), None)
        assert torch.equal(delta(own), first)
    assert module.calls == 0
    plain = nn.Linear(3, 2)
    plain.load_state_dict(module.state_dict())
    assert not torch.equal(delta(task(plain)), first)  # the third of three steps counts
    together = pytest.raises(tg.WorkFailed, match=r"without state, got one that changes its attributes. Compute")
    with together, warnings.catch_warnings(action="ignore"):
        tg.simulate(METHOD, task(module), FLEET, rounds=1, batch=2, evaluate_every=0)


class Rolling(nn.Linear):
    """A constant that every pass shifts by one place: the sum of its bits stays."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.place = torch.tensor([1.0, 0.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        self.place.copy_(self.place.roll(1))
        return super().forward(x * (1 + self.place))


def test_a_constant_that_passes_permute_is_as_given_in_the_next_job() -> None:
    torch.manual_seed(0)
    own = task(Rolling())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = delta(own, method=TWO_STEPS)
        assert delta(own, method=TWO_STEPS).equal(first)


def test_a_loss_that_holds_the_memory_of_a_weight_is_refused() -> None:
    module = nn.Linear(3, 2)
    weight = module.weight.data
    loss = nn.CrossEntropyLoss()
    loss.first = weight
    for own in (loss, lambda output, target: F.cross_entropy(output, target) + weight.square().sum()):
        with pytest.raises(tg.Invalid, match="of the loss` share memory, which copies of a module lose"):
            task(module, loss=own)


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_generated_modules_are_trained_as_by_a_plain_loop_or_refused(first: int) -> None:
    outcomes = {seed: generated_modules.outcome(generated_modules.case(seed)) for seed in range(first, first + 50)}
    assert set(outcomes.values()) <= {"equal", "refused", "both fail"}, outcomes
    assert Counter(outcomes.values())["equal"] >= 10


class Margin(nn.Module):
    """A loss with a temperature that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output / self.temperature, target)


def test_parameters_that_nothing_would_train_are_refused() -> None:
    margin = Margin()
    with pytest.raises(tg.Invalid, match=r"`loss` must have no parameters of its own, .* got `temperature` in Margin"):
        task(nn.Linear(3, 2), loss=margin)
    rule = "no parameter that is not the module's, since nothing would train it, got one of shape"
    for loss in (lambda output, target: margin(output, target), margin.forward):
        for batch in (1, 2):
            with pytest.raises(tg.WorkFailed, match=rule):
                tg.simulate(METHOD, task(nn.Linear(3, 2), loss=loss), FLEET, rounds=1, batch=batch, evaluate_every=0)
    margin.requires_grad_(False)
    assert delta(task(nn.Linear(3, 2), loss=margin)).norm() > 0

    class Unregistered(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.layers = [nn.Linear(3, 3)]

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.layers[0](x))

    with pytest.raises(tg.Invalid, match=f"{rule} .*nn.ModuleList"):
        delta(task(Unregistered()))


NET = nn.Linear(3, 2)


def evaluates_a_global(module: nn.Module, test: Any) -> dict[str, float]:
    return {"loss": F.cross_entropy(NET(test[0]), test[1]).item()}


def test_functions_that_use_the_original_module_are_refused() -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)

    def through(module: nn.Module, test: Any) -> dict[str, float]:
        return helper(test[0])

    def helper(x: Tensor) -> dict[str, float]:
        return {"loss": net(x).sum().item()}

    def loads(module: nn.Module, test: Any) -> dict[str, float]:
        module.load_state_dict(net.state_dict())
        return {"loss": 0.0}

    def trained(module: nn.Module, test: Any) -> dict[str, float]:
        net.load_state_dict(module.state_dict())
        return {"loss": net(test[0]).sum().item() - module(test[0]).sum().item()}

    def fine(module: nn.Module, test: Any) -> dict[str, float]:
        reads = net.in_features + sum(p.numel() for p in net.parameters()) + other.weight.sum().item()
        return {"loss": reads + module(test[0]).sum().item()}

    rule = "must use the module that it is given, a copy of yours with the trained weights, got `"
    for module, evaluate in ((NET, evaluates_a_global), (net, through), (net, loads)):
        own = task(module, evaluate=evaluate)
        with pytest.raises(tg.Invalid, match=f"`evaluate` {rule}"):
            own.evaluate(own.init(0), None)
    own = task(net, evaluate=trained)
    assert own.evaluate(own.init(0) + 1.0, None) == {"loss": 0.0}
    own = task(net, evaluate=fine)
    assert own.evaluate(own.init(0), None) == own.evaluate(own.init(0), None)
    own = task(net, scores=lambda outputs, targets: {"shift": float((outputs - net(X)).norm())})
    with pytest.raises(tg.Invalid, match=f"`scores` {rule}"):
        own.evaluate(own.init(0), None)
    own = task(net, data=[[*zip(X, Y, strict=True)]] * 2, collate=lambda rows: (net(X[:8]), Y[:8]))
    with pytest.raises(tg.Invalid, match=f"`collate` {rule}"):
        delta(own)

    def train(module: nn.Module, job: Job) -> float:
        loss = F.cross_entropy(net(X), Y)
        loss.backward()
        return loss.item()

    method = tg.clip2(lr=1.0, clip=0.5, buffer=2, local_steps=3)
    with pytest.raises(tg.Invalid, match=f"`train` {rule}"):
        delta(tg.TrainerTask(net, train=train, clients=2), method=method)


class Frozen(nn.Module):
    """Changes a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(3), requires_grad=False), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale.mul_(0.9)
        return self.head(x * self.scale)


class Noisy(nn.Linear):
    """Draws from torch's or NumPy's generator."""

    def __init__(self, numpy: bool) -> None:
        super().__init__(3, 2)
        self.numpy = numpy

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (float(np.random.rand()) if self.numpy else torch.rand(3)))


class Branches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2 if x.sum() > 0 else x)


@pytest.mark.parametrize(
    ("module", "loss", "message"),
    [
        (Frozen(), F.cross_entropy, "must not change frozen parameters, .* got `scale`"),
        (nn.Linear(3, 2), lambda o, t: F.cross_entropy(o, t, reduction="none"), "a tensor with one number, got shape"),
        (Noisy(numpy=False), F.cross_entropy, "got one that draws random numbers"),
        (Noisy(numpy=True), F.cross_entropy, "got one that draws random numbers"),
        (Branches(3, 2), F.cross_entropy, r"torch\.func cannot: .* Compute them one by one: batch=1\."),
    ],
)
def test_jobs_that_are_computed_together_are_checked_as_those_computed_alone(
    module: nn.Module, loss: Any, message: str
) -> None:
    with pytest.raises(tg.WorkFailed, match=message):
        tg.simulate(METHOD, task(module, loss=loss), FLEET, rounds=1, batch=2, evaluate_every=0)


class Recurrent(nn.Module):
    """Has lists of its parameters, in which torch.func leaves tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_jobs_of_an_lstm_are_computed_together_as_alone() -> None:
    torch.manual_seed(0)
    net = Recurrent()
    alone, together = (
        tg.simulate(METHOD, task(net), FLEET, rounds=3, batch=batch, evaluate_every=1) for batch in (1, 2)
    )
    assert torch.allclose(alone.x, together.x, atol=1e-6)
    assert alone.metrics[-1]["test_loss"] == pytest.approx(together.metrics[-1]["test_loss"], rel=1e-5)
    own = task(net)
    delta(own)
    assert own._views().is_as_given()  # so that jobs need no new copy
