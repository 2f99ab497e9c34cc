"""A prediction of the peak memory of a run's vectors.

How many vectors are alive at once depends only on the clock. So the server and the simulator are run without training,
and the models that they hold are counted. The parts:

    model          x, the round's sum and the outer step's state; for a task with a module also its initial weights, a
                   copy of the frozen ones, and the x and gradient that it keeps
    start vectors  past models that jobs in flight started from
    updates        δ, with DC also A: of the last update to arrive, and of those computed before they are due
    work           of a job: local x, gradient, clipped gradient, move, with DC also A; or of the server while it
                   completes a round: Δ and move. With several processes, of all, and what they read and send
    check sum      a new checkpoint, which is read back to compute its checksum

Data, activations, Python and torch are not counted.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from tardygrad.core.hierarchy import ServerLike, serve
from tardygrad.core.messages import Advanced, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.core.transforms import Step, Transform
from tardygrad.engines.sim.pool import AHEAD, SimPool
from tardygrad.engines.sim.process_pool import places
from tardygrad.errors import Invalid, Starved
from tardygrad.fleet import Fleet
from tardygrad.runs.loop import Event, drive
from tardygrad.tasks.clock import Clock

WORK = 4  # vectors of a job: local x, gradient, clipped gradient, move; with DC also A
ROUND = 2  # vectors of a round: clipped Δ, move; with DC one more, for drift, A ⊙ drift and δ − A ⊙ drift
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class Part(NamedTuple):
    """The vectors of one kind."""

    number: int | None  # None: not counted
    bytes: int  # of all together


class Memory(NamedTuple):
    """The peak memory of a run's vectors, and its parts."""

    peak: int  # bytes
    round: int  # of the peak
    rounds: int  # that were simulated
    parts: dict[str, Part]

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


class Needs(NamedTuple):
    """The bytes of one vector or set of vectors of each kind."""

    own: int  # vectors that exist all the time
    model: int  # x with its buffers
    update: int
    work: int  # of all jobs that are computed at once
    step: int  # of the server while it completes a round
    apart: bool = False  # whether jobs are computed while the server completes a round
    ahead: int = 0  # largest number of updates that are computed before they are due
    saved: bool = False  # whether checkpoints contain these
    checkpoint_every: int = 0  # rounds; 0: never
    outer: int = 0  # the part of `own` that checkpoints contain: states of steps


def needs(
    method: Method, task: Task, *, processes: int = 1, threads: int = 0, batch: int = 1, checkpoint_every: int = 0
) -> Needs:
    """The memory needs of a run.

    Args:
        processes: processes that compute jobs; 1 is this process, 0 is one for every core.
        threads: threads of this process that compute jobs besides the server's thread; 0: none.
        batch: number of jobs computed at once.
        checkpoint_every: rounds between checkpoints; 0: never.
    """
    d, dc = task.parameters, method.compensate
    processes = processes or len(os.sched_getaffinity(0))
    x, module_buffers = 4 * d, sum(tensor.nbytes for tensor in task.init_module_buffers() or ())
    module, frozen = _module(task)
    module_work = 2 * x if module else 0  # the x and gradient that the task keeps
    outer, inner = _state(method.outer, d), _state(method.inner, d)
    if method.regions:
        outer = len(method.regions.members(task.clients)) * outer + _state(method.regions.outer, d)
    if method.curvature:
        inner += _state(method.curvature.weigh, d)
    kept_states = task.clients * inner if method.keep else 0
    update = x * (1 + dc) + module_buffers + inner * method.keep
    job = (WORK + dc + method.inner.scratch) * x + module_buffers + inner
    step = (ROUND + dc) * x + outer  # the old state is kept until the round is complete
    sums = 1 + (len(method.regions.members(task.clients)) if method.regions else 0)
    own = (1 + sums) * x + module_buffers + outer + module + frozen + module_work + kept_states
    if processes > 1:
        work, ahead = (
            processes * (job + frozen + update) + update + places(processes) * (x + module_buffers),
            AHEAD * processes,
        )
    elif threads > 0:
        work, ahead = threads * (job + frozen), task.clients
    else:
        work, ahead = batch * job - module_work, task.clients if batch > 1 else 0  # a new job may be due earlier
    apart = processes > 1 or threads > 0
    return Needs(
        own, x + module_buffers, update, work, step, apart, ahead, batch > 1, checkpoint_every, outer + kept_states
    )


def _module(task: Task) -> tuple[int, int]:
    """The bytes of a task's module, and of its frozen weights, which every thread copies."""
    template: Any = getattr(task, "_template", None)
    if template is None:
        return 0, 0
    total = sum(tensor.nbytes for tensor in (*template.parameters(), *template.buffers()))
    return total, total - sum(p.nbytes for p in template.parameters() if p.requires_grad)


def _state(transform: Transform, parameters: int) -> int:
    """The bytes of a step's state: the bytes per parameter, measured after one step, times the parameters."""

    def after(n: int) -> int:
        x = torch.zeros(n)
        _, state = transform.update(x, transform.init(x), Step(1, (1,), x, x))
        return sum(value.nbytes for value in state.values())

    return (after(2) - after(1)) * parameters


class Watch:
    """Observes a run without training, and keeps its peak memory."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.alive: dict[int, ref[Tensor]] = {}  # models that are still referenced, x included, by id
        self.memory = Memory(0, 0, 0, {})

    def over(self, server: ServerLike, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events, and update the peak after each."""
        needs, last = self.needs, 0
        self._track(server)
        for event in events:
            if isinstance(event.happened, Advanced) or server.method.regions:  # servers exchange models at any message
                self._track(server, *(as_vector(job.x) for job in event.jobs))
            yield event  # now the caller no longer references the previous one
            if isinstance(event.happened, Advanced):
                self._note(server.round, len(server.roster.jobs), last, 1, needs.step + needs.work * needs.apart)
                if needs.checkpoint_every and server.round % needs.checkpoint_every == 0:
                    self._note_checkpoint(server)
            last = len(self.alive) - 1
            held = event.message is not None  # the last message is kept until the next arrives
            self._note(server.round, len(server.roster.jobs), last, int(held), needs.work)
        if needs.checkpoint_every:
            self._note_checkpoint(server)

    def _track(self, server: ServerLike, *sent: Tensor) -> None:
        for x in (*server.models(), *sent):
            self.alive.setdefault(id(x), ref(x, lambda _, name=id(x): self.alive.pop(name, None)))  # type: ignore[misc]

    def _note_checkpoint(self, server: ServerLike) -> None:
        needs, models = self.needs, len(self.alive)
        written = (
            models * needs.model + needs.outer + min(needs.ahead, len(server.roster.jobs)) * needs.update * needs.saved
        )
        self._note(server.round, len(server.roster.jobs), models - 1, 1, needs.work * needs.apart, written)

    def _note(self, at: int, jobs: int, starts: int, updates: int, work: int, written: int = 0) -> None:
        needs = self.needs
        updates += min(needs.ahead, jobs)
        parts = {
            "model": Part(None, needs.own),
            "start vectors": Part(starts, starts * needs.model),
            "updates": Part(updates, updates * needs.update),
            "work": Part(None, work),
            "check sum": Part(None, written),
        }
        peak = sum(part.bytes for part in parts.values())
        self.memory = self.memory._replace(rounds=at) if peak <= self.memory.peak else Memory(peak, at, at, parts)


def foresee(
    method: Method, task: Task, fleet: Fleet, needs: Needs, *, rounds: int, seed: int = 0, messages: int | None = None
) -> Memory:
    """The peak memory of a simulated run, if no update is refused for its content.

    Args:
        needs: see `needs`.
        messages: stop after this number of messages; None: at the end of the run.
    """
    clock = Clock(task.clients, task.parameters)
    server = serve(method, clock.init(seed), clients=task.clients, seed=seed)
    watch, pool = Watch(needs), SimPool(clock, method, fleet)
    with suppress(Starved):  # the run itself will report that
        for _ in islice(watch.over(server, drive(server, pool, rounds)), messages):
            pass
    return watch.memory


def bound(method: Method, task: Task, needs: Needs, *, rounds: int) -> Memory:
    """An upper bound for a run in real time, whose order is unknown: every job at work started from another round."""
    watch, server = Watch(needs), serve(method, torch.empty(0), clients=task.clients, seed=0)
    jobs = server.roster.places
    starts = 0 if method.mode == "sync" else min(jobs, rounds)
    starts += 3 * (len(server.levels) - 1)  # for each region its model, its reference and a message
    watch._note(0, jobs, starts, 1, needs.step + needs.work)
    return watch.memory._replace(round=rounds, rounds=rounds)


def size(number: int) -> str:
    """Format a number of bytes.

    >>> size(999), size(72_616), size(3_100_000_000)
    ('999 B', '72.6 kB', '3.1 GB')
    """
    power = min(int(math.log10(max(number, 1)) / 3), 4)
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
