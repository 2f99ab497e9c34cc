"""Memory, foreseen: the vectors that are alive at once in a run.

The clock alone decides how many those are, so the same server and pool run on the clock, with nothing to learn, and the
models they hold are counted. The parts:

    model          x, the round's sum and the outer step's state; of a module also the weights it was made with, a copy
                   of those that are frozen, and the x and gradient it keeps
    start vectors  past models: those that jobs in flight started from
    updates        δ, under DC also A: the last one to arrive, and those computed before they are due
    work           local x, gradient, a move on its way through clip and rate, under DC A; or the server's Δ and move
                   while it makes a round; with several processes that of all, what they read and what they send
    check sum      a checkpoint, read back when it has been written

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

WORK = 4  # local x, gradient, the clipped gradient, the move; under DC also A
ROUND = 2  # the clipped Δ, the move; under DC before that drift, A ⊙ drift, their difference
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class Part(NamedTuple):
    """So many of a kind, and their bytes together."""

    number: int | None  # where they are counted
    bytes: int


class Memory(NamedTuple):
    """The most memory that a run's vectors take at once, and what it is made of."""

    peak: int  # bytes
    round: int  # when
    rounds: int  # how far the clock was run
    parts: dict[str, Part]

    def __str__(self) -> str:
        sizes = []
        for name, (number, total) in self.parts.items():
            counted = name if number is None else f"{number} {name.removesuffix('s') if number == 1 else name}"
            sizes += [f"{counted} {size(total)}"] if total else []
        return f"{size(self.peak)} = {' + '.join(sizes)}"

    def check(self, limit: int) -> None:
        """Refuse a run whose vectors need more than so many bytes."""
        if self.peak > limit:
            fix = "Allow more, or use fewer clients at work (method.concurrency), fewer workers or a smaller model."
            raise Invalid(f"the vectors of this run must fit in {size(limit)}, got {self} in round {self.round}. {fix}")


class Needs(NamedTuple):
    """The bytes of one of each kind."""

    own: int  # what there is all the time
    model: int  # x with its buffers
    update: int
    work: int  # of everyone who computes jobs
    step: int  # of the server while it makes a round
    apart: bool = False  # jobs are computed while the server makes a round
    ahead: int = 0  # updates computed before they are due, at most
    saved: bool = False  # and checkpoints hold them
    checkpoint_every: int = 0  # rounds; 0: never
    outer: int = 0  # of `own`, what is remembered of steps, and checkpoints hold


def needs(
    method: Method, task: Task, *, processes: int = 1, threads: int = 0, batch: int = 1, checkpoint_every: int = 0
) -> Needs:
    """What a run keeps of each kind.

    Args:
        processes: those that compute jobs; 1 is this one, 0 is one for every core.
        threads: those of this process that compute jobs for the server's; 0 is none.
        batch: jobs that are computed at once.
        checkpoint_every: rounds; 0 is never.
    """
    d, dc = task.parameters, method.compensate
    processes = processes or len(os.sched_getaffinity(0))
    x, module_buffers = 4 * d, sum(tensor.nbytes for tensor in task.init_module_buffers() or ())
    made, frozen = _module(task)
    kept = 2 * x if made else 0
    outer, inner = _state(method.outer, d), _state(method.inner, d)
    if method.regions:
        outer = len(method.regions.members(task.clients)) * outer + _state(method.regions.outer, d)
    if method.curvature:
        inner += _state(method.curvature.weigh, d)
    kept_states = task.clients * inner if method.keep else 0
    update = x * (1 + dc) + module_buffers + inner * method.keep
    job = (WORK + dc + method.inner.scratch) * x + module_buffers + inner
    step = (ROUND + dc) * x + outer  # the state before stays until the round is made
    sums = 1 + (len(method.regions.members(task.clients)) if method.regions else 0)
    own = (1 + sums) * x + module_buffers + outer + made + frozen + kept + kept_states
    if processes > 1:
        work, ahead = (
            processes * (job + frozen + update) + update + places(processes) * (x + module_buffers),
            AHEAD * processes,
        )
    elif threads > 0:
        work, ahead = threads * (job + frozen), task.clients
    else:
        work, ahead = batch * job - kept, task.clients if batch > 1 else 0  # new jobs may overtake computed ones
    apart = processes > 1 or threads > 0
    return Needs(
        own, x + module_buffers, update, work, step, apart, ahead, batch > 1, checkpoint_every, outer + kept_states
    )


def _module(task: Task) -> tuple[int, int]:
    """The bytes of a task's module, and of those of its weights that are not trained: every thread copies them."""
    template: Any = getattr(task, "_template", None)
    if template is None:
        return 0, 0
    made = sum(tensor.nbytes for tensor in (*template.parameters(), *template.buffers()))
    return made, made - sum(p.nbytes for p in template.parameters() if p.requires_grad)


def _state(transform: Transform, parameters: int) -> int:
    """The bytes of a step's state: what one more parameter adds to it after one step, times all."""

    def after(n: int) -> int:
        x = torch.zeros(n)
        _, state = transform.update(x, transform.init(x), Step(1, (1,), x, x))
        return sum(value.nbytes for value in state.values())

    return (after(2) - after(1)) * parameters


class Watch:
    """Sees a run on the clock go by, and remembers its peak."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.alive: dict[int, ref[Tensor]] = {}  # the models of all rounds that somebody still holds, x included
        self.memory = Memory(0, 0, 0, {})

    def over(self, server: ServerLike, events: Iterable[Event]) -> Iterator[Event]:
        """The events, each seen."""
        needs, last = self.needs, 0
        self._born(server)
        for event in events:
            if isinstance(event.happened, Advanced) or server.method.regions:  # servers exchange models at any message
                self._born(server, *(as_vector(job.x) for job in event.jobs))
            yield event  # now the caller has let go of the one before
            if isinstance(event.happened, Advanced):
                self._note(server.round, len(server.roster.jobs), last, 1, needs.step + needs.work * needs.apart)
                if needs.checkpoint_every and server.round % needs.checkpoint_every == 0:
                    self._written(server)
            last = len(self.alive) - 1
            held = event.message is not None  # the last message stays until the next is there
            self._note(server.round, len(server.roster.jobs), last, int(held), needs.work)
        if needs.checkpoint_every:
            self._written(server)

    def _born(self, server: ServerLike, *sent: Tensor) -> None:
        for x in (*server.models(), *sent):
            self.alive.setdefault(id(x), ref(x, lambda _, name=id(x): self.alive.pop(name, None)))  # type: ignore[misc]

    def _written(self, server: ServerLike) -> None:
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
    """The peak of a simulated run, as far as nothing is refused for what it contains.

    Args:
        needs: see `needs`.
        messages: look no further ahead than so many; None is to the end.
    """
    clock = Clock(task.clients, task.parameters)
    server = serve(method, clock.init(seed), clients=task.clients, seed=seed)
    watch, pool = Watch(needs), SimPool(clock, method, fleet)  # the last checkpoint has what is then under way
    with suppress(Starved):  # the run itself will say so
        for _ in islice(watch.over(server, drive(server, pool, rounds)), messages):
            pass
    return watch.memory


def bound(method: Method, task: Task, needs: Needs, *, rounds: int) -> Memory:
    """What a run on the real clock, which nobody foresees, takes at most: every job at work from another round."""
    watch, server = Watch(needs), serve(method, torch.empty(0), clients=task.clients, seed=0)
    places = server.roster.places
    starts = 0 if method.mode == "sync" else min(places, rounds)
    starts += 3 * (len(server.levels) - 1)  # of a region its model, its reference and a message
    watch._note(0, places, starts, 1, needs.step + needs.work)
    return watch.memory._replace(round=rounds, rounds=rounds)


def size(number: int) -> str:
    """So many bytes, for people.

    >>> size(999), size(72_616), size(3_100_000_000)
    ('999 B', '72.6 kB', '3.1 GB')
    """
    power = min(int(math.log10(max(number, 1)) / 3), 4)
    return f"{number / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def read_size(text: str) -> int:
    """A number of bytes, as people write it.

    >>> read_size("8GB"), read_size("1.5 GiB"), read_size("4096")
    (8000000000, 1610612736, 4096)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(found[2].upper()) if found else None
    if not found or unit is None or len(found[1]) > 30 or int(float(found[1]) * unit) < 1:
        shown = text if len(text) < 40 else f"{text[:40]}…"
        raise Invalid(f"an amount of memory must be 1 byte or more, as in 500MB, 8GB, 8GiB or 1TB, got {shown!r}.")
    return int(float(found[1]) * unit)
