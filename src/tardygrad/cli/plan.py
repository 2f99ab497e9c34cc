"""`plan`: the clock of a spec, without its training."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tardygrad import spec
from tardygrad.algorithm import Method, Server
from tardygrad.cli.screen import Json, Overrides, Source, show_json, show_table
from tardygrad.drive import drive
from tardygrad.errors import Invalid
from tardygrad.fleet import Fleet
from tardygrad.messages import Advanced, Lost, Taken, Update
from tardygrad.pools.sim import SimPool
from tardygrad.tasks.clock import clock

if TYPE_CHECKING:
    from rich.table import Table


class Delays(NamedTuple):
    """The delays of the updates that made rounds."""

    mean: float
    median: float
    p90: float
    max: int


class Share(NamedTuple):
    """What one class of clients contributed."""

    clients: int
    updates: int
    share: float  # of all updates
    delay: float | None  # mean of theirs


class Plan(NamedTuple):
    """What a run will take, in seconds of the virtual clock."""

    method: str
    clients: int
    parameters: int
    rounds: int
    time: float
    rounds_per_second: float | None  # None: no time passed
    delay: Delays
    idle: float  # 1 − client-seconds with a job out / (clients · time)
    lost: int
    classes: dict[str, Share]


def plan(source: Source, overrides: Overrides = None, json: Json = False) -> None:
    """Say how long a spec takes and how stale updates get, without training.

    The same method on the same fleet, on the clock alone. SPEC and TABLE.KEY=VALUE as for `tardygrad run`.
    """
    built = spec.load(source, overrides or ()).build()
    if built.fleet is None:
        raise Invalid("a plan needs a [fleet], got a spec without one. Describe your clients in it.")
    planned = simulated(built.method, built.fleet, built.task.parameters, built.run.rounds, built.run.seed)
    if json:
        classes = {name: share._asdict() for name, share in planned.classes.items()}
        show_json(planned._asdict() | {"delay": planned.delay._asdict(), "classes": classes})
    else:
        show_table(_table(planned))
        show_table(_classes(planned))


def simulated(method: Method, fleet: Fleet, parameters: int, rounds: int, seed: int) -> Plan:
    """Drive the method's server on the fleet's clock, with nothing to learn."""
    task = clock(clients=fleet.clients, parameters=parameters)
    server = Server(method, task.init(seed), clients=fleet.clients, seed=seed)
    pool = SimPool(task, method, fleet)
    sent: dict[int, float] = {}
    busy, lost = 0.0, 0
    classes = fleet.classes
    delays: dict[str, list[int]] = {name: [] for name in classes}
    for now, message, happened, jobs in drive(server, pool, rounds):
        if isinstance(message, Update | Lost):
            busy += now - sent.pop(message.client, now)
            lost += isinstance(message, Lost)
        if isinstance(message, Update) and isinstance(happened, Taken | Advanced):
            delay = happened.delay if isinstance(happened, Taken) else happened.delays[-1]
            delays[classes[message.client]].append(delay)
        sent |= {job.client: now for job in jobs}
    time = pool.now
    busy += sum(time - since for since in sent.values())
    return Plan(
        method=str(method),
        clients=fleet.clients,
        parameters=parameters,
        rounds=rounds,
        time=time,
        rounds_per_second=rounds / time if time else None,
        delay=_delays([delay for each in delays.values() for delay in each]),
        idle=1.0 - busy / (fleet.clients * time) if time else 0.0,
        lost=lost,
        classes=_shares(fleet, delays),
    )


def _delays(delays: list[int]) -> Delays:
    median, p90 = np.percentile(delays, [50, 90])
    return Delays(float(np.mean(delays)), float(median), float(p90), max(delays))


def _shares(fleet: Fleet, delays: dict[str, list[int]]) -> dict[str, Share]:
    clients, total = Counter(fleet.classes), sum(map(len, delays.values()))
    return {
        name: Share(clients[name], len(each), len(each) / total, float(np.mean(each)) if each else None)
        for name, each in delays.items()
    }


def _table(plan: Plan) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(plan.method), title_justify="left", show_header=False, box=None, pad_edge=False)
    rate = "" if plan.rounds_per_second is None else f" ({plan.rounds_per_second:.4g} rounds per second)"
    table.add_row("time", f"{plan.time:.6g} s for {plan.rounds} rounds{rate}")
    delay = plan.delay
    table.add_row("delay", f"mean {delay.mean:.3g}, median {delay.median:g}, p90 {delay.p90:g}, max {delay.max}")
    table.add_row("idle", f"{plan.idle:.1%} of {plan.clients} clients' time")
    table.add_row("model", f"{plan.parameters} parameters")
    if plan.lost:
        table.add_row("lost", f"{plan.lost} (a client that is lost twice counts twice)")
    return table


def _classes(plan: Plan) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("class", box=None, pad_edge=False)
    for name in ("clients", "updates", "share", "mean delay"):
        table.add_column(name, justify="right")
    for name, one in plan.classes.items():
        delay = "" if one.delay is None else f"{one.delay:.3g}"
        table.add_row(escape(name), str(one.clients), str(one.updates), f"{one.share:.1%}", delay)
    return table
