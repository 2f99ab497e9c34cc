"""What one client did in a run: its jobs, and when it was lost or asleep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

State = Literal["awake", "finishing", "asleep", "lost"]
"""The state of a client; "finishing": its window has ended, and it is asleep after the job that it has."""


class PastJob(NamedTuple):
    """A job of a client."""

    start: float
    end: float  # when its update arrived, its client was lost or cancelled it, or the record ends
    steps: int  # local steps of its update; 0: unknown
    returned: bool  # False: it was lost or cancelled, or is under way at the end of the record
    suspended: float = 0.0  # seconds of it in which the client was asleep

    @property
    def seconds(self) -> float:
        """How long the client had the job while it was awake."""
        return self.end - self.start - self.suspended


@dataclass
class ClientHistory:
    """What one client did."""

    jobs: list[PastJob] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)  # from when to when it was lost
    asleep: list[tuple[float, float]] = field(default_factory=list)  # from when to when it was asleep
    taken: int = 0  # updates accepted
    steps: int = 0  # their local steps
    loss_values: list[float] = field(default_factory=list)  # their losses; NaN: not finite
    refused: Counter[str] = field(default_factory=Counter)  # updates, by reason
    fault: str = ""  # why its first refused update was not finite: what is wrong, and what to do
    losses: int = 0
    lost: bool = False  # at the end of the record
    _state: State = "awake"
    _since: float = 0.0

    def change(self, state: State, now: float) -> None:
        """Note a change of the client's state."""
        if state == self._state:
            return
        if self._state in ("asleep", "lost"):
            (self.asleep if self._state == "asleep" else self.away).append((self._since, now))
        self._state, self._since = state, now

    def add_job(self, job: PastJob) -> None:
        """Add a job that ends now."""
        suspended = job.end - max(self._since, job.start) if self._state == "asleep" else 0.0
        for start, end in reversed(self.asleep):
            if end <= job.start:
                break
            suspended += end - max(start, job.start)
        self.jobs.append(job._replace(suspended=suspended))
        if self._state == "finishing":
            self.change("asleep", job.end)

    def end(self, now: float) -> None:
        """End the last state, at the end of the record."""
        self.lost = self._state == "lost"
        self.change("awake", now)

    @property
    def seconds(self) -> list[float]:
        """How long the jobs took that came back, each scaled to the largest number of local steps (see DyLU)."""
        most = max((job.steps for job in self.jobs), default=0)
        return [job.seconds * (most / job.steps if job.steps else 1) for job in self.jobs if job.returned]

    @property
    def unfinished_ages(self) -> list[float]:
        """Ages of the jobs that never came back."""
        return [job.seconds for job in self.jobs if not job.returned]

    @property
    def working_seconds(self) -> float:
        """Seconds with a job, without those asleep."""
        return sum(job.seconds for job in self.jobs)

    @property
    def lost_seconds(self) -> float:
        """Seconds lost."""
        return sum(end - start for start, end in self.away)

    @property
    def asleep_seconds(self) -> float:
        """Seconds asleep."""
        return sum(end - start for start, end in self.asleep)
