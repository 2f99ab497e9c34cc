"""The loop between server and engine, the same for every engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tardygrad.core.faults import written_out
from tardygrad.core.hierarchy import ServerLike, serve
from tardygrad.core.messages import (
    NOTHING,
    Advanced,
    Asleep,
    Awake,
    Happened,
    Job,
    Joined,
    Lost,
    Message,
    Refused,
    Taken,
)
from tardygrad.core.method import Method
from tardygrad.core.task import Task, sample_counts
from tardygrad.engines.contract import Pool, check_pool
from tardygrad.engines.sim.pool import SimPool
from tardygrad.engines.threads import use_threads
from tardygrad.errors import Diverged, Invalid, Starved, TimeUp, is_number
from tardygrad.fleet import Fleet
from tardygrad.tasks.clock import clock

CLIENT_STATES = (Lost, Joined, Asleep, Awake)  # messages about a client, and not about a job
UNKNOWN = " They were finite when they left the clients: look at what carries them, such as wire='bfloat16'."


class Event(NamedTuple):
    """One turn of the loop: the time, the message that arrived, its effect, and the jobs that were sent."""

    time: float
    message: Message | None  # None: the run's first jobs
    happened: Happened
    jobs: list[Job]


def drive(server: ServerLike, pool: Pool, rounds: int | None = None, *, until: float | None = None) -> Iterator[Event]:
    """Pass messages between a server and a pool until round `rounds` or second `until`, whichever comes first.

    Args:
        rounds: T; None: no limit.
        until: seconds of the engine's clock; later messages are not processed. None: no limit.

    Raises:
        Starved: no job is in flight and the buffer is not full; or updates keep being refused: those of all clients,
            a thousand of one client, or a thousand duplicates in a row; or a thousand jobs of every client were lost.
        Diverged: the model is no longer finite.
        Invalid: only `until` is given, and the clock stands still while a client sends a thousand updates.
    """
    if not callable(getattr(server, "receive", None)):
        raise Invalid(f"`drive` needs a server, as from tardygrad.serve(...), got {type(server).__name__}.")
    check_pool(pool)
    if pool.deadline is not None:
        pool.deadline = math.inf if until is None else until
    use_threads()
    _check_finite(server)
    asleep = [Asleep(client) for client in pool.asleep]
    for sleeper in asleep:
        _check_client(sleeper, server.clients)
    now, refused, cancelled, at_once, duplicates = 0.0, Counter[int](), Counter[int](), Counter[int](), 0
    faults: dict[int, str] = {}  # of the clients whose updates were refused
    jobs = server.dispatch(sleeper.client for sleeper in asleep)
    yield from (Event(now, sleeper, None, []) for sleeper in asleep)
    for job in jobs:
        pool.submit(job)
    if jobs:
        now = _time(pool, now)
        yield Event(now, None, None, jobs)
    while rounds is None or server.round < rounds:
        try:
            message = pool.next()
        except TimeUp:
            return
        if message is None:
            why = "the engine has no more messages" if server.roster.jobs else "no job is in flight"
            raise Starved(_starved(server, why))
        before, now = now, _time(pool, now)
        if until is not None and now > until and pool.deadline is None:
            return
        if rounds is None and until is not None:
            _check_moves(now > before, now, message, at_once)
        if isinstance(message, CLIENT_STATES):
            _check_client(message, server.clients)
            ends_job = isinstance(message, Lost) or (isinstance(message, Asleep) and message.job == "cancel")
            if ends_job and message.client in server.roster.jobs:
                cancelled[message.client] += 1
        happened, jobs = server.receive(message, now)
        for job in jobs:
            pool.submit(job)
        yield Event(now, message, happened, jobs)
        if cancelled and all(cancelled[client] > 1000 for client in (message.client, *server.roster.candidates())):
            raise Starved(_starved(server, f"the last {cancelled.total()} jobs were lost or cancelled"))
        if isinstance(happened, Refused) and happened.reason == "finished job":  # says nothing about the client
            duplicates += 1
            if duplicates > 1000:
                raise Starved(_starved(server, f"client {happened.client} repeats job {happened.serial}"))
            continue
        duplicates = 0
        if isinstance(happened, Refused):
            refused[happened.client] += 1
            if happened.fault:
                faults.setdefault(happened.client, happened.fault)
            times = refused[happened.client]
            if times > 1000 or (times > 3 and all(refused[client] > 3 for client in server.roster.candidates())):
                why = f"the last {refused.total()} updates were refused, most recently as {happened.reason!r}"
                cause = f" {written_out(faults.values())}" if faults else UNKNOWN * (happened.reason == "not finite")
                raise Starved(_starved(server, why) + cause)
        elif isinstance(happened, Taken | Advanced):
            refused.clear()
            faults.clear()
            cancelled.clear()
            if isinstance(happened, Advanced):
                _check_finite(server)


def clock_only(method: Method, fleet: Fleet, *, parameters: int = 0, seed: int = 0) -> tuple[ServerLike, SimPool]:
    """A server and a simulator for `drive` that measure times and delays without training.

    Args:
        parameters: size of the model, which sets how long messages take on a link.
    """
    task = clock(clients=fleet.clients, parameters=parameters)
    server = serve(method, NOTHING, clients=fleet.clients, seed=seed, samples=[1] * fleet.clients)
    return server, SimPool(task, method, fleet)


def plan(
    method: Method, fleet: Fleet, *, rounds: int | None = None, until: float | None = None, seed: int = 0
) -> Iterator[Event]:
    """The events of a simulated run without its training: the clock alone, thousands of updates in a second.

    Args:
        rounds: end after this many.
        until: end after this time.

    >>> import tardygrad as tg
    >>> method = tg.sgdclip(local_lr=0.0, local_clip=0.0, lr=0.0, buffer=4, local_steps=1, mode="client")
    >>> *_, last = tg.plan(method, tg.Fleet.paper(clients=40), rounds=140)
    >>> last.time
    39.0
    """
    return drive(*clock_only(method, fleet, seed=seed), rounds, until=until)


def trained_rounds(
    method: Method, task: Task, fleet: Fleet, *, seed: int, rounds: int | None = None, until: float | None = None
) -> Iterator[tuple[float, ServerLike]]:
    """Train on the simulator without a record; yields the time and the server after every round.

    Raises:
        Diverged, Starved: as `drive`.
    """
    x, buffers = task.init(seed), task.init_module_buffers()
    counts = sample_counts(task, method.weight_by)
    server = serve(method, x, clients=task.clients, seed=seed, module_buffers=buffers, samples=counts)
    with SimPool(task, method, fleet) as pool:
        for event in drive(server, pool, rounds, until=until):
            if isinstance(event.happened, Advanced):
                yield event.time, server


def _time(pool: Pool, before: float) -> float:
    """The pool's time; raises `Invalid` if that is no time after `before`."""
    now = pool.now
    if (type(now) is float or is_number(now)) and before <= now < math.inf:
        return float(now)
    fix = "Make it a property." if callable(now) else "Return the seconds since the run began."
    raise Invalid(f"`now` of a pool must be a finite number that never decreases, got {now!r} after {before:g}. {fix}")


def _check_moves(moves: bool, now: float, message: Message, at_once: Counter[int]) -> None:
    """Count the updates of each client at one time; raise `Invalid` if the clock stands still."""
    if moves:
        at_once.clear()
    if not isinstance(message, CLIENT_STATES):
        at_once[message.client] += 1
        if (number := at_once[message.client]) > 1000:
            rule = "a run without `rounds` needs jobs that take time"
            raise Invalid(f"{rule}, got {number} updates of client {message.client} at second {now:g}. Set rounds too.")


def _check_client(message: Lost | Joined | Asleep | Awake, clients: int) -> None:
    """Raise `Invalid` unless a message names one of the clients."""
    if type(message.client) is not int or not 0 <= message.client < clients:
        name = type(message).__name__
        got = type(message.client).__name__ if isinstance(message.client, tuple) else repr(message.client)
        rule = f"{name} must have the number of a client, 0 to {clients - 1}"
        raise Invalid(f"{rule}, got {got}. Use {name}(job.client).")


def _check_finite(server: ServerLike) -> None:
    if not all(level.vectors.finite() for level in server.levels):
        raise Diverged(f"the model is not finite after round {server.round}. Use a smaller lr, or clip.")


def _starved(server: ServerLike, why: str) -> str:
    at = server.roster.census()
    clients = f"{at.at_work} at work, {at.waiting} waiting, {at.idle} idle, {at.lost} lost"
    clients += f", {at.asleep} asleep" * bool(at.asleep)
    return (
        f"the buffer cannot fill in round {server.round + 1}: {why} "
        f"({len(server.buffer)} of {at.buffer} updates received; of {at.clients} clients {clients})."
    )
