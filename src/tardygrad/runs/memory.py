"""A forecast of the peak memory of a run's vectors.

How many vectors are alive at once depends only on the clock. So the server and the simulator are run without training,
and the models that they hold are counted. The parts:

    model          x, the round's sum and the outer step's state; for a task with a module also its weights, which
                   share the frozen ones, a copy of its buffers, and the x and gradient that it keeps
    start vectors  past models that jobs in flight started from
    updates        δ, with DC also A: of the last update to arrive, and of those computed before they are due
    work           of a job: local x, gradient, clipped gradient, move, with DC also A; or of the server while it
                   completes a round: Δ and move. With several processes, of all, and what they read and send
    checkpoint     a new checkpoint, which is read back to compute its checksum

Data, activations, Python and torch are not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor

from tardygrad.core.hierarchy import ServerLike, serve
from tardygrad.core.messages import Advanced, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.core.transforms import Step, Transform
from tardygrad.engines.processes import usable_cores
from tardygrad.engines.sim.pool import RESULTS_PER_PROCESS
from tardygrad.engines.sim.process_pool import model_slots
from tardygrad.errors import Invalid, Starved
from tardygrad.fleet import Fleet
from tardygrad.runs.loop import Event, clock_only, drive

WORK = 4  # vectors of a job: local x, gradient, clipped gradient, move; with DC also A
ROUND = 2  # vectors of a round: clipped Δ, move; with DC one more, for drift, A ⊙ drift and δ − A ⊙ drift
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class MemoryPart(NamedTuple):
    """The vectors of one kind."""

    number: int | None  # None: not counted
    bytes: int  # of all together


class Memory(NamedTuple):
    """The peak memory of a run's vectors, and its parts."""

    peak: int  # bytes
    round: int  # of the peak
    rounds: int  # that were simulated
    parts: dict[str, MemoryPart]

    def __str__(self) -> str:
        sizes = []
        for name, (number, total) in self.parts.items():
            counted = name if number is None else f"{number} {name.removesuffix('s') if number == 1 else name}"
            sizes += [f"{counted} {size(total)}"] if total else []
        return f"{size(self.peak)} = {' + '.join(sizes)}"

    def check(self, limit: int) -> None:
        """Raise `Invalid` if the vectors need more than `limit` bytes."""
        if self.peak > limit:
            fix = "Allow more, or use fewer clients at work (method.concurrency), fewer workers or a smaller model."
            raise Invalid(f"the vectors of this run must fit in {size(limit)}, got {self} in round {self.round}. {fix}")


class Meter:
    """Counts the vectors of a run without training, and keeps its peak memory.

    Args:
        processes: processes that compute jobs; 1 is this process, 0 is one for every core.
        threads: threads of this process that compute jobs besides the server's thread; 0: none.
        batch: number of jobs computed at once.
        checkpoint_every: rounds between checkpoints; 0: never.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        *,
        processes: int = 1,
        threads: int = 0,
        batch: int = 1,
        checkpoint_every: int = 0,
    ) -> None:
        self.method, self.task, self.checkpoint_every = method, task, checkpoint_every
        self.alive: dict[int, ref[Tensor]] = {}  # models that are still referenced, x included, by id
        self.memory = Memory(0, 0, 0, {})
        d, dc, clients = task.parameters, method.compensate, task.clients
        x, module_buffers = 4 * d, sum(tensor.nbytes for tensor in task.init_module_buffers() or ())
        module, copied = task.module_bytes()  # copied: per thread
        module_work = 2 * x if module else 0  # the x and gradient that the task keeps
        regions = len(method.regions.members(clients)) if method.regions else 0
        outer = _state(method.outer, d) * (regions or 1)
        inner = _state(method.inner, d) if method.has_local_steps else 0  # else the task's own loop has the state
        outer += _state(method.regions.outer, d) if method.regions else 0
        inner += _state(method.curvature.weigh, d) if method.curvature else 0
        job = (WORK + dc + method.inner.scratch) * x + module_buffers + inner
        self.states = outer + (clients * inner if method.keep else 0)  # bytes of the states of all steps
        self.model = x + module_buffers  # bytes of a model
        self.update = x * (1 + dc) + module_buffers + inner * bool(method.keep)  # bytes of an update
        # bytes of all that exists during the whole run
        self.own = (1 + regions) * x + self.model + self.states + module + copied + module_work
        self.step = (ROUND + dc) * x + outer  # bytes at the end of a round; the old state is kept until it is complete
        processes = processes or usable_cores()
        self.apart = processes > 1 or threads > 0  # whether jobs are computed while the server completes a round
        self.batched = batch > 1  # whether several jobs are computed together
        self.work: int  # bytes of the jobs that are computed at once
        self.ahead: int  # the largest number of updates that are computed before they are due
        if processes > 1:
            self.work = processes * (job + copied + self.update) + self.update + model_slots(processes) * self.model
            self.ahead = RESULTS_PER_PROCESS * processes
        elif threads > 0:
            self.work, self.ahead = threads * (job + copied), clients
        else:
            self.work, self.ahead = batch * job - module_work, clients if self.batched else 0

    def follow(self, server: ServerLike, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events of a run, and update the peak after each."""
        starts = 0
        self._track(server.models())
        for event in events:
            advanced = isinstance(event.happened, Advanced)
            if advanced or self.method.regions:  # servers exchange models at any message
                self._track([*server.models(), *(as_vector(job.x) for job in event.jobs)])
            yield event  # now the caller no longer references the previous one
            jobs = len(server.roster.jobs)
            if advanced:
                self._note(server.round, jobs, starts, 1, self.step + self.work * self.apart)
                if self.checkpoint_every and server.round % self.checkpoint_every == 0:
                    self._note_checkpoint(server.round, jobs)
            starts = len(self.alive) - 1
            held = event.message is not None  # the last message is kept until the next arrives
            self._note(server.round, jobs, starts, int(held), self.work)
        if self.checkpoint_every:
            self._note_checkpoint(server.round, len(server.roster.jobs))

    def forecast(
        self,
        fleet: Fleet,
        *,
        rounds: int | None,
        until: float | None = None,
        seed: int = 0,
        messages: int | None = None,
    ) -> Memory:
        """The peak memory of a simulated run, if no update is refused for its content.

        Args:
            messages: stop after this number of messages; None: at the end of the run.
        """
        server, pool = clock_only(self.method, fleet, parameters=self.task.parameters, seed=seed)
        with suppress(Starved):  # the run itself will report that
            for _ in islice(self.follow(server, drive(server, pool, rounds, until=until)), messages):
                pass
        return self.memory

    def bound(self, *, rounds: int | None) -> Memory:
        """An upper bound for a run in real time, whose order is unknown: every job started from another round."""
        server = serve(self.method, torch.empty(0), clients=self.task.clients, seed=0)
        jobs = server.roster.slots
        starts = 0 if self.method.mode == "sync" else min(jobs, rounds or jobs)
        starts += 3 * (len(server.levels) - 1)  # for each region its model, its reference and a message
        self._note(rounds or 0, jobs, starts, 1, self.step + self.work)
        return self.memory

    def _track(self, models: Iterable[Tensor]) -> None:
        for x in models:
            self.alive.setdefault(id(x), ref(x, lambda _, name=id(x): self.alive.pop(name, None)))  # type: ignore[misc]

    def _note_checkpoint(self, round: int, jobs: int) -> None:
        models, updates = len(self.alive), min(self.ahead, jobs) if self.batched else 0
        written = models * self.model + self.states + updates * self.update
        self._note(round, jobs, models - 1, 1, self.work * self.apart, written)

    def _note(self, round: int, jobs: int, starts: int, updates: int, work: int, checkpoint: int = 0) -> None:
        updates += min(self.ahead, jobs)
        parts = {
            "model": MemoryPart(None, self.own),
            "start vectors": MemoryPart(starts, starts * self.model),
            "updates": MemoryPart(updates, updates * self.update),
            "work": MemoryPart(None, work),
            "checkpoint": MemoryPart(None, checkpoint),
        }
        peak = sum(part.bytes for part in parts.values())
        self.memory = self.memory._replace(rounds=round)
        if peak > self.memory.peak:
            self.memory = Memory(peak, round, round, parts)


def _state(transform: Transform, parameters: int) -> int:
    """The bytes of a step's state: the bytes per parameter, measured after one step, times the parameters."""

    def after(n: int) -> int:
        x = torch.zeros(n)
        _, state = transform.update(x, transform.init(x), Step(1, (1,), x, x))
        return sum(value.nbytes for value in state.values())

    return (after(2) - after(1)) * parameters


def size(number: int) -> str:
    """Format a number of bytes.

    >>> size(999), size(72_616), size(999_999), size(3_100_000_000)
    ('999 B', '72.6 kB', '1 MB', '3.1 GB')
    """
    power = min(int(math.log10(max(float(f"{number:.3g}"), 1)) / 3), 4)
    return f"{number / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def read_size(text: str) -> int:
    """Parse a number of bytes.

    >>> read_size("8GB"), read_size("1.5 GiB"), read_size("4096")
    (8000000000, 1610612736, 4096)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(found[2].upper()) if found else None
    if not found or unit is None or len(found[1]) > 30 or int(float(found[1]) * unit) < 1:
        shown = text if len(text) < 40 else f"{text[:40]}…"
        raise Invalid(f"an amount of memory must be 1 byte or more, as in 500MB, 8GB, 8GiB or 1TB, got {shown!r}.")
    return int(float(found[1]) * unit)
