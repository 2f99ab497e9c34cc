"""An engine of someone else's: one that declares every feature, and one that writes three members and no more."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.algorithm import LocalVectors
from tardygrad.core.messages import Message
from tardygrad.engines.contract import Pending, Residuals, pack, perform
from tardygrad.engines.wire import Wire, unpack
from tardygrad.errors import Interrupted
from tests.engines.contract import CLIENTS, PoolContract


class Store(LocalVectors):
    """The server's vectors, as the engine holds them."""


class FakePool(tg.Pool):
    """First come, first served, one second each, updates as int8; declares all that an engine can."""

    task: tg.Task
    method: tg.Method
    now, parallel, virtual_clock, startup = 0.0, 1, True, "starting the fake"
    wire: Wire = "int8"

    def __init__(self, task: tg.Task, method: tg.Method) -> None:
        self.task, self.method = task, method
        self.jobs: deque[tg.Job] = deque()
        self.errors: dict[int, Residuals] = {}
        self.interrupted = self.closed = False
        self.deadline, self.evaluator = math.inf, self
        self.fleet = tg.Fleet.paper(clients=self.task.clients)

    def begin(self) -> None:
        self.now = 0.0
        self.jobs.clear()
        self.errors.clear()

    def submit(self, job: tg.Job) -> None:
        self.jobs.append(job)

    def next(self) -> Message | None:
        if self.interrupted:
            self.interrupted = False
            raise Interrupted("interrupted while waiting for a message.")
        if not self.jobs:
            return None
        if self.now + 1.0 > self.deadline:
            raise tg.TimeUp("time is up.")
        self.now += 1.0
        update = perform(job := self.jobs.popleft(), self.task, self.method)
        packed, self.errors[job.client] = pack(update, self.errors.get(job.client, {}), "int8")
        vectors = {name: unpack(vector) for name, vector in packed.items()}
        return update._replace(**vectors)

    def interrupt(self, on: bool = True) -> None:
        self.interrupted = on

    def vectors(self, method: tg.Method, x: Any) -> Store:
        return Store(method, x)

    def status(self) -> str:
        return "1 of 2 workers is missing"

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


def test_an_object_of_another_class_is_no_pool(tmp_path: Path) -> None:
    others: list[Any] = [SimpleNamespace(submit=print, next=print, now=0.0), BarePool]
    for other in others:
        with pytest.raises(tg.Invalid, match=r"^a pool must be an instance of a subclass of tg\.Pool, got "):
            tg.train(METHOD, task(), other, rounds=2)
        with pytest.raises(tg.Invalid, match=r"^a pool must be an instance of a subclass of tg\.Pool, got "):
            tg.resume(tmp_path, METHOD, task(), other)


def test_an_engine_that_repeats_a_job_for_ever_ends_the_run() -> None:
    class Repeating(BarePool):
        def next(self) -> Message | None:
            self.now += 1.0
            return perform(self.jobs[0], *self.work)

    with pytest.raises(tg.Starved, match=r"client 0 repeats job 0 "):
        tg.train(METHOD, task(), Repeating(task(), METHOD), rounds=2)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("wire", "int3", "`wire` must be one of "),
        ("method", "clip2", "a method must be a tardygrad.Method, such as clip2(...), got str."),
        ("parallel", 0, "`parallel` must be a whole number, 1 or more, got 0."),
        ("fleet", 40, "the attribute `fleet` of a pool must be a Fleet or None, got 40."),
        ("virtual_clock", "no", "the attribute `virtual_clock` of a pool must be "),
    ],
)
def test_an_attribute_of_a_wrong_kind_is_refused(name: str, value: Any, text: str) -> None:
    pool = BarePool(task(), METHOD)
    setattr(pool, name, value)
    with pytest.raises(tg.Invalid, match=re.escape(text)):
        tg.train(METHOD, task(), pool, rounds=2)


def test_an_engine_without_its_state_cannot_be_saved(tmp_path: Path) -> None:
    class Forgetful(tg.SimPool):
        def pending(self) -> Any:
            return 3

    pool = Forgetful(task(), METHOD, tg.Fleet.paper(clients=CLIENTS))
    with pytest.raises(tg.Invalid, match="`pending` of an engine must return a Pending with its jobs, got 3"):
        tg.train(METHOD, task(), pool, rounds=4, checkpoint_every=1, evaluate_every=0, out=tmp_path / "run")


def test_an_engine_that_swallows_jobs_is_named() -> None:
    class Swallowing(BarePool):
        def next(self) -> Message | None:
            return None

    with pytest.raises(tg.Starved, match="the engine has no more messages"):
        tg.train(METHOD, task(), Swallowing(task(), METHOD), rounds=2)


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ([1.0, 0.5], "got 0.5 after 1. Return the seconds since the run began."),
        ([math.nan], "got nan after 0."),
        ([math.inf], "got inf after 0."),
        ([None], "got None after 0."),
        ([lambda: 1.0], "Make it a property."),
    ],
)
def test_a_clock_that_is_none_or_goes_back_is_refused(times: list[Any], text: str) -> None:
    class Clocked(BarePool):
        def next(self) -> Message | None:
            message, self.now = super().next(), times.pop(0)
            return message

    pool, server = Clocked(task(), METHOD), tg.serve(METHOD, task().init(0), clients=CLIENTS, seed=0)
    rule = "`now` of a pool must be a finite number that never decreases, "
    with pytest.raises(tg.Invalid, match=re.escape(rule) + ".*" + re.escape(text)):
        list(tg.drive(server, pool, 5))


@pytest.mark.parametrize(("kind", "client"), [(tg.Lost, 99), (tg.Lost, "job"), (tg.Joined, -1), (tg.Joined, True)])
def test_a_lost_or_joined_client_must_exist(kind: Any, client: Any) -> None:
    class Losing(BarePool):
        def next(self) -> Message | None:
            return kind(self.jobs[0] if client == "job" else client)

    text = rf"{kind.__name__} must have the number of a client, 0 to {CLIENTS - 1}, got .*\(job\.client\)"
    with pytest.raises(tg.Invalid, match=text):
        tg.train(METHOD, task(), Losing(task(), METHOD), rounds=2)


def test_swapped_and_missing_arguments_are_named() -> None:
    here, fleet = task(), tg.Fleet.paper(clients=CLIENTS)
    server = tg.serve(METHOD, here.init(0), clients=CLIENTS, seed=0)
    order = r"a method must be a tardygrad\.Method, .* got Quadratic\. Check the order of the arguments\."
    calls: list[tuple[Any, str]] = [
        (lambda: tg.simulate(here, METHOD, fleet, rounds=2), order),
        (lambda: tg.SimPool(here, METHOD, METHOD), "a fleet must be a tardygrad.Fleet, got Method"),
        (lambda: tg.Server(here, here.init(0), clients=CLIENTS, seed=0), order),
        (lambda: tg.SimPool(type(here), METHOD, fleet), "got the class Quadratic"),
        (lambda: replace(METHOD, inner=torch.sin), "`inner` must be a tardygrad.Transform, got "),
        (lambda: list(tg.drive(server, None)), "a pool must be an instance of a subclass of tg.Pool"),
        (lambda: list(tg.drive(BarePool(here, METHOD), server)), r"`drive` needs a server, .* got BarePool\."),
        (
            lambda: tg.resume("run", METHOD, here, BarePool(here, METHOD), round=3),
            "resume has no argument `round`. Did",
        ),
        (lambda: tg.ScriptedPool(3, here, METHOD), r"`script` must be a list of lines such as .*, got 3\."),
        (lambda: tg.replay("runs/mine"), "`replay` needs a Run, got 'runs/mine'. Pass the run that `resume` returns"),
    ]
    for call, text in calls:
        with pytest.raises(tg.Invalid, match=text):
            call()
