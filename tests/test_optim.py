"""ClipSGD and BiClip are ordinary optimizers, with the values of `tardygrad.core.clipping`."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tardygrad.core.clipping import clip, clip_l2
from tardygrad.errors import Invalid
from tardygrad.optim import BiClip, ClipSGD

SHAPES = ((3, 4), (5,), (), (2, 1, 3))


def heavy(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Gradients with a heavy tail, and zeros."""
    stream = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=stream) / torch.rand(shape, generator=stream) ** 2 for shape in SHAPES]
    return [(g * (torch.rand(g.shape, generator=stream) > 0.1)).to(dtype) for g in drawn]


def model(grads: list[Tensor]) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.linspace(-1, 1, g.numel()).reshape(g.shape).to(g.dtype)) for g in grads]
    for x, g in zip(params, grads, strict=True):
        x.grad = g.clone()
    return params


def flat(tensors: list[Any]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    upper=st.sampled_from([0.0, 1e-3, 0.5, 2.0, 1e39, math.inf]),
    share=st.sampled_from([0.0, 0.1, 1.0]),
    norm=st.sampled_from(["coordinate", "l2"]),
    foreach=st.booleans(),
)
def test_a_step_is_that_of_the_flat_vector(seed: int, upper: float, share: float, norm: Any, foreach: bool) -> None:
    lower = 0.0 if upper > 1e38 else upper * share
    grads = heavy(seed)
    params = model(grads)
    before = flat(params)
    BiClip(params, 0.1, upper, lower, norm=norm, foreach=foreach).step()
    by = clip if norm == "coordinate" else clip_l2
    said = before.add(by(flat(grads), upper, lower), alpha=-0.1)
    if norm == "coordinate":
        assert flat(params).equal(said)
    else:
        torch.testing.assert_close(flat(params), said, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("norm", ["coordinate", "l2"])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_at_once_has_the_bits_of_one_by_one(norm: Any, lr: Any, dtype: torch.dtype) -> None:
    ends = []
    for foreach in (False, True, None):
        params = model(heavy(1, dtype))
        optimizer = BiClip(params, lr, 0.5, 0.01, norm=norm, weight_decay=0.1, maximize=True, foreach=foreach)
        for seed in range(3):
            for x, g in zip(params, heavy(seed, dtype), strict=True):
                x.grad = g
            optimizer.step()
        ends.append(flat(params))
    assert ends[0].equal(ends[1])
    assert ends[0].equal(ends[2])


def test_the_length_is_that_of_a_group() -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    a.grad, b.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.5])
    optimizer = ClipSGD([{"params": [a]}, {"params": [b], "lr": 2.0}], lr=1.0, upper=1.0, norm="l2")
    optimizer.step()
    torch.testing.assert_close(a.detach(), torch.tensor([-0.6, -0.8]))
    assert b.item() == -1.0


def test_decay_is_decoupled_and_maximize_climbs() -> None:
    x = nn.Parameter(torch.tensor([2.0]))
    x.grad = torch.tensor([5.0])
    ClipSGD([x], lr=0.1, upper=1.0, weight_decay=0.5, maximize=True).step()
    assert x.item() == pytest.approx(2.0 * 0.95 + 0.1)


def test_gradients_that_are_zero_or_missing_move_nothing() -> None:
    for norm in ("coordinate", "l2"):
        a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
        a.grad = torch.zeros(3)
        optimizer = BiClip([a, b], lr=1.0, upper=2.0, lower=1.0, norm=norm)
        optimizer.step()
        assert a.tolist() == [1, 1, 1]
        assert b.tolist() == [1, 1]
        optimizer.zero_grad()
        optimizer.step()


def test_a_closure_computes_gradients_anew() -> None:
    x = nn.Parameter(torch.tensor([3.0]))
    optimizer = ClipSGD([x], lr=0.5, upper=1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (x**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert x.item() == 2.5
    assert optimizer.step() is None


def test_settings_survive_a_file_and_a_copy(tmp_path: Path) -> None:
    params = model(heavy(1))
    optimizer = BiClip([{"params": params[:2], "upper": 0.7}, {"params": params[2:]}], lr=0.1, upper=0.5, lower=0.1)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    others = model(heavy(1))
    other = BiClip([{"params": others[:2]}, {"params": others[2:]}], lr=9.0, upper=9.0, lower=9.0)
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert other.state_dict() == optimizer.state_dict()
    optimizer.step()
    other.step()
    assert flat(params).equal(flat(others))
    assert copy.deepcopy(optimizer).state_dict() == optimizer.state_dict()


@pytest.mark.parametrize("given", [{"norm": "zz"}, {"upper": -1}, {"lr": None}])
def test_settings_that_break_a_rule_are_refused_from_a_file_too(given: dict[str, Any]) -> None:
    optimizer = BiClip(model(heavy(1)), lr=0.1, upper=1.0, lower=0.5)
    before = optimizer.state_dict()
    bad = copy.deepcopy(before)
    bad["param_groups"][0].update(given)
    with pytest.raises(Invalid, match=r"must be (one of|a finite|0 <=)"):
        optimizer.load_state_dict(bad)
    other = torch.optim.SGD(model(heavy(1)), lr=0.1).state_dict()
    with pytest.raises(Invalid, match=r"a state of BiClip must have `lower` in every group, got none."):
        optimizer.load_state_dict(other)
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("size", [5e-324, 1e-200, 1.0, 1e200, 1.7e308])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_length_is_what_it_should_be_at_either_end_of_float64(size: float, foreach: bool) -> None:
    for upper, lower, wanted in ((0.25, 0.0, min(2 * size, 0.25)), (1e305, 0.5, min(max(2 * size, 0.5), 1e305))):
        params = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
        for x in params:
            x.grad = torch.full_like(x, size)
        BiClip(params, 1.0, upper, lower, norm="l2", foreach=foreach).step()
        torch.testing.assert_close(flat(params), torch.full((4,), -wanted / 2, dtype=torch.float64))


def test_a_scheduler_drives_it() -> None:
    x = nn.Parameter(torch.zeros(1))
    optimizer = ClipSGD([x], lr=1.0, upper=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        x.grad = torch.tensor([9.0])
        optimizer.step()
        scheduler.step()
    assert x.item() == -1.75


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"lr": -1.0}, "`lr` must be a finite number, 0 or more, got -1.0."),
        ({"lr": torch.tensor([0.1])}, r"a tensor without dimensions, got shape \(1,\)"),
        ({"weight_decay": -0.1}, "`weight_decay` must be a finite number"),
        ({"upper": 0.1}, "the thresholds must be 0 <= lower <= upper, got 0.5 and 0.1."),
        ({"lower": math.inf, "upper": math.inf}, "the thresholds must be"),
        ({"norm": "l1"}, "`norm` must be one of coordinate, l2, got 'l1'."),
    ],
)
def test_settings_that_break_a_rule_are_refused_for_all_and_for_a_group(given: dict[str, Any], complaint: str) -> None:
    fine = {"lr": 0.1, "upper": 1.0, "lower": 0.5}
    x = nn.Parameter(torch.zeros(1))
    with pytest.raises(Invalid, match=complaint):
        BiClip([x], **(fine | given))
    optimizer = BiClip([x], **fine)
    with pytest.raises(Invalid, match=complaint):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], **given})
    assert len(optimizer.param_groups) == 1
