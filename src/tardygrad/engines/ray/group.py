"""A worker that is a group of processes under `torch.distributed`, for training loops with DDP, FSDP2 or the like.

The actor computes nothing. It starts the processes (ranks) on its machine, in the environment that torchrun would give
them, sends every job to all of them, and answers with the result of rank 0. If one of them dies, the actor ends the
others and itself: the whole worker is lost, and the pool replaces it. If one raises an error, the run fails with it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import distributed

from tardygrad.core.own_loop import OwnLoop
from tardygrad.core.task import Task
from tardygrad.engines.processes import POLL, Children, Ended
from tardygrad.engines.ray.worker import Alive, WorkerProcess
from tardygrad.engines.wire import Wire
from tardygrad.errors import Invalid, check_integer, type_and_first_line

DEATH_GRACE = 3.0
"""Seconds after an error of a rank in which the death of another is taken for its cause."""


def check_group(task: Task, processes: int, gpus: float) -> None:
    """Raise `Invalid` unless workers can be groups of this number of processes."""
    check_integer("processes_per_worker", processes)
    if processes == 1:
        return
    if not isinstance(task, OwnLoop):
        rule = "`processes_per_worker` above 1 needs a task with a training loop of its own, such as a TrainerTask"
        raise Invalid(f"{rule}, got {processes} with a {type(task).__name__}.")
    if gpus not in (0, processes):
        rule = f"`gpus_per_worker` must be 0 or one for each of the worker's {processes} processes"
        raise Invalid(f"{rule}, got {gpus:g}. Use gpus_per_worker={processes}.")


class WorkerGroup:
    """The actor of a group. The arguments are those of `WorkerProcess`, and the number of processes."""

    def __init__(
        self,
        payload: bytes,
        loads: Callable[[bytes], Any],
        threads: int,
        device: str | None,
        wire: Wire,
        shard_bounds: list[int],
        processes: int,
    ) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        host, port = listener.getsockname()
        options: Any = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
        self._store = distributed.TCPStore(host, port, **options)  # type: ignore[attr-defined]
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        shared = {
            "MASTER_ADDR": host, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
            "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback,
        }  # fmt: skip
        self._children = Children()
        own = [{"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)]
        self._ranks = [self._children.start_fresh(run_rank, shared | each) for each in own]
        self._failed = False  # a rank has raised an error: the others may wait for it
        self._settings: tuple[Any, ...] = (payload, loads, threads, device, wire, shard_bounds)  # until it has loaded
        self._load_error = ""

    def begun(self) -> None:
        """See `WorkerProcess.begun`."""

    def ping(self) -> Alive:
        """See `WorkerProcess.ping`."""
        if self._settings:
            self._load_error, self._settings = self._all(*self._settings)[0] or "", ()
        return Alive(os.getpid(), socket.gethostname(), self._load_error)

    def work(self, *arguments: Any) -> tuple[Any, ...]:
        """Do a job on all ranks; see `WorkerProcess.work`."""
        return self._all(*arguments)

    def _all(self, *arguments: Any) -> tuple[Any, ...]:
        """Send arguments to all ranks; returns the answer of rank 0, or the first answer that is an error message."""
        self._check()
        for rank in self._ranks:
            rank.send(arguments)
        waiting, first = set(self._ranks), ()
        while waiting:
            for rank, answer in self._children.answers(POLL, of=waiting):
                if isinstance(answer, Ended):
                    self._end()
                if isinstance(answer[0], str):
                    return self._error(self._ranks.index(rank), answer)
                waiting.remove(rank)
                first = answer if rank is self._ranks[0] else first
            self._check()
        return first

    def _error(self, i: int, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        """The error of a rank, unless a rank has died: then that is the cause, and the worker is lost."""
        until = time.monotonic() + DEATH_GRACE
        while time.monotonic() < until:
            self._check()
            time.sleep(POLL)
        self._failed = True
        return f"{answer[0]} (rank {i})", *answer[1:]

    def _check(self) -> None:
        """End this worker if a rank has died, or cannot be used after an error."""
        if self._failed or any(rank.code is not None for rank in self._ranks):
            self._end()

    def _end(self) -> NoReturn:
        self._children.close()
        os._exit(1)


def run_rank(pipe: Any) -> None:
    """The life of a rank: join the group, then do jobs."""
    rank = int(os.environ["RANK"])
    worker: WorkerProcess | None = None
    answer: tuple[Any, ...]
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        try:
            if worker is None:
                worker = _join(rank, *arguments)
                answer = (worker.ping().error or None,)
            else:
                answer = worker.work(*arguments)
        except Exception as error:
            answer = (type_and_first_line(error),)
        pipe.send(answer if rank == 0 or isinstance(answer[0], str) else (None,))


def _join(
    rank: int, payload: bytes, loads: Callable[[bytes], Any], threads: int, device: str | None, *others: Any
) -> WorkerProcess:
    """Join the process group."""
    if device:
        device = f"{device}:{rank}"
        torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if device else "gloo")
    return WorkerProcess(payload, loads, threads, device, *others)
