"""The step: accumulation, parameter groups, bfloat16, any optimizer after the clip, own losses and scores."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import tardygrad as tg
from tardygrad.core.messages import Job

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 2
ROWS = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]


def task(module: nn.Module | None = None, **settings: Any) -> tg.TorchTask:
    given = {"data": tg.Shards((X, Y), (torch.arange(24),)), "loss": cross_entropy, "batch_size": 8}
    return tg.TorchTask(module or network(), **(given | settings))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def job(task: tg.TorchTask, steps: int = 3) -> Job:
    return Job(0, 0, 0, task.init(0), steps, None, seed=0)


def method(**settings: Any) -> tg.Method:
    return tg.sgdclip(**({"local_lr": 0.1, "local_clip": 10.0, "lr": 1.0, "buffer": 1, "local_steps": 3} | settings))


def test_accumulated_batches_have_the_gradient_of_one_large_batch() -> None:
    small, large = task(batch_size=4, accumulate=6), task(batch_size=24)
    one, other = (tg.work(job(each), each, method()) for each in (small, large))
    torch.testing.assert_close(one.delta, other.delta)
    assert (one.steps, other.steps) == (3, 3)
    assert math.isclose(one.loss, other.loss, rel_tol=1e-5)


def no_decay(module: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in module.parameters() if p.dim() > 1]
    return [{"params": matrices}, {"params": [p for p in module.parameters() if p.dim() == 1], "weight_decay": 0.0}]


def test_parameter_groups_and_an_optimizer_after_the_clip_are_those_of_a_plain_loop() -> None:
    grouped = task(parameter_groups=no_decay)
    clipped = method(optimizer="AdamW", options={"weight_decay": 0.5}, local_clip=0.05)
    update = tg.work(job(grouped), grouped, clipped)

    module = network()
    optimizer = torch.optim.AdamW(no_decay(module), lr=0.1, weight_decay=0.5)
    for batch in grouped.batches(job(grouped)):
        x, y = batch.data[0]
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_value_(module.parameters(), 0.05)
        optimizer.step()
    torch.testing.assert_close(grouped.init(0) + update.delta, nn.utils.parameters_to_vector(module.parameters()))


def test_what_a_parameter_group_does_not_keep_is_zero_in_its_place() -> None:
    def groups(module: nn.Module) -> list[dict[str, Any]]:
        first, *others = module.parameters()
        return [{"params": [first], "momentum": 0.9}, {"params": others, "momentum": 0.0}]

    grouped, filled = task(parameter_groups=groups), torch.utils.deterministic.fill_uninitialized_memory
    kept = method(optimizer="SGD", options={"momentum": 0.9}, keep=True)
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has written with NaN
    try:
        (momentum,) = tg.work(job(grouped), grouped, kept).state.values()  # type: ignore[union-attr]
    finally:
        torch.use_deterministic_algorithms(False)
    size = next(network().parameters()).numel()
    assert filled
    assert (momentum[:size] != 0).any()
    assert (momentum[size:] == 0).all()


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (lambda m: [{"params": [m[0].weight]}], "every trainable parameter must be in a parameter group, and `0.bias`"),
        (lambda m: [{"params": list(m.parameters()), "lr": 1.0}], "have the method's `local_lr`, got lr=1.0"),
        (
            ["weights"],
            "must be a function of the module to a list of groups, each a dict with `params`, got \\['weights'\\]",
        ),
    ],
)
def test_wrong_parameter_groups_are_refused(groups: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=text):
        task(parameter_groups=groups)


def test_bfloat16_parameters_train_on_a_float32_vector() -> None:
    narrow = task(network().bfloat16(), data=tg.Shards((X.bfloat16(), Y), (torch.arange(24),)))
    start = narrow.init(0)
    update = tg.work(job(narrow), narrow, method(local_lr=1e-4))
    assert (start.dtype, update.delta.dtype) == (torch.float32, torch.float32)
    moved = update.delta[update.delta != 0]
    assert 0 < moved.abs().max() < 1e-3
    assert not torch.equal((start + update.delta).bfloat16().float(), start + update.delta)  # finer than bfloat16


class WithLoss(nn.Module):
    """Returns its own loss, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = self.linear(x)
        return SimpleNamespace(loss=cross_entropy(logits, labels), logits=logits)


def test_a_module_may_bring_its_loss() -> None:
    rows = [{"x": row["x"], "labels": row["y"]} for row in ROWS]
    own = task(WithLoss(), data=[rows], loss=None, test=rows)
    plain = task(own.module(own.init(0)).linear)  # type: ignore[arg-type]
    assert torch.equal(tg.work(job(own), own, method()).delta, tg.work(job(plain), plain, method()).delta)
    assert own.evaluate(own.init(0), None).keys() == {"loss", "accuracy"}
    without = task(loss=None, data=[[(x,) for x in X]])
    with pytest.raises(tg.Invalid, match="must return an output with a `loss`, got Tensor"):
        tg.work(job(without), without, method())


def batch_loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(module(batch["x"]), batch["y"])


@pytest.mark.parametrize(
    ("test", "loss"),
    [
        ((X, Y), cross_entropy),
        (TensorDataset(X, Y), cross_entropy),
        (lambda: TensorDataset(X, Y), cross_entropy),
        (ROWS, batch_loss),
        (lambda: ROWS, batch_loss),
        (DataLoader(TensorDataset(X, Y), batch_size=5), cross_entropy),
    ],
    ids=["tensors", "dataset", "function", "list of rows", "function to rows", "loader"],
)
def test_a_test_set_of_any_form_has_the_same_loss_every_time(test: Any, loss: Any) -> None:
    given = task(test=test, loss=loss, evaluate_batch=7)
    expected = cross_entropy(network()(X), Y).item()
    for _ in range(2):
        assert math.isclose(given.evaluate(given.init(0), None)["loss"], expected, rel_tol=1e-5)


class Tokens(nn.Module):
    """A language model without context, whose output has a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.linspace(0, 1, 5))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        logits = self.scores.expand(*input_ids.shape, 5)
        return SimpleNamespace(loss=cross_entropy(logits[:, :-1].reshape(-1, 5), labels[:, 1:].reshape(-1)))


def test_the_loss_of_a_language_model_is_the_mean_over_tokens() -> None:
    tokens = torch.randint(0, 5, (9, 6), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    labels[:4, 2:] = -100  # padding
    rows = [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels, strict=True)]
    small, whole = (task(Tokens(), data=[rows], loss=None, test=rows, evaluate_batch=n) for n in (2, 9))
    one, other = (each.evaluate(each.init(0), None) for each in (small, whole))
    assert math.isclose(one["loss"], other["loss"], rel_tol=1e-6)
    assert math.isclose(one["perplexity"], math.exp(one["loss"]))


def test_metrics_of_torchmetrics_stream() -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    scored = task(test=(X, Y), scores={"f1": classification.MulticlassF1Score(2)}, evaluate_batch=5)
    found = [scored.evaluate(scored.init(0), None)["f1"] for _ in range(2)]
    whole = classification.MulticlassF1Score(2)(network()(X), Y).item()
    assert found == pytest.approx([whole, whole])
    with pytest.raises(tg.Invalid, match=r"which a loss of \(module, batch\) does not name"):
        task(test=ROWS, loss=batch_loss, scores={"f1": classification.MulticlassF1Score(2)})


def test_an_own_evaluation_gets_the_module_and_the_test_set() -> None:
    own = task(test=ROWS, evaluate=lambda module, test: {"rows": len(test), "mean": module(X).mean()})
    assert own.evaluate(own.init(0), None) == {"rows": 24.0, "mean": network()(X).mean().item()}
    method_ = method(mode="sync", local_steps=1)
    run = tg.simulate(method_, task(evaluate=lambda module, test: {"test": test is None}), FLEET, rounds=1)
    assert run.metrics[-1]["test_test"] == 1.0


FLEET = tg.Fleet.paper(clients=1)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"evaluate": lambda module, test: 3}, tg.Invalid, "`evaluate` must return scores by name"),
        ({"evaluate": lambda module, test: {"a": "x"}}, tg.Invalid, "must return one number for each score: could not"),
        ({"scores": lambda outputs, targets: 3}, tg.Invalid, "`scores` must return scores by name"),
        ({"test": (X[:, :2], Y)}, tg.WorkFailed, r"the evaluation failed: RuntimeError: mat1 and mat2 shapes"),
    ],
)
def test_what_an_evaluation_returns_is_checked(settings: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tg.simulate(method(local_steps=1), task(**({"test": (X, Y)} | settings)), FLEET, rounds=1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"scores": {"a": 3}}, "must have `update`, `compute` and `reset`, as those of torchmetrics, got int"),
        ({"collate": 3}, "`collate` must be a function, got 3"),
        ({"evaluate": print, "scores": print}, "`scores` have no effect beside `evaluate`"),
        ({"data": [DataLoader(ROWS)]}, "got DataLoader for client 0. Give its dataset, which the task loads"),
    ],
)
def test_wrong_settings_are_refused_before_the_run(settings: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=text):
        task(**settings)


def test_an_evaluation_changes_nothing_and_repeats() -> None:
    def rounded(module: nn.Module, test: Any) -> dict[str, float]:
        for p in module.parameters():
            p.data.round_()
        return {"drawn": float(torch.rand(()))}

    changed, plain = task(evaluate=rounded), task()
    state = torch.get_rng_state()
    runs = [tg.simulate(method(), changed, FLEET, rounds=2, evaluate_every=1) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(runs[0].x, tg.simulate(method(), plain, FLEET, rounds=2, evaluate_every=0).x)
    assert runs[0].metrics == runs[1].metrics
    assert f"test drawn {runs[0].metrics[-1]['test_drawn']:.4g}" in str(runs[0].summary())


def test_options_of_parameter_groups_need_an_optimizer_that_has_them() -> None:
    decayed = task(parameter_groups=no_decay)
    with pytest.raises(tg.Invalid, match="options of parameter groups need an optimizer, and SGDClip has none here"):
        tg.simulate(method(), decayed, FLEET, rounds=1, evaluate_every=0)
    misspelt = task(parameter_groups=lambda module: [{"params": list(module.parameters()), "weight_decy": 0.0}])
    with pytest.raises(tg.WorkFailed, match=r"AdamW have no option `weight_decy`\. Did you mean"):
        tg.simulate(method(optimizer="AdamW"), misspelt, FLEET, rounds=1, evaluate_every=0)
