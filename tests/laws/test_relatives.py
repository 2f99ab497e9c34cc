"""The laws of the relatives: what each is in a case that can be worked out by hand, or that another one covers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.core.algorithm import downplay
from tardygrad.core.dylu import Pace, Speeds
from tardygrad.core.hierarchy import HierarchicalServer
from tardygrad.core.schedules import Constant
from tardygrad.core.transforms import Adaptive, AMSGrad, DelayedNesterov, Momentum, Step
from tests.laws.test_laws import LIGHT, clip2, fleet_of, fleets, models, same, seeds, task_for


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
    return server.speeds.speed_by_client if server.speeds else {}


vectors = st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3).map(torch.tensor)


@LIGHT
@given(st.lists(vectors, min_size=12, max_size=12), st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([0.0, 0.5, 0.9]))
def test_dn_over_a_period_is_one_nesterov_step_on_the_mean(
    deltas: list[torch.Tensor], period: int, beta: float
) -> None:
    outer = DelayedNesterov(Constant(0.7), beta, period)
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
    outer, m = DelayedNesterov(Constant(1.0), 0.5, 4, c), torch.tensor([1.0, -2.0, 0.5])
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
    def speeds(pace: Pace) -> Speeds:
        measured = Speeds(pace)
        measured.restore({"of": dict(enumerate([1.0] * 9 + [1000.0])), "given": {}})
        return measured

    assert speeds(Pace()).steps(0, 8, 0.0) == 1
    assert speeds(Pace(percentile=90.0)).steps(0, 8, 0.0) == 8
    assert speeds(Pace(percentile=90.0)).steps(9, 8, 0.0) == 8  # never more than K


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
        return moves(AMSGrad(Constant(0.5), tau_c, 0.0, 0.5, 1e-12, bias_correction=False, **how), *late)

    assert found(math.inf) == pytest.approx([2 / root, 1 / root, -1 / root])
    assert found(2, lr_rule="code") == pytest.approx([2 / root, 1 / 4 / root, -1 / root])
    assert found(2, lr_rule="paper") == pytest.approx([2 / root, 1 / 2 / root, -1 / root])  # min(1/2, 1/4) · 2
    assert found(0, lr_rule="code") == pytest.approx([2 / root, 1 / 4 / root, -1 / 2 / root])


def test_the_first_move_of_fadas_is_the_rate_whatever_the_size_of_the_update() -> None:
    """m̂ = Δ and v̂ = Δ² after the correction of the bias."""
    for size in (1e-4, 1.0, 1e4):
        assert moves(AMSGrad(Constant(0.01), 1, 0.9, 0.99, 1e-12), (size, (1,))) == pytest.approx([0.01], rel=1e-5)


@LIGHT
@given(fleets, seeds)
def test_fadas_with_an_infinite_tau_c_does_not_care_for_delays(fleet: tg.Fleet, seed: int) -> None:
    how: dict[str, Any] = {"local_lr": 0.1, "lr": 0.05, "buffer": 1, "local_steps": 3, "mode": "client"}
    rules = [models(tg.fadas(tau_c=math.inf, lr_rule=rule, **how), fleet, seed=seed) for rule in ("code", "paper")]
    assert same(*rules)
    assert same(rules[0], models(tg.fadas(tau_c=10**6, **how), fleet, seed=seed))


modes = st.sampled_from(["sync", "server", "client"])


def plain(**changes: Any) -> tg.Method:
    """SGDClip that clips nothing, unless told."""
    how = {"local_lr": 0.3, "local_clip": math.inf, "lr": 0.7, "buffer": 1, "local_steps": 3, "mode": "client"}
    return tg.sgdclip(**(how | changes))


def near(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    """Up to rounding, which each round's model hands on to the next."""
    largest = max(1.0, *(float(x.abs().max()) for x in b))
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance * largest)


@LIGHT
@given(fleets, modes, st.data(), seeds)
def test_without_a_weight_fedbuff_and_fedavg_are_sgdclip_without_a_clip(
    fleet: tg.Fleet, mode: Any, data: Any, seed: int
) -> None:
    how: dict[str, Any] = {"buffer": data.draw(st.integers(1, fleet.clients)), "mode": mode}
    wanted = models(plain(**how), fleet, seed=seed)
    both: dict[str, Any] = {"local_lr": 0.3, "lr": 0.7, "local_steps": 3, **how}
    assert same(models(tg.fedbuff(weight=None, **both), fleet, seed=seed), wanted)
    assert same(models(tg.fedavg(**both), fleet, seed=seed), wanted)
    assert same(models(tg.fedavgm(momentum=0.0, **both), fleet, seed=seed), wanted)


@LIGHT
@given(fleets, st.data(), seeds)
def test_tailopts_biclips_without_lower_thresholds_are_sgdclip_and_clip2(fleet: tg.Fleet, data: Any, seed: int) -> None:
    buffer = data.draw(st.integers(1, fleet.clients))
    how: dict[str, Any] = {"local_lr": 0.3, "local_clip": 0.8, "lr": 0.7, "buffer": buffer, "local_steps": 3}
    assert same(
        models(tg.tailopt(outer="avg", inner="biclip", **how), fleet, seed=seed),
        models(tg.sgdclip(mode="sync", **how), fleet, seed=seed),
    )
    assert same(
        models(tg.tailopt(outer="biclip", inner="biclip", clip=0.2, **how), fleet, seed=seed),
        models(clip2(mode="sync", buffer=buffer), fleet, seed=seed),
    )


@LIGHT
@given(fleets, st.sampled_from(["server", "client"]), st.data(), seeds)
def test_a_polynomial_of_exponent_one_downplays(fleet: tg.Fleet, mode: Any, data: Any, seed: int) -> None:
    how: dict[str, Any] = {"buffer": data.draw(st.integers(1, fleet.clients)), "mode": mode}
    both: dict[str, Any] = {"local_lr": 0.3, "lr": 0.7, "local_steps": 3, **how}
    ours = models(tg.fedbuff(weight=tg.Polynomial(exponent=1.0), **both), fleet, seed=seed)
    assert same(ours, models(plain(downplay=True, **how), fleet, seed=seed))
    assert all(tg.Polynomial(exponent=1.0)(p) == downplay(p) for p in range(1, 200))


@LIGHT
@given(fleets, st.integers(0, 4), seeds)
def test_beyond_its_bound_a_threshold_leaves_the_model_where_it_is(fleet: tg.Fleet, bound: int, seed: int) -> None:
    method = tg.fedbuff(local_lr=0.3, lr=0.7, weight=tg.Threshold(bound=bound), buffer=1, local_steps=3)
    task = task_for(fleet.clients)
    server = tg.Server(method, task.init(seed), clients=fleet.clients, seed=seed)
    before = server.x
    for event in tg.drive(server, tg.SimPool(task, method, fleet), 20):
        if isinstance(event.happened, tg.Advanced):
            (p,) = event.happened.delays
            assert torch.equal(server.x, before) == (p - 1 > bound)
            assert event.happened.weights == (float(p - 1 <= bound),)
            before = server.x


@LIGHT
@given(fleets, seeds)
def test_fedasync_at_full_weight_goes_to_the_clients_model(fleet: tg.Fleet, seed: int) -> None:
    method = tg.fedasync(local_lr=0.3, lr=1.0, weight=None, rho=0.1, local_steps=3)
    task = task_for(fleet.clients)
    server = tg.Server(method, task.init(seed), clients=fleet.clients, seed=seed)
    started: dict[int, torch.Tensor] = {}
    for event in tg.drive(server, tg.SimPool(task, method, fleet), 20):
        if isinstance(event.message, tg.Update):
            reached = started[event.message.client] + event.message.delta
            torch.testing.assert_close(server.x, reached, rtol=1e-5, atol=1e-5 * float(reached.abs().max()) + 1e-5)
        started |= {job.client: job.x for job in event.jobs}


@LIGHT
@given(fleets, seeds)
def test_fedasync_whose_updates_are_all_fresh_mixes_alike_each_by_itself_or_compounded(
    fleet: tg.Fleet, seed: int
) -> None:
    how: dict[str, Any] = {"local_lr": 0.3, "lr": 0.5, "local_steps": 3, "mode": "sync"}
    assert same(
        models(tg.fedasync(mixing="compound", **how), fleet, seed=seed), models(tg.fedasync(**how), fleet, seed=seed)
    )


@LIGHT
@given(fleets, st.sampled_from(["delta", "steps"]), seeds)
def test_dcasgd_of_the_strength_of_the_local_rate_is_the_papers_compensation(
    fleet: tg.Fleet, source: Any, seed: int
) -> None:
    """Near it: (η_ℓ g)² is one of a rounded δ."""
    how: dict[str, Any] = {"local_lr": 0.2, "lr": 1.0, "local_steps": 1}
    ours = models(tg.dcasgd(strength=0.2, source=source, **how), fleet, seed=seed)
    near(ours, models(plain(compensate=True, **how), fleet, seed=seed), 2e-4)


@LIGHT
@given(fleets, seeds)
def test_dcasgd_of_no_strength_compensates_nothing(fleet: tg.Fleet, seed: int) -> None:
    wanted = models(plain(), fleet, seed=seed)
    for adaptive_ in (False, True):
        one = tg.dcasgd(local_lr=0.3, lr=0.7, local_steps=3, strength=0.0, adaptive=adaptive_)
        assert same(models(one, fleet, seed=seed), wanted)


@LIGHT
@given(fleets, seeds)
def test_diloco_of_period_one_is_dn_of_period_one(fleet: tg.Fleet, seed: int) -> None:
    """Both are Nesterov's step on every δ."""
    how: dict[str, Any] = {"local_lr": 0.1, "lr": 0.5, "momentum": 0.5, "buffer": 1, "local_steps": 3, "mode": "client"}
    near(
        models(tg.diloco(optimizer="SGD", **how), fleet, seed=seed),
        models(dn(period=1, dylu=False, **how), fleet, seed=seed),
    )


@LIGHT
@given(st.lists(vectors, min_size=6, max_size=6), st.sampled_from(["sum", "mean", "yogi"]))
def test_the_adaptive_steps_are_odd_and_bounded(deltas: list[torch.Tensor], second: Any) -> None:
    """Δ turned round turns the move round, and |m| / √v is at most 1 / √(1 − β₂) without momentum."""
    outer = Adaptive(Constant(1.0), second, 0.0, 0.9, 0.1)
    paths = []
    for sign in (1, -1):
        state, moves_ = outer.init(torch.zeros(3)), []
        for t, delta in enumerate(deltas, 1):
            move, state = outer.update(sign * delta, state, Step(t, (1,)))
            moves_.append(move)
        paths.append(torch.stack(moves_))
    assert torch.equal(paths[0], -paths[1])
    assert float(paths[0].abs().max()) <= 1 / math.sqrt(1 - 0.9) + 1e-5


@LIGHT
@given(st.lists(vectors, min_size=8, max_size=8), st.booleans(), st.sampled_from([0.0, 0.5, 0.9]))
def test_the_outer_momentum_is_that_of_torch(deltas: list[torch.Tensor], nesterov: bool, beta: float) -> None:
    outer, x = Momentum(Constant(0.7), beta, nesterov and beta > 0), torch.zeros(3)
    real = torch.nn.Parameter(torch.zeros(3))
    theirs = torch.optim.SGD([real], lr=0.7, momentum=beta, nesterov=nesterov and beta > 0)
    state = outer.init(x)
    for t, delta in enumerate(deltas, 1):
        move, state = outer.update(delta, state, Step(t, (1,)))
        x = x + move
        real.grad = -delta
        theirs.step()
        torch.testing.assert_close(x, real.detach(), rtol=1e-5, atol=1e-5)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "AdamW": {"betas": [0.8, 0.95], "eps": 0.01, "weight_decay": 0.1},
    "RMSprop": {"eps": 0.01, "centered": True},
}


def local_runs(name: str, keep: bool, seed: int, *, anew: bool) -> Any:
    """Where each of five jobs of a client ends, here and with an optimizer of torch, made anew for each or not."""
    method = tg.fedavg(
        local_lr=0.05, optimizer=name, options=OPTIMIZERS[name], keep=keep, buffer=1, local_steps=4, mode="client"
    )
    task, state, x = task_for(3), None, torch.nn.Parameter(torch.zeros(5))
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in OPTIMIZERS[name].items()}

    def made() -> Any:
        return getattr(torch.optim, name)([x], lr=0.05, **options)

    theirs = made()
    for serial in range(5):
        job = tg.Job(1, serial, serial, task.init(100 * seed + serial), 4, None, seed, state=state)
        update = tg.work(job, task, method)
        state = update.state
        assert (state is not None) == keep
        if anew:
            theirs = made()
        x.data = job.x.clone()  # a pull overwrites the parameter, and leaves the optimizer alone
        for batch in task.batches(job):
            x.grad = task.gradient(x.detach(), batch, None)[1].clone()
            theirs.step()
        yield job.x + update.delta, x.detach().clone()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("keep", [False, True])
def test_an_inner_optimizer_is_torchs_own_made_for_each_job_or_living_on(name: str, keep: bool) -> None:
    @LIGHT
    @given(seeds)
    def check(seed: int) -> None:
        apart = []
        for ours, theirs in local_runs(name, keep, seed, anew=not keep):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(theirs.abs().max())))
        for ours, theirs in local_runs(name, keep, seed, anew=keep):
            apart.append(float((ours - theirs).abs().max()))
        assert apart[0] < 1e-4 < 1e-3 < max(apart)  # the first job begins anew either way

    check()


def halos(**changes: Any) -> tg.Method:
    how: dict[str, Any] = {
        "regions": 1, "local_lr": 0.1, "region_lr": 0.5, "region_period": 4, "region_momentum": 0.5, "every": 1,
        "lr": 1.0, "momentum": 0.0, "period": 1, "blend": 1.0, "optimizer": "SGD", "local_clip": math.inf,
        "local_steps": 6, "keep": False,
    }  # fmt: skip
    return tg.halos(**(how | changes))


def regional(method: tg.Method, fleet: tg.Fleet, seed: int, rounds: int = 12) -> list[list[torch.Tensor]]:
    """The models of the global server and of every region, each after every round of its own."""
    task = task_for(fleet.clients)
    server = tg.serve(method, task.init(seed), clients=fleet.clients, seed=seed)
    assert isinstance(server, HierarchicalServer)
    paths = [[one.x] for one in server.levels]
    for event in tg.drive(server, tg.SimPool(task, method, fleet), rounds):
        if isinstance(event.happened, tg.Advanced):
            for path, one in zip(paths, server.levels, strict=True):
                if one.round == len(path):
                    path.append(one.x)
    return paths


@LIGHT
@given(fleets, st.booleans(), seeds)
def test_one_region_that_always_reports_and_takes_the_answer_is_dn(fleet: tg.Fleet, dylu: bool, seed: int) -> None:
    rounding = {"rounding": "ceil"} if dylu else {}
    alone = models(dn(dylu=dylu, mode="client", **rounding), fleet, seed=seed)
    above, region = regional(halos(dylu=dylu), fleet, seed)
    near(region, alone)
    near(above[: len(alone)], alone[: len(above)])


@LIGHT
@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=4, max_size=4), seeds)
def test_regions_that_never_report_are_independent(seconds: list[list[int]], seed: int) -> None:
    """Those of the first region take as long in both fleets, those of the second do not."""
    never = halos(regions=(2, 2), every=10**6, dylu=False)
    other = [*seconds[:2], *([7 - s for s in times] for times in seconds[2:])]
    (above, one, _), (_, same_one, _) = (regional(never, fleet_of(fleet), seed, 30) for fleet in (seconds, other))
    assert len(above) == 1
    shared = min(len(one), len(same_one))
    assert shared > 2
    assert same(one[:shared], same_one[:shared])


@LIGHT
@given(fleets, st.sampled_from([0.0, 0.5, 3.0]), seeds)
def test_a_blend_of_nothing_leaves_regions_alone_whatever_they_report(
    fleet: tg.Fleet, exchange: float, seed: int
) -> None:
    deaf, never = (halos(**how, dylu=False) for how in ({"blend": 0.0, "exchange": exchange}, {"every": 10**6}))
    assert same(regional(deaf, fleet, seed)[1], regional(never, fleet, seed)[1])
