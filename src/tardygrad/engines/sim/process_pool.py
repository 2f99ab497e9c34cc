"""Processes that compute jobs, one torch thread each, and are replaced when they die.

Processes are forked, so they inherit the task and its data. Start vectors are in shared memory. Results are sent
through pipes, which can still be read after the sender has died.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections import Counter, deque
from contextlib import suppress
from mmap import mmap
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tardygrad.core.messages import NOTHING, Job, ModuleBuffers, Update, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.child_process import ChildProcess
from tardygrad.engines.contract import perform
from tardygrad.errors import Invalid, WorkFailed

VECTORS_PER_PROCESS = 6  # at least: two start vectors, and the local x, gradient, clipped gradient and move of a job
RETRIES = 5  # how often a job is repeated after its process died, before the run fails
STOPPED = 5.0  # seconds without an answer after which processes that were stopped are replaced


class PoolProcess(ChildProcess):
    """A process and its jobs in order."""

    def __init__(self, *args: Any) -> None:
        super().__init__(_process_main, *args)
        self.jobs: deque[Job] = deque()


class SharedModels:
    """Models in memory that is shared with processes forked later; each is stored once for all its jobs."""

    def __init__(self, parameters: int, module_buffers: ModuleBuffers | None, slots: int) -> None:
        self.x = _shared(slots, parameters, torch.float32)
        self.floats = _shared(slots, 0 if module_buffers is None else len(module_buffers.floats), torch.float32)
        self.ints = _shared(slots, 0 if module_buffers is None else len(module_buffers.ints), torch.int64)
        self.free = list(range(slots))
        self.slot_of: dict[int, int] = {}  # by the id of a vector, which its jobs keep alive
        self.readers: Counter[int] = Counter()

    def put(self, job: Job) -> None:
        """Store a job's model, unless another job has it already."""
        model_id = id(job.x)
        if model_id not in self.slot_of:
            slot = self.slot_of[model_id] = self.free.pop()
            self.x[slot] = as_vector(job.x)
            if job.module_buffers is not None:
                self.floats[slot], self.ints[slot] = job.module_buffers
        self.readers[model_id] += 1

    def take(self, job: Job) -> None:
        """Release a job's model; its slot is free when no job needs it."""
        model_id = id(job.x)
        self.readers[model_id] -= 1
        if not self.readers[model_id]:
            self.free.append(self.slot_of.pop(model_id))
            del self.readers[model_id]


def _shared(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Anonymous shared memory, freed with the last process."""
    if not columns:
        return torch.empty(rows, 0, dtype=dtype)
    memory = mmap(-1, rows * columns * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)


class ProcessPool:
    """Processes that compute jobs.

    Args:
        workers: number of processes, at least 1.
    """

    def __init__(self, task: Task, method: Method, workers: int) -> None:
        if "fork" not in mp.get_all_start_methods():
            raise Invalid(f"`workers` above 1 needs a system that can fork, got {workers}. Use workers=1.")
        if mp.current_process().daemon:
            rule = "`workers` above 1 needs a process that may start others, and this one is a daemon"
            raise Invalid(f"{rule}, got {workers}. Use workers=1, or start this process with daemon=False.")
        if (device := getattr(task, "device", torch.device("cpu"))).type != "cpu":
            raise Invalid(f"`workers` above 1 compute on CPUs, got a task on {device}. Use workers=1.")
        _check_memory(task, workers)
        self.task, self.method = task, method
        self.models = SharedModels(task.parameters, task.init_module_buffers(), model_slots(workers))
        self.deaths: dict[tuple[int, int], int] = {}
        self.processes: list[PoolProcess] = []
        self.waiting: deque[Job] = deque()
        for _ in range(workers):
            self.processes.append(self._start())

    def _start(self) -> PoolProcess:
        others = [worker.pipe for worker in self.processes]  # the child must close these
        return PoolProcess(others, self.models, self.task, self.method)

    @property
    def assigned(self) -> int:
        """The number of jobs that are assigned and not yet done."""
        return sum(len(worker.jobs) for worker in self.processes) + len(self.waiting)

    def give(self, job: Job) -> None:
        """Assign a job to the least busy process. A job with a state, which is long to send, waits for an idle one."""
        self.models.put(job)
        worker = min(self.processes, key=lambda worker: len(worker.jobs))
        if job.state is not None and worker.jobs:
            self.waiting.append(job)
        else:
            self._send(worker, job)

    def _send(self, worker: PoolProcess, job: Job) -> None:
        worker.jobs.append(job)
        slot = self.models.slot_of[id(job.x)]  # messages to a busy process must be short, or both sides could block
        with suppress(OSError):  # `collect` notices that the process is dead
            small_job = job._replace(x=NOTHING, module_buffers=None)
            worker.pipe.send((tree_map_only(Tensor, Tensor.numpy, small_job), slot, job.module_buffers is not None))

    def collect(self) -> list[tuple[Job, Update | WorkFailed]]:
        """The jobs finished or failed since the last call; waits for one if there is none."""
        done: list[tuple[Job, Update | WorkFailed]] = []
        while not done and (pipes := {worker.pipe: worker for worker in self.processes if worker.jobs}):
            ready = wait(list(pipes), timeout=STOPPED)
            for worker in () if ready else pipes.values():
                if _is_stopped(worker.process):
                    worker.process.kill()
            for pipe in ready:
                worker = pipes[pipe]  # type: ignore[index]
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    self._replace(worker)
                    continue
                job = worker.jobs.popleft()
                self.models.take(job)
                self.deaths.pop((job.client, job.serial), None)
                done.append((job, tree_map_only(np.ndarray, torch.from_numpy, answer)))
                if self.waiting and not worker.jobs:
                    self._send(worker, self.waiting.popleft())
        return done

    def _replace(self, worker: PoolProcess) -> None:
        """Replace a process that has died; the new one repeats its jobs."""
        code = worker.join()
        job = worker.jobs[0]
        deaths = self.deaths[job.client, job.serial] = self.deaths.get((job.client, job.serial), 0) + 1
        if deaths > RETRIES:
            raise WorkFailed(
                f"the work of {job} failed: {deaths} processes died while computing it "
                f"(exit code {code}). Is there enough memory? Try fewer workers."
            )
        self.processes.remove(worker)
        successor = self._start()
        self.processes.append(successor)
        for job in worker.jobs:
            self._send(successor, job)

    def close(self) -> None:
        """Terminate all processes."""
        for worker in self.processes:
            worker.process.terminate()
        for worker in self.processes:
            worker.join()
        self.processes = []


def _is_stopped(process: BaseProcess) -> bool:
    """Whether someone has stopped a process (SIGSTOP), where the system tells."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def _check_memory(task: Task, workers: int) -> None:
    """Raise `Invalid` if the vectors of all processes cannot be in memory."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = 4 * task.parameters * VECTORS_PER_PROCESS
    if workers * each > has:
        needs = f"{VECTORS_PER_PROCESS} vectors of {task.parameters:,} numbers, {each / 1e9:.3g} GB"
        rule = f"`workers` must be at most {has // each}: each needs {needs}, and this machine has {has / 1e9:.3g} GB"
        raise Invalid(f"{rule}, got {workers:,}.")


def model_slots(workers: int) -> int:
    """The most start vectors in shared memory: two for each process, and one for a job that is due at once."""
    return 2 * workers + 1


def _process_main(pipe: Connection, others: list[Connection], models: SharedModels, task: Task, method: Method) -> None:
    """The loop of a process: jobs in, updates out, until the pipe closes."""
    mp.current_process().daemon = False  # a daemon may not start the processes of a DataLoader
    for other in others:
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            message, slot, has_buffers = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        answer: Update | WorkFailed
        try:
            job: Job = tree_map_only(np.ndarray, torch.from_numpy, message)
            module_buffers = ModuleBuffers(models.floats[slot], models.ints[slot]) if has_buffers else None
            job = job._replace(x=models.x[slot], module_buffers=module_buffers)
            answer = tree_map_only(Tensor, Tensor.numpy, perform(job, task, method))
        except WorkFailed as error:
            answer = WorkFailed(str(error))  # without its cause, which may not be picklable
        try:
            pipe.send(answer)
        except (BrokenPipeError, OSError):
            os._exit(0)
