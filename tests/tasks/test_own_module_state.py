"""Modules with a mode or state of their own, and functions that use another module than the one they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tardygrad as tg
from tardygrad.core.messages import Job

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 2
METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=3)
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


class Remembers(nn.Module):
    """Depends on what an earlier pass left in an attribute."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.head, self.how = nn.Linear(3, 2), how
        self.mean, self.calls, self.seen, self.history = torch.zeros(3), 0, {"n": 0}, [1.0]
        self.rng, self.cache, self.array = np.random.default_rng(0), None, np.zeros(1)
        self.register_buffer("shift", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        match self.how:
            case "tensor":
                self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
                x = x - self.mean
            case "in place":
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
                x = x - self.mean
            case "number":
                self.calls += 1
                x = x * 0.9**self.calls
            case "dict":
                self.seen["n"] += 1
                x = x * self.seen["n"]
            case "list":
                self.history.append(0.5)
                x = x * sum(self.history)
            case "constant":
                self.shift = self.shift + 1
                x = x + self.shift
            case "generator":
                x = x * float(self.rng.random())
            case "array":
                self.array += 1
                x = x * float(self.array[0])
            case "new":
                self.last = getattr(self, "last", 0.0) + 1.0
                x = x * self.last
            case "late buffer":
                if not hasattr(self, "late"):
                    self.register_buffer("late", torch.zeros(3))
                self.late = self.late + 1
                x = x + self.late
            case "hook":
                self.register_forward_hook(lambda module, args, output: 1.5 * output)
            case "harmless":  # what most modules do
                self.aux, self.calls = x.norm(), self.calls + 1
                self.history.append(float(self.aux))
                if not hasattr(self, "hooked"):  # as transformers does to return hidden states
                    self.hooked = self.register_forward_hook(lambda module, args, output: None)
                    self.register_buffer("mask", torch.ones(3))
                self.cache = torch.ones(3) if self.cache is None else self.cache
                x = x * self.cache
        return self.head(x)


@pytest.mark.parametrize(
    ("how", "name"),
    {"tensor": "mean", "in place": "mean", "number": "calls", "dict": "seen", "list": "history", "constant": "shift",
     "generator": "rng", "array": "array", "new": "last", "late buffer": "late", "hook": "_forward_hooks"}.items(),
)  # fmt: skip
def test_a_forward_pass_must_not_depend_on_attributes_that_an_earlier_one_changed(how: str, name: str) -> None:
    with pytest.raises(tg.Invalid, match=f"got `{name}`. Keep it in a persistent buffer"):
        delta(task(Remembers(how)))
    with pytest.raises((tg.Invalid, tg.WorkFailed), match=f"got `{name}`"):
        tg.simulate(METHOD, task(Remembers(how)), FLEET, rounds=1, batch=2, evaluate_every=0)


def test_attributes_that_results_do_not_depend_on_may_change() -> None:
    torch.manual_seed(0)
    module = Remembers("harmless")
    own, plain = task(module), Remembers("none")
    plain.load_state_dict(module.state_dict())
    first = delta(own)
    assert torch.equal(delta(task(plain)), first)
    own.evaluate(own.init(0), None)
    assert torch.equal(delta(own), first)
    left = own._views().module
    assert len(left.history) <= 2  # does not grow from step to step
    assert len(left._forward_hooks) <= 1
    with pytest.raises(tg.WorkFailed, match=r"without state, got one that changes its attributes. Compute"):
        tg.simulate(METHOD, task(module), FLEET, rounds=1, batch=2, evaluate_every=0)


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


def test_a_loss_with_state_of_its_own_belongs_into_the_module() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(2))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            self.centre += 0.1 * output.detach().mean(0)
            return F.cross_entropy(output - self.centre, target)

    with pytest.raises(tg.Invalid, match=r"got `loss.centre`. Make the loss a part of the module, and use a loss of"):
        delta(task(nn.Linear(3, 2), loss=Centred()))


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


class Output(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(logits=super().forward(x))


class Branches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2 if x.sum() > 0 else x)


@pytest.mark.parametrize(
    ("module", "loss", "message"),
    [
        (Frozen(), F.cross_entropy, r"must not change frozen parameters or constants, .* got `scale`"),
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
    assert not own._views().restores  # so steps take no longer


def test_jobs_computed_together_take_the_outputs_and_losses_that_jobs_alone_take() -> None:
    torch.manual_seed(0)
    module = Output(3, 2)
    runs = [
        tg.simulate(
            METHOD,
            task(module, loss=lambda output, target: F.cross_entropy(output, target).view(1)),
            FLEET,
            rounds=3,
            batch=batch,
        )
        for batch in (1, 2)
    ]
    assert torch.allclose(runs[0].x, runs[1].x, atol=1e-6)
