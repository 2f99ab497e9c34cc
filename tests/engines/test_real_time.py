"""Engines in real time: a third one is a class with three hooks, and threads take a fleet's time."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map_only

import tardygrad as tg
from tardygrad.engines import real_time
from tardygrad.engines.contract import Pending, perform
from tardygrad.engines.processes import Children, Ended
from tardygrad.engines.real_time import LOSSES, Answer, Gone, RealTimePool, Running
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
    limit = 4.0  # each job is a process of its own

    def pool(self, task: tg.Task, method: tg.Method) -> ForkPool:
        return ForkPool(task, method)


METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client")
TASK = tg.tasks.quadratic(clients=CLIENTS, dimension=4, heterogeneity=1.0)


def jobs(serial: int = 0) -> list[tg.Job]:
    return [tg.Job(client, serial, 0, TASK.init(0), 2, None, 0) for client in range(CLIENTS)]


class Moody(type(TASK)):  # type: ignore[misc]
    """Client 3's jobs kill their process, and client 4's take a second."""

    def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
        if batch.client == 3:
            os._exit(7)
        time.sleep(0.5 * (batch.client == 4))
        return super().gradient(x, batch, module_buffers)


@pytest.fixture
def moody() -> Iterator[ForkPool]:
    with ForkPool(Moody(TASK.h, TASK.c, None), METHOD) as pool:  # type: ignore[attr-defined]
        yield pool


def test_a_dead_worker_costs_its_job_and_a_missing_one_its_client_until_it_is_back(moody: ForkPool) -> None:
    moody.missing = 5
    for job in jobs():
        moody.submit(job)
    messages = [moody.next() for _ in range(7)]
    assert sorted(each.client for each in messages if isinstance(each, tg.Update)) == [0, 1, 2, 4]
    others = [each for each in messages if not isinstance(each, tg.Update)]
    assert [each for each in others if each.client == 3] == [tg.Lost(3), tg.Joined(3)]  # type: ignore[union-attr]
    assert tg.Lost(5) in others
    assert moody.losses == {3: 1}
    moody.missing = None
    assert moody.next() == tg.Joined(5)
    assert moody.next() is None


def test_a_client_that_is_lost_again_and_again_ends_the_run(moody: ForkPool) -> None:
    moody.losses[3] = LOSSES - 1
    moody.submit(jobs()[3])
    text = "the work of client 3, job 0, from round 0 failed: lost 10 times in a row, exit code 7."
    with pytest.raises(tg.WorkFailed, match=re.escape(text)):
        moody.next()


def test_what_is_under_way_at_a_checkpoint_is_lost_and_joins_again(moody: ForkPool) -> None:
    moody.missing = 5
    for client in (1, 4, 5):
        moody.submit(jobs(serial=7)[client])
    pending = moody.pending()
    assert (pending.jobs, [due[1:] for due in pending.due]) == ([], [(5, 7), (1, 7), (4, 7)])
    with ForkPool(TASK, METHOD) as again:
        again.missing = 5
        again.restore(pending._replace(now=100.0))
        assert again.now >= 100.0
        assert [again.next() for _ in range(5)] == [tg.Lost(5), tg.Lost(1), tg.Joined(1), tg.Lost(4), tg.Joined(4)]
        assert [due[1:] for due in again.pending().due] == [(5, 0)]


def test_a_wait_is_interrupted_and_a_second_run_has_nothing_of_the_first(moody: ForkPool) -> None:
    moody.restore(Pending(1e6, [], []))
    moody.submit(jobs(serial=9)[4])
    threading.Timer(0.2, moody.interrupt).start()
    with pytest.raises(tg.Interrupted):
        moody.next()
    moody.begin()
    assert moody.now < 1e6
    moody.submit(jobs()[0])
    assert [message and message.client for message in (moody.next(), moody.next())] == [0, None]  # type: ignore[union-attr]


def test_a_pool_without_workers_ends_the_run_but_not_one_that_was_idle(
    moody: ForkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_time, "TIMEOUT", 3.0)
    moody._last_sign -= 10.0
    moody.submit(jobs()[0])
    assert isinstance(moody.next(), tg.Update)
    monkeypatch.setattr(real_time, "TIMEOUT", 0.3)
    moody.missing = 1
    moody.submit(jobs()[1])
    assert moody.next() == tg.Lost(1)
    with pytest.raises(tg.WorkFailed, match=r"^no worker has answered for 0\.3 s\."):
        moody.next()


def test_what_has_come_is_not_late_and_what_is_late_is_so_by_no_run_s_clock(
    moody: ForkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moody.deadlines, "limit", lambda client: 0.2)
    moody.submit(jobs()[0])
    time.sleep(0.5)
    assert isinstance(moody.next(), tg.Update)  # it had come, though nobody looked
    moody.submit(jobs()[4])
    moody.restore(Pending(0.0, [], []))
    assert [moody.next() for _ in range(2)] == [tg.Lost(4), tg.Joined(4)]
    assert isinstance(moody.next(), tg.Update)  # late, which the server refuses


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
