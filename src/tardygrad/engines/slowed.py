"""Tasks whose jobs take as long as a fleet says, for engines in real time: the work is done, then the worker sleeps."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TypeVar

from tardygrad.core.messages import Job, Update
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.contract import perform
from tardygrad.engines.fleet_clock import RoundTrips, matched, round_trips
from tardygrad.errors import Invalid, is_number
from tardygrad.fleet import Fleet

T = TypeVar("T", bound=Task)

LONGEST = 1e8
"""Seconds of the longest sleep."""


@dataclass
class Slowness:
    """What slows a task down."""

    fleet: Fleet
    second: float
    trips: RoundTrips | None = None  # made with the first job

    def seconds(self, job: Job, task: Task, method: Method) -> float:
        """How long a job takes."""
        self.trips = self.trips or round_trips(task, method, self.fleet)
        seconds = self.trips.due(job.client, job.serial, job.seed, job.steps or job.epochs, 0.0)
        return min(self.second * seconds, LONGEST)


def slowed(task: T, fleet: Fleet, *, second: float = 1.0) -> T:
    """The same task, whose jobs take as long in real time as the fleet's runtimes and links say.

    Workers on threads and on Ray compute a job, then sleep for the rest of its time; simulations and replays do not.

    Args:
        fleet: runtimes and links; what happens to a fleet (crashes, availability, faults, …) can only be simulated.
        second: real seconds for each second of the fleet.
    """
    if not (is_number(second) and 1e-6 <= second <= 86_400):
        raise Invalid(f"`second` must be a number of seconds from 1e-6 to 86,400, got {second!r}. Use 0 for no fleet.")
    fleet = matched(fleet, task)
    check_plain(fleet)
    if fleet.clients != task.clients:
        counts = f"{task.clients} and {fleet.clients}"
        raise Invalid(f"task and fleet must have the same number of clients, got {counts}.")
    return with_slowness(task, Slowness(fleet, float(second)))


def check_plain(fleet: Fleet) -> None:
    """Raise `Invalid` if more happens to a fleet than real workers can be told to do."""
    if fleet != Fleet(fleet.groups, ids=fleet.ids) or any(fleet.dropouts):
        rule = "workers in real time can take a fleet's runtimes and links, and this fleet has more"
        raise Invalid(f"{rule}, such as crashes, slow-downs or hours of availability. Leave that out, or simulate it.")


def with_slowness(task: T, slowness: Slowness | None) -> T:
    """A copy of a task with this slowness."""
    slow = copy.copy(task)
    slow._slowness = slowness  # type: ignore[attr-defined]
    return slow


def slowness_of(task: Task) -> Slowness | None:
    """What slows a task down; None: nothing."""
    return getattr(task, "_slowness", None)


def perform_in_time(job: Job, task: Task, method: Method) -> Update:
    """Do a job, and sleep for the rest of its time if the task is slowed."""
    began = time.monotonic()
    update = perform(job, task, method)
    if slowness := slowness_of(task):
        time.sleep(max(0.0, slowness.seconds(job, task, method) - (time.monotonic() - began)))
    return update
