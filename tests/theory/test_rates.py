"""Rates and tolerances follow from the theorems' sums, and are those that the paper prints."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from scipy.optimize import linprog

from tardygrad.errors import Invalid
from tardygrad.theory.rates import CLIP2, PRESETS, SGDCLIP, Exponents, Theorem, exact, preset

TAILS = [1.001, 1.1, 1.25, 4 / 3, 1.5, 1.7, 1.9, 1.999, 2]
F = Fraction


def table(a: Fraction) -> dict[str, tuple[Exponents, Fraction, Fraction]]:
    """The paper's table: schedules, rate, tolerance."""
    beta = (a + 1) / (2 * a)
    averaged = Exponents(-beta / (a + 1), -beta * a / (a + 1), beta / (a + 1))
    best = Exponents(F(-1, 2), -a / (4 * a - 2), 1 / (4 * a - 2))
    slow = (a - 1) / (4 * a)
    return {
        "sgdclip": (averaged, (a - 1) / (2 * a), 1 / (2 * a)),
        "clip2": (best, (a - 1) / (4 * a - 2), a / (4 * a - 2)),
        "clip2-tolerant": (Exponents(F(-3, 4) + 1 / (4 * a), -1 / (2 * a), 1 / (4 * a)), slow, F(1, 2)),
        "clip2-unknown-tail": (Exponents(F(-1, 2), F(-1, 4), 1 / (4 * a)), slow, F(1, 4) + 1 / (4 * a)),
        "sd-sgdclip": (averaged, (a - 1) / (2 * a), 1 / (2 * a)),
        "sd-clip2": (
            Exponents(F(-5, 8), F(-1, 4), 1 / (4 * a), F(1, 8)),
            min(3 * (a - 1) / 8, slow),
            F(1, 4) + 1 / (4 * a),
        ),
        "dc-clip2": (best, (a - 1) / (4 * a - 2), a / (4 * a - 2)),
    }


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("name", [one.name for one in PRESETS])
def test_rate_and_tolerance_of_the_sum_are_the_papers_exactly(name: str, tail: float) -> None:
    schedule, rate, tolerance = table(exact(tail))[name]
    one = preset(name)
    assert one.schedule(exact(tail)) == schedule
    assert (one.rate(tail), one.tolerance(tail)) == (rate, tolerance)


@pytest.mark.parametrize("one", PRESETS, ids=lambda one: one.name)
def test_a_little_more_delay_than_tolerated_costs_rate_or_breaks_the_condition(one) -> None:  # type: ignore[no-untyped-def]
    a, little = F(3, 2), F(1, 1000)
    schedule, at = one.schedule(a), one.tolerance(1.5)
    assert max(one.theorem.terms(schedule, a, at)) == -one.rate(1.5)
    assert all(power <= 0 for power in one.theorem.needs(schedule, a, at))
    beyond = at + little
    slower = max(one.theorem.terms(schedule, a, beyond)) > -one.rate(1.5)
    assert slower or any(power > 0 for power in one.theorem.needs(schedule, a, beyond))


def best_rate(theorem: Theorem, tail: float) -> float:
    """The best of all schedules with ω + ν ≥ −1, ω, ν ≤ 0 and ζ, ζ̃ ≥ 0: a linear program, as the powers are linear."""
    a, zero = exact(tail), Exponents(F(0), F(0), F(0))
    at_zero = theorem.terms(zero, a, F(0))
    slopes = [theorem.terms(zero._replace(**{name: F(1)}), a, F(0)) for name in Exponents._fields]
    rows = [[float(slope[i] - at_zero[i]) for slope in slopes] + [1.0] for i in range(len(at_zero))]  # term + r ≤ 0
    rows.append([-1.0, -1.0, 0.0, 0.0, 0.0])
    limits = [-float(power) for power in at_zero] + [1.0]
    found = linprog([0, 0, 0, 0, -1], rows, limits, bounds=[(-inf, 0), (-inf, 0), (0, inf), (0, inf), (None, None)])
    return float(-found.fun)


@pytest.mark.parametrize("tail", TAILS)
def test_no_other_schedule_has_a_better_rate(tail: float) -> None:
    assert best_rate(SGDCLIP, tail) == pytest.approx(float(preset("sgdclip").rate(tail)), abs=1e-9)
    assert best_rate(CLIP2, tail) == pytest.approx(float(preset("clip2").rate(tail)), abs=1e-9)


@pytest.mark.parametrize("tail", [1.0, 0.5, 2.001, float("nan"), inf, -inf])
def test_a_tail_index_that_no_theorem_covers_is_refused(tail: float) -> None:
    with pytest.raises(Invalid, match="`tail` must be above 1 and at most 2"):
        preset("clip2").rate(tail)
