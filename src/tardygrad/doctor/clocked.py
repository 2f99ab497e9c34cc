"""A method on a fleet's clock, with nothing to learn: how fast it is, and how late its updates are."""

from __future__ import annotations

from typing import NamedTuple

from tardygrad.drive import drive
from tardygrad.fleet import Fleet
from tardygrad.messages import Advanced, Lost, Refused, Update
from tardygrad.method import Method
from tardygrad.pools.sim import SimPool
from tardygrad.regions import serve
from tardygrad.tasks.clock import clock

UPDATES, ROUNDS = (4_000, 20_000), 5_000  # of one simulation: these limits keep it below a second
LAPS = 3  # jobs of the slowest client that show how late it gets


class Clocked(NamedTuple):
    """What a run takes, as far as it was simulated."""

    rounds: int
    time: float
    delay_mean: float
    delay_max: int
    effective: float  # updates, each counted 1/p
    idle: float  # share of the clients' time without a job
    refused: float  # share of the updates that arrived
    waits: int  # the delay that the oldest job would have that is still out

    @property
    def per_round(self) -> float:
        """Seconds."""
        return self.time / self.rounds

    @property
    def per_effective(self) -> float:
        """Seconds for each effective update."""
        return self.time / self.effective


def clocked(method: Method, fleet: Fleet, *, rounds: int, parameters: int = 0, seed: int = 0) -> Clocked:
    """Drive the method's server on the fleet's clock for so many rounds, or as many as are enough to know.

    Raises:
        Starved: the buffer could not fill.
    """
    rounds = max(min(rounds, ROUNDS, enough(fleet) // method.buffer), 1)
    task = clock(clients=fleet.clients, parameters=parameters)
    server = serve(method, task.init(seed), clients=fleet.clients, seed=seed)
    pool = SimPool(task, method, fleet)
    sent: dict[int, float] = {}
    begun: dict[int, int] = {}  # the rounds that jobs began from
    delays: list[int] = []
    busy, refused = 0.0, 0
    for now, message, happened, jobs in drive(server, pool, rounds):
        if isinstance(message, Update | Lost):
            busy += now - sent.pop(message.client, now)
            begun.pop(message.client, None)
        refused += isinstance(happened, Refused)
        if isinstance(happened, Advanced):
            delays += happened.delays
        sent |= {job.client: now for job in jobs}
        begun |= {job.client: job.round for job in jobs}
    time = pool.now
    busy += sum(time - since for since in sent.values())
    return Clocked(
        rounds=rounds,
        time=time,
        delay_mean=sum(delays) / len(delays),
        delay_max=max(delays),
        effective=sum(1 / delay for delay in delays),
        idle=max(1.0 - busy / (fleet.clients * time), 0.0) if time else 0.0,
        refused=refused / (refused + len(delays)),
        waits=rounds + 1 - min(begun.values(), default=rounds),
    )


def enough(fleet: Fleet) -> int:
    """Updates until the slowest client has come back a few times, within limits.

    >>> enough(Fleet.paper(clients=400))
    10680
    """
    return int(min(max(laps(fleet), UPDATES[0]), UPDATES[1]))


def laps(fleet: Fleet) -> float:
    """Updates until the slowest client has come back a few times."""
    known = [(group.clients, max(group.runtime.draw(0.5, 0), 1e-9)) for group in fleet.groups if group.clients]
    slowest = max(median for _, median in known)
    rate = sum(clients / median for clients, median in known)
    return LAPS * slowest * rate
