"""A method is data: steps, a weight for late updates, and who works when."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, Required, TypedDict

from tardygrad.errors import Invalid
from tardygrad.transforms import Transform

Mode = Literal["sync", "server", "client"]
"""Who works when: synchronous rounds, server-centric, client-centric."""

Dispatch = Literal["same", "random"]
"""Who gets a free place: the client that left it, or a random idle one."""

Weight = Callable[[int], float]
"""The weight of an update as a function of its delay p."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """DyLU: K_i = max(1, ⌊K · v_i / v⌋), at most K, for a client of measured speed v_i.

    Args:
        percentile: v is that of all measured speeds; 100 is the fastest, 90 is not misled by a few wrong ones.
        smoothing: how much of the speed measured before stays when a new one comes in; 0 is none of it.

    >>> [Pace().share(8, speed, [1.0, 2.0, 4.0]) for speed in (None, 4.0, 1.0, 0.1)]
    [8, 8, 2, 1]
    """

    percentile: float = 100.0
    smoothing: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise Invalid(f"`percentile` must be above 0 and at most 100 (the fastest), got {self.percentile!r}.")
        if not 0 <= self.smoothing < 1:
            raise Invalid(f"`smoothing` must be at least 0 and below 1, got {self.smoothing!r}.")

    def share(self, work: int, speed: float | None, speeds: Collection[float]) -> int:
        """K_i of K; K for a client of unknown speed."""
        if speed is None:
            return work
        reference = sorted(speeds)[math.ceil(len(speeds) * self.percentile / 100) - 1]
        return min(work, max(1, math.floor(work * speed / reference + 1e-6)))  # rounding must not cost a step

    def measured(self, before: float | None, speed: float) -> float:
        """v_i, with one more measurement."""
        return speed if before is None else self.smoothing * before + (1 - self.smoothing) * speed


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method is data: an inner step, an outer step, and what becomes of a late update in between."""

    name: str
    inner: Transform  # a gradient becomes a local move
    outer: Transform  # the mean contribution Δ_t becomes a global move
    buffer: int  # M
    local_steps: int | None = None  # K as steps, or
    local_epochs: int | None = None  # K as passes over the client's data
    mode: Mode = "server"
    weight: Weight | None = None  # of a delay; None: every update counts fully
    compensate: bool = False  # δ − A ⊙ drift
    max_delay: int | None = None  # staler updates are refused
    concurrency: int | None = None  # clients at work at once; None: all (sync: M)
    dispatch: Dispatch = "same"
    pace: Pace | None = None  # less work for slower clients; None: K for everyone

    def __post_init__(self) -> None:
        at_least_one("buffer", self.buffer)
        if (self.local_steps is None) == (self.local_epochs is None):
            given = f"local_steps={self.local_steps}, local_epochs={self.local_epochs}"
            raise Invalid(f"set exactly one of `local_steps` and `local_epochs`, got {given}.")
        for name in ("local_steps", "local_epochs", "max_delay", "concurrency"):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        for name, known in (("mode", ("sync", "server", "client")), ("dispatch", ("same", "random"))):
            if getattr(self, name) not in known:
                raise Invalid(f"`{name}` must be one of {', '.join(known)}, got {getattr(self, name)!r}.")
        if self.mode == "sync" and self.concurrency not in (None, self.buffer):
            raise Invalid(
                f"a sync round works with exactly `buffer` clients ({self.buffer}), got concurrency={self.concurrency}."
            )
        if self.mode == "server" and self.concurrency is not None and self.concurrency < self.buffer:
            raise Invalid(
                f"`concurrency` must be at least `buffer` ({self.buffer}) in mode 'server', got {self.concurrency}: "
                "clients wait for the round's end, so the buffer could never fill."
            )

    def __str__(self) -> str:
        mode = {"sync": "synchronous", "server": "server-centric", "client": "client-centric"}[self.mode]
        epochs = "1 epoch" if self.local_epochs == 1 else f"{self.local_epochs} epochs"
        work = f"K={self.local_steps or epochs}"
        treated = [", downplayed"] * (self.weight is not None) + [", compensated"] * self.compensate
        return f"{self.name} ({mode}, M={self.buffer}, {work}{''.join(treated)})"


class Work(TypedDict, total=False):
    """The settings of `Method` that every constructor passes on: how much, who works when."""

    local_steps: int | None
    local_epochs: int | None
    mode: Mode
    max_delay: int | None
    concurrency: int | None
    dispatch: Dispatch


class How(Work):
    """And how many: those of a method that waits for M updates."""

    buffer: Required[int]


def at_least_one(name: str, value: object) -> None:
    """Refuse what is no whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Invalid(f"`{name}` must be a whole number, 1 or more, got {value!r}.")
