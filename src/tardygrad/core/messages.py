"""The messages between server and clients, and the server's replies. Plain data; rounds serve as time stamps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.core.kernels import Outcome
from tardygrad.core.transforms import State

Vector = Tensor
"""One flat float32 tensor: a model, a delta, a curvature."""

NOTHING = torch.empty(0)
"""A placeholder for a vector that is no longer needed."""

Reason = Literal[
    "not finite", "wrong shape", "unknown job", "finished job", "from the future", "too stale", "lost on the way"
]
"""Why the server refuses an update; "lost on the way": a part of it was on a machine that failed."""


class Parts(NamedTuple):
    """A vector whose slices are in other processes: one reference for each slice, which only the engine can resolve.

    In an update, each reference is to a slice of δ and, if the method compensates, of A.
    """

    references: tuple[Any, ...]


class StateReference(NamedTuple):
    """A client's inner state that has stayed on its worker, after the client's job `serial`.

    The server gives it back with the client's next job, which goes to that worker. If the worker is gone, the state is
    lost, and begins anew.
    """

    worker: str
    serial: int


def as_vector(v: Vector | Parts) -> Vector:
    """Return v; raise `TypeError` if it is not in this process."""
    if isinstance(v, Parts):
        raise TypeError(f"a vector must be in this process, got references to {len(v.references)} slices.")
    return v


class ModuleBuffers(NamedTuple):
    """A model's buffers, such as BatchNorm's statistics, which the algorithm does not optimize."""

    floats: Tensor  # averaged over the M updates of a round
    ints: Tensor  # averaged too, and rounded

    def clone(self) -> ModuleBuffers:
        """A copy that may be changed in place."""
        return ModuleBuffers(self.floats.clone(), self.ints.clone())

    @staticmethod
    def merge(updates: Sequence[ModuleBuffers | None]) -> ModuleBuffers:
        """Merge the buffers of a round's updates."""
        given = [each for each in updates if each]
        floats = torch.stack([each.floats.double() for each in given]).mean(0)  # a sum in float32 may overflow
        ints = torch.stack([each.ints for each in given])
        least = ints.amin(0)  # float64 is exact for the differences, if not for the numbers themselves
        return ModuleBuffers(floats.float(), least + (ints - least).double().mean(0).round().to(ints.dtype))


class Job(NamedTuple):
    """Local work for one client, starting from x_s; identified by (client, serial)."""

    client: int
    serial: int  # how many jobs this client was given before
    round: int  # s
    x: Vector | Parts  # x_s
    steps: int | None  # K local steps, or
    epochs: int | None  # K local epochs
    seed: int
    module_buffers: ModuleBuffers | None = None
    state: State | StateReference | None = None  # the inner step's, after this client's last job, if it is kept

    def __str__(self) -> str:
        return f"client {self.client}, job {self.serial}, from round {self.round}"

    def stream(self, purpose: str, *numbers: int) -> np.random.Generator:
        """The job's random numbers for a purpose; the same on every engine."""
        return streams.generator(self.seed, purpose, self.client, self.serial, *numbers)

    def copied(self) -> Job:
        """The same job with a model of its own, for code that may change it: jobs of a round share x_s."""
        buffers = self.module_buffers.clone() if self.module_buffers else None
        return self._replace(x=as_vector(self.x).clone(), module_buffers=buffers)


class Update(NamedTuple):
    """The result of a job."""

    client: int
    serial: int
    round: int  # s
    delta: Vector | Parts  # δ_i = x_{i,K} − x_s
    curvature: Vector | None = None  # A_i, if the method compensates
    module_buffers: ModuleBuffers | None = None
    steps: int = 0  # local steps done
    loss: float = math.nan  # mean over those steps
    clipped: float = 0.0  # mean share of clipped gradient coordinates
    state: State | StateReference | None = None  # of the inner step, if the method keeps it
    down: int = 0  # size of the job in bytes, if the engine sends it over a network
    up: int = 0  # size of the update in bytes
    worker: str = ""  # that did the job, if the engine has workers
    node: str = ""  # the worker's machine
    state_lost: bool = False  # whether the job began with a new state, because its own was lost with a worker
    fault: str = ""  # why it is not finite; see faults.py

    def without_vectors(self) -> Update:
        """A copy without delta, curvature and state, to keep after the server has used them."""
        return self._replace(delta=NOTHING, curvature=None, state=None)


class Lost(NamedTuple):
    """A client is lost, and its job with it; it gets no job until it has joined again."""

    client: int


class Joined(NamedTuple):
    """A lost client has returned, and can get jobs again; no effect on a client that is not lost."""

    client: int


AtEnd = Literal["suspend", "cancel", "finish"]
"""What happens to a client's job when the client falls asleep: it waits until the client is
awake, is lost, or is finished first."""


class Asleep(NamedTuple):
    """A client is not available: it gets no job until it is awake again."""

    client: int
    job: AtEnd = "suspend"  # what happens to its job, if it has one


class Awake(NamedTuple):
    """A client that was asleep is available again; no effect on a client that was not."""

    client: int


class Taken(NamedTuple):
    """An update went into the buffer."""

    update: Update
    delay: int  # p
    norm: float  # ‖δ_i‖₂
    weight: float = 1.0  # by its delay and its client's share of the samples


class Refused(NamedTuple):
    """The server, or the engine before it, refused an update."""

    client: int
    serial: int
    round: int
    reason: Reason
    fault: str = ""  # why it was not finite; see faults.py


Message = Update | Lost | Joined | Refused | Asleep | Awake
"""What an engine delivers to the server; `Refused` for an update that the engine itself rejected."""


class Advanced(NamedTuple):
    """The buffer was full, and the server computed x_t."""

    round: int  # t
    clients: tuple[int, ...]  # the M clients, in order of arrival
    delays: tuple[int, ...]  # p_{t,i}
    weights: tuple[float, ...]  # of the updates
    norms: tuple[float, ...]  # ‖δ_i‖₂
    norm: float  # ‖Δ_t‖₂
    move: float  # ‖x_t − x_{t−1}‖₂
    clipped: float  # share of Δ_t's coordinates clipped
    local_clipped: float  # share of gradient coordinates clipped, mean over the M updates
    loss: float  # local training loss, mean over the M updates
    steps: int  # sum of the local steps of the M updates
    snapshots: int  # past models the server holds

    @classmethod
    def of(cls, t: int, taken: Sequence[Taken], outcome: Outcome, snapshots: int) -> Advanced:
        """The report on round t, which aggregated these updates."""
        updates = [each.update for each in taken]
        return cls(
            round=t,
            clients=tuple(update.client for update in updates),
            delays=tuple(each.delay for each in taken),
            weights=tuple(each.weight for each in taken),
            norms=tuple(each.norm for each in taken),
            norm=outcome.norm,
            move=outcome.move,
            clipped=outcome.clipped,
            local_clipped=sum(update.clipped for update in updates) / len(updates),
            loss=sum(update.loss for update in updates) / len(updates),
            steps=sum(update.steps for update in updates),
            snapshots=snapshots,
        )


Happened = Taken | Advanced | Refused | None
"""The effect of a message; None: a client was lost, has returned, fell asleep or woke up."""


class Reply(NamedTuple):
    """The effect of a message, and the jobs to send next."""

    happened: Happened
    jobs: list[Job]
