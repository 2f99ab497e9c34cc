"""A crew of processes that do jobs, one torch thread each, and are replaced when they die.

Processes are forked, so the task and its data are there without being sent. Start vectors stand in memory that all
share; results travel as bytes, which can still be read when their sender is dead.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch
from torch import Tensor

from tardygrad.core.messages import Job, ModuleBuffers, Update, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.pool import perform
from tardygrad.errors import Invalid, WorkFailed

LIVES = 5  # deaths of processes over one job, after which it is the job's fault


class Hand:
    """One process, and the jobs it has been given in order."""

    def __init__(self, process: ForkProcess, line: Connection) -> None:
        self.process, self.line = process, line
        self.jobs: deque[Job] = deque()


class Shelf:
    """Places for models in memory that processes forked later see; one for all jobs that start from it."""

    def __init__(self, parameters: int, module_buffers: ModuleBuffers | None, places: int) -> None:
        self.x = _shared(places, parameters, torch.float32)
        self.floats = _shared(places, 0 if module_buffers is None else len(module_buffers.floats), torch.float32)
        self.ints = _shared(places, 0 if module_buffers is None else len(module_buffers.ints), torch.int64)
        self.free = list(range(places))
        self.standing: dict[int, int] = {}  # the id of a vector, which its jobs keep alive, to its place
        self.readers: Counter[int] = Counter()

    def put(self, job: Job) -> None:
        """Have a job's model stand somewhere."""
        name = id(job.x)
        if name not in self.standing:
            place = self.standing[name] = self.free.pop()
            self.x[place] = as_vector(job.x)
            if job.module_buffers is not None:
                self.floats[place], self.ints[place] = job.module_buffers
        self.readers[name] += 1

    def take(self, job: Job) -> None:
        """A job is done."""
        name = id(job.x)
        self.readers[name] -= 1
        if not self.readers[name]:
            self.free.append(self.standing.pop(name))
            del self.readers[name]


def _shared(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Memory without a name or a file: it ends with the last process."""
    if not columns:
        return torch.empty(rows, 0, dtype=dtype)
    memory = mmap(-1, rows * columns * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)


class Crew:
    """So many processes.

    Args:
        workers: how many; 0 is one for every core this process may use.
    """

    def __init__(self, task: Task, method: Method, workers: int) -> None:
        if "fork" not in mp.get_all_start_methods():
            raise Invalid(f"`workers` above 1 needs a system that can fork, got {workers}. Use workers=1.")
        self._context = mp.get_context("fork")
        if (device := getattr(task, "device", torch.device("cpu"))).type != "cpu":
            raise Invalid(f"`workers` above 1 compute on CPUs, got a task on {device}. Use workers=1.")
        self.task, self.method = task, method
        self.shelf = Shelf(task.parameters, task.init_module_buffers(), places(workers))
        self.deaths: dict[tuple[int, int], int] = {}
        self.hands: list[Hand] = []
        self.waiting: deque[Job] = deque()
        for _ in range(workers):
            self.hands.append(self._hire())

    def _hire(self) -> Hand:
        ours, theirs = self._context.Pipe()
        lines = [hand.line for hand in self.hands] + [ours]  # a child must not keep these open: they end with us
        work = (self.shelf, self.task, self.method)
        process = self._context.Process(target=_labour, args=(theirs, lines, *work), daemon=True)
        process.start()
        theirs.close()
        return Hand(process, ours)

    @property
    def at_hand(self) -> int:
        """Jobs given and not yet done."""
        return sum(len(hand.jobs) for hand in self.hands) + len(self.waiting)

    def give(self, job: Job) -> None:
        """Hand a job to whoever has least to do; one with a state, long to send, waits for someone with nothing."""
        self.shelf.put(job)
        hand = min(self.hands, key=lambda hand: len(hand.jobs))
        if job.state is not None and hand.jobs:
            self.waiting.append(job)
        else:
            self._send(hand, job)

    def _send(self, hand: Hand, job: Job) -> None:
        hand.jobs.append(job)
        place = self.shelf.standing[id(job.x)]  # what is sent is small: two long messages would wait for each other
        with suppress(OSError):  # a death is noticed when answers are collected
            state = None if job.state is None else {name: value.numpy() for name, value in job.state.items()}
            hand.line.send(
                job._asdict() | {"x": place, "module_buffers": job.module_buffers is not None, "state": state}
            )

    def collect(self, *, patiently: bool) -> list[tuple[Job, Update | WorkFailed]]:
        """What has been done, or has failed, since the last call; waits for something if asked to be patient."""
        done: list[tuple[Job, Update | WorkFailed]] = []
        while True:
            lines = {hand.line: hand for hand in self.hands if hand.jobs}
            for line in wait(list(lines), None if patiently and not done else 0):
                hand = lines[line]  # type: ignore[index]
                try:
                    answer = hand.line.recv()
                except (EOFError, OSError):
                    self._replace(hand)
                    continue
                job = hand.jobs.popleft()
                self.shelf.take(job)
                self.deaths.pop((job.client, job.serial), None)
                done.append((job, answer if isinstance(answer, WorkFailed) else each(answer, torch.from_numpy)))
                if self.waiting and not hand.jobs:
                    self._send(hand, self.waiting.popleft())
            if done or not patiently or not any(hand.jobs for hand in self.hands):
                return done

    def _replace(self, hand: Hand) -> None:
        """A process has died: another takes its jobs over from the start."""
        hand.line.close()
        hand.process.join()
        job = hand.jobs[0]
        deaths = self.deaths[job.client, job.serial] = self.deaths.get((job.client, job.serial), 0) + 1
        if deaths > LIVES:
            raise WorkFailed(
                f"the work of client {job.client}, job {job.serial}, from round {job.round} failed: {deaths} processes "
                f"died over it (exit code {hand.process.exitcode}). Is there enough memory? Try fewer workers."
            )
        self.hands.remove(hand)
        heir = self._hire()
        self.hands.append(heir)
        for job in hand.jobs:
            self._send(heir, job)

    def close(self) -> None:
        """Send everyone home; who is still at work is ended."""
        for hand in self.hands:
            hand.line.close()
            hand.process.terminate()
        for hand in self.hands:
            hand.process.join()
        self.hands = []


def places(workers: int) -> int:
    """How many start vectors a crew has room for: two jobs at hand for each process, and one that is due at once."""
    return 2 * workers + 1


def serve_parent() -> None:
    """For a forked process: leave Ctrl-C to the one that began it, and end at once when that one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def each(update: Update, change: Callable[[Any], Any]) -> Update:
    """An update with each of its vectors changed."""
    module_buffers = update.module_buffers and ModuleBuffers(*map(change, update.module_buffers))
    curvature = None if update.curvature is None else change(update.curvature)
    state = update.state and {name: change(value) for name, value in update.state.items()}
    return update._replace(delta=change(update.delta), curvature=curvature, module_buffers=module_buffers, state=state)


def _labour(line: Connection, others: list[Connection], shelf: Shelf, task: Task, method: Method) -> None:
    """The life of a process: jobs in, updates out, until the line goes dead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who gives the jobs
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            sent = line.recv()
        except (EOFError, OSError):
            os._exit(0)
        answer: Update | WorkFailed
        try:
            place = sent["x"]
            module_buffers = ModuleBuffers(shelf.floats[place], shelf.ints[place]) if sent["module_buffers"] else None
            job = Job(**(sent | {"x": shelf.x[place], "module_buffers": module_buffers}))
            if job.state is not None:
                job = job._replace(state={name: torch.from_numpy(value) for name, value in sent["state"].items()})
            answer = each(perform(job, task, method), Tensor.numpy)
        except WorkFailed as error:
            answer = WorkFailed(str(error))  # without its cause, which may not travel
        try:
            line.send(answer)
        except (BrokenPipeError, OSError):
            os._exit(0)
