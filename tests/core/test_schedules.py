"""Schedules: their values, and what can be no schedule."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.core.schedules import Constant, Cosine, Power, lift

LIGHT = settings(deadline=None, max_examples=50, derandomize=True)
rounds = st.integers(0, 10_000)


@LIGHT
@given(st.floats(0.001, 100), st.floats(-1, 1), st.integers(1, 10_000))
def test_a_power_law_is_value_times_t_to_the_exponent(value: float, exponent: float, t: int) -> None:
    assert Power(value, exponent)(t) == pytest.approx(value * math.exp(exponent * math.log(t)), rel=1e-12)


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.0, 0.25])
def test_a_client_that_pulled_x_0_reads_round_1(exponent: float) -> None:
    assert Power(0.3, exponent)(0) == Power(0.3, exponent)(1) == 0.3
    assert Cosine(peak=1.0, rounds=10, warmup=5)(0) == Cosine(peak=1.0, rounds=10, warmup=5)(1) == 0.2


def test_a_cosine_warms_up_linearly_falls_by_half_a_cosine_and_stays_at_its_floor() -> None:
    schedule = Cosine(peak=1.0, rounds=100, warmup=20, floor=0.2)
    assert [schedule(t) for t in (1, 5, 10, 20)] == pytest.approx([0.05, 0.25, 0.5, 1.0])
    assert schedule(60) == pytest.approx(0.6)
    assert schedule(40) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert schedule(100) == schedule(101) == schedule(10**6) == pytest.approx(0.2)


@LIGHT
@given(st.integers(2, 200), st.data())
def test_a_cosine_rises_to_its_peak_and_then_only_falls(T: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, T - 1))
    values = [Cosine(peak=2.0, rounds=T, warmup=warmup)(t) for t in range(1, T + 1)]
    top = max(warmup, 1) - 1
    assert values[:top] == sorted(values[:top])
    assert values[top:] == sorted(values[top:], reverse=True)
    assert all(0 <= value <= 2 for value in values)


@pytest.mark.parametrize(("peak", "floor"), [(1.0, 2.0), (1.0, -0.1), (-1.0, -1.0), (math.inf, 0.0), (math.nan, 0.0)])
def test_a_cosine_falls_from_a_finite_peak_to_a_floor_that_is_not_negative(peak: float, floor: float) -> None:
    with pytest.raises(
        tg.Invalid, match="a cosine schedule needs 0 <= warmup < rounds and 0 <= floor <= peak, got Cos"
    ):
        Cosine(peak=peak, rounds=10, floor=floor)


@pytest.mark.parametrize(("value", "exponent"), [(-0.1, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf)])
def test_a_power_law_is_finite_and_not_negative(value: float, exponent: float) -> None:
    text = "a power law needs a finite value, zero or more, and a finite exponent, got Power(value="
    with pytest.raises(tg.Invalid, match=re.escape(text)):
        Power(value, exponent)


def test_a_number_is_lifted_to_a_constant_and_a_schedule_kept() -> None:
    assert lift("lr", 0.1) == Constant(0.1)
    assert lift("lr", 2) == Constant(2.0)
    for number in (np.float64(0.5), np.float32(0.5), np.float16(0.5)):
        assert lift("lr", number) == Constant(0.5)
    assert lift("lr", np.int64(2)) == Constant(2.0)
    power = Power(1.0, -0.5)
    assert lift("lr", power) is power

    def own(t: int) -> float:
        return 1.0 / t

    assert lift("lr", own) is own


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.1, "-0.1"), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_learning_rate_must_be_finite_and_not_negative(value: float, shown: str) -> None:
    text = f"`local_lr` must be a finite number, zero or more, got {shown}."
    with pytest.raises(tg.Invalid, match=re.escape(text)):
        lift("local_lr", value)
    with pytest.raises(tg.Invalid, match=re.escape(text)):
        lift("local_lr", lambda t: value)


@pytest.mark.parametrize(("value", "shown"), [(-1, "-1"), (math.nan, "nan")])
def test_a_threshold_may_be_infinite_but_not_negative(value: float, shown: str) -> None:
    assert lift("clip", math.inf, finite=False)(3) == math.inf
    with pytest.raises(tg.Invalid, match=re.escape(f"`clip` must be zero or more (inf switches it off), got {shown}.")):
        lift("clip", value, finite=False)


@pytest.mark.parametrize("name", ["local_lr", "local_clip", "lr", "clip", "local_lower", "lower"])
def test_every_setting_of_a_method_is_named_in_its_error(name: str) -> None:
    good: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 1.0, "buffer": 1, "local_steps": 1}
    with pytest.raises(tg.Invalid, match=f"`{name}` must be "):
        tg.clip2(**good | {name: -1.0})
    if name not in ("clip", "lower"):
        del good["clip"]
        with pytest.raises(tg.Invalid, match=f"`{name}` must be "):
            tg.sgdclip(**good | {name: -1.0})


def test_any_function_is_a_schedule_of_rounds_that_count_from_1() -> None:
    ends = []
    for local_lr in (lambda t: 0.1 / math.sqrt(t), Power(0.1, -0.5)):
        method = tg.sgdclip(local_lr=local_lr, local_clip=1.0, lr=1.0, buffer=1, local_steps=1)
        task = tg.tasks.quadratic(clients=2, dimension=3)
        ends.append(tg.simulate(method, task, tg.Fleet.paper(clients=2), rounds=3).x)
    assert torch.allclose(*ends)
