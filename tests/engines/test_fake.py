"""An engine of someone else's: one that declares every feature, and one that writes three members and no more."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Message
from tardygrad.core.vectors import LocalVectors
from tardygrad.engines.pool import Errors, Pending, pack, perform
from tardygrad.engines.wire import unpack
from tardygrad.errors import Interrupted
from tests.engines.contract import CLIENTS, PoolContract


class Store(LocalVectors):
    """The server's vectors, as the engine holds them."""


class FakePool(tg.Pool):
    """First come, first served, one second each, updates as int8; declares all that an engine can."""

    now = 0.0

    def __init__(self, task: tg.Task, method: tg.Method) -> None:
        self.task, self.method = task, method
        self.jobs: deque[tg.Job] = deque()
        self.errors: dict[int, Errors] = {}
        self.interrupted = self.closed = False

    @property
    def features(self) -> tg.Features:
        return tg.Features(
            checkpoint=self,
            interrupt=self.interrupt,
            evaluator=self,
            vectors=Store,
            wire="int8",
            fleet=tg.Fleet.paper(clients=self.task.clients),
            method=self.method,
            parallel=1,
            virtual_clock=True,
            status=lambda: "1 of 2 workers is missing",
            startup="starting the fake",
        )

    def submit(self, job: tg.Job) -> None:
        self.jobs.append(job)

    def next(self) -> Message | None:
        if self.interrupted:
            self.interrupted = False
            raise Interrupted("the pool was told to stop waiting.")
        if not self.jobs:
            return None
        self.now += 1.0
        update = perform(job := self.jobs.popleft(), self.task, self.method)
        packed, self.errors[job.client] = pack(update, self.errors.get(job.client, {}), "int8")
        vectors = {name: unpack(vector) for name, vector in packed.items()}
        return update._replace(**vectors)

    def interrupt(self, on: bool = True) -> None:
        self.interrupted = on

    def pending(self) -> Pending:
        return Pending(self.now, list(self.jobs), [])

    def restore(self, pending: Pending) -> None:
        self.now, self.jobs = pending.now, deque(pending.jobs)

    def ask(self, x: Any, module_buffers: Any) -> Any:
        return x, module_buffers

    def answer(self, request: Any, *, wait: bool) -> tuple[dict[str, float], float] | None:
        return self.task.evaluate(*request), 0.5

    def close(self) -> None:
        self.closed = True


class TestFakePool(PoolContract):
    def pool(self, task: tg.Task, method: tg.Method) -> FakePool:
        return FakePool(task, method)


class BarePool(tg.Pool):
    """The three members that an engine must have."""

    now = 0.0

    def __init__(self, task: tg.Task, method: tg.Method) -> None:
        self.work, self.jobs = (task, method), deque[tg.Job]()

    def submit(self, job: tg.Job) -> None:
        self.jobs.append(job)

    def next(self) -> Message | None:
        self.now += 1.0
        return perform(self.jobs.popleft(), *self.work) if self.jobs else None


class TestBarePool(PoolContract):
    def pool(self, task: tg.Task, method: tg.Method) -> BarePool:
        return BarePool(task, method)


METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2)


def task() -> Any:
    return tg.tasks.quadratic(clients=CLIENTS, dimension=4)


def test_a_run_uses_what_the_engine_declares(tmp_path: Path) -> None:
    with FakePool(task(), METHOD) as pool:
        run = tg.train(METHOD, task(), pool, rounds=4, evaluate_every=2, out=tmp_path / "run")
    assert pool.closed
    assert isinstance(run.server.vectors, Store)  # type: ignore[union-attr]
    assert [row["round"] for row in run.metrics if "test_loss" in row] == [2, 4]
    assert torch.equal(tg.replay(run).x, run.x)


def test_an_engine_must_write_all_three_members() -> None:
    class Half(tg.Pool):
        now = 0.0

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


def test_an_object_that_declares_no_features_is_no_pool(tmp_path: Path) -> None:
    class Undeclared(BarePool):
        features = None  # type: ignore[assignment]

    others: list[Any] = [SimpleNamespace(submit=print, next=print, now=0.0), BarePool, Undeclared(task(), METHOD)]
    text = r"^a pool must be an instance of a subclass of tg\.Pool, whose `features` are a tg\.Features, got "
    for other in others:
        with pytest.raises(tg.Invalid, match=text):
            tg.train(METHOD, task(), other, rounds=2)
        with pytest.raises(tg.Invalid, match=text):
            tg.resume(tmp_path, METHOD, task(), other)


def test_an_engine_that_repeats_a_job_for_ever_ends_the_run() -> None:
    class Repeating(BarePool):
        def next(self) -> Message | None:
            self.now += 1.0
            return perform(self.jobs[0], *self.work)

    with pytest.raises(tg.Starved, match=r"client 0 repeats job 0 "):
        tg.train(METHOD, task(), Repeating(task(), METHOD), rounds=2)
