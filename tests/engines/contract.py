"""What every engine guarantees, as one test suite; each engine's test file subclasses it with its own `pool`.

A test of what an engine need not be able to do is skipped where it cannot.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.engines.contract import pack
from tardygrad.engines.wire import unpack
from tardygrad.errors import Interrupted

CLIENTS = 6
BY_HAND = pytest.mark.parametrize("method", ["client"], indirect=True)
"""Where no server sends the jobs, its mode is none of the engine's business."""


def broken_one(task: tg.Task) -> Any:
    """The task, whose third client cannot compute."""

    class Broken(type(task)):  # type: ignore[misc]
        def gradient(self, x: torch.Tensor, batch: Any, module_buffers: Any) -> Any:
            if batch.client == 2:
                raise RuntimeError("out of cheese")
            return super().gradient(x, batch, module_buffers)

    broken = copy.copy(task)
    broken.__class__ = Broken
    return broken


def feature(pool: tg.Pool, name: str) -> Any:
    """An attribute that is known, or a method that is written; the test is skipped where it is not."""
    value = getattr(pool, name)
    if value is None or getattr(type(pool), name, None) is getattr(tg.Pool, name) is not None:
        pytest.skip(f"a {type(pool).__name__} has no `{name}`")
    return value


class PoolContract:
    """Subclass me and say how to make the pool."""

    limit = 0.5  # seconds of a run in real time

    def pool(self, task: tg.Task, method: tg.Method) -> Any:
        """A pool, or another context manager that gives one."""
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

    @BY_HAND
    def test_every_submitted_job_comes_back_exactly_once(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            for job in self.jobs(task):
                pool.submit(job)
            arrived = [pool.next() for _ in range(CLIENTS)]
        assert Counter((u.client, u.serial) for u in arrived if isinstance(u, tg.Update)) == Counter(
            (client, 0) for client in range(CLIENTS)
        )

    @BY_HAND
    def test_the_work_is_that_of_the_algorithm_as_its_wire_carries_it_bit_for_bit(
        self, task: tg.Task, method: tg.Method
    ) -> None:
        jobs = {job.client: job for job in self.jobs(task)}
        with self.pool(task, method) as pool:
            for job in jobs.values():
                pool.submit(job)
            for _ in jobs:
                update, wire = pool.next(), pool.wire
                assert isinstance(update, tg.Update)
                packed, _ = pack(tg.work(jobs[update.client], task, method), {}, wire)
                assert isinstance(update.delta, torch.Tensor)
                assert update.curvature is not None
                assert torch.equal(update.delta, unpack(packed["delta"]))
                assert torch.equal(update.curvature, unpack(packed["curvature"]))

    @BY_HAND
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

    @BY_HAND
    def test_nothing_comes_when_nothing_is_in_flight(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            for job in self.jobs(task):
                pool.submit(job)
            for _ in range(CLIENTS):
                pool.next()
            assert pool.next() is None

    @BY_HAND
    def test_an_error_in_the_work_names_the_client_and_the_job(self, task: tg.Task, method: tg.Method) -> None:
        broken = broken_one(task)
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

    def test_a_run_forgets_the_run_before_it(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            feature(pool, "begin")
            for row in tg.begin(method, task, pool, rounds=50).go():
                if row["round"] == 3:
                    break
            run = tg.train(method, task, pool, rounds=5)
            is_virtual = pool.virtual_clock
        assert torch.equal(run.x, tg.replay(run).x)
        if is_virtual:
            with self.pool(task, method) as fresh:
                assert run.metrics == tg.train(method, task, fresh, rounds=5).metrics

    def test_so_does_a_run_with_regions(self, task: tg.Task) -> None:
        method = tg.halos(regions=2, local_lr=0.1, local_steps=2, every=2)
        with self.pool(task, method) as pool:
            feature(pool, "begin")
            tg.train(method, task, pool, rounds=5)
            run = tg.train(method, task, pool, rounds=5)
            is_virtual = pool.virtual_clock
        assert not run.refused
        assert torch.equal(run.x, tg.replay(run).x)
        if is_virtual:
            with self.pool(task, method) as fresh:
                assert run.metrics == tg.train(method, task, fresh, rounds=5).metrics

    @BY_HAND
    def test_a_restored_pool_answers_for_every_job_that_was_in_flight(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            feature(pool, "pending")
            for job in self.jobs(task):
                pool.submit(job)
            first = {pool.next().client for _ in range(2)}
            pending = pool.pending()
            rest = {u.client: u for u in iter(pool.next, None)}
        with self.pool(task, method) as pool:
            pool.begin()  # as a run that is resumed does
            pool.restore(pending)
            assert pool.now >= pending.now
            messages = list(iter(pool.next, None))
        delivered = [message for message in messages if isinstance(message, tg.Update | tg.Lost)]
        assert Counter(m.client for m in delivered) == Counter({c: 1 for c in range(CLIENTS) if c not in first})
        for update in delivered:
            if isinstance(update, tg.Update) and pool.wire == "float32":
                assert torch.equal(update.delta, rest[update.client].delta)

    def test_a_run_that_was_stopped_and_resumed_replays_to_the_same_bits(
        self, task: tg.Task, method: tg.Method, tmp_path: Path
    ) -> None:
        with self.pool(task, method) as pool:
            feature(pool, "pending")
            run = tg.begin(method, task, pool, rounds=6, checkpoint_every=1, out=tmp_path / "run")
            for row in run.go():
                if row["round"] == 3:
                    break
        assert run.status == "stopped"
        with self.pool(task, method) as pool:
            resumed = tg.resume(tmp_path / "run", method, task, pool)
            assert len(list(resumed.go())) == 3
        assert torch.equal(tg.replay(resumed).x, resumed.x)
        if pool.virtual_clock and pool.wire == "float32":
            with self.pool(task, method) as pool:
                assert torch.equal(tg.train(method, task, pool, rounds=6).x, resumed.x)

    @BY_HAND
    def test_an_engine_without_checkpoints_can_be_recorded_but_not_resumed(
        self, task: tg.Task, method: tg.Method, tmp_path: Path
    ) -> None:
        with self.pool(task, method) as pool:
            if pool.pending() is not None:
                pytest.skip(f"a {type(pool).__name__} has checkpoints")
            assert tg.train(method, task, pool, rounds=2, out=tmp_path / "run").status == "finished"
            with pytest.raises(tg.Invalid, match=f"cannot resume: {type(pool).__name__} does not support checkpoints"):
                tg.resume(tmp_path / "run", method, task, pool)

    @BY_HAND
    def test_an_interrupt_ends_one_wait_and_loses_no_message(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            interrupt = feature(pool, "interrupt")
            for job in self.jobs(task):
                pool.submit(job)
            interrupt(True)
            with pytest.raises(Interrupted):
                pool.next()
            interrupt(True)
            interrupt(False)
            assert sum(isinstance(message, tg.Update) for message in iter(pool.next, None)) == CLIENTS

    @BY_HAND
    def test_a_deadline_ends_the_wait_and_loses_no_message(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            feature(pool, "deadline")
            for job in self.jobs(task):
                pool.submit(job)
            pool.deadline = 0.0
            for _ in range(2):
                with pytest.raises(tg.TimeUp):
                    pool.next()
            pool.deadline = math.inf
            assert sum(isinstance(message, tg.Update) for message in iter(pool.next, None)) == CLIENTS

    @BY_HAND
    def test_a_run_with_a_time_limit_finishes_with_an_evaluation(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            real = pool.pending() is not None and not pool.virtual_clock
            run = tg.train(method, task, pool, until=self.limit if real else 4.5)
        assert run.status == "finished"
        assert run.metrics[-1]["time"] <= (self.limit + 4.5 if real else 4.5)
        assert run.metrics[-1]["round"] == run.server.round > 0
        assert "test_loss" in run.metrics[-1]

    @BY_HAND
    def test_the_evaluator_answers_with_the_scores_of_the_task(self, task: tg.Task, method: tg.Method) -> None:
        x = task.init(1) + 1.0
        with self.pool(task, method) as pool:
            evaluator = feature(pool, "evaluator")
            scores, seconds = evaluator.answer(evaluator.ask(x, None), wait=True)
            assert (scores, seconds >= 0) == (task.evaluate(x, None), True)
            request, until = evaluator.ask(x, None), time.monotonic() + 300
            while (answer := evaluator.answer(request, wait=False)) is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            assert answer[0] == scores

    @BY_HAND
    def test_its_vector_store_serves_a_loop_of_ones_own(self, task: tg.Task, method: tg.Method) -> None:
        script: list[tuple[Any, ...]] = []
        with self.pool(task, method) as pool:
            wire, vectors = pool.wire, pool.vectors
            server = tg.serve(method, task.init(0), clients=CLIENTS, seed=0, vectors=vectors)
            script += [("arrive", event.message.client) for event in tg.drive(server, pool, 4) if event.message]
            x = server.x.clone()
        here = tg.serve(method, task.init(0), clients=CLIENTS, seed=0)
        list(tg.drive(here, tg.ScriptedPool(script, task, method, wire=wire), 4))
        assert torch.equal(here.x, x)

    @BY_HAND
    def test_the_record_names_the_groups_of_its_fleet(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            fleet = feature(pool, "fleet")
            assert fleet.clients == task.clients
            run = tg.begin(method, task, pool, rounds=1)
            assert run.spec_json is not None
            assert run.spec_json["classes"] == [(group.name, group.clients) for group in fleet.groups]

    @BY_HAND
    def test_it_refuses_methods_whose_local_work_it_was_not_made_for(self, task: tg.Task, method: tg.Method) -> None:
        with self.pool(task, method) as pool:
            feature(pool, "method")
            with pytest.raises(tg.Invalid, match="the pool has `local_steps` 2, and the run's method 3"):
                tg.begin(replace(method, local_steps=3), task, pool, rounds=1)

    @BY_HAND
    def test_it_refuses_a_task_it_was_not_made_for(self, task: tg.Task, method: tg.Method) -> None:
        other = tg.tasks.quadratic(clients=CLIENTS, dimension=4, heterogeneity=2.0)
        with self.pool(task, method) as pool:
            feature(pool, "task")
            with pytest.raises(tg.Invalid, match="the pool must be made for the run's task"):
                tg.begin(method, other, pool, rounds=1)

    @BY_HAND
    def test_it_says_how_many_jobs_it_computes_at_once_and_who_is_missing(
        self, task: tg.Task, method: tg.Method
    ) -> None:
        with self.pool(task, method) as pool:
            assert isinstance(pool.status(), str)
            assert feature(pool, "parallel") >= 1
