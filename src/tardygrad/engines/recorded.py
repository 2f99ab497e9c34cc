"""The messages of a run as its record has them: what a `ScriptedPool` repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tardygrad.core.messages import AtEnd, Reason


class Arrival(NamedTuple):
    """An update was accepted."""

    time: float  # of the engine's clock, in seconds
    client: int
    serial: int = 0  # how many jobs this client was given before
    round: int = 0  # that its job started from
    delay: int | None = None
    steps: int = 0  # local ones
    loss: float | None = None  # mean over those steps
    down: int | None = None  # bytes of the job and of the update, on engines that send them over a network
    up: int | None = None
    worker: str | None = None  # that did the job, and its machine, on engines that have several
    node: str | None = None
    state_lost: bool | None = None  # True: its job began with a new inner state; see `core.messages.StateReference`


class Refusal(NamedTuple):
    """An update was refused."""

    time: float
    client: int
    serial: int
    round: int
    reason: Reason
    state_lost: bool | None = None
    fault: str | None = None  # why it was not finite: what is wrong, and what to do


class ClientLost(NamedTuple):
    """A client was lost."""

    time: float
    client: int
    round: int = 0  # of the server


class Join(NamedTuple):
    """A lost client came back."""

    time: float
    client: int
    round: int = 0


class Sleep(NamedTuple):
    """A client is not available: it gets no job until it is awake again."""

    time: float
    client: int
    round: int = 0
    job: AtEnd = "suspend"  # what happens to the job that it has


class Wake(NamedTuple):
    """A client that was asleep is available again."""

    time: float
    client: int
    round: int = 0


class Resume(NamedTuple):
    """A run was resumed whose clients' compression errors are lost, or whose lost rounds have to be accounted for."""

    time: float
    round: int
    discarded: Sequence[Sequence[int]] | None = None  # the clients of each private round that was lost in a crash


RecordedMessage = Arrival | Refusal | ClientLost | Join | Sleep | Wake | Resume
