"""Clip, L2 clip and BiClip: what they promise for every vector."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tardygrad as tg
from tardygrad.core.clipping import clip, clip_l2
from tardygrad.core.schedules import Constant, Power
from tardygrad.core.transforms import Chain, Clip, Scale, Step, clipped_share

LIGHT = settings(deadline=None, max_examples=60, derandomize=True)
FORMS = pytest.mark.parametrize("form", [clip, clip_l2])

coordinates = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, -0.0, 1e-30, -1e30, 2e30]))
vectors = st.lists(coordinates, min_size=1, max_size=8).map(torch.tensor)
uppers = st.floats(0.0009765625, 100.0, width=32)
shares = st.floats(0.0, 1.0)


def length(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v, dtype=torch.float64))


@LIGHT
@given(vectors, uppers)
def test_clip_clamps_every_coordinate_to_the_threshold(v: Tensor, u: float) -> None:
    expected = [max(-u, min(u, a)) for a in v.tolist()]
    assert clip(v, u).tolist() == expected


@LIGHT
@given(vectors, uppers, shares)
def test_biclip_bounds_what_is_not_zero_from_both_sides(v: Tensor, u: float, share: float) -> None:
    d = float(torch.tensor(share * u))
    out = clip(v, u, d)
    for a, b in zip(v.tolist(), out.tolist(), strict=True):
        if a == 0:
            assert b == 0
        else:
            assert d <= abs(b) <= u
            assert math.copysign(1, a) == math.copysign(1, b) or b == 0
            assert b == a or not d <= abs(a) <= u


@FORMS
@LIGHT
@given(vectors, uppers, shares)
def test_clipping_twice_is_clipping_once(form, v: Tensor, u: float, share: float) -> None:
    once = form(v, u, share * u)
    assert torch.allclose(form(once, u, share * u), once, rtol=1e-6, atol=0)


@FORMS
@LIGHT
@given(vectors)
def test_an_infinite_threshold_is_the_identity(form, v: Tensor) -> None:
    assert torch.equal(form(v, math.inf), v)


@FORMS
@pytest.mark.parametrize(("upper", "lower"), [(1.0, 0.0), (1.0, 0.5), (math.inf, 0.0), (1.0, 1.0)])
def test_nan_stays_nan(form, upper: float, lower: float) -> None:
    """A NaN must reach the gate, not be clipped into a number."""
    assert math.isnan(form(torch.tensor([math.nan, 1.0]), upper, lower)[0])


@LIGHT
@given(vectors, uppers)
def test_l2_shortens_to_the_threshold_and_keeps_the_direction(v: Tensor, u: float) -> None:
    out = clip_l2(v, u)
    if length(v) <= u:
        assert out is v
    else:
        assert length(out) == pytest.approx(u, rel=1e-5)
        assert torch.allclose(out.double() / length(out), v.double() / length(v), atol=1e-6)


@LIGHT
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8).map(torch.tensor), uppers, shares)
def test_l2_with_a_lower_threshold_lengthens_to_it(v: Tensor, u: float, share: float) -> None:
    d = share * u
    if 0 < length(v) < 1e-30:
        return  # see test_l2_treats_the_smallest_and_the_longest_vectors_too
    expected = 0.0 if length(v) == 0 else min(max(length(v), d), u)
    assert length(clip_l2(v, u, d)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("v", "upper", "lower", "expected"),
    [(1e-40, 2.0, 1.0, 1.0), (3e38, 1e-9, 0.0, 1e-9), (3e38, 1e-5, 0.0, 1e-5)],
    ids=["denormal", "huge to tiny", "huge to small"],
)
def test_l2_treats_the_smallest_and_the_longest_vectors_too(
    v: float, upper: float, lower: float, expected: float
) -> None:
    assert length(clip_l2(torch.tensor([v]), upper, lower)) == pytest.approx(expected, rel=1e-5)


@FORMS
def test_the_argument_is_not_changed(form) -> None:
    v = torch.tensor([3.0, -4.0, 0.1])
    form(v, 1.0, 0.5)
    assert v.tolist() == torch.tensor([3.0, -4.0, 0.1]).tolist()


# As a step: schedules, the share of changed coordinates, error texts.


def test_a_clip_step_reads_its_thresholds_at_the_steps_round() -> None:
    step = Clip(Power(1.0, 1.0), Power(0.5, 1.0))
    v = torch.tensor([9.0, 0.1])
    assert step.update(v, {}, Step(1))[0].tolist() == [1.0, 0.5]
    assert step.update(v, {}, Step(4))[0].tolist() == [4.0, 2.0]


def test_a_clip_step_reports_the_share_of_coordinates_it_changed() -> None:
    v = torch.tensor([9.0, 0.1, 0.6, 0.0])
    for step, share in (
        (Clip(Constant(1.0)), 0.25),
        (Clip(Constant(1.0), Constant(0.5)), 0.5),
        (Clip(Constant(math.inf)), 0.0),
        (Clip(Constant(1.0), norm="l2"), 0.75),  # the zero stays as it was
    ):
        both = Chain(step, Scale(Constant(0.1)))
        _, state = both.update(v, both.init(v), Step(1))
        assert float(clipped_share(state)) == share
    assert clipped_share({}) == 0.0


def test_the_lower_threshold_must_not_exceed_the_upper() -> None:
    text = re.escape("a lower threshold must not exceed the upper one (0.5), got 1.")
    with pytest.raises(tg.Invalid, match=text):
        Clip(Constant(0.5), Constant(1.0))
    with pytest.raises(tg.Invalid, match=text):
        tg.sgdclip(local_lr=0.1, local_clip=0.5, local_lower=1.0, lr=1.0, buffer=1, local_steps=1)
    with pytest.raises(tg.Invalid, match=text):
        tg.clip2(local_lr=0.1, local_clip=5.0, lr=1.0, clip=0.5, lower=1.0, buffer=1, local_steps=1)


def test_where_the_schedules_of_the_thresholds_cross_the_upper_one_wins() -> None:
    """sign(v) · min(max(|v|, d), u) is u when d > u."""
    step = Clip(Power(1.0, -1.0), Constant(0.5))
    assert step.update(torch.tensor([0.1, -7.0]), {}, Step(10))[0].tolist() == pytest.approx([0.1, -0.1])
