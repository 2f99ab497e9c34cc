"""What a late update counts: the published forms, those of implementations, and what all of them have in common."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.core.weights import Staleness
from tests.laws.test_laws import LIGHT

positive = st.floats(0.0, 20.0)
weights = st.one_of(
    st.builds(tg.Polynomial, exponent=positive, fresh=st.sampled_from([0, 1])),
    st.builds(tg.Hinge, slope=positive, bound=positive, fresh=st.sampled_from([0, 1])),
    st.builds(tg.Hinge, slope=st.floats(0.5, 20.0), bound=positive, jump=st.just(True)),
    st.builds(tg.Threshold, bound=positive, fresh=st.sampled_from([0, 1])),
    st.builds(tg.Root, fresh=st.sampled_from([0, 1])),
)


@LIGHT
@given(weights)
def test_a_later_update_never_counts_more_and_none_counts_more_than_fully(weight: Staleness) -> None:
    counted = [weight(p) for p in range(1, 60)]
    assert counted == sorted(counted, reverse=True)
    assert all(0.0 <= one <= 1.0 for one in counted)


@pytest.mark.parametrize(
    ("weight", "counted"),
    [
        (tg.Polynomial(), [1.0, 2**-0.5, 3**-0.5, 0.5, 5**-0.5, 6**-0.5]),
        (tg.Polynomial(fresh=1), [2**-0.5, 3**-0.5, 0.5, 5**-0.5, 6**-0.5, 7**-0.5]),
        (tg.Polynomial(average=3.0), [2.0, 2**0.5, (4 / 3) ** 0.5, 1.0, 0.8**0.5, (4 / 6) ** 0.5]),
        (tg.Root(), [1.0, 0.5, 1 / (1 + 2**0.5), 1 / (1 + 3**0.5), 1 / 3, 1 / (1 + 5**0.5)]),
        (tg.Hinge(), [1.0, 1.0, 1.0, 1.0, 1.0, 1 / 11]),
        (tg.Hinge(jump=True), [1.0, 1.0, 1.0, 1.0, 1.0, 1 / 20]),
        (tg.Hinge(slope=1.0, bound=2.0, fresh=1), [1.0, 1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
        (tg.Threshold(bound=2), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_weights_of_the_first_six_delays(weight: Staleness, counted: list[float]) -> None:
    assert [weight(p) for p in range(1, 7)] == pytest.approx(counted)


@pytest.mark.parametrize(
    ("make", "setting", "said"),
    [
        (tg.Polynomial, {"exponent": -1.0}, "`exponent` must be a finite number, 0 or more, got -1.0."),
        (tg.Polynomial, {"fresh": 2}, "`fresh` must be 0 or 1, got 2."),
        (tg.Hinge, {"slope": -0.5}, "`slope` must be a finite number, 0 or more, got -0.5."),
        (tg.Hinge, {"slope": 0.0, "jump": True}, "`slope` must be above 0 with jump=True, got 0."),
        (tg.Root, {"fresh": True}, "`fresh` must be a whole number, got True."),
    ],
)
def test_what_can_be_no_weight_is_refused(make: Any, setting: dict[str, Any], said: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        make(**setting)
    assert str(caught.value) == said


@pytest.mark.parametrize(("denominator", "moved"), [("buffer", 1.5), ("weights", 2.0), ("one", 3.0)])
def test_what_the_sum_of_a_round_is_divided_by(denominator: Any, moved: float) -> None:
    """δ of 2, which is fresh, and of 2, which counts a half: (2 + 1) over 2, over 1.5, over nothing."""
    server, (slow, quick) = begun(buffer=2, weight=tg.Polynomial(exponent=1.0), denominator=denominator)
    for _ in range(2):  # a round that moves nothing
        _, (quick,) = server.receive(tg.Update(quick.client, quick.serial, quick.round, torch.zeros(1)))
    server.receive(tg.Update(quick.client, quick.serial, quick.round, torch.tensor([2.0])))
    happened, _ = server.receive(tg.Update(slow.client, slow.serial, slow.round, torch.tensor([2.0])))
    assert isinstance(happened, tg.Advanced)
    assert happened.weights == (1.0, 0.5)
    assert server.x.tolist() == [moved]


@pytest.mark.parametrize("denominator", ["buffer", "weights", "one"])
def test_where_every_weight_is_nothing_the_model_stays(denominator: Any) -> None:
    server, (slow, quick) = begun(weight=tg.Threshold(bound=0), denominator=denominator)
    server.receive(tg.Update(quick.client, quick.serial, quick.round, torch.ones(1)))
    happened, _ = server.receive(tg.Update(slow.client, slow.serial, slow.round, torch.ones(1)))
    assert isinstance(happened, tg.Advanced)
    assert happened.weights == (0.0,)
    assert server.x.tolist() == [1.0]


def begun(buffer: int = 1, **how: Any) -> tuple[tg.Server, list[tg.Job]]:
    method = tg.fedbuff(local_lr=0.1, buffer=buffer, local_steps=1, **how)
    server = tg.Server(method, torch.zeros(1), clients=2, seed=0)
    return server, server.dispatch()


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (
            len,
            "must be a function of the delay, such as Hinge.., got <built-in function len>: object of",
        ),
        (lambda delay: "x", "must give finite numbers, got 'x' for the delay 1"),
        (lambda delay: True, "must give finite numbers, got True for the delay 1"),
        (lambda delay: math.nan, "must give finite numbers, got nan for the delay 1"),
        (lambda delay: 10**400, "must give finite numbers, got 1000"),
        (lambda delay: 1.0 if delay < 3 else None, r"must give finite numbers, got None for the delay \d+\. Return a"),
    ],
)
def test_a_weight_that_is_no_finite_number_is_refused(weight: Any, message: str) -> None:
    task, fleet = tg.tasks.quadratic(clients=4, dimension=3), tg.Fleet.paper(clients=4, stragglers="large")
    rates: Any = {"local_lr": 0.1, "lr": 1.0, "buffer": 2, "local_steps": 2}
    with pytest.raises(tg.Invalid, match=f"^`weight` {message}"):
        tg.simulate(tg.fedbuff(**rates, weight=weight), task, fleet, rounds=20)
