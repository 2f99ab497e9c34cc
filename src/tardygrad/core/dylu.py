"""DyLU: less local work for slower clients, from their measured speeds."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any, Literal

from tardygrad.errors import Invalid, check_choice, check_integer, is_number


@dataclass(frozen=True, kw_only=True)
class Pace:
    """DyLU: K_i = ⌊K · v_i / v⌋ for a client of measured speed v_i, at least one and at most K.

    Args:
        percentile: v is this percentile of all measured speeds; 100 is the fastest, 90 ignores a few outliers.
        smoothing: the weight of the previous speed when a new one is measured; 0 forgets it.
        rounding: down, as published, or up.
        least: the smallest K_i, unless K is smaller.

    >>> [Pace().steps(8, speed, fastest=4.0) for speed in (None, 4.0, 1.0, 0.1)]
    [8, 8, 2, 1]
    """

    percentile: float = 100.0
    smoothing: float = 0.5
    rounding: Literal["floor", "ceil"] = "floor"
    least: int = 1

    def __post_init__(self) -> None:
        if not (is_number(self.percentile) and 0 < self.percentile <= 100):
            raise Invalid(f"`percentile` must be above 0 and at most 100 (the fastest), got {self.percentile!r}.")
        if not (is_number(self.smoothing) and 0 <= self.smoothing < 1):
            raise Invalid(f"`smoothing` must be at least 0 and below 1, got {self.smoothing!r}.")
        check_choice("rounding", self.rounding, Literal["floor", "ceil"])
        check_integer("least", self.least)

    def steps(self, work: int, speed: float | None, fastest: float) -> int:
        """K_i; K for a client of unknown speed."""
        if speed is None:
            return work
        exact = work * speed / fastest
        slack = 1e-6  # for the error of float arithmetic
        rounded = math.floor(exact + slack) if self.rounding == "floor" else math.ceil(exact - slack)
        return min(work, max(self.least, rounded))

    def measured(self, before: float | None, speed: float) -> float:
        """v_i after one more measurement."""
        return speed if before is None else self.smoothing * before + (1 - self.smoothing) * speed


class Speeds:
    """The measured speeds of clients: local steps (or epochs) per second, from dispatch to arrival."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.speed_by_client: dict[int, float] = {}  # client → v_i
        self.last_job: dict[int, tuple[int, float]] = {}  # client → K_i of its last job, and when it was sent
        self._sorted: list[float] = []

    def steps(self, client: int, work: int, now: float) -> int:
        """K_i of a job that is sent now."""
        fastest = self._sorted[math.ceil(len(self._sorted) * self.pace.percentile / 100) - 1] if self._sorted else 1.0
        steps = self.pace.steps(work, self.speed_by_client.get(client), fastest)
        self.last_job[client] = steps, now
        return steps

    def measure(self, client: int, now: float) -> None:
        """Update a client's speed when its job arrives."""
        steps, sent = self.last_job[client]
        if now > sent and math.isfinite(speed := steps / (now - sent)):
            speed = self.pace.measured(self.speed_by_client.get(client), speed)
            self.forget(client)
            self.speed_by_client[client] = speed
            insort(self._sorted, speed)

    def forget(self, client: int) -> None:
        """Forget the speed of a lost client."""
        if client in self.speed_by_client:
            del self._sorted[bisect_left(self._sorted, self.speed_by_client.pop(client))]

    def snapshot(self) -> dict[str, Any]:
        """The state, as plain data."""
        return {"of": self.speed_by_client, "given": self.last_job}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.speed_by_client, self.last_job, self._sorted = state["of"], state["given"], sorted(state["of"].values())
