"""A method as data: its inner and outer step, the weights of late updates, and which clients work when."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from torch import Tensor

from tardygrad.constructors import call_of
from tardygrad.core.dylu import Pace
from tardygrad.core.privacy import Privacy
from tardygrad.core.transforms import State, Step, Transform
from tardygrad.errors import Invalid, check_choice, check_integer, check_number, is_number
from tardygrad.html_tables import fact_table

Mode = Literal["sync", "server", "client"]
"""Which clients work when: synchronous rounds, server-centric, client-centric."""
MODE_TEXTS: dict[Mode, str] = {"sync": "synchronous", "server": "server-centric", "client": "client-centric"}

Dispatch = Literal["same", "random"]
"""Which client gets a free slot: the one that left it, or a random idle one."""

Keep = bool | Literal["worker"]
"""Whether a client's inner state is kept from job to job; "worker": on its worker, if the engine has separate ones."""

Weight = Callable[[int], float]
"""The weight of an update as a function of its delay p."""

WeightBy = Literal["samples"]
"""What else an update is weighted by, besides its delay: its client's number of samples."""

Denominator = Literal["buffer", "weights", "one"]
"""The divisor of the sum of a round's contributions: M, the sum of their weights, or one."""


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """How a client computes the A that it sends, if A is not the paper's Σ_k move_k².

    Args:
        weigh: turns squares into A; its state is kept for each client.
        source: which squares: Σ_k move_k² ("steps") or δ² ("delta").
    """

    weigh: Transform
    source: Literal["steps", "delta"] = "steps"

    def of(self, delta: Tensor, squares: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        """Compute A from a job's δ and Σ_k move_k²; also returns the state for the client's next job."""
        squares = delta * delta if self.source == "delta" else squares
        return self.weigh.update(squares, state or self.weigh.init(delta), step)


@dataclass(frozen=True, kw_only=True)
class Regions:
    """HALoS: clients report to their region's server, and regions to the global one.

    Args:
        sizes: the number of clients of each region; or the number of regions, which get the clients in turn.
        every: rounds of a region between two reports.
        blend: α, the weight of the global model when a region receives it.
        outer: the global server's step.
        exchange: seconds that a message between a region and the global server takes.
    """

    sizes: int | tuple[int, ...]
    every: int
    blend: float
    outer: Transform
    exchange: float = 0.0

    def __post_init__(self) -> None:
        check_integer("every", self.every)
        sizes = self.sizes if isinstance(self.sizes, tuple) else (self.sizes,)
        if not sizes or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
            raise Invalid(f"`regions` must be the number of regions, or of clients in each, got {self.sizes!r}.")
        if not (is_number(self.blend) and 0 <= self.blend <= 1):
            raise Invalid(f"`blend` must be between 0 (regions ignore the global model) and 1, got {self.blend!r}.")
        check_number("exchange", self.exchange)

    def members(self, clients: int) -> list[list[int]]:
        """The clients of each region."""
        if isinstance(self.sizes, int):
            if self.sizes > clients:
                raise Invalid(f"`regions` must be at most the number of clients ({clients}), got {self.sizes}.")
            return [list(range(first, clients, self.sizes)) for first in range(self.sizes)]
        if sum(self.sizes) != clients:
            raise Invalid(f"`regions` must have {clients} clients in total, got {sum(self.sizes)}: {self.sizes}.")
        ends = list(accumulate(self.sizes))
        return [list(range(end - size, end)) for size, end in zip(self.sizes, ends, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: an inner step, an outer step, and what is done with late updates.

    Args:
        name: of the method.
        inner: turns a gradient into a local move.
        outer: turns the mean contribution of a round into a global move.
        buffer: number of updates M that make a round.
        local_steps: local work K as a number of steps.
        local_epochs: local work K as passes over the client's data; set this or `local_steps`.
        mode: who works when: "sync" rounds wait for M sampled clients, "server" sends a new model when a round ends,
            "client" at once.
        keep: keep the optimizer's state from one job of a client to the next: true sends it with the jobs, "worker"
            leaves it on the client's worker (on Ray), where it is lost if the worker fails, and begins anew.
        max_delay: refuse updates with a larger delay than this; None refuses none.
        concurrency: clients that work at once; None is all of them (in mode "sync", M).
        dispatch: who gets a free slot: the "same" client that left it, or a "random" idle one.
        weight_by: "samples" weights each update by its client's number of training samples over the mean of all
            clients; a synchronous round divides by the sum of these weights, as FedAvg does. None weights all alike.
        privacy: clip every contribution and add noise to every round, such as {clip = 0.1, noise_multiplier = 1.0}.
        weight: of an update by its delay; None is always 1.
        denominator: what the sum of a round's contributions is divided by.
        compensate: subtract the curvature times the drift of the model from an update (DC).
        curvature: that of the compensation, if it is not the paper's.
        pull: move towards the client's model instead of adding its update, as FedAsync does.
        pace: less work for slower clients (DyLU); None is the same for all.
        regions: two levels of servers (HALoS); None is one.
    """

    name: str
    inner: Transform  # a gradient becomes a local move
    outer: Transform  # the mean contribution Δ_t becomes a global move
    buffer: int  # M
    local_steps: int | None = None  # K as steps, or
    local_epochs: int | None = None  # K as passes over the client's data
    mode: Mode = "server"
    weight: Weight | None = None  # of an update by its delay; None: always 1
    denominator: Denominator = "buffer"  # of Δ_t
    compensate: bool = False  # δ − A ⊙ drift
    curvature: Curvature | None = None  # A, if it is not the paper's
    pull: bool = False  # δ − drift: move towards the client's model x_s + δ
    keep: Keep = False  # whether a client's inner state is kept from job to job, and where
    max_delay: int | None = None  # updates with a larger delay are refused
    concurrency: int | None = None  # clients at work at once; None: all (sync: M)
    dispatch: Dispatch = "same"
    weight_by: WeightBy | None = None
    privacy: Privacy | None = None  # of the clients; see docs/privacy.md
    pace: Pace | None = None  # less work for slower clients; None: K for everyone
    regions: Regions | None = None  # two levels of servers; None: one

    def __post_init__(self) -> None:
        check_integer("buffer", self.buffer)
        for name in ("inner", "outer"):
            if not isinstance(getattr(self, name), Transform):
                raise Invalid(f"`{name}` must be a tardygrad.Transform, got {getattr(self, name)!r}.")
        if (self.local_steps is None) == (self.local_epochs is None):
            given = f"local_steps={self.local_steps}, local_epochs={self.local_epochs}"
            raise Invalid(f"set exactly one of `local_steps` and `local_epochs`, got {given}.")
        for name in ("local_steps", "local_epochs", "max_delay", "concurrency"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        for name, choices in (("mode", Mode), ("dispatch", Dispatch), ("denominator", Denominator)):
            check_choice(name, getattr(self, name), choices)
        if self.weight_by is not None:
            check_choice("weight_by", self.weight_by, WeightBy)
        if not isinstance(self.privacy, Privacy | None):
            fix = "Use tardygrad.Privacy(clip=0.1, noise_multiplier=1.0)."
            raise Invalid(f"`privacy` must be a tardygrad.Privacy, got {self.privacy!r}. {fix}")
        if not isinstance(self.keep, bool) and self.keep != "worker":
            raise Invalid(f"`keep` must be True, False or 'worker', got {self.keep!r}.")
        if not self.has_local_steps:
            object.__setattr__(self, "keep", False)  # a default of its constructor: there is no state to keep
        if self.weight is not None and not callable(self.weight):
            raise Invalid(f"`weight` must be a function of the delay, such as Hinge(), got {self.weight!r}.")
        try:
            self.weight_of(1)
        except Invalid:
            raise
        except Exception as error:
            rule = f"`weight` must be a function of the delay, such as Hinge(), got {self.weight!r}"
            raise Invalid(f"{rule}: {error}.") from error
        if self.compensate and self.pull:
            raise Invalid("`compensate` and `pull` cannot both be True.")
        if self.regions and (self.compensate or self.pull):
            raise Invalid("a method with regions can neither compensate an update nor pull the model to it.")
        if self.mode == "sync" and self.concurrency not in (None, self.buffer):
            raise Invalid(
                f"a sync round works with exactly `buffer` clients ({self.buffer}), got concurrency={self.concurrency}."
            )
        if self.mode == "server" and self.concurrency is not None and self.concurrency < self.buffer:
            raise Invalid(
                f"`concurrency` must be at least `buffer` ({self.buffer}) in mode 'server', got {self.concurrency}: "
                "clients wait for the end of the round, so the buffer could never fill."
            )

    @cached_property
    def needs_past(self) -> bool:
        """Whether the server needs the past models that jobs started from."""
        return self.compensate or self.pull

    @property
    def has_local_steps(self) -> bool:
        """Whether the method makes the local steps; otherwise the task's own training loop does."""
        return self.inner.can_step

    def weight_of(self, delay: int) -> float:
        """The weight of an update with a delay."""
        if self.weight is None:
            return 1.0
        weight = self.weight(delay)
        huge = isinstance(weight, int) and abs(weight) > sys.float_info.max
        if huge or not is_number(weight) or not math.isfinite(weight):
            fix = "Return a float, such as 1 / delay."
            raise Invalid(f"`weight` must give finite numbers, got {weight!r} for the delay {delay}. {fix}")
        return weight if isinstance(weight, int | float) else float(weight)

    def divisor(self, weights: Sequence[float], shares: Sequence[float] | None = None) -> float:
        """The divisor of a round's sum of contributions, given their weights.

        Args:
            shares: the parts of the weights that are due to samples, if the method weights by them.
        """
        if self.denominator == "weights":
            return sum(weights) or 1.0
        if shares and self.mode == "sync" and self.denominator == "buffer":
            return sum(shares) or 1.0
        return 1.0 if self.denominator == "one" else len(weights)

    def __str__(self) -> str:
        epochs = "1 epoch" if self.local_epochs == 1 else f"{self.local_epochs} epochs"
        work = f"K={self.local_steps or epochs}"
        notes = [", compensated"] * self.compensate + [", by samples"] * (self.weight_by is not None)
        notes += [", private"] * (self.privacy is not None)
        if self.weight is not None:
            notes.insert(0, ", downplayed" if getattr(self.weight, "__name__", "") == "downplay" else ", weighted")
        if self.regions:
            sizes = self.regions.sizes
            notes.append(f", {sizes if isinstance(sizes, int) else len(sizes)} regions")
        return f"{self.name} ({MODE_TEXTS[self.mode]}, M={self.buffer}, {work}{''.join(notes)})"

    def _repr_html_(self) -> str:
        recipe = call_of(self)
        return fact_table(str(self), {} if recipe is None else recipe.arguments)


def check_method(method: object) -> None:
    """Raise `Invalid` unless an argument is a method."""
    if not isinstance(method, Method):
        rule = "a method must be a tardygrad.Method, such as clip2(...)"
        raise Invalid(f"{rule}, got {type(method).__name__}. Check the order of the arguments.")


def without_addresses(text: str) -> str:
    """The text of an object that names functions, without their addresses in memory, which differ in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)
