"""The messages between server and clients, and the server's reports. Plain data; time stamps are rounds."""

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
    """A vector whose slices are in other processes: one reference for each slice, which only their engine can open.

    In an update a reference stands for the slice of δ and, if the method compensates, of A.
    """

    references: tuple[Any, ...]


def as_vector(v: Vector | Parts) -> Vector:
    """v itself, which must be in this process."""
    if isinstance(v, Parts):
        raise TypeError(f"a vector must be here to compute with it, got references to {len(v.references)} slices.")
    return v


class ModuleBuffers(NamedTuple):
    """What a model has besides parameters (BatchNorm's statistics); the algorithm does not compute with them."""

    floats: Tensor  # averaged over the M updates of a round
    ints: Tensor  # taken from the newest update

    def clone(self) -> ModuleBuffers:
        """A copy that may be changed in place."""
        return ModuleBuffers(self.floats.clone(), self.ints.clone())

    @staticmethod
    def merge(updates: Sequence[ModuleBuffers | None]) -> ModuleBuffers:
        """The buffers of a round's updates as one."""
        given = [each for each in updates if each]
        floats = torch.stack([each.floats.double() for each in given]).mean(0)  # a sum in float32 may overflow
        return ModuleBuffers(floats.float(), given[-1].ints)


class Job(NamedTuple):
    """Work for one client: start from x_s. (client, serial) names it."""

    client: int
    serial: int  # how many jobs this client was given before
    round: int  # s
    x: Vector | Parts  # x_s
    steps: int | None  # K local steps, or
    epochs: int | None  # K local epochs
    seed: int
    module_buffers: ModuleBuffers | None = None
    state: State | None = None  # the inner step's, after this client's last job, if the method keeps it

    def stream(self, purpose: str, *numbers: int) -> np.random.Generator:
        """The job's own random numbers, the same wherever it runs."""
        return streams.generator(self.seed, purpose, self.client, self.serial, *numbers)


class Update(NamedTuple):
    """What a client sends back."""

    client: int
    serial: int
    round: int  # s
    delta: Vector | Parts  # δ_i = x_{i,K} − x_s
    curvature: Vector | None = None  # A_i, if the method compensates
    module_buffers: ModuleBuffers | None = None
    steps: int = 0  # local steps done
    loss: float = math.nan  # mean over those steps
    clipped: float = 0.0  # share of gradient coordinates clipped, mean over those steps
    state: State | None = None  # of the inner step, if the method keeps it
    down: int = 0  # bytes of the job in transit, if the engine sends any
    up: int = 0  # bytes of the update in transit

    def without_vectors(self) -> Update:
        """Without delta, curvature and state, once the server has used them."""
        return self._replace(delta=NOTHING, curvature=None, state=None)


class Lost(NamedTuple):
    """A client and its job are lost."""

    client: int


class Joined(NamedTuple):
    """A lost client is back."""

    client: int


class Taken(NamedTuple):
    """An update went into the buffer."""

    update: Update
    delay: int  # p
    norm: float  # ‖δ_i‖₂
    weight: float = 1.0  # by its delay


class Refused(NamedTuple):
    """The server, or the engine before it, refused an update."""

    client: int
    serial: int
    round: int
    reason: Reason


Message = Update | Lost | Joined | Refused
"""What an engine delivers to the server."""


class Advanced(NamedTuple):
    """The buffer was full, and the server computed x_t."""

    round: int  # t
    clients: tuple[int, ...]  # the M clients, in order of arrival
    delays: tuple[int, ...]  # p_{t,i}
    weights: tuple[float, ...]  # of each update, by its delay
    norms: tuple[float, ...]  # ‖δ_i‖₂
    norm: float  # ‖Δ_t‖₂
    move: float  # ‖x_t − x_{t−1}‖₂
    clipped: float  # share of Δ_t's coordinates clipped
    local_clipped: float  # share of gradient coordinates clipped, mean over the M
    loss: float  # local training loss, mean over the M
    steps: int  # local steps of the M together
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
"""What a message did; None: nothing but a client lost or back."""


class Reply(NamedTuple):
    """What a message did, and the jobs to send next."""

    happened: Happened
    jobs: list[Job]
