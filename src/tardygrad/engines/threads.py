"""The engine on threads of this process, in real time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX

import torch

from tardygrad.constructors import constructor
from tardygrad.core import kernels
from tardygrad.core.messages import Job, Message, Update
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task
from tardygrad.engines.contract import Pending, Pool, perform
from tardygrad.errors import Interrupted, TimeUp, check_integer

MOST_THREADS = 1024


class ThreadPool(Pool):
    """Jobs on threads. Updates arrive in the order in which jobs finish; `tardygrad.replay` repeats that order.

    Args:
        workers: threads; clients share them, first come, first served.
    """

    task: Task
    method: Method
    deadline: float = math.inf

    @constructor
    def __init__(self, task: Task, method: Method, *, workers: int = 2) -> None:
        check_integer("workers", workers, 1, MOST_THREADS)
        check_method(method)
        check_task(task)
        self.task, self.method, self.parallel = task, method, workers
        self._interrupted = False
        self._start()

    def _start(self) -> None:
        """Start the threads and the clock."""
        self.jobs: dict[tuple[int, int], Job] = {}
        self._executor = ThreadPoolExecutor(self.parallel, thread_name_prefix="tardygrad")
        self._arrived: SimpleQueue[Future[Update] | None] = SimpleQueue()  # None: stop waiting
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def begin(self) -> None:
        """Prepare for a run, and forget the run before."""
        self.close()
        self._start()

    def submit(self, job: Job) -> None:
        self.jobs[job.client, job.serial] = job
        future = self._executor.submit(perform, job, self.task, self.method)
        future.add_done_callback(self._arrived.put)

    def next(self) -> Message | None:
        arrived = None
        while arrived is None:
            if self._interrupted:
                self._interrupted = False
                raise Interrupted("interrupted while waiting for a message.")
            if not self.jobs:
                return None
            left = self.deadline - self.now
            if left <= 0:
                raise TimeUp(f"the run's {self.deadline:g} s are over.")
            with suppress(Empty):
                arrived = self._arrived.get(timeout=min(left, TIMEOUT_MAX))
        update = arrived.result()
        del self.jobs[update.client, update.serial]
        return update

    def interrupt(self, on: bool = True) -> None:
        """Make the present or next call of `next` raise `Interrupted`, or withdraw that; callable from any thread."""
        self._interrupted = on
        if on:
            self._arrived.put(None)

    def pending(self) -> Pending:
        return Pending(self.now, list(self.jobs.values()), [])

    def restore(self, pending: Pending) -> None:
        self._began = time.monotonic() - pending.now
        for job in pending.jobs:
            self.submit(job)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of torch's threads, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def use_threads() -> None:
    """Let kernels compute the slices of long vectors on threads in this process; core/ itself uses none."""
    kernels.run_slices = _run_slices


def _run_slices(kernel: kernels.SliceKernel, starts: Sequence[int], ends: Sequence[int]) -> list[Sequence[float]]:
    with ThreadPoolExecutor(len(starts)) as pool:
        return list(pool.map(kernel, starts, ends))
