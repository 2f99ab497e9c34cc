"""`plan`: simulate the clock of a spec, without training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tardygrad.cli import commands
from tardygrad.cli.output import as_objects, cell, counted, show_json, show_table
from tardygrad.core.hierarchy import ServerLike
from tardygrad.doctor.clock_run import ClockCounts
from tardygrad.engines.contract import Pool
from tardygrad.errors import Invalid
from tardygrad.fleet import Fleet
from tardygrad.runs.accountant import Accountant, guarantee
from tardygrad.runs.loop import Event, clock_only, drive
from tardygrad.runs.memory import Memory, read_size, size
from tardygrad.runs.progress import progress_bar
from tardygrad.runs.record_values import printable
from tardygrad.runs.run import plural
from tardygrad.spec import spec

MAX_UPDATES = 10_000_000  # most updates to simulate, which takes minutes


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


class ClockPlan(NamedTuple):
    """What a run will take; times are seconds of the virtual clock."""

    method: str
    clients: int
    parameters: int
    rounds: int
    time: float
    rounds_per_second: float | None  # None: no time passed
    delay: Delays
    idle: float  # share of the clients' time awake that they have no job
    asleep: float  # share of the clients' time
    lost: int
    cancelled: int  # jobs whose clients fell asleep
    silent: int  # clients without an update in the model
    classes: dict[str, Share]
    memory: Memory
    epsilon: float | None = None  # that a private run spends; None: above 500
    delta: float | None = None


def plan(options: commands.Plan) -> None:
    """Simulate the clock of a spec, for its own setting or for all that `--search` tries."""
    searching = options.search or options.fit is not None
    if searching and options.max_memory is not None:
        raise Invalid("--max-memory cannot be combined with --search or --fit.")
    for option, needs, fine in (
        ("--max-delay", "--search or --fit RUN", options.max_delay is None or searching),
        ("--write", "--fit RUN", options.write is None or options.fit is not None),
    ):
        if not fine:
            raise Invalid(f"{option} needs {needs}. Add it, or leave {option} out.")
    loaded = spec.load(options.source, options.overrides, trust=options.trust)
    built = loaded.build()
    _check_engine(built)
    if searching:
        from tardygrad.cli.search import find

        find(loaded, built, options)
        return
    if built.fleet is None:
        raise Invalid("a plan needs a [fleet], got a spec without one. Describe your clients in it.")
    limit = None if options.max_memory is None else read_size(options.max_memory)
    planned = simulated(built, built.fleet)
    if limit:
        planned.memory.check(limit)
    if options.json:
        show_json(as_objects(planned))
    else:
        _show(planned)


def _check_engine(built: spec.Built) -> None:
    """Raise `Invalid` if the simulator refuses its settings.

    A pool says so when it is made. With 0 or several valid workers it would start processes, so it is not made then.
    """
    workers, batch = (built.engine.arguments.get(key, 1) for key in ("workers", "batch"))
    if built.engine.simulated and (workers < 0 or workers == 1 or batch != 1):
        built.pool().close()


def clock_events(built: spec.Built, server: ServerLike, pool: Pool) -> Iterator[Event]:
    """Drive the run of a spec without training, with a progress bar; raise `Invalid` if it would take too long."""
    rounds, until, buffer = built.run.rounds, built.run.until, built.method.buffer
    rule = f"a plan may have at most {MAX_UPDATES:,} updates (rounds · buffer)"
    if until is None or not built.engine.simulated:
        if rounds is None:
            raise Invalid("a plan needs the length of the run, got real seconds in run.until. Set run.rounds.")
        if (updates := rounds * buffer) > MAX_UPDATES:
            raise Invalid(f"{rule}, got {updates:,}. Use fewer run.rounds.")
        yield from counted(drive(server, pool, rounds), total=updates, what="updates")
        return
    events = drive(server, pool, rounds, until=until)
    for event in progress_bar(events, lambda event: "", what="second", total=until, count=lambda event: event.time):
        if server.round * buffer > MAX_UPDATES:
            raise Invalid(f"{rule}, got more in {event.time:g} s. Use a smaller run.until.")
        yield event


def simulated(built: spec.Built, fleet: Fleet) -> ClockPlan:
    """Drive the method's server on the fleet's clock, without gradients."""
    method, parameters = built.method, built.task.parameters
    server, pool = clock_only(method, fleet, parameters=parameters, seed=built.run.seed)
    meter, counts = built.meter(), ClockCounts()
    accountant = Accountant(method.privacy) if method.privacy else None
    for _, advanced in counts.follow(meter.follow(server, clock_events(built, server, pool))):
        if accountant:
            accountant.add(advanced.clients)
    time, rounds = pool.now, server.round
    if not rounds:
        raise Invalid(f"a plan needs a round, got run.until={built.run.until:g}, when none is done. Use a larger one.")
    delays: dict[str, list[int]] = {name: [] for name in fleet.classes}
    for client, own in counts.delays.items():
        delays[fleet.classes[client]] += own
    return ClockPlan(
        method=str(method),
        clients=fleet.clients,
        parameters=parameters,
        rounds=rounds,
        time=time,
        rounds_per_second=rounds / time if time else None,
        delay=_delays([delay for each in delays.values() for delay in each]),
        idle=counts.idle(fleet.clients, time),
        asleep=counts.seconds_asleep(time) / (fleet.clients * time) if time else 0.0,
        lost=counts.lost,
        cancelled=counts.cancelled,
        silent=fleet.clients - len(counts.delays),
        classes=_shares(fleet, delays),
        memory=meter.memory if built.engine.simulated else built.memory(),
        epsilon=accountant.epsilon if accountant else None,
        delta=accountant.privacy.delta if accountant else None,
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


def _show(plan: ClockPlan) -> None:
    rate = "" if plan.rounds_per_second is None else f" ({plan.rounds_per_second:.4g} rounds per second)"
    delay = plan.delay
    facts = {
        "time": f"{plan.time:.6g} s for {plural(plan.rounds, 'round')}{rate}",
        "delay": f"mean {delay.mean:.3g}, median {delay.median:g}, p90 {delay.p90:g}, max {delay.max}",
        "asleep": f"{plan.asleep:.1%} of {plan.clients} clients' time" if plan.asleep else "",
        "idle": f"{plan.idle:.1%} of " + ("the rest" if plan.asleep else f"{plan.clients} clients' time"),
        "model": plural(plan.parameters, "parameter"),
        "lost": f"{plan.lost} (a client lost twice counts twice)" if plan.lost else "",
        "cancelled": f"{plural(plan.cancelled, 'job')}, at the end of a client's window" if plan.cancelled else "",
        "silent": f"{plan.silent} of {plan.clients} clients contribute nothing in this time" if plan.silent else "",
        "privacy": f"{guarantee(plan.epsilon, plan.delta)} for each client" if plan.delta else "",
    }
    show_table(("", ""), (fact for fact in facts.items() if fact[1]), plan.method, header=False)
    classes = []
    for name, share in plan.classes.items():
        mean_delay = cell(share.delay, ".3g", missing="")
        classes.append((printable(name, 40), str(share.clients), str(share.updates), f"{share.share:.1%}", mean_delay))
    show_table(("class", "clients>", "updates>", "share>", "mean delay>"), classes)
    parts = plan.memory.parts.items()
    rows = [(name, cell(number, "d", missing=""), size(total)) for name, (number, total) in parts if total]
    show_table(("memory", "number>", "size>"), [*rows, ("total", "", size(plan.memory.peak))])
