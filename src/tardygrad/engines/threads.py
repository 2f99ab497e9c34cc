"""The engine on threads of this process, in real time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

import torch

from tardygrad.constructors import constructor
from tardygrad.core import kernels
from tardygrad.core.messages import Job, Update
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task
from tardygrad.engines.real_time import Answer, RealTimePool, Running
from tardygrad.engines.slowed import perform_in_time
from tardygrad.errors import WorkFailed, check_integer
from tardygrad.fleet import Fleet

MOST_THREADS = 1024


class ThreadPool(RealTimePool):
    """Jobs on threads. Updates arrive in the order in which jobs finish; `tardygrad.replay` repeats that order.

    Args:
        workers: threads; clients share them, first come, first served.
        fleet: runtimes that the threads keep in real time; see `slowed`.
        second: real seconds for each second of the fleet; 0 ignores the fleet.
    """

    keeps_jobs = True

    @constructor
    def __init__(
        self, task: Task, method: Method, *, workers: int = 2, fleet: Fleet | None = None, second: float = 0.0
    ) -> None:
        check_integer("workers", workers, 1, MOST_THREADS)
        check_method(method)
        check_task(task)
        super().__init__(task, method, fleet=fleet, second=second)
        self.parallel = workers
        self._open()

    def _open(self) -> None:
        self._executor = ThreadPoolExecutor(self.parallel, thread_name_prefix="tardygrad")
        self._arrived: SimpleQueue[Future[Update] | None] = SimpleQueue()  # None: stop waiting
        self._began = time.monotonic()

    def _start(self, job: Job) -> Running:
        future = self._executor.submit(perform_in_time, job, self.task, self.method)
        future.add_done_callback(self._arrived.put)
        return Running(job, future)

    def _poll(self, seconds: float) -> Iterator[tuple[Running, Answer]]:
        with suppress(Empty):
            future = self._arrived.get(timeout=seconds)
            while future is not None:
                error = future.exception()
                if error is not None and not isinstance(error, WorkFailed):
                    raise error
                yield self.running[future], error or future.result()
                future = self._arrived.get_nowait()

    def _can_serve(self, client: int) -> bool:
        return True

    def interrupt(self, on: bool = True) -> None:
        super().interrupt(on)
        if on:
            self._arrived.put(None)

    def begin(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        super().close()


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
