"""The sums and conditions, against loops that are written as the paper writes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardygrad.errors import Invalid
from tardygrad.theory.bounds import bounds, fadas
from tardygrad.theory.delays import (
    Constants,
    Sums,
    conditions,
    factors,
    propositions,
    sums_of,
    sums_of_equal_delays,
)
from tardygrad.theory.rates import preset

C = Constants(
    tail=1.4, local_steps=5, local_clip=0.7, local_lr=0.2, clip=0.3, gap=2.5, smoothness=3.0, gradient=1.7, noise=0.6
)


@st.composite
def sequences(draw: st.DrawFn) -> list[list[int]]:
    buffer = draw(st.integers(1, 4))
    row = st.lists(st.integers(1, 30), min_size=buffer, max_size=buffer)
    return draw(st.lists(row, min_size=1, max_size=25))


def loops(p: list[list[int]]) -> tuple[float, float, float]:
    """Σ 1/p, Σ(Σ 1/p)², Σ 1/p Σ_{i=t−p}^{t−1} 1/p_i, with t from 1 to T and i from 1."""
    weight = square = drift = 0.0
    for t in range(1, len(p) + 1):
        inverse = 0.0
        for j in range(len(p[0])):
            delay = p[t - 1][j]
            inverse += 1 / delay
            for i in range(t - delay, t):
                if i >= 1:
                    drift += 1 / delay / p[i - 1][j]
        weight += inverse
        square += inverse**2
    return weight, square, drift


def found(delays: object, name: str, constants: Constants = C):  # type: ignore[no-untyped-def]
    (one,) = [one for one in conditions(delays, constants) if one.method == name]  # type: ignore[arg-type]
    return one


@given(sequences())
def test_sums_are_those_of_plain_loops(p: list[list[int]]) -> None:
    sums = sums_of(p)
    assert (sums.rounds, sums.buffer) == (len(p), len(p[0]))
    assert (sums.weight, sums.square, sums.drift) == pytest.approx(loops(p), rel=1e-9, abs=1e-12)
    assert (sums.mean, sums.median) == (np.mean(p), np.median(p))


@given(sequences())
def test_conditions_are_the_theorems(p: list[list[int]]) -> None:
    weight, square, drift = loops(p)
    m, k, u = len(p[0]), 5, 0.7
    one = found(p, "sd-sgdclip")
    right = 2 * 1.7 * m * drift / (k * u)
    assert one.holds == (square >= right * (1 - 1e-12))
    assert one.factor == pytest.approx(right / square)
    assert one.excess.shape == (len(p), m)
    assert one.excess.sum() == pytest.approx(right - square, abs=1e-9)
    two = found(p, "sd-clip2")
    left = math.sqrt(2.5 / (3.0 * square))
    if drift:
        assert two.factor == pytest.approx(left / (2 * u * 0.2 * weight / ((k + 1) * drift)))
    assert two.excess.sum() == pytest.approx(left * (k + 1) * drift - 2 * u * 0.2 * weight, abs=1e-9)
    assert two.holds == (two.factor <= 1)


@settings(max_examples=30)
@given(sequences())
def test_the_largest_delay_decides_where_nothing_is_downplayed(p: list[list[int]]) -> None:
    for name in ("sgdclip", "clip2", "clip2-tolerant", "clip2-unknown-tail"):
        one = found(p, name)
        most = len(p) ** float(preset(name).tolerance(1.4))
        assert one.factor == pytest.approx(np.max(p) / most)
        assert (one.excess > 0).tolist() == (np.array(p) > most).tolist()
    assert found(p, "dc-clip2").factor == pytest.approx(found(p, "clip2").factor * abs(1 - 0.2))


def test_a_million_rounds_that_all_started_from_the_first_take_linear_work() -> None:
    """Term by term the last sum would have 5 · 10¹¹ of them."""
    rounds = 1_000_000
    sums = sums_of(np.arange(1, rounds + 1)[:, None])
    harmonic = 1 / np.arange(1, rounds + 1)
    assert sums.drift == pytest.approx((harmonic.sum() ** 2 - (harmonic**2).sum()) / 2)


@given(st.integers(1, 20), st.integers(1, 4))
def test_equal_delays_are_the_papers_but_for_the_first_rounds(delay: int, buffer: int) -> None:
    rounds = 2000
    ours, papers = sums_of(np.full((rounds, buffer), delay)), sums_of_equal_delays(delay, rounds=rounds, buffer=buffer)
    assert ours.weight == pytest.approx(papers.weight)
    assert ours.square == pytest.approx(papers.square)
    assert papers.drift * (1 - delay / rounds) <= ours.drift * (1 + 1e-9) <= papers.drift * (1 + 2e-9)
    assert (ours.mean, ours.median) == (papers.mean, papers.median)


@pytest.mark.parametrize("name", ["sd-sgdclip", "sd-clip2"])
@pytest.mark.parametrize("tail", [1.1, 1.5, 1.9])
def test_the_conditions_grow_with_t_as_the_tolerances_say(name: str, tail: float) -> None:
    """At delays of T^b with the tolerated b the factor stays as T grows; above, it grows."""

    def factor(rounds: float, b: float) -> float:
        powers = {key: rounds ** float(power) for key, power in preset(name).exponents(tail).items() if key != "lr"}
        return factors(sums_of_equal_delays(rounds**b, rounds=int(rounds)), Constants(tail=tail, **powers))[name]

    b = float(preset(name).tolerance(tail))
    assert factor(1e12, b) == pytest.approx(factor(1e6, b), rel=1e-6)
    assert factor(1e12, b + 0.1) == pytest.approx(10**0.6 * factor(1e6, b + 0.1), rel=1e-6)


def test_propositions_count_small_delays() -> None:
    p = np.full((10_000, 2), 5_000)
    p[:, 0] = 2
    one, two = propositions(p, 1.5)
    assert (one.method, one.proposition, one.exponent) == ("sd-sgdclip", "Proposition 1", pytest.approx(1 / 6))
    assert (two.method, two.proposition, two.exponent) == ("sd-clip2", "Proposition 2", pytest.approx(1 / 8))
    assert one.share == 0.5
    assert propositions(np.full((10_000, 1), 5), 1.5)[0].share == 0  # 10,000^(1/6) is 4.6
    assert propositions(p, 2)[0].exponent == 0.25


def literal(s: Sums, c: Constants) -> dict[str, float]:
    """The bounds once more, straight from the page."""
    a, k, u, e, v, m = c.tail, c.local_steps, c.local_clip, c.local_lr, c.clip, s.buffer
    c1, lip, g, d = c.gap, c.smoothness, c.gradient, c.noise
    tail = 2 ** (a - 1) * (g**a + d**a) * u ** (1 - a)
    steps = g * lip * (k - 1) * (k - 2) / (2 * k) * e * u
    moment = k ** (a - 1) * sum(2 ** (a - 1) * (g**a + d**a) for _ in range(k))
    common = math.sqrt(c1 * lip * v**2 * s.square / (k**2 * e**2)) / s.weight
    common += g * moment * v ** (1 - a) * e ** (a - 1) / k + g * tail
    ratio = s.drift / (s.weight * math.sqrt(s.square))
    return {
        "Theorem 6": 2 * math.sqrt(2 * c1 * (lip / 2 * u**2 * s.square)) / s.weight + tail + steps,
        "Corollary 8": 2 * math.sqrt(c1 * (lip / 2 * u**2 * s.square)) / s.weight
        + tail
        + steps
        + 2 * g * m * math.sqrt(lip * c1) * ratio,
        "Theorem 9": common + g * lip * k * (k + 1) * u * e,
        "Corollary 11": common + g * lip * k * (k + 1) / 2 * u * e + g * m * math.sqrt(2 * c1 * lip) * k * ratio,
    }


@given(sequences())
def test_explicit_bounds_are_the_papers(p: list[list[int]]) -> None:
    sums = sums_of(p)
    values = {bound.source: bound.value for bound in bounds(sums, C)}
    assert {name: values[name] for name in literal(sums, C)} == pytest.approx(literal(sums, C))


def test_the_rates_of_the_explicit_bounds_are_the_papers() -> None:
    sums = sums_of([[1, 2], [3, 1], [2, 2]])
    product = math.sqrt(2 * 2.5 * 2**2 / (3.0 * 5**2 * 0.7**2 * sums.square))  # η η_ℓ of Corollary 8
    lrs = {bound.source: bound.lr for bound in bounds(sums, C)}
    assert lrs["Corollary 8"] == pytest.approx(product / 0.2)
    assert lrs["Theorem 6"] == pytest.approx(product / 0.2 / math.sqrt(2))
    assert lrs["Theorem 9"] == lrs["Corollary 11"] == pytest.approx(math.sqrt(2.5 / (3.0 * 0.3**2 * sums.square)))
    assert lrs["Appendix B.2"] is None


def test_fadas_grows_with_the_mean_and_the_median_delay_and_sd_does_not() -> None:
    few = np.full((100_000, 1), 1000)
    few[::3] = 1  # a third of the updates is fresh
    sums = sums_of(few)
    of = Constants(tail=1.5, local_clip=10.0)
    t, mean, median = 100_000, sums.mean - 1, 999
    said = 2 / math.sqrt(t) + median / t + mean / t + (median**2 + median * mean) / t
    assert fadas(sums, of).value == pytest.approx(said)
    late = next(bound for bound in bounds(sums, of) if bound.source == "Corollary 8")
    assert late.terms["delays"] < 0.1 < 10 < fadas(sums, of).terms["delays"]


@pytest.mark.parametrize(
    ("delays", "complaint"),
    [
        ([[1, 2], [3]], "the same number of updates in every round"),
        ([1, 2, 3], "whole numbers, rounds × updates per round, got int64 of shape"),
        ([[]], "rounds × updates per round"),
        ([[1.5]], "whole numbers, rounds × updates per round, got float64"),
        ([[1, 0]], r"must be from 1 \(fresh\) to 2\^31, got 0."),
        ([[1, 2**31 + 1]], "got 2147483649."),
        (np.full((2, 2), 2**64 - 1, np.uint64), "got 18446744073709551615."),
    ],
)
def test_what_are_no_delays_is_refused(delays: object, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        conditions(delays, C)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", 5e-324, 1e300, 10**400])
def test_a_constant_must_be_a_positive_number(value: object) -> None:
    with pytest.raises(Invalid, match="`local_clip` must be a number from 1e-30 to 1e\\+30, got"):
        Constants(tail=1.5, local_clip=value)  # type: ignore[arg-type]
