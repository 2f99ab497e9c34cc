"""How long a job may take before it is written off, judged by how long others took."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

OWN = 50
"""Times of a client that are remembered."""


class Deadlines:
    """max(grace, median + patience · MAD) of a client's own last times.

    A client with fewer than three times is judged by those of all clients, if there are five; else not at all.

    Args:
        patience: how many MADs (medians of the distances to the median); inf waits for ever.
        grace: seconds that every job has.

    >>> deadlines = Deadlines(patience=10.0, grace=1.0)
    >>> for seconds in (2.0, 2.5, 3.0):
    ...     deadlines.took(7, seconds)
    >>> deadlines.limit(7), deadlines.limit(8)
    (7.5, inf)
    """

    def __init__(self, patience: float, grace: float) -> None:
        self.patience, self.grace = patience, grace
        self._own: dict[int, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=10 * OWN)
        self._limits: dict[int | None, float] = {}  # of a client, None: of all; until the next time comes in

    def took(self, client: int, seconds: float) -> None:
        """A job is done."""
        self._own.setdefault(client, deque(maxlen=OWN)).append(seconds)
        self._all.append(seconds)
        self._limits.pop(client, None)
        self._limits.pop(None, None)

    def limit(self, client: int) -> float:
        """Seconds that a client's job may take."""
        if self.patience == math.inf:
            return math.inf
        whose = client if len(self._own.get(client, ())) >= 3 else None
        if whose is None and len(self._all) < 5:
            return math.inf
        if whose not in self._limits:
            times = self._all if whose is None else self._own[whose]
            middle = median(times)
            spread = median(abs(seconds - middle) for seconds in times)
            self._limits[whose] = max(self.grace, middle + self.patience * spread)
        return self._limits[whose]
