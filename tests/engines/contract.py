"""What every pool promises, as one battery; each engine's test file subclasses it with its own `pool`."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Job

CLIENTS = 6


class Broken:
    """A task whose third client cannot compute."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def gradient(self, x: torch.Tensor, batch: Any, module_buffers: Any) -> Any:
        if batch.client == 2:
            raise RuntimeError("out of cheese")
        return self.task.gradient(x, batch, module_buffers)


class PoolContract:
    """Subclass me and say how to make the pool."""

    def pool(self, task: tg.Task, method: tg.Method) -> AbstractContextManager[tg.Pool]:
        raise AssertionError("a subclass makes the pool")

    @pytest.fixture
    def task(self) -> tg.Task:
        noise = tg.Noise(kind="student", tail=1.5, scale=0.1)
        return tg.tasks.quadratic(clients=CLIENTS, dimension=4, heterogeneity=1.0, noise=noise)

    @pytest.fixture(params=["sync", "server", "client"])
    def method(self, request: pytest.FixtureRequest) -> tg.Method:
        return tg.clip2(
            local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode=request.param, compensate=True
        )

    def jobs(self, task: tg.Task, serial: int = 0) -> list[Job]:
        x = task.init(0)
        return [Job(client, serial, 0, x, 2, None, 0) for client in range(CLIENTS)]

    def test_every_submitted_job_comes_back_exactly_once(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            for job in self.jobs(task):
                pool.submit(job)
            arrived = [pool.next() for _ in range(CLIENTS)]
        assert Counter((u.client, u.serial) for u in arrived if isinstance(u, tg.Update)) == Counter(
            (client, 0) for client in range(CLIENTS)
        )

    def test_the_work_is_that_of_the_algorithm_bit_for_bit(self, task: tg.Task, method: tg.Method) -> None:
        jobs = {job.client: job for job in self.jobs(task)}
        with self.pool(task, method) as pool:
            for job in jobs.values():
                pool.submit(job)
            for _ in jobs:
                update = pool.next()
                assert isinstance(update, tg.Update)
                assert update.curvature is not None
                expected = tg.work(jobs[update.client], task, method)
                assert expected.curvature is not None
                assert torch.equal(update.delta, expected.delta)
                assert torch.equal(update.curvature, expected.curvature)

    def test_the_clock_starts_near_zero_and_never_goes_back(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            times = [pool.now]
            for job in self.jobs(task):
                pool.submit(job)
            for _ in range(CLIENTS):
                pool.next()
                times.append(pool.now)
        assert 0 <= times[0] < 60  # and no hour of the day
        assert times == sorted(times)

    def test_nothing_comes_when_nothing_is_under_way(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            for job in self.jobs(task):
                pool.submit(job)
            for _ in range(CLIENTS):
                pool.next()
            assert pool.next() is None

    def test_an_error_in_the_work_names_the_client_and_the_job(self, task: tg.Task, method: tg.Method) -> None:
        broken: Any = Broken(task)
        with self.pool(broken, method) as pool:
            for job in self.jobs(task):
                pool.submit(job)
            text = "the work of client 2, job 0, from round 0 failed: RuntimeError: out of cheese"
            with pytest.raises(tg.WorkFailed, match=text):
                list(iter(pool.next, None))

    def test_it_drives_a_whole_run_that_replays_to_the_same_bits(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            run = tg.train(method, task, pool, rounds=5)
        again = tg.replay(run)
        assert torch.equal(run.x, again.x)
        assert [row["delays"] for row in run.metrics] == [row["delays"] for row in again.metrics]


def plain(pool: tg.Pool) -> AbstractContextManager[tg.Pool]:
    """A pool that needs no closing."""
    return nullcontext(pool)
