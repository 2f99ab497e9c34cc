"""Noise has the tail it says it has, and is symmetric."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tardygrad import streams
from tardygrad.errors import Invalid
from tardygrad.tasks import Noise


def draw(noise, size=200_000, seed=0):
    return noise.draw(streams.generator(seed, "noise"), size).double()


def hill(values, k):
    """Hill's estimator of the tail index from the k largest."""
    top = values.abs().sort(descending=True).values[: k + 1]
    return 1.0 / float((top[:k] / top[k]).log().mean())


@pytest.mark.parametrize("tail", [0.7, 1.2, 1.5, 1.8])
@pytest.mark.parametrize("kind", ["student", "pareto"])
def test_the_tail_index_is_the_one_asked_for(kind, tail):
    assert hill(draw(Noise(kind, tail)), k=1000) == pytest.approx(tail, rel=0.1)


@pytest.mark.parametrize("tail", [0.5, 1.0, 1.5, 2.0])
def test_stable_noise_has_the_stable_characteristic_function(tail):
    values = draw(Noise("stable", tail, scale=1.0))
    for omega in (0.25, 1.0, 2.0):
        assert float((omega * values).cos().mean()) == pytest.approx(math.exp(-(omega**tail)), abs=0.008)


@pytest.mark.parametrize("kind", ["stable", "student", "pareto"])
def test_noise_is_symmetric_scaled_and_repeatable(kind):
    values = draw(Noise(kind))
    assert float((values > 0).double().mean()) == pytest.approx(0.5, abs=0.005)
    up, down = values[values > 0], -values[values < 0]
    assert float(up.quantile(0.99)) == pytest.approx(float(down.quantile(0.99)), rel=0.1)
    assert torch.allclose(draw(Noise(kind, scale=3.0)), 3.0 * values)
    assert torch.equal(draw(Noise(kind)), values)
    assert not torch.equal(draw(Noise(kind), seed=1), values)
    assert not draw(Noise(kind, scale=0.0)).any()


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["stable", "student", "pareto"]),
    tail=st.floats(0.01, 2.0),
    scale=st.floats(0.0, 1e6),
    seed=st.integers(0, 99),
)
def test_every_draw_is_finite_float32(kind, tail, scale, seed):
    drawn = Noise(kind, tail, scale).draw(np.random.default_rng(seed), 100)
    assert drawn.dtype == torch.float32
    assert drawn.shape == (100,)
    assert torch.isfinite(drawn).all()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "gauss"}, "`kind` must be one of stable, student, pareto, got 'gauss'."),
        ({"tail": 0.0}, "`tail` must be a finite number, above 0, got 0.0."),
        ({"tail": 2.5}, "`tail` of stable noise must be at most 2 (Gaussian), got 2.5. Use kind='student'."),
        ({"scale": -1.0}, "`scale` must be a finite number, 0 or more, got -1.0."),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(settings, text):
    with pytest.raises(Invalid) as caught:
        Noise(**settings)
    assert str(caught.value) == text
