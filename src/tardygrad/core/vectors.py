"""What holds the vectors of a server, wherever they are."""

from __future__ import annotations

from typing import Protocol

from tardygrad.core.admission import Kept
from tardygrad.core.kernels import Outcome
from tardygrad.core.messages import ModuleBuffers, Reason, Update, Vector
from tardygrad.core.transforms import State


class VectorStore(Protocol):
    """x and all that is as long: `algorithm.LocalVectors`, or in slices elsewhere (engines/ray/shards.py)."""

    @property
    def start(self) -> Vector:
        """What a new job starts from."""

    @property
    def x(self) -> Vector:
        """x_{t−1}."""

    @property
    def sum(self) -> Vector | None:
        """Σ_i contribution_i of the round that fills, None before the first."""

    @property
    def state(self) -> State:
        """What the outer step remembers."""

    @property
    def past(self) -> dict[int, Vector]:
        """The past models x_s that work in flight started from."""

    def validate(self, update: Update, module_buffers: ModuleBuffers | None, keeps: Kept) -> float | Reason:
        """‖δ_i‖ of an update that may be folded in, or why it must not."""

    def fold(self, update: Update, weight: float) -> None:
        """Take a contribution in."""

    def advance(self, t: int, delays: tuple[int, ...], denominator: float) -> Outcome:
        """Make x_t of the sum, which is over then."""

    def hold(self, s: int) -> None:
        """Keep x, which is x_s, as a past model."""

    def drop(self, s: int) -> None:
        """Keep it no longer."""

    def finite(self) -> bool:
        """Whether x is."""

    def put(self, x: Vector, total: Vector | None, state: State, past: dict[int, Vector]) -> None:
        """Go on from these, of a checkpoint."""
