"""The contract of a store of the server's vectors: x, and all vectors of its length."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tardygrad.core.kernels import Outcome
from tardygrad.core.messages import ModuleBuffers, Parts, Reason, Update, Vector
from tardygrad.core.privacy import RoundNoise
from tardygrad.core.transforms import State


class Held(NamedTuple):
    """Every vector that a server holds: the one list of them, for stores, checkpoints and regions.

    A new kind is a field here, and what `LocalVectors` does with it.
    """

    x: Vector  # x_{t−1}
    sum: Vector | None  # Σ_i contribution_i of the current round; None before its first update
    outer: State  # of the outer step
    past: dict[int, Vector]  # the past models x_s that jobs at work started from


class VectorStore(Protocol):
    """Stores x and all vectors of its length: in this process (`LocalVectors`), or in shards (engines/ray)."""

    @property
    def start(self) -> Vector | Parts:
        """The model that a new job starts from."""

    @property
    def x(self) -> Vector:
        """x_{t−1}."""

    @property
    def held(self) -> Held:
        """All vectors."""

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

    def put(self, held: Held) -> None:
        """Replace all vectors, such as by those of a checkpoint."""
