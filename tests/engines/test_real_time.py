"""Engines in real time: a third one is a class with three hooks, and threads take a fleet's time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map_only

import tardygrad as tg
from tardygrad.engines.contract import perform
from tardygrad.engines.processes import Children, Ended
from tardygrad.engines.real_time import Answer, Gone, RealTimePool, Running
from tests.engines.contract import CLIENTS, PoolContract


def one_job(pipe: Any, job: tg.Job, task: tg.Task, method: tg.Method) -> None:
    try:
        pipe.send(tree_map_only(torch.Tensor, torch.Tensor.numpy, perform(job, task, method)))
    except tg.WorkFailed as error:
        pipe.send(tg.WorkFailed(str(error)))


class ForkPool(RealTimePool):
    """Each job in a process of its own; at most two at once, and client `missing` has none."""

    missing: int | None = None

    def __init__(self, task: tg.Task, method: tg.Method) -> None:
        super().__init__(task, method, patience=10.0, grace=60.0)
        self.children, self._began = Children(), time.monotonic()

    def _start(self, job: tg.Job) -> Running | None:
        if len(self.children.alive) == 2 or job.client == self.missing:
            return None
        return Running(job, self.children.start(one_job, job, self.task, self.method))

    def _poll(self, seconds: float) -> Iterator[tuple[Running, Answer]]:
        for child, answer in self.children.answers(seconds):
            if isinstance(answer, Ended):
                yield self.running[child], Gone(f"exit code {answer.code}")
            else:
                self.children.end(child)
                yield self.running[child], tree_map_only(np.ndarray, torch.from_numpy, answer)

    def _can_serve(self, client: int) -> bool:
        return client != self.missing

    def close(self) -> None:
        self.children.close()
        super().close()


class TestForkPool(PoolContract):
    def pool(self, task: tg.Task, method: tg.Method) -> ForkPool:
        return ForkPool(task, method)


METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client")
TASK = tg.tasks.quadratic(clients=CLIENTS, dimension=4, heterogeneity=1.0)


def jobs(serial: int = 0) -> list[tg.Job]:
    return [tg.Job(client, serial, 0, TASK.init(0), 2, None, 0) for client in range(CLIENTS)]


def test_a_dead_worker_costs_its_job_and_a_missing_one_its_client_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deadly(type(TASK)):  # type: ignore[misc]
        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            if batch.client == 3:
                os._exit(7)
            return super().gradient(x, batch, module_buffers)

    with ForkPool(Deadly(TASK.h, TASK.c, None), METHOD) as pool:  # type: ignore[attr-defined]
        pool.missing = 5
        for job in jobs():
            pool.submit(job)
        messages = [pool.next() for _ in range(7)]
        assert sorted(each.client for each in messages if isinstance(each, tg.Update)) == [0, 1, 2, 4]
        others = [each for each in messages if not isinstance(each, tg.Update)]
        assert [each for each in others if each.client == 3] == [tg.Lost(3), tg.Joined(3)]  # type: ignore[union-attr]
        assert tg.Lost(5) in others
        assert pool.losses == {3: 1}
        pool.missing = None
        assert pool.next() == tg.Joined(5)
        assert pool.next() is None


def test_a_run_of_it_replays_though_jobs_time_out_and_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with ForkPool(TASK, METHOD) as pool:
        run, limit = tg.begin(METHOD, TASK, pool, rounds=40), pool.deadlines.limit
        for row in run.go():
            if row["round"] == 10:  # every job of client 1 times out, and its update comes late
                monkeypatch.setattr(pool.deadlines, "limit", lambda client: -1.0 if client == 1 else limit(client))
                monkeypatch.setattr(pool, "_last_look", 0.0)
            if run.counts["loss"]:
                monkeypatch.undo()
    assert run.counts["loss"] >= 1
    assert torch.equal(tg.replay(run).x, run.x)


@pytest.mark.parametrize("how", ["engine", "task"])
def test_a_slowed_task_takes_the_fleets_time_on_threads_and_none_in_a_replay(how: str) -> None:
    fleet = tg.Fleet((tg.Group("any", CLIENTS, tg.Trace((2.0,))),))
    if how == "engine":
        pool = tg.ThreadPool(TASK, METHOD, workers=CLIENTS, fleet=fleet, second=0.05)
        assert pool.fleet == fleet
    else:
        pool = tg.ThreadPool(tg.slowed(TASK, fleet, second=0.05), METHOD, workers=CLIENTS)
    with pool:
        run = tg.train(METHOD, TASK, pool, rounds=6, evaluate_every=0)
    assert run.metrics[0]["time"] >= 0.1  # the first round takes a job of two seconds of the fleet
    began = time.monotonic()
    assert torch.equal(tg.replay(run).x, run.x)
    assert time.monotonic() - began < 0.1


def test_a_fleet_that_a_task_cannot_follow_is_refused() -> None:
    fleet = tg.Fleet.paper(clients=CLIENTS)
    cases: list[tuple[Any, Any, str]] = [
        (fleet.crash(client=0, at=1.0), 1.0, "workers in real time can take a fleet's runtimes and links, and this"),
        (tg.Fleet.paper(clients=7), 1.0, "same number of clients, got 6 and 7"),
        (fleet, float("nan"), "`second` must be a number of seconds from 1e-6 to 86,400, got nan"),
        (None, 0.1, r"`second` needs a fleet, got second=0\.1 without one"),
    ]
    for given, second, text in cases:
        with pytest.raises(tg.Invalid, match=text):
            tg.ThreadPool(TASK, METHOD, fleet=given, second=second)
