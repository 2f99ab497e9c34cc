"""How fast the machines of a run are, from the workers and nodes in its record.

A job's work begins when it was sent, or when its worker delivered the job before, whichever was later: the time that it
waited for a free worker is not the machine's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

MIN_JOBS = 3  # of a machine, below which its speed says nothing


class Machine(NamedTuple):
    """What a machine did."""

    name: str
    workers: int  # processes that have worked there
    updates: int  # accepted
    low: float  # seconds per local step: the 10 % quantile, the median and the 90 % quantile of its jobs
    median: float
    high: float


@dataclass
class MachineTimes:
    """Collects the jobs of workers."""

    _last: dict[tuple[str, str], float] = field(default_factory=dict)  # (node, worker) to its last arrival
    _seconds: dict[str, list[float]] = field(default_factory=dict)  # by node: seconds per local step of its jobs

    def add(self, node: str, worker: str, *, sent: float, arrived: float, steps: int) -> None:
        """Add a job."""
        began = max(sent, self._last.get((node, worker), 0.0))
        self._last[node, worker] = arrived
        self._seconds.setdefault(node, []).append((arrived - began) / max(steps, 1))

    def machines(self) -> list[Machine]:
        """The machines with enough jobs, slowest first."""
        found = []
        for node, seconds in self._seconds.items():
            if len(seconds) >= MIN_JOBS:
                workers = sum(known == node for known, _ in self._last)
                quantiles = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
                found.append(Machine(node, workers, len(seconds), *quantiles))
        return sorted(found, key=lambda machine: -machine.median)
