"""The laws of docs/design.md: identities between methods and modes that hold bit for bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.core.messages import Job

LIGHT = settings(deadline=None, max_examples=25, derandomize=True)


def fleet_of(seconds: list[list[int]]) -> tg.Fleet:
    return tg.Fleet(tuple(tg.Group(f"c{i}", 1, tg.Trace(tuple(map(float, s)))) for i, s in enumerate(seconds)))


fleets = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=7).map(fleet_of)
treatments = st.fixed_dictionaries({"downplay": st.booleans(), "compensate": st.booleans()})
seeds = st.integers(0, 3)


def task_for(clients: int) -> tg.tasks.Quadratic:
    noise = tg.Noise(kind="student", tail=1.5, scale=0.3)
    return tg.tasks.quadratic(clients=clients, dimension=5, heterogeneity=1.0, noise=noise)


def clip2(**changes: Any) -> tg.Method:
    how = {"local_lr": 0.3, "local_clip": 0.8, "lr": 0.7, "clip": 0.2, "buffer": 1, "local_steps": 3, "mode": "server"}
    return tg.clip2(**(how | changes))


def models(method: tg.Method, fleet: tg.Fleet, *, seed: int = 0, rounds: int = 12) -> list[torch.Tensor]:
    """x_0, x_1, …, x_T."""
    task = task_for(fleet.clients)
    server = tg.Server(method, task.init(seed), clients=fleet.clients, seed=seed)
    path = [server.x]
    for event in tg.drive(server, tg.SimPool(task, method, fleet), rounds):
        if isinstance(event.happened, tg.Advanced):
            path.append(server.x)
    return path


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@LIGHT
@given(fleets, treatments, seeds)
def test_with_a_buffer_of_one_server_centric_is_client_centric(fleet: tg.Fleet, how: Any, seed: int) -> None:
    server = models(clip2(buffer=1, mode="server", **how), fleet, seed=seed)
    assert same(server, models(clip2(buffer=1, mode="client", **how), fleet, seed=seed))


@LIGHT
@given(fleets, treatments, seeds)
def test_a_full_buffer_is_a_hand_written_synchronous_loop(fleet: tg.Fleet, how: Any, seed: int) -> None:
    clients = fleet.clients
    task, x = task_for(clients), task_for(clients).init(seed)
    by_hand = [x]
    for serial in range(12):
        arrivals = sorted((group.runtime.draw(0.0, serial), c) for c, group in enumerate(fleet.groups))
        total = torch.zeros_like(x)
        for _, client in arrivals:
            y = x.clone()
            for batch in task.batches(Job(client, serial, serial, x, 3, None, seed)):
                _, g = task.gradient(y, batch, None)
                y -= g.clamp(-0.8, 0.8) * 0.3
            total += y - x
        x = x + (total / clients).clamp(-0.2, 0.2) * 0.7
        by_hand.append(x)
    assert same(by_hand, models(clip2(buffer=clients, mode="server", **how), fleet, seed=seed))


@LIGHT
@given(fleets, st.data(), seeds)
def test_fresh_updates_are_untouched_by_downplaying_and_compensation(fleet: tg.Fleet, data: Any, seed: int) -> None:
    buffer = data.draw(st.integers(1, fleet.clients))
    vanilla = models(clip2(buffer=buffer, mode="sync"), fleet, seed=seed)
    for how in ({"downplay": True}, {"compensate": True}, {"downplay": True, "compensate": True}):
        assert same(vanilla, models(clip2(buffer=buffer, mode="sync", **how), fleet, seed=seed))


@LIGHT
@given(fleets, st.sampled_from(["sync", "server", "client"]), treatments, st.data(), seeds)
def test_an_infinite_outer_clip_gives_sgdclip(fleet: tg.Fleet, mode: Any, how: Any, data: Any, seed: int) -> None:
    buffer = data.draw(st.integers(1, fleet.clients))
    ours = models(clip2(buffer=buffer, mode=mode, clip=math.inf, **how), fleet, seed=seed)
    plain = tg.sgdclip(local_lr=0.3, local_clip=0.8, lr=0.7, buffer=buffer, local_steps=3, mode=mode, **how)
    assert same(ours, models(plain, fleet, seed=seed))


@LIGHT
@given(fleets, seeds)
def test_compensation_with_one_step_and_one_update_is_dc_asgd_with_lambda_the_local_lr(
    fleet: tg.Fleet, seed: int
) -> None:
    eta = 0.3
    method = tg.sgdclip(
        local_lr=eta, local_clip=math.inf, lr=1.0, buffer=1, local_steps=1, mode="client", compensate=True
    )
    task = task_for(fleet.clients)
    server = tg.Server(method, task.init(seed), clients=fleet.clients, seed=seed)
    w = server.x.double()
    backup = [w] * fleet.clients
    serials = [0] * fleet.clients
    for event in tg.drive(server, tg.SimPool(task, method, fleet), 12):
        if not isinstance(event.message, tg.Update):
            continue
        i = event.message.client
        job = Job(i, serials[i], 0, server.x, 1, None, seed)
        (batch,) = task.batches(job)
        g = task.gradient(backup[i].float(), batch, None)[1].double()
        w = w - eta * (g + eta * g * g * (w - backup[i]))  # Zheng et al. 2017, equation 10
        backup[i], serials[i] = w, serials[i] + 1
        torch.testing.assert_close(server.x.double(), w, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mode", ["sync", "server", "client"])
def test_a_run_is_a_function_of_its_spec(mode: Any) -> None:
    method, fleet = clip2(buffer=3, mode=mode, compensate=True), tg.Fleet.paper(clients=9)
    assert same(models(method, fleet, seed=1), models(method, fleet, seed=1))
    assert not same(models(method, fleet, seed=1), models(method, fleet, seed=2))


@pytest.mark.parametrize("compensate", [False, True])
def test_past_models_are_kept_only_while_compensation_needs_them(compensate: bool) -> None:
    method, fleet = clip2(buffer=4, mode="client", compensate=compensate), tg.Fleet.paper(clients=20)
    task = task_for(20)
    server = tg.Server(method, task.init(0), clients=20, seed=0)
    for _ in tg.drive(server, tg.SimPool(task, method, fleet), 100):
        needed = set(server.roster.jobs.values())
        assert set(server.vectors.past) == (needed if compensate else set())
        assert len(server.vectors.past) <= min(21, server.round + 1)
