"""A method is data: steps, a weight for late updates, and who works when."""

from __future__ import annotations

from collections.abc import Callable
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


class How(TypedDict, total=False):
    """The settings of `Method` that every constructor passes on: how much, how many, who works when."""

    buffer: Required[int]
    local_steps: int | None
    local_epochs: int | None
    mode: Mode
    max_delay: int | None
    concurrency: int | None
    dispatch: Dispatch


def at_least_one(name: str, value: object) -> None:
    """Refuse what is no whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Invalid(f"`{name}` must be a whole number, 1 or more, got {value!r}.")
