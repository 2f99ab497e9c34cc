"""The store of a server's vectors: x, and all vectors of its length."""

from __future__ import annotations

import math
from typing import Protocol

import torch

from tardygrad.core import admission, algorithm, kernels
from tardygrad.core.kernels import Contribution, Outcome
from tardygrad.core.messages import ModuleBuffers, Parts, Reason, Update, Vector, as_vector
from tardygrad.core.method import Method
from tardygrad.core.privacy import BLOCK, RoundNoise
from tardygrad.core.transforms import State, Step
from tardygrad.errors import Invalid


class VectorStore(Protocol):
    """Stores x and all vectors of its length: in this process (`LocalVectors`), or in shards (engines/ray)."""

    @property
    def start(self) -> Vector | Parts:
        """The model that a new job starts from."""

    @property
    def x(self) -> Vector:
        """x_{t−1}."""

    @property
    def sum(self) -> Vector | None:
        """Σ_i contribution_i of the current round, None before its first update."""

    @property
    def state(self) -> State:
        """The state of the outer step."""

    @property
    def past(self) -> dict[int, Vector]:
        """The past models x_s that jobs at work started from."""

    def validate(self, update: Update, module_buffers: ModuleBuffers | None) -> float | Reason:
        """‖δ_i‖ of a valid update, or the reason to refuse it."""

    def norm(self, update: Update) -> float:
        """‖contribution‖₂ of an update before its weight, for a private method."""

    def fold(self, update: Update, weight: float) -> None:
        """Add an update's contribution to the sum; with the weight 0, nothing."""

    def advance(self, t: int, delays: tuple[int, ...], denominator: float, noise: RoundNoise | None = None) -> Outcome:
        """Compute x_t from the round's sum and its noise, and reset the sum."""

    def hold(self, s: int) -> None:
        """Keep the current x as the past model x_s."""

    def drop(self, s: int) -> None:
        """Forget the past model x_s."""

    def finite(self) -> bool:
        """Whether x is finite."""

    def put(self, x: Vector, total: Vector | None, state: State, past: dict[int, Vector]) -> None:
        """Replace all vectors, such as by those of a checkpoint."""


class LocalVectors:
    """A `VectorStore` in the memory of this process."""

    def __init__(self, method: Method, x: Vector) -> None:
        self.method = method
        self._set(x.detach().clone())
        self.sum: Vector | None = None
        self.scratch: Vector | None = None  # memory of the last sum, to be reused by the next
        self.state = method.outer.init(self.x)
        self.past: dict[int, Vector] = {}
        self.expected_state = admission.expected_state(method)

    def _set(self, x: Vector) -> None:
        self.x, self._version = x, x._version  # torch counts the changes in place

    @property
    def start(self) -> Vector:
        return self.x

    def validate(self, update: Update, module_buffers: ModuleBuffers | None) -> float | Reason:
        if not admission.fits(update, self.x, module_buffers, self.method, self.expected_state):
            return "wrong shape"
        norm = admission.norm_of(as_vector(update.delta))
        return norm if admission.finite(update, norm) else "not finite"

    def norm(self, update: Update) -> float:
        return math.sqrt(math.fsum(self.squares(update)))

    def squares(self, update: Update) -> list[float]:
        """‖contribution‖² in each block; their exact sum is the same in one piece and in shards."""
        term = algorithm.weighted_delta(self._contribution(update), self.x)
        blocks = (part.double() for part in torch.split(term, BLOCK))
        return [float(torch.dot(block, block)) for block in blocks]

    def fold(self, update: Update, weight: float) -> None:
        if self.x._version != self._version:
            raise Invalid("the model must not be changed in place while a run goes on. Use x.clone().")
        if weight:
            self.sum = algorithm.fold(self.sum, self._contribution(update, weight), self.x, self.scratch)
        elif self.sum is None:  # 0 · NaN is not 0
            self.sum = torch.zeros_like(self.x)

    def _contribution(self, update: Update, weight: float = 1.0) -> Contribution:
        past = self.past[update.round] if self.method.needs_past else None  # x_s
        return Contribution(as_vector(update.delta), weight, update.curvature, past)

    def advance(self, t: int, delays: tuple[int, ...], denominator: float, noise: RoundNoise | None = None) -> Outcome:
        assert self.sum is not None
        if noise:
            noise.add_to(self.sum)
        outer, step = self.method.outer, Step(t, delays, self.x)
        outcome, self.state = algorithm.finish(self.x, self.sum, denominator, outer, self.state, step)
        reusable = kernels.fits(self.x) and outer.form(t)  # otherwise the outer step's state may refer to the sum
        self._set(outcome.x)
        self.sum, self.scratch = None, self.sum if reusable else None
        return outcome

    def hold(self, s: int) -> None:
        self.past[s] = self.x

    def drop(self, s: int) -> None:
        del self.past[s]

    def finite(self) -> bool:
        return bool(self.x.isfinite().all())

    def put(self, x: Vector, total: Vector | None, state: State, past: dict[int, Vector]) -> None:
        self._set(x)
        self.sum, self.state, self.past = total, state, past
