"""The Gaussian mechanism of a private server: clipped contributions, noise once per round, and its sensitivity."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.core import kernels, privacy
from tardygrad.core.messages import Refused, Taken
from tardygrad.core.privacy import GaussianMechanism, RoundNoise
from tardygrad.engines import wire
from tests.methods.test_relatives import METHODS, fleet, method, rounds, task

D, C, M = 6, 0.5, 4
CLIPPED: dict[str, Any] = {
    "local_lr": 0.1,
    "local_clip": 1.0,
    "lr": 1.0,
    "buffer": M,
    "local_steps": 1,
    "mode": "client",
}
BUFFERED: dict[str, Any] = {"local_lr": 0.1, "lr": 1.0, "buffer": M, "local_steps": 1, "mode": "client"}
PRIVATE = tg.Privacy(clip=C, noise_multiplier=1.0, noise_seed=7)
SAMPLES = [1, 2, 3, 10, 4, 4]
PLAIN: dict[str, tg.Method] = {
    "plain": tg.sgdclip(**CLIPPED),
    "downplayed": tg.sgdclip(**CLIPPED, downplay=True),
    "compensated": tg.sgdclip(**CLIPPED, compensate=True),
    "downplayed and compensated": tg.sgdclip(**CLIPPED, downplay=True, compensate=True),
    "toward the model": tg.fedbuff(**BUFFERED, toward="model"),
    "over the weights": tg.fedbuff(**BUFFERED, denominator="weights"),
    "by samples": tg.fedbuff(**BUFFERED, weight_by="samples"),
}


class Served:
    """A private server and the jobs that it has sent."""

    def __init__(self, one: tg.Method, own: tg.Privacy = PRIVATE, dimension: int = D) -> None:
        one = replace(one, privacy=own)
        self.server = tg.Server(one, torch.zeros(dimension), clients=6, seed=0, samples=SAMPLES)
        self.jobs = {job.client: job for job in self.server.dispatch()}

    def deliver(self, client: int, delta: Any, curvature: Any = 0.0) -> Any:
        """Deliver a client's update; the curvature is left out if the method does not compensate."""
        vectors = [torch.tensor(np.broadcast_to(np.float32(v), self.server.x.shape).copy()) for v in (delta, curvature)]
        last = vectors[1] if self.server.method.compensate else None
        happened, jobs = self.server.receive(tg.Update(*self.jobs[client][:3], vectors[0], last))
        self.jobs |= {job.client: job for job in jobs}
        return happened


def as_array(v: Any) -> Any:
    return v.double().numpy()


@pytest.mark.parametrize("name", PLAIN)
def test_a_round_is_the_mean_of_clipped_contributions_plus_noise(name: str) -> None:
    """From the definition, in float64. The noise is that of a server with the same jobs, whose updates are all 0."""
    rng, one = np.random.default_rng(1), PLAIN[name]
    served, quiet = Served(one), Served(PLAIN["plain"])
    for t, clients in enumerate(((0, 1, 2, 3), (4, 1, 1, 5), (1, 0, 5, 5)), 1):
        x, noise, total, weights, clipped = served.server.x, quiet.server.x, np.zeros(D), [], 0
        for size, client in enumerate(clients):
            delta, curvature = (
                rng.normal(size=D).astype(np.float32) * np.float32(10.0 ** (size - 2)) for _ in range(2)
            )
            start = served.jobs[client]
            drift = as_array(x) - as_array(start.x)
            weight = one.weight(t - start.round) if one.weight else 1.0
            weight *= SAMPLES[client] / np.mean(SAMPLES) if one.weight_by else 1.0
            pull = curvature.astype(float) * drift if one.compensate else drift if one.pull else 0.0
            term = weight * (delta.astype(float) - pull)
            total += term * min(1.0, C / np.linalg.norm(term))
            clipped += np.linalg.norm(term) > C
            weights.append(weight)
            served.deliver(client, delta, curvature)
            quiet.deliver(client, 0.0)
        assert served.server.round == t
        assert 0 < clipped < M
        total += M * as_array(quiet.server.x - noise)
        divisor = sum(weights) if one.denominator == "weights" else M
        np.testing.assert_allclose(as_array(served.server.x - x), total / divisor, rtol=1e-5, atol=1e-6)


UPDATES = st.one_of(
    st.just(0.0),
    st.sampled_from([math.nan, math.inf, 3e38, -1e30]),
    st.lists(st.floats(-100, 100, width=32), min_size=D, max_size=D),
)


@given(
    name=st.sampled_from([*PLAIN]),
    others=st.lists(st.floats(-2, 2, width=32), min_size=8, max_size=8),
    one=st.lists(st.tuples(UPDATES, UPDATES), min_size=3, max_size=3),
    other=st.lists(st.tuples(UPDATES, UPDATES), min_size=3, max_size=3),
    own=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_a_client_moves_the_mean_by_at_most_its_share(name: str, others: Any, one: Any, other: Any, own: int) -> None:
    """Zeroed, k updates of a client move the sum by k C; replaced by any others, by 2 k C. The noise cancels."""
    moved = []
    for theirs in (one, other, None):
        served = Served(PLAIN[name])
        for client in range(M):  # round 1 is the same for all, and makes models drift
            served.deliver(client, others[client], others[client])
        before = served.server.x
        for place in range(M):
            if place < own:
                happened = served.deliver(4, *(theirs[place] if theirs else (math.nan, 0.0)))  # NaN counts as 0
            else:
                happened = served.deliver(place, others[4 + place], others[4 + place])
        assert served.server.round == 2, "no update may be refused for its content: all later rounds would shift"
        divisor = sum(happened.weights) if served.server.method.denominator == "weights" else M
        moved.append(as_array(served.server.x - before) * divisor)
    slack = 1e-4  # of float32
    assert np.linalg.norm(moved[0] - moved[1]) <= 2 * own * C + slack
    assert np.linalg.norm(moved[0] - moved[2]) <= own * C + slack


def test_noise_has_the_stated_deviation_and_is_new_in_every_round() -> None:
    own, size = tg.Privacy(clip=0.25, noise_multiplier=3.0), 2 * privacy.BLOCK + 100
    served = Served(PLAIN["plain"], own, size)
    models = [served.server.x]
    for _ in range(3):
        for client in (0, 1, 2, 3):
            served.deliver(client, 0.0)
        models.append(served.server.x)
    noises = [as_array(after - before) for before, after in pairwise(models)]
    blocks = [noise[: 2 * privacy.BLOCK].reshape(2, -1) for noise in noises]
    for noise in noises:
        assert np.std(noise) == pytest.approx(0.25 * 3.0 / M, rel=0.04)
        assert abs(np.mean(noise)) < 0.01
    independent = np.corrcoef(np.concatenate(blocks))  # rounds and blocks
    assert abs(independent - np.eye(6)).max() < 0.1


def taken(client: int, serial: int = 0) -> Taken:
    return Taken(tg.Update(client, serial, 0, torch.zeros(1)), 1, 0.0)


def test_noise_is_keyed_by_the_secret_and_by_all_jobs_so_far() -> None:
    def key(mechanism: GaussianMechanism, *rounds: list[Taken]) -> str:
        for t, each in enumerate(rounds, 1):
            noise = mechanism.noise(t, each)
        assert noise is not None
        return noise.key

    first, second, other = [taken(0), taken(1)], [taken(0, 1), taken(2)], [taken(1), taken(2)]
    seeded = [GaussianMechanism(PRIVATE, 0) for _ in range(5)]
    keys = [
        key(one, *rounds) for one, rounds in zip(seeded, [(first,), (first, second), (other, second)], strict=False)
    ]
    assert len(set(keys)) == 3, "the last rounds aggregate the same jobs, but after other ones"
    assert key(seeded[3], first, second) == keys[1]
    assert key(GaussianMechanism(PRIVATE, 1), first) not in keys
    secret = [GaussianMechanism(tg.Privacy(clip=C, noise_multiplier=1.0), 0) for _ in range(2)]
    assert key(secret[0], first) != key(secret[1], first)
    secret[1].restore(secret[0].snapshot())
    assert key(secret[0], second) == key(secret[1], second)


@pytest.mark.parametrize("start", [0, privacy.BLOCK, 3 * privacy.BLOCK])
def test_the_noise_of_a_slice_is_that_part_of_the_whole(start: int) -> None:
    noise, whole = RoundNoise("00ff", 2.0), torch.zeros(4 * privacy.BLOCK + 5)
    noise.add_to(whole)
    part = torch.zeros(len(whole) - start)
    noise._replace(start=start).add_to(part)
    assert torch.equal(part, whole[start:])
    assert wire.BLOCK % privacy.BLOCK == 0, "shards begin at multiples of the wire's blocks"


@pytest.mark.parametrize("name", ["plain", "downplayed and compensated"])
def test_compiled_kernels_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    models = []
    for least in (math.inf, 1):
        monkeypatch.setattr(kernels, "MIN_LENGTH", least)
        served = Served(PLAIN[name])
        for turn in range(3 * M):
            served.deliver(turn % 3, [turn % 5 - 2.0] * 5 + [math.nan if turn == 5 else 1.0], 0.5)
        assert served.server.round == 3
        models.append(served.server.x)
    assert torch.equal(*models)
    assert models[0].isfinite().all()


def test_an_update_that_is_not_finite_counts_as_nothing_and_leaves_the_clients_state() -> None:
    """A refusal would move all later updates to other rounds, depending on the client's data."""
    kept = tg.fedavg(local_lr=0.1, buffer=2, local_steps=1, mode="client", optimizer="AdamW", keep=True)
    for own in (PRIVATE, None):
        server = tg.Server(replace(kept, privacy=own), torch.zeros(3), clients=2, seed=0)
        job = next(job for job in server.dispatch() if job.client == 0)
        update = tg.work(job, tg.tasks.quadratic(clients=2, dimension=3), server.method)
        state = update.state
        assert isinstance(state, dict)
        happened, jobs = server.receive(update)
        assert isinstance(happened, Taken)
        broken = {name: value + math.nan if value.dim() else value for name, value in state.items()}
        again = update._replace(serial=1, state=broken)  # its δ is finite
        assert [job.client for job in jobs] == [0]
        happened = server.receive(again).happened
        assert isinstance(happened, tg.Advanced if own else Refused)
        assert server.client_states[0] is state


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_private(name: str) -> None:
    runs = [
        tg.simulate(method(name, privacy=own), task(), fleet(), rounds=rounds(name), evaluate_every=0)
        for own in (PRIVATE, PRIVATE, replace(PRIVATE, noise_seed=8), None)
    ]
    assert torch.equal(runs[0].x, runs[1].x)
    assert not torch.equal(runs[0].x, runs[2].x)
    assert ", private" in str(runs[0].server.method)
    assert [row["clients"] for row in runs[0].metrics] == [row["clients"] for row in runs[3].metrics]
    assert "epsilon" not in runs[3].metrics[0]


def test_no_two_regions_have_the_same_noise() -> None:
    one = tg.halos(regions=2, local_lr=0.0, local_steps=1, privacy=PRIVATE, optimizer="SGD", keep=False, every=8)
    server = tg.serve(one, torch.zeros(20), clients=2, seed=0)
    for job in server.dispatch():
        server.receive(tg.Update(*job[:3], torch.zeros(20), None))
    _, first, second = server.levels
    assert first.round == second.round == 1
    assert not torch.allclose(first.x, second.x)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"clip": 0.0, "noise_multiplier": 1.0}, "`clip` must be a finite number, above 0, got 0.0"),
        ({"clip": 1.0, "noise_multiplier": 0}, "`noise_multiplier` must be a finite number, above 0, got 0"),
        (
            {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1.0},
            "`delta` must be above 0 and below 1, such as 1e-5, got 1",
        ),
        ({"clip": 1.0, "noise_multiplier": 1.0, "noise_seed": -1}, "`noise_seed` must be a whole number, 0 or more"),
    ],
)
def test_settings_that_protect_nothing_are_refused(given: Any, rule: str) -> None:
    with pytest.raises(tg.Invalid, match=rule):
        tg.Privacy(**given)


def test_what_gets_no_noise_is_refused() -> None:
    with pytest.raises(tg.Invalid, match=r"`privacy` must be a Privacy or None, got \{.clip.: 1\}. Use Privacy"):
        tg.sgdclip(**CLIPPED, privacy={"clip": 1})
    buffers = tg.ModuleBuffers(torch.ones(2), torch.ones(1, dtype=torch.int64))
    with pytest.raises(tg.Invalid, match="needs a model without buffers, such as BatchNorm's, which get no noise"):
        tg.serve(replace(PLAIN["plain"], privacy=PRIVATE), torch.zeros(D), clients=6, seed=0, module_buffers=buffers)
