"""The laws of FADAS and DN+DyLU: what each is in a case that can be worked out by hand, or that another one covers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.pace import Pace, Speeds
from tardygrad.schedules import Constant
from tardygrad.transforms import Step, amsgrad, delayed_nesterov
from tests.laws.test_laws import LIGHT, fleets, models, same, seeds, task_for


def dn(**changes: Any) -> tg.Method:
    how: dict[str, Any] = {"local_lr": 0.1, "lr": 0.5, "period": 4, "momentum": 0.5, "local_steps": 6}
    return tg.dn_dylu(**(how | changes))


def steps(method: tg.Method, fleet: tg.Fleet, rounds: int = 60) -> list[tuple[int, int]]:
    """(client, K_i) of every job that is given."""
    task = task_for(fleet.clients)
    server = tg.Server(method, task.init(0), clients=fleet.clients, seed=0)
    given = [job for event in tg.drive(server, tg.SimPool(task, method, fleet), rounds) for job in event.jobs]
    return [(job.client, job.steps or job.epochs or 0) for job in given]


def constant(*seconds: float) -> tg.Fleet:
    return tg.Fleet(tuple(tg.Group(f"c{i}", 1, tg.Uniform(s, s)) for i, s in enumerate(seconds)))


def speeds(server: tg.Server) -> dict[int, float]:
    return server.speeds.of if server.speeds else {}


vectors = st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3).map(torch.tensor)


@LIGHT
@given(st.lists(vectors, min_size=12, max_size=12), st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([0.0, 0.5, 0.9]))
def test_dn_over_a_period_is_one_nesterov_step_on_the_mean(
    deltas: list[torch.Tensor], period: int, beta: float
) -> None:
    outer = delayed_nesterov(Constant(0.7), beta, period)
    x, m = torch.zeros(3), torch.zeros(3)
    state, moved = outer.init(x), torch.zeros(3)
    for t, delta in enumerate(deltas, 1):
        move, state = outer.update(delta, state, Step(t, (1,)))
        moved = moved + move
        if t % period == 0:
            mean = torch.stack(deltas[t - period : t]).mean(0)
            m = beta * m + mean
            torch.testing.assert_close(moved, 0.7 * (mean + beta * m))
            moved = torch.zeros(3)


@LIGHT
@given(st.lists(vectors, min_size=4, max_size=4), st.sampled_from([0.0, 0.1, 0.25]))
def test_dn_spreads_the_momentum_over_the_period_and_its_amount_stays_the_same(
    deltas: list[torch.Tensor], c: float
) -> None:
    """From a momentum m that the period leaves as it is: D = (1 − β) N m."""
    outer, m = delayed_nesterov(Constant(1.0), 0.5, 4, c), torch.tensor([1.0, -2.0, 0.5])
    deltas[-1] = 2 * m - sum(deltas[:-1], torch.zeros(3))
    state, moves = {"m": m, "sum": torch.zeros(3)}, []
    for t, delta in enumerate(deltas, 1):
        move, state = outer.update(delta, state, Step(t, (1,)))
        moves.append(move - delta / 4)
    torch.testing.assert_close(moves[0], c * 0.5 * m, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sum(moves, torch.zeros(3)), 0.5 * m, atol=1e-5, rtol=1e-5)


@LIGHT
@given(fleets, seeds)
def test_dn_of_period_one_without_momentum_is_plain_averaging(fleet: tg.Fleet, seed: int) -> None:
    ours = models(dn(period=1, momentum=0.0, dylu=False, local_steps=3), fleet, seed=seed)
    plain = tg.sgdclip(local_lr=0.1, local_clip=math.inf, lr=0.5, buffer=1, local_steps=3)
    assert same(ours, models(plain, fleet, seed=seed))


@LIGHT
@given(fleets)
def test_without_dylu_everyone_does_all_k_steps(fleet: tg.Fleet) -> None:
    assert {k for _, k in steps(dn(dylu=False), fleet, 20)} == {6}


@pytest.mark.parametrize("seconds", [0.1, 1.0, 1 / 3, 7e5])
@pytest.mark.parametrize("percentile", [100.0, 50.0])
def test_clients_of_equal_speed_do_all_k_steps(seconds: float, percentile: float) -> None:
    """Whatever rounding does to the times: 0.1 + 0.2 − 0.2 is not 0.1."""
    assert {k for _, k in steps(dn(percentile=percentile), constant(*[seconds] * 5), 200)} == {6}


def test_dylu_gives_a_client_the_share_of_k_that_its_speed_is_of_the_fastest() -> None:
    given = steps(dn(), constant(1.0, 2.0, 3.0, 4.0, 12.0), 200)
    last = dict(given)  # by client, the last job counts
    assert last == {0: 6, 1: 3, 2: 2, 3: 1, 4: 1}  # ⌊6/1⌋, ⌊6/2⌋, ⌊6/3⌋, ⌊6/4⌋, at least 1
    assert [k for client, k in given if client == 3][:2] == [6, 1]  # measured after its first job


def test_dylu_counts_epochs_where_k_does() -> None:
    task = task_for(2)
    method = dn(local_steps=None, local_epochs=4)
    server = tg.Server(method, task.init(0), clients=2, seed=0)
    events = list(tg.drive(server, tg.SimPool(task, method, constant(1.0, 2.0)), 8))
    jobs = [job for event in events for job in event.jobs]
    assert {job.steps for job in jobs} == {None}
    assert {job.client: job.epochs for job in jobs} == {0: 4, 1: 2}
    assert [event.time for event in events if getattr(event.message, "client", 0) == 1][:3] == [2.0, 3.0, 4.0]


def test_a_percentile_is_not_misled_by_one_client() -> None:
    measured = list(enumerate([1.0] * 9 + [1000.0]))
    assert Speeds(Pace(), measured).share(0, 8, 0.0) == 1
    assert Speeds(Pace(percentile=90.0), measured).share(0, 8, 0.0) == 8
    assert Speeds(Pace(percentile=90.0), measured).share(9, 8, 0.0) == 8  # never more than K


def test_a_speed_is_an_average_of_the_measured_ones_and_is_lost_with_its_client() -> None:
    assert Pace(smoothing=0.75).measured(None, 3.0) == 3.0
    assert Pace(smoothing=0.75).measured(4.0, 8.0) == 5.0
    server = tg.Server(dn(), torch.zeros(2), clients=2, seed=0)
    first, second = server.dispatch()
    _, (again,) = server.receive(tg.Update(0, 0, 0, torch.zeros(2)), 2.0)
    assert (first.steps, again.steps, speeds(server)) == (6, 6, {0: 3.0})
    _, (slow,) = server.receive(tg.Update(second.client, 0, 0, torch.zeros(2)), 6.0)
    assert (slow.steps, speeds(server)) == (2, {0: 3.0, 1: 1.0})
    server.receive(tg.Lost(0), 7.0)
    assert speeds(server) == {1: 1.0}


def test_where_no_time_passes_nothing_is_measured() -> None:
    server = tg.Server(dn(), torch.zeros(2), clients=1, seed=0)
    server.dispatch()
    _, (job,) = server.receive(tg.Update(0, 0, 0, torch.zeros(2)))
    assert (job.steps, speeds(server)) == (6, {})


def moves(outer: tg.Transform, *rounds: tuple[float, tuple[int, ...]]) -> list[float]:
    """The moves of one coordinate: (Δ_t, delays) of each round."""
    state, out = outer.init(torch.zeros(1)), []
    for t, (delta, delays) in enumerate(rounds, 1):
        move, state = outer.update(torch.tensor([delta]), state, Step(t, delays))
        out.append(float(move))
    return out


def test_fadas_worked_out_by_hand() -> None:
    """β₁ = 0, β₂ = 1/2: v = 8, 6, 4 for Δ = 4, 2, −2; so v̂ = 8 in every round, and the move is η_t Δ / √8."""
    late: Any = [(4.0, (1, 1)), (2.0, (1, 5)), (-2.0, (3, 2))]  # the latest missed 0, 4 and 2 rounds
    root = math.sqrt(8.0)

    def found(tau_c: float, **how: Any) -> list[float]:
        return moves(amsgrad(Constant(0.5), tau_c, 0.0, 0.5, 1e-12, bias_correction=False, **how), *late)

    assert found(math.inf) == pytest.approx([2 / root, 1 / root, -1 / root])
    assert found(2, lr_rule="code") == pytest.approx([2 / root, 1 / 4 / root, -1 / root])
    assert found(2, lr_rule="paper") == pytest.approx([2 / root, 1 / 2 / root, -1 / root])  # min(1/2, 1/4) · 2
    assert found(0, lr_rule="code") == pytest.approx([2 / root, 1 / 4 / root, -1 / 2 / root])


def test_the_first_move_of_fadas_is_the_rate_whatever_the_size_of_the_update() -> None:
    """m̂ = Δ and v̂ = Δ² after the correction of the bias."""
    for size in (1e-4, 1.0, 1e4):
        assert moves(amsgrad(Constant(0.01), 1, 0.9, 0.99, 1e-12), (size, (1,))) == pytest.approx([0.01], rel=1e-5)


@LIGHT
@given(fleets, seeds)
def test_fadas_with_an_infinite_tau_c_does_not_care_for_delays(fleet: tg.Fleet, seed: int) -> None:
    how: dict[str, Any] = {"local_lr": 0.1, "lr": 0.05, "buffer": 1, "local_steps": 3, "mode": "client"}
    rules = [models(tg.fadas(tau_c=math.inf, lr_rule=rule, **how), fleet, seed=seed) for rule in ("code", "paper")]
    assert same(*rules)
    assert same(rules[0], models(tg.fadas(tau_c=10**6, **how), fleet, seed=seed))
