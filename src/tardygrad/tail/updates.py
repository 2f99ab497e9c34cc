"""The tail of a run's updates while it runs, from the same few coordinates of each update of a round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.core.messages import Vector
from tardygrad.errors import Invalid
from tardygrad.tail.estimate import Tail, estimate

PER_UPDATE, PER_ROUND = 4096, 16384  # most sampled coordinates of an update, and of a round's M updates


class Updates:
    """Collects sampled coordinates of the updates of every `every`-th round.

    Args:
        every: rounds between estimates; 0 is never.
        seed: chooses the coordinates, the same in all rounds.
        parameters: d.
        buffer: M.
    """

    def __init__(self, *, every: int, seed: int, parameters: int, buffer: int) -> None:
        self.every = every
        count = min(parameters, PER_UPDATE, max(PER_ROUND // buffer, 1)) if every else 0
        drawn = streams.generator(seed, "tail").choice(parameters, count, replace=False) if count else np.array([], int)
        self.sample = torch.from_numpy(np.sort(drawn))
        self.collected: list[Tensor] = []

    def due(self, round: int) -> bool:
        """Whether to estimate the tail of this round's updates."""
        return self.every > 0 and round % self.every == 0

    def take(self, delta: Vector) -> None:
        """Sample one update."""
        self.collected.append(delta[self.sample].cpu())

    def estimate(self) -> Tail | None:
        """Estimate the tail of the collected samples and drop them; None if the samples are equal."""
        samples, self.collected = torch.cat(self.collected).numpy(), []
        try:
            return estimate(samples)
        except Invalid:
            return None
