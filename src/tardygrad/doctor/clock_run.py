"""Simulate only the clock of a method on a fleet, without training: its speed and its delays.

How far a round brings the model depends on the task. The clock knows only the weights w of the updates, relative to the
method's denominator (1/M without weights), and their delays p. It counts a round as

    s · √m / (1 + 0.15 (lag − 1))   effective updates.

s = Σ w is the length of the step, and m = s / Σ w² the number of updates that it averages: M without weights; an update
that is downplayed to 1/p counts as the mean of p updates. √m is a compromise: without noise, the mean of m updates
brings the model as far as one update; if noise is all that matters, m times as far. lag = Σ w p is the number of whole
steps that the model makes while an update is under way: the mean delay without weights, 1 if updates are downplayed.
The factor 0.15 is what predicted real runs best (`benchmarks/plan.py` measures how well).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tardygrad.core.messages import Advanced, Asleep, Awake, Joined, Lost, Refused, Update
from tardygrad.core.method import Method
from tardygrad.fleet import Fleet
from tardygrad.runs.loop import Event, clock_only, drive

UPDATES, ROUNDS = (4_000, 20_000), 5_000  # limits of one simulation, which keep it below a second
PERIOD = 100_000  # most updates, if clients sleep and it takes so many to see them all awake and asleep
STALENESS = 0.15  # how much a lag of one more step slows progress
CLEAR = 1.2  # a change is clearly better from this gain on
FRESH = 2.0  # a lag that training usually stands with the learning rates of a run without delays
SLOW_JOBS = 3  # jobs of the slowest client to simulate, to see its delays


class ClockResult(NamedTuple):
    """The result of a simulation."""

    rounds: int
    time: float
    delay_mean: float
    delay_max: int
    lag: float  # mean Σ w p of a round: whole steps of the model while an update is under way
    averaged: float  # mean number of updates that a step averages, weighted: M without weights
    effective: float  # effective updates
    idle: float  # share of the clients' time awake that they have no job
    refused: float  # share of the updates that arrived
    waits: int  # the delay of the oldest unfinished job, if it finished now

    @property
    def per_round(self) -> float:
        """Seconds per round."""
        return self.time / self.rounds

    @property
    def per_effective(self) -> float:
        """Seconds per effective update."""
        return self.time / self.effective if self.effective else math.inf


def faster(now: ClockResult, then: ClockResult) -> float:
    """How many times as many effective updates per second a setting makes `then` as one does `now`.

    1 if no time passes.
    """
    return now.per_effective / then.per_effective if then.time else 1.0


def gain(now: ClockResult, then: ClockResult) -> float:
    """How many times as fast the training is at least.

    A step that averages m updates counts as √m effective updates. It is worth one without noise, and m if noise is all
    that matters.
    """
    ratio = math.sqrt(then.averaged / now.averaged)
    return faster(now, then) * min(ratio, 1 / ratio)


def clearly_better(now: ClockResult, then: ClockResult) -> bool:
    """Whether a setting is clearly faster than the present one, and its lag is no danger to the learning rates."""
    return gain(now, then) >= CLEAR and then.lag <= max(FRESH, now.lag)


class ClockCounts:
    """Counts what clients do on the clock: the time with a job and asleep, and their updates."""

    def __init__(self) -> None:
        self.delays: dict[int, list[int]] = {}  # by client: of its updates in the model
        self.refused = self.lost = 0
        self.out: dict[int, tuple[int, int, float]] = {}  # by client: serial and round of its job, and when it was sent
        self.asleep_since: dict[int, float] = {}  # by client: since when
        self.busy = self.slept_before = 0.0
        self.cancelled = 0  # jobs of clients that fell asleep

    def follow(self, events: Iterable[Event]) -> Iterator[tuple[float, Advanced]]:
        """Count the events of a run, and yield its rounds with their times."""
        for now, message, happened, jobs in events:
            if isinstance(message, Update | Lost | Asleep) and message.client in self.out:
                serial, s, since = self.out[message.client]
                cancelled = isinstance(message, Asleep) and message.job == "cancel"
                self.cancelled += cancelled
                returned = isinstance(message, Update) and message.serial == serial  # otherwise it is a duplicate
                if cancelled or returned or isinstance(message, Lost):
                    self.busy += max(now - since, 0.0)
                    del self.out[message.client]
                elif isinstance(message, Asleep) and message.job == "suspend":
                    self.busy += max(now - since, 0.0)
                    self.out[message.client] = serial, s, math.inf  # until it is awake
            if isinstance(message, Asleep):
                self.asleep_since.setdefault(message.client, now)
            elif isinstance(message, Awake | Joined | Lost) and message.client in self.asleep_since:
                self.slept_before += now - self.asleep_since.pop(message.client)
                if message.client in self.out and self.out[message.client][2] == math.inf:
                    self.out[message.client] = *self.out[message.client][:2], now
            self.out |= {job.client: (job.serial, job.round, now) for job in jobs}
            self.lost += isinstance(message, Lost)
            self.refused += isinstance(happened, Refused)
            if isinstance(happened, Advanced):
                for client, delay in zip(happened.clients, happened.delays, strict=True):
                    self.delays.setdefault(client, []).append(delay)
                yield now, happened

    def seconds_asleep(self, time: float) -> float:
        """The seconds that clients have been asleep, all together."""
        return self.slept_before + sum(time - since for since in self.asleep_since.values())

    def idle(self, clients: int, time: float) -> float:
        """The share of the clients' time without a job, not counting sleep."""
        busy = self.busy + sum(max(time - since, 0.0) for *_, since in self.out.values())
        awake = clients * time - self.seconds_asleep(time)
        return max(1.0 - busy / awake, 0.0) if awake > 0 else 0.0  # rounding may give more than 1


def run_clock(method: Method, fleet: Fleet, *, rounds: int, parameters: int = 0, seed: int = 0) -> ClockResult:
    """Simulate up to `rounds` rounds of the method on the fleet, fewer if those are enough.

    If clients sleep, a simulation that is cut short ends after whole periods of their windows, if it can: by day and by
    night the fleet is another one.

    Raises:
        Starved: the buffer could not be filled.
    """
    updates, in_period = updates_to_simulate(fleet), updates_in_period(fleet)
    most = max(min(rounds, updates if in_period else ROUNDS, updates // method.buffer), 1)
    whole = max(updates // in_period, 1) * fleet.period if in_period and most < rounds else math.inf
    server, pool = clock_only(method, fleet, parameters=parameters, seed=seed)
    counts = ClockCounts()
    step = squares = lag = 0.0  # sums over all rounds of Σ w, Σ w² and Σ w p
    for now, advanced in counts.follow(drive(server, pool, most)):
        divisor = method.divisor(advanced.weights)
        weights = [w / divisor for w in advanced.weights]
        step, squares = step + sum(weights), squares + sum(w * w for w in weights)
        lag += sum(w * p for w, p in zip(weights, advanced.delays, strict=True))
        if now >= whole:
            break
    delays = [delay for each in counts.delays.values() for delay in each]
    rounds, time = server.round, pool.now
    lag /= rounds
    averaged = step / squares if squares else 1.0
    return ClockResult(
        rounds=rounds,
        time=time,
        delay_mean=sum(delays) / len(delays),
        delay_max=max(delays),
        lag=lag,
        averaged=averaged,
        effective=step * math.sqrt(averaged) / (1 + STALENESS * max(lag - 1, 0.0)),
        idle=counts.idle(fleet.clients, time),
        refused=counts.refused / (counts.refused + len(delays)),
        waits=rounds + 1 - min((s for _, s, _ in counts.out.values()), default=rounds),
    )


def updates_to_simulate(fleet: Fleet) -> int:
    """The number of updates to simulate: the slowest client finishes a few jobs, and a period ends, within limits.

    >>> updates_to_simulate(Fleet.paper(clients=400))
    10680
    """
    until_slowest = SLOW_JOBS * max(median for _, median in _medians(fleet)) * _rate(fleet)
    usual = min(max(until_slowest, UPDATES[0]), UPDATES[1])
    return math.ceil(max(usual, min(1.5 * updates_in_period(fleet), PERIOD)))  # more than in one: it may end asleep


def updates_in_period(fleet: Fleet) -> float:
    """The number of updates in a period of the fleet's windows, if all clients work while they are awake; 0 without."""
    if not fleet.period:
        return 0.0
    always = fleet.clients - len(fleet.available)
    awake = sum(entry.open_seconds / (entry.period or fleet.period) for entry in fleet.available)
    return fleet.period * _rate(fleet) * (awake + always) / fleet.clients


def _rate(fleet: Fleet) -> float:
    """Updates per second if all clients work."""
    return sum(clients / median for clients, median in _medians(fleet))


def _medians(fleet: Fleet) -> list[tuple[int, float]]:
    """The number of clients and the median runtime of each group."""
    return [(group.clients, max(group.runtime.draw(0.5, 0), 1e-9)) for group in fleet.groups if group.clients]
