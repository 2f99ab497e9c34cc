"""The running sum: to fold each arrival in at once is to sum a list of them when the round ends, bit for bit."""

from __future__ import annotations

import gc
import math
import weakref
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.core import kernels
from tardygrad.core.algorithm import downplay
from tardygrad.core.transforms import Step

LIGHT = settings(deadline=None, max_examples=20, derandomize=True)
CLIENTS = 9
STEPS: dict[str, Any] = {"local_lr": 0.3, "local_clip": 0.8, "buffer": 1, "local_steps": 1}
OUTER = {
    "clip": tg.clip2(**STEPS, lr=0.7, clip=0.4).outer,
    "adam": tg.fadas(local_lr=0.3, lr=0.1, buffer=1, local_steps=1, tau_c=4).outer,
}
TREATED: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "SD": {"weight": downplay},
    "DC": {"compensate": True},
    "SD and DC": {"weight": downplay, "compensate": True},
    "pull": {"pull": True, "weight": tg.Polynomial(exponent=0.5), "denominator": "one"},
    "weights": {"weight": tg.Hinge(slope=0.5, bound=1.0), "denominator": "weights"},
    "weights and pull": {"weight": tg.Root(fresh=1), "denominator": "weights", "pull": True},
    "one": {"weight": downplay, "denominator": "one"},
}


def method_of(how: str, buffer: int, outer: str = "clip", mode: Any = "client") -> tg.Method:
    inner = tg.clip2(**STEPS, lr=1.0, clip=1.0).inner
    parts: dict[str, Any] = {"inner": inner, "outer": OUTER[outer], "buffer": buffer, "local_steps": 1, "mode": mode}
    return tg.Method(name=how, **parts, **TREATED[how])


def vector(rng: np.random.Generator, size: int) -> torch.Tensor:
    """Numbers of very different sizes, so that every other order of the sum would show."""
    return torch.from_numpy(rng.standard_t(1.2, size).astype(np.float32))


def update_of(job: tg.Job, method: tg.Method, rng: np.random.Generator, size: int) -> tg.Update:
    curvature = vector(rng, size).abs() if method.compensate else None
    return tg.Update(job.client, job.serial, job.round, vector(rng, size), curvature, steps=1, loss=0.0)


class Listed:
    """The list form: keep all updates of a round, and do the sum when the last is there."""

    def __init__(self, method: tg.Method, x: torch.Tensor) -> None:
        self.method, self.models, self.state = method, [x], method.outer.init(x)
        self.taken: list[tg.Update] = []

    def take(self, update: tg.Update) -> None:
        self.taken.append(update)
        if len(self.taken) == self.method.buffer:
            self.advance()

    def advance(self) -> None:
        x, method = self.models[-1], self.method
        t = len(self.models)
        delays = tuple(t - update.round for update in self.taken)
        weights = [method.weight(delay) if method.weight else 1.0 for delay in delays]
        total = torch.zeros_like(x)
        for update, weight in zip(self.taken, weights, strict=True):
            drift = x - self.models[update.round]
            moved = update.delta
            if update.curvature is not None:
                moved = moved - update.curvature * drift
            if method.pull:
                moved = moved - drift
            total += moved * weight
        over = {"buffer": method.buffer, "weights": sum(weights), "one": 1.0}[method.denominator]
        move, self.state = method.outer.update(total / over, self.state, Step(t, delays, x))
        self.models.append(x + move)
        self.taken = []


def check(method: tg.Method, seed: int, messages: int, size: int) -> int:
    """Random arrivals to both; how many rounds were made."""
    rng = np.random.default_rng(seed)
    x = vector(rng, size)
    server, listed = tg.Server(method, x, clients=CLIENTS, seed=0), Listed(method, x)
    jobs = {job.client: job for job in server.dispatch()}
    for _ in range(messages):
        update = update_of(jobs.pop(int(rng.choice(list(jobs)))), method, rng, size)
        happened, sent = server.receive(update)
        assert isinstance(happened, tg.Taken | tg.Advanced)
        jobs |= {job.client: job for job in sent}
        listed.take(update)
        assert torch.equal(server.x.view(torch.int32), listed.models[-1].view(torch.int32))
    return server.round


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("how", TREATED)
@LIGHT
@given(buffer=st.integers(1, 7), mode=st.sampled_from(["server", "client"]), seed=st.integers(0, 999))
def test_the_running_sum_is_the_sum_of_the_list(how: str, outer: str, buffer: int, mode: Any, seed: int) -> None:
    assert check(method_of(how, buffer, outer, mode), seed, messages=30, size=5) == 30 // buffer


@pytest.mark.parametrize("how", TREATED)
def test_so_is_that_of_the_fused_kernels(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tardygrad.core.fused", reason="needs numba")
    monkeypatch.setattr(kernels, "MIN_LENGTH", 1)
    for buffer in range(1, 8):
        assert check(method_of(how, buffer), buffer, messages=21, size=1003) == 21 // buffer


@pytest.mark.parametrize("how", TREATED)
def test_a_sync_round_is_summed_in_the_order_of_arrival(how: str) -> None:
    for buffer in range(1, 8):
        assert check(method_of(how, buffer, mode="sync"), buffer, messages=14, size=5) == 14 // buffer


# What the server holds.

D = 1237  # a length that no other tensor has


def vectors() -> set[int]:
    """All vectors of that length that are alive, but for views."""
    return {one.data_ptr() for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == (D,)}


@pytest.mark.parametrize(("how", "mode"), zip(TREATED, cycle(["sync", "server", "client"])))
def test_a_server_holds_its_model_one_sum_and_the_models_of_jobs_in_flight_and_nothing_else(
    how: str, mode: Any
) -> None:
    method, rng = method_of(how, 5, mode=mode), np.random.default_rng(3)
    drifts = method.compensate or method.pull
    server = tg.Server(method, torch.zeros(D), clients=CLIENTS, seed=0)
    out = {job.client: job._replace(x=torch.empty(0)) for job in server.dispatch()}
    sums = set()
    for turn in range(60):
        client = int(rng.choice(list(out)))
        message: Any = update_of(out.pop(client), method, rng, D)
        if turn % 7 == 3:
            message = message._replace(delta=message.delta * math.nan)
        if turn % 11 == 5:
            message = tg.Lost(client)
        gone = weakref.ref(message.delta) if isinstance(message, tg.Update) else None
        bent = weakref.ref(message.curvature) if gone and method.compensate else None
        sent = server.receive(message).jobs  # not what happened: that has the update in it
        del message
        out |= {job.client: job._replace(x=torch.empty(0)) for job in sent}
        del sent
        if turn % 11 == 6:
            lost = next(iter(set(range(CLIENTS)) - {*server.roster.jobs, *server.roster.idle, *server.roster.waiting}))
            out |= {job.client: job._replace(x=torch.empty(0)) for job in server.receive(tg.Joined(lost)).jobs}
        assert gone is None or gone() is None
        assert bent is None or bent() is None
        assert set(server.vectors.past) == (set(server.roster.jobs.values()) if drifts else set())
        total = server.vectors.sum
        assert (total is None) == (not server.buffer)
        known = [server.x, *server.vectors.past.values(), *([] if total is None else [total])]
        if turn in (33, 56):  # it takes its time
            assert vectors() == {one.data_ptr() for one in known}
        sums.add(None if total is None else (server.round, total.data_ptr()))
    assert server.round >= 8
    assert len(sums) <= server.round + 2  # one place in memory for each round
