"""The estimators against laws whose index is known; what is reported as best is what counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tardygrad.errors import Invalid
from tardygrad.tail import estimate
from tardygrad.tasks import Noise

MANY, SEEDS = 100_000, (0, 1, 2)
INFINITE, FINITE, LIGHT = "heavy-tailed, infinite variance", "heavy-tailed, finite variance", "light-tailed"

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def drawn(kind: str, tail: float, seed: int, size: int = MANY) -> NDArray[np.float64]:
    return Noise(kind, tail).draw(np.random.default_rng(seed), size).double().numpy()  # type: ignore[arg-type]


@pytest.mark.parametrize("tail", [1.2, 1.5, 1.8])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_stable_law_is_found_within_a_tenth(tail: float, seed: int) -> None:
    found = estimate(drawn("stable", tail, seed))
    assert found.index == pytest.approx(tail, rel=0.1)
    assert found.block_sum == pytest.approx(tail, rel=0.15)
    assert found.verdict == INFINITE
    assert found.low is not None
    assert found.low < found.index < found.high  # type: ignore[operator]


@pytest.mark.parametrize(
    ("tail", "verdict"), [(1.2, INFINITE), (1.5, INFINITE), (1.8, INFINITE), (2.5, FINITE), (3.5, FINITE)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_law_is_found_by_hill(tail: float, verdict: str, seed: int) -> None:
    both, above = drawn("pareto", tail, seed), np.abs(drawn("pareto", tail, seed + 100))
    for found in map(estimate, (both, above)):
        assert found.by == "hill"
        assert found.index == found.hill == pytest.approx(tail, rel=0.1)
        assert found.verdict == verdict


@pytest.mark.parametrize("seed", SEEDS)
def test_students_t_has_a_finite_variance_though_block_sums_say_otherwise(seed: int) -> None:
    found = estimate(drawn("student", 3.0, seed))
    assert found.verdict == FINITE
    assert found.by == "hill"
    assert found.index == pytest.approx(3.0, rel=0.15)
    assert found.block_sum is not None
    assert found.block_sum < 2
    assert found.stable is not None
    assert found.stable < 2
    assert abs(found.bend or 0) > 10


LIGHTS: dict[str, Draw] = {
    "gaussian": lambda rng, size: rng.standard_normal(size),
    "far from zero": lambda rng, size: rng.standard_normal(size) + 50,
    "bounded": lambda rng, size: rng.random(size) - 0.5,
    "of two scales": lambda rng, size: rng.standard_normal(size) * np.where(rng.random(size) < 0.5, 1, 10),
    "with rare outliers": lambda rng, size: rng.standard_normal(size) * np.where(rng.random(size) < 0.01, 100, 1),
    "of two values": lambda rng, size: np.where(rng.random(size) < 0.5, 1.0, -1.0),
}


@pytest.mark.parametrize("law", LIGHTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_light_tail_is_called_light(law: str, seed: int) -> None:
    assert estimate(LIGHTS[law](np.random.default_rng(seed), MANY)).verdict == LIGHT


@pytest.mark.parametrize("size", [1000, 10_000, MANY])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_outlier_decides_nothing(size: int, seed: int) -> None:
    gaussian, student = np.random.default_rng(seed).standard_normal(size), drawn("student", 3.0, seed, size)
    for outlier in (30.0, 1e3, 1e12, 1e300):
        assert estimate(np.append(gaussian, outlier)).verdict == LIGHT
        assert estimate(np.append(student, outlier)).verdict in (FINITE, "too few to tell")


def test_few_samples_never_make_an_infinite_variance_light() -> None:
    said = [estimate(drawn("stable", 1.5, seed, 300)).verdict for seed in range(20)]
    assert LIGHT not in said
    assert "too few to tell" in said


def test_scale_sign_order_and_zeros_change_nothing() -> None:
    samples = drawn("student", 3.0, 0, 20_000)
    index = estimate(samples).index
    assert estimate(-1e-6 * samples).index == pytest.approx(index, rel=1e-6)
    assert estimate(np.append(samples, np.zeros(5000))).index == index
    assert estimate(np.sort(samples)).verdict == estimate(samples).verdict


@pytest.mark.parametrize("scale", [1e307, 1e-310])
def test_a_scale_at_the_end_of_the_range_changes_nothing(scale: float) -> None:
    samples = np.random.default_rng(0).standard_normal(1000)
    found, usual = estimate(samples * scale), estimate(samples)
    assert found.verdict == usual.verdict
    for name in ("index", "stable", "block_sum"):
        assert getattr(found, name) == pytest.approx(getattr(usual, name), rel=1e-6)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([1.0, np.nan, np.inf], "`samples` must be finite, got 2 of 3 that are not."),
        (np.zeros(200), "`samples` must differ from each other, got 200 times 0."),
        ([10**400], "`samples` must be real numbers, got others (int too large to convert to float)."),
    ],
)
def test_what_has_no_tail_is_refused(samples: Any, message: str) -> None:
    with pytest.raises(Invalid) as error:
        estimate(samples)
    assert str(error.value) == message


def test_the_curve_has_the_chosen_k_and_bands_that_narrow() -> None:
    found = estimate(drawn("pareto", 1.5, 0))
    assert (found.k, found.hill, found.hill_low, found.hill_high) in found.curve
    ks = [k for k, *_ in found.curve]
    assert ks == sorted(ks)
    assert ks[-1] == MANY // 10
    widths = [(high - low) / index for _, index, low, high in found.curve]
    assert widths == pytest.approx([2 * 1.96 / np.sqrt(k) for k in ks])
