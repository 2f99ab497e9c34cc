"""The engines against the contract, and what is particular to each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tardygrad as tg
from tests.engines.contract import CLIENTS, PoolContract


class TestSimPool(PoolContract):
    def pool(self, task: tg.Task, method: tg.Method) -> tg.Pool:
        return tg.SimPool(task, method, tg.Fleet.paper(clients=CLIENTS))


class TestScriptedPool(PoolContract):
    def pool(self, task: tg.Task, method: tg.Method) -> tg.Pool:
        def highest_first() -> Iterator[tuple[str, int]]:
            while pool.jobs:
                yield ("arrive", max(pool.jobs))

        pool = tg.ScriptedPool(highest_first(), task, method)
        return pool


class TestThreadPool(PoolContract):
    def pool(self, task: tg.Task, method: tg.Method) -> tg.Pool:
        return tg.ThreadPool(task, method, workers=3)


METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2)


def small_task(clients: int = CLIENTS) -> Any:
    return tg.tasks.quadratic(clients=clients, dimension=4)


def test_the_simulator_needs_a_fleet_of_the_tasks_size() -> None:
    with pytest.raises(tg.Invalid, match="same number of clients, got 6 and 7"):
        tg.SimPool(small_task(), METHOD, tg.Fleet.paper(clients=7))


def test_a_script_can_repeat_lose_and_join() -> None:
    task = small_task()
    method = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client")
    script = [("arrive", 0), ("repeat", 0), ("lose", 1, 9.0), ("join", 1), ("arrive", 1)]
    run = tg.train(method, task, tg.ScriptedPool(script, task, method), rounds=1)
    assert run.summary().refused == {"finished job": 1}
    assert run.summary().lost == 1
    assert run.metrics[0]["time"] == 11.0
    assert torch.equal(tg.replay(run).x, run.x)


def test_threads_repeat_a_model_with_dropout_though_they_share_torchs_generator() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    data = (torch.randn(60, 2), torch.randint(2, (60,)))
    loss = torch.nn.functional.cross_entropy
    task = tg.TorchTask(module, loss=loss, data=tg.shard(data, clients=CLIENTS), test=data, batch_size=4)
    method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=2, local_steps=5, mode="client")
    with tg.ThreadPool(task, method, workers=CLIENTS) as pool:
        run = tg.train(method, task, pool, rounds=20)
    assert torch.equal(tg.replay(run).x, run.x)


def test_threads_really_work_side_by_side_and_the_record_replays() -> None:
    class Sleepy(type(small_task())):  # type: ignore[misc]
        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            time.sleep(0.005 * (1 + batch.client))
            return super().gradient(x, batch, module_buffers)

    task = Sleepy(small_task().h, small_task().c, tg.Noise(kind="student", tail=1.5, scale=0.1))
    method = tg.clip2(
        local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client", compensate=True
    )
    with tg.ThreadPool(task, method, workers=CLIENTS) as pool:
        run = tg.train(method, task, pool, rounds=12)
    assert run.summary().delay_max > 1
    assert torch.equal(tg.replay(run).x, run.x)


def test_workers_must_be_check_integer() -> None:
    with pytest.raises(tg.Invalid, match="`workers` must be a whole number from 1 to 1,024, got 0"):
        tg.ThreadPool(small_task(), METHOD, workers=0)


class TestSimPoolWithProcesses(PoolContract):
    def pool(self, task: tg.Task, method: tg.Method) -> tg.Pool:
        return tg.SimPool(task, method, tg.Fleet.paper(clients=CLIENTS), workers=2)


def test_a_pool_works_for_methods_that_ask_for_its_work_and_for_no_others() -> None:
    def made(**other: Any) -> tg.Method:
        asked = {"local_lr": lambda t: 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 2, "local_steps": 2}
        return tg.clip2(**(asked | other))

    task, fleet = small_task(), tg.Fleet.paper(clients=CLIENTS)
    pool = tg.SimPool(task, made(), fleet)
    run = tg.train(made(lr=0.5, mode="sync", buffer=3), task, pool, rounds=2)  # a server's affair
    assert torch.equal(tg.replay(run).x, run.x)
    for name, other in {"local_lr": 0.2, "local_clip": 2.0, "local_steps": 3, "compensate": True}.items():
        said = name if name in ("local_steps", "compensate") else "inner"
        with pytest.raises(tg.Invalid, match=f"the pool has `{said}` .*, and the run's method .*Make a pool"):
            tg.begin(made(**{name: other}), task, pool, rounds=2)
