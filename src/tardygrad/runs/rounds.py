"""The rounds of a record as arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rounds:
    """The rounds as arrays: T × M numbers of the updates, and T numbers of the rounds."""

    clients: NDArray[np.int64]
    delays: NDArray[np.int64]
    weights: NDArray[np.float64]  # NaN: an older record
    norms: NDArray[np.float64]
    time: NDArray[np.float64]
    norm: NDArray[np.float64]
    move: NDArray[np.float64]
    clipped: NDArray[np.float64]
    local_clipped: NDArray[np.float64]
    loss: NDArray[np.float64]
    seconds: NDArray[np.float64]  # NaN: an older record
    epsilon: NDArray[np.float64]  # spent so far; NaN: infinite, or the method is not private
    steps: NDArray[np.int64]
    snapshots: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time)

    @property
    def buffer(self) -> int:
        """M."""
        return int(self.delays.shape[1])


COLUMNS = tuple(column.name for column in fields(Rounds))
PER_UPDATE, COUNTS = COLUMNS[:4], ("clients", "delays", "steps", "snapshots")
