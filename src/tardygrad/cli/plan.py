"""`plan`: simulate the clock of a spec, without training."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tardygrad.cli.output import counted, show_json, show_table
from tardygrad.core.messages import Advanced, Lost, Taken, Update
from tardygrad.doctor.clock_run import BusyTime
from tardygrad.errors import Invalid
from tardygrad.fleet import Fleet
from tardygrad.runs.loop import clock_only, drive
from tardygrad.runs.memory import Memory, read_size, size
from tardygrad.runs.run import plural
from tardygrad.spec import spec

if TYPE_CHECKING:
    from rich.table import Table


MOST = 10_000_000  # most updates to simulate, which takes minutes


class Delays(NamedTuple):
    """Delays of the aggregated updates."""

    mean: float
    median: float
    p90: float
    max: int


class Share(NamedTuple):
    """What a class of clients contributed."""

    clients: int
    updates: int
    share: float  # of all updates
    delay: float | None  # mean


class Plan(NamedTuple):
    """What a run will take; times are seconds of the virtual clock."""

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
    memory: Memory


def plan(
    source: str,
    overrides: list[str] | None,
    search: bool,
    fit: str | None,
    max_delay: int | None,
    figure: str | None,
    write: str | None,
    max_memory: str | None,
    json: bool,
) -> None:
    """Simulate the clock of a spec, for its own setting or for all that `--search` tries."""
    searching = search or fit is not None
    for option, needs, fine in (
        ("--max-delay", "--search or --fit RUN", max_delay is None or searching),
        ("--figure", "--search or --fit RUN", figure is None or searching),
        ("--write", "--fit RUN", write is None or fit is not None),
        ("--max-memory", "a plan without --search and --fit", max_memory is None or not searching),
    ):
        if not fine:
            raise Invalid(f"{option} needs {needs}. Add it, or leave {option} out.")
    loaded = spec.load(source, overrides or ())
    built = loaded.build()
    if searching:
        from tardygrad.cli.search import find

        find(loaded, built, run=fit, most=max_delay, figure=figure, write=write, json=json)
        return
    if built.fleet is None:
        raise Invalid("a plan needs a [fleet], got a spec without one. Describe your clients in it.")
    limit = None if max_memory is None else read_size(max_memory)
    if (updates := built.rounds * built.method.buffer) > MOST:
        raise Invalid(
            f"a plan may have at most {MOST:,} updates (rounds · buffer), got {updates:,}. Use fewer run.rounds."
        )
    planned = simulated(built, built.fleet)
    if limit:
        planned.memory.check(limit)
    if json:
        classes = {name: share._asdict() for name, share in planned.classes.items()}
        parts = {name: part._asdict() for name, part in planned.memory.parts.items()}
        memory = planned.memory._asdict() | {"parts": parts}
        show_json(planned._asdict() | {"delay": planned.delay._asdict(), "classes": classes, "memory": memory})
    else:
        for table in (_table(planned), _classes(planned), _parts(planned.memory)):
            show_table(table)


def simulated(built: spec.Built, fleet: Fleet) -> Plan:
    """Drive the method's server on the fleet's clock, without gradients."""
    method, parameters, rounds, seed = built.method, built.task.parameters, built.rounds, built.run.seed
    server, pool = clock_only(method, fleet, parameters=parameters, seed=seed)
    meter, busy_time, lost = built.meter(), BusyTime(), 0
    classes = fleet.classes
    delays: dict[str, list[int]] = {name: [] for name in classes}
    events = counted(drive(server, pool, rounds), total=rounds * method.buffer, what="updates")
    for event in meter.follow(server, events):
        busy_time.add(event)
        _, message, happened, _ = event
        lost += isinstance(message, Lost)
        if isinstance(message, Update) and isinstance(happened, Taken | Advanced):
            delay = happened.delay if isinstance(happened, Taken) else happened.delays[-1]
            delays[classes[message.client]].append(delay)
    time = pool.now
    return Plan(
        method=str(method),
        clients=fleet.clients,
        parameters=parameters,
        rounds=rounds,
        time=time,
        rounds_per_second=rounds / time if time else None,
        delay=_delays([delay for each in delays.values() for delay in each]),
        idle=busy_time.idle(fleet.clients, time),
        lost=lost,
        classes=_shares(fleet, delays),
        memory=meter.memory if built.simulated else built.memory(),
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
    table.add_row("time", f"{plan.time:.6g} s for {plural(plan.rounds, 'round')}{rate}")
    delay = plan.delay
    table.add_row("delay", f"mean {delay.mean:.3g}, median {delay.median:g}, p90 {delay.p90:g}, max {delay.max}")
    table.add_row("idle", f"{plan.idle:.1%} of {plan.clients} clients' time")
    table.add_row("model", plural(plan.parameters, "parameter"))
    if plan.lost:
        table.add_row("lost", f"{plan.lost} (a client lost twice counts twice)")
    return table


def _classes(plan: Plan) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("class", box=None, pad_edge=False)
    for name in ("clients", "updates", "share", "mean delay"):
        table.add_column(name, justify="right")
    for name, share in plan.classes.items():
        delay = "" if share.delay is None else f"{share.delay:.3g}"
        table.add_row(escape(name), str(share.clients), str(share.updates), f"{share.share:.1%}", delay)
    return table


def _parts(memory: Memory) -> Table:
    from rich.table import Table

    table = Table("memory", "number", "size", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, (number, total) in memory.parts.items():
        if total:
            table.add_row(name, "" if number is None else str(number), size(total))
    table.add_row("total", "", size(memory.peak))
    return table
