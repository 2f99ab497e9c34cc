"""Processes that compute jobs, one torch thread each, and are replaced when they die.

Processes are forked, so they inherit the task and its data. Start vectors are in shared memory. Results are sent
through pipes, which can still be read after the sender has died.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections import Counter, deque
from mmap import mmap
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tardygrad.core.messages import NOTHING, Job, ModuleBuffers, Update, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.contract import perform
from tardygrad.engines.processes import Child, Children, Ended
from tardygrad.errors import Invalid, WorkFailed

VECTORS_PER_PROCESS = 6  # at least: two start vectors, and the local x, gradient, clipped gradient and move of a job
RETRIES = 5  # how often a job is repeated after its process died, before the run fails


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
        self.deaths = Counter[tuple[int, int]]()
        self.waiting: deque[Job] = deque()
        self.children = Children()
        self.jobs: dict[Child, deque[Job]] = {self._start(): deque() for _ in range(workers)}  # in order

    def _start(self) -> Child:
        return self.children.start(_process_main, self.models, self.task, self.method)

    @property
    def assigned(self) -> int:
        """The number of jobs that are assigned and not yet done."""
        return sum(map(len, self.jobs.values())) + len(self.waiting)

    def give(self, job: Job) -> None:
        """Assign a job to the least busy process. A job with a state, which is long to send, waits for an idle one."""
        self.models.put(job)
        child = min(self.jobs, key=lambda child: len(self.jobs[child]))
        if job.state is not None and self.jobs[child]:
            self.waiting.append(job)
        else:
            self._send(child, job)

    def _send(self, child: Child, job: Job) -> None:
        self.jobs[child].append(job)
        slot = self.models.slot_of[id(job.x)]  # messages to a busy process must be short, or both sides could block
        small_job = job._replace(x=NOTHING, module_buffers=None)
        child.send((tree_map_only(Tensor, Tensor.numpy, small_job), slot, job.module_buffers is not None))

    def collect(self) -> list[tuple[Job, Update | WorkFailed]]:
        """The jobs finished or failed since the last call; waits for one if there is none."""
        done: list[tuple[Job, Update | WorkFailed]] = []
        while not done and (busy := [child for child, jobs in self.jobs.items() if jobs]):
            for child, answer in self.children.answers(of=busy):
                if isinstance(answer, Ended):
                    self._replace(child, answer)
                    continue
                job = self.jobs[child].popleft()
                self.models.take(job)
                self.deaths.pop((job.client, job.serial), None)
                done.append((job, tree_map_only(np.ndarray, torch.from_numpy, answer)))
                if self.waiting and not self.jobs[child]:
                    self._send(child, self.waiting.popleft())
        return done

    def _replace(self, child: Child, ended: Ended) -> None:
        """Replace a process that has died; the new one repeats its jobs."""
        jobs = self.jobs.pop(child)
        job = jobs[0]
        self.deaths[job.client, job.serial] += 1
        if (deaths := self.deaths[job.client, job.serial]) > RETRIES:
            raise WorkFailed(
                f"the work of {job} failed: {deaths} processes died while computing it "
                f"(exit code {ended.code}). Is there enough memory? Try fewer workers."
            )
        self.jobs[successor := self._start()] = deque()
        for job in jobs:
            self._send(successor, job)

    def close(self) -> None:
        """End all processes."""
        self.children.close()
        self.jobs = {}


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


def _process_main(pipe: Connection, models: SharedModels, task: Task, method: Method) -> None:
    """The loop of a process: jobs in, updates out, until the pipe closes."""
    mp.current_process().daemon = False  # a daemon may not start the processes of a DataLoader
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
