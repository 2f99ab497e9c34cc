"""The tail of a run's updates while it runs: the same few coordinates of every update of a round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.core.messages import Vector
from tardygrad.errors import Invalid
from tardygrad.tail.estimate import estimate

EACH, TOGETHER = 4096, 16384  # coordinates of an update, and of a round's M updates, at most
FACTS = ("index", "low", "high", "verdict", "by", "number")


class Updates:
    """Holds the sampled coordinates of the updates of a round, if it is one of every so many.

    Args:
        every: rounds; 0 is none.
        seed: of the choice of coordinates, which is the same in all rounds.
        parameters: d.
        buffer: M.
    """

    def __init__(self, *, every: int, seed: int, parameters: int, buffer: int) -> None:
        self.every = every
        count = min(parameters, EACH, max(TOGETHER // buffer, 1)) if every else 0
        drawn = streams.generator(seed, "tail").choice(parameters, count, replace=False) if count else np.array([], int)
        self.sample = torch.from_numpy(np.sort(drawn))
        self.held: list[Tensor] = []

    def due(self, round: int) -> bool:
        """Whether the tail of a round's updates is wanted."""
        return self.every > 0 and round % self.every == 0

    def take(self, delta: Vector) -> None:
        """Look at one update."""
        self.held.append(delta[self.sample].cpu())

    def told(self) -> dict[str, float | str | None]:
        """What the updates taken say of their tail, which is null where they are all the same; then they are let go."""
        seen, self.held = torch.cat(self.held).numpy(), []
        try:
            tail = vars(estimate(seen))
        except Invalid:
            tail = {}
        return {name: tail.get(name) for name in FACTS}
