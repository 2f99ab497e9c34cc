"""Timeouts of jobs, computed from the times of earlier jobs, and losses in a row."""

from __future__ import annotations

import math
from collections import Counter, deque
from statistics import median

from tardygrad.core.messages import Job
from tardygrad.errors import Invalid, WorkFailed, check_number, is_number

OWN = 50
"""How many of a client's last times are kept."""

LOSSES = 10
"""Losses of one client in a row after which the run fails, because its job must be the cause."""


class Deadlines:
    """The timeout of a client's job: max(grace, median + patience · MAD) of its last times.

    A client with fewer than three times gets the timeout of all clients' times, or none if there are fewer than five.

    Args:
        patience: number of MADs (median absolute deviations); inf: jobs never time out.
        grace: the smallest timeout, in seconds.

    >>> deadlines = Deadlines(patience=10.0, grace=1.0)
    >>> for seconds in (2.0, 2.5, 3.0):
    ...     deadlines.took(7, seconds)
    >>> deadlines.limit(7), deadlines.limit(8)
    (7.5, inf)
    """

    def __init__(self, patience: float, grace: float) -> None:
        check_number("grace", grace)
        if not (is_number(patience) and patience >= 0):
            raise Invalid(f"`patience` must be a number, 0 or more, got {patience!r}.")
        self.patience, self.grace = patience, grace
        self._own: dict[int, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=10 * OWN)
        self._limits: dict[int | None, float] = {}  # by client, None: of all; cached until the next time is added

    def took(self, client: int, seconds: float) -> None:
        """Record how long a client's job took."""
        self._own.setdefault(client, deque(maxlen=OWN)).append(seconds)
        self._all.append(seconds)
        self._limits.pop(client, None)
        self._limits.pop(None, None)

    def limit(self, client: int) -> float:
        """The timeout of a client's job, in seconds."""
        if self.patience == math.inf:
            return math.inf
        key = client if len(self._own.get(client, ())) >= 3 else None
        if key is None and len(self._all) < 5:
            return math.inf
        if key not in self._limits:
            times = self._all if key is None else self._own[key]
            center = median(times)
            mad = median(abs(seconds - center) for seconds in times)
            self._limits[key] = max(self.grace, center + self.patience * mad)
        return self._limits[key]


class Losses(Counter[int]):
    """How often the jobs of each client were lost in a row."""

    def add(self, job: Job, why: str) -> None:
        """Count the loss of a job; raises `WorkFailed` if it is one too many."""
        self[job.client] += 1
        if self[job.client] >= LOSSES:
            raise WorkFailed(f"the work of {job} failed: lost {LOSSES} times in a row, {why}.")
