"""Which clients work when: each has a job, waits for the round to end, is free, asleep, or lost. No vectors."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

from tardygrad import streams
from tardygrad.core.messages import AtEnd
from tardygrad.core.method import Method
from tardygrad.errors import Invalid, check_integer


class Census(NamedTuple):
    """The number of clients in each state, and M."""

    clients: int
    at_work: int
    waiting: int
    idle: int
    lost: int
    buffer: int
    asleep: int


class Roster:
    """Keeps the state of every client: at work (`jobs`), waiting for the round to end (`waiting`: sync and
    server-centric), free (`idle`), asleep (`asleep`), or lost (in none of them).

    A client that is asleep gets no job. It may have one, which it finishes, or which is `suspended`. A suspended job
    does not take a slot, so another client may work in its place; a synchronous round waits for it.

    A synchronous round is a server-centric one with M slots, each given to a random client.
    """

    def __init__(self, method: Method, clients: int, seed: int) -> None:
        check_integer("clients", clients)
        for name, value, fix in (
            ("buffer", method.buffer, f"Use buffer={clients} for full synchronisation."),
            ("concurrency", method.concurrency or 1, "Leave it out to let all clients work."),
        ):
            if value > clients:
                raise Invalid(f"`{name}` must be between 1 and the number of clients ({clients}), got {value}. {fix}")
        self.clients, self.seed, self.buffer = clients, seed, method.buffer
        self.waits = method.mode != "client"  # whether a client that has reported waits for the round to end
        self.slots = method.buffer if method.mode == "sync" else method.concurrency or clients
        self.random = method.mode == "sync" or method.dispatch == "random"
        self.jobs: dict[int, int] = {}  # client at work → s, the round its job started from
        self.idle = list(range(clients - 1, -1, -1))  # taken from the end: client 0 first
        self.waiting: list[int] = []
        self.asleep: set[int] = set()
        self.suspended: set[int] = set()  # those of them whose job waits until they are awake
        self.in_rounds = method.mode == "sync"
        self.serials = [0] * clients  # the number of jobs that each client has been given
        self.sent = 0  # the sum of these numbers
        self.counts_holders = method.needs_past
        self.holders: Counter[int] = Counter()  # s → how many jobs at work started from x_s, if that is needed

    def assign(self, s: int, reported: int) -> list[tuple[int, int]]:
        """Assign a job from x_s to every free slot; returns (client, serial) of each.

        Args:
            reported: number of updates in the buffer; a client that waits keeps its slot until the round ends.
        """
        slots = self.slots - reported * self.waits + (0 if self.in_rounds else len(self.suspended))
        assigned = []
        while self.idle and len(self.jobs) < slots:
            client = self._pick()
            assigned.append((client, self.serials[client]))
            self.jobs[client] = s
            self.serials[client] += 1
            self.sent += 1
        if assigned and self.counts_holders:
            self.holders[s] += len(assigned)
        return assigned

    def _pick(self) -> int:
        if self.random:
            chosen = int(streams.uniform(self.seed, "dispatch", self.sent) * len(self.idle))
            self.idle[chosen], self.idle[-1] = self.idle[-1], self.idle[chosen]
        return self.idle.pop()

    def is_current(self, client: int, serial: int) -> bool:
        """Whether this job is at work. A client has one job at a time, the last that it was given."""
        if type(client) is not int or type(serial) is not int:
            return False  # 0.0 and False are equal to 0, but name no job
        return client in self.jobs and serial == self.serials[client] - 1

    def mismatch(self, client: int, serial: int, s: int) -> Literal["finished job", "unknown job"] | None:
        """Why an update belongs to no job at work; None if it does."""
        if self.is_current(client, serial):
            return None if self.jobs[client] == s else "unknown job"
        given = 0 <= client < self.clients and 0 <= serial < self.serials[client]
        return "finished job" if given else "unknown job"

    def finish_job(self, client: int) -> int:
        """End the job of a client that has reported: the client is free, or waits. Returns s."""
        if client not in self.asleep:
            (self.waiting if self.waits else self.idle).append(client)
        return self._release(client)

    def cancel_job(self, client: int) -> int:
        """Cancel a client's job: the client is free, and gets the next job unless that is random. Returns s."""
        if client not in self.asleep:
            self.idle.append(client)
        return self._release(client)

    def end_round(self) -> None:
        """Free the clients that waited."""
        self.idle += self.waiting
        self.waiting = []

    def lose(self, client: int) -> int | None:
        """Remove a client. Returns s if it had a job."""
        self._remove(client)
        return self._release(client) if client in self.jobs else None

    def join(self, client: int, reported: bool) -> None:
        """Add a lost client again; no effect on a client that is present or unknown.

        Args:
            reported: whether the buffer has an update of it; then it waits, so that a round has one update per client.
        """
        present = any(client in state for state in (self.jobs, self.idle, self.waiting, self.asleep))
        if 0 <= client < self.clients and not present:
            (self.waiting if self.waits and reported else self.idle).append(client)

    def sleep(self, client: int, job: AtEnd) -> int | None:
        """Give a client no more jobs until it is awake. A client that was lost is back, but asleep.

        No effect on a client that is unknown.

        Args:
            job: what happens to the job that it has.

        Returns:
            The round s that its job started from, if the job is cancelled.
        """
        if not 0 <= client < self.clients:
            return None
        self._remove(client)
        self.asleep.add(client)
        if client in self.jobs and job == "cancel":
            return self._release(client)
        if client in self.jobs and job == "suspend":
            self.suspended.add(client)
        return None

    def wake(self, client: int, reported: bool) -> None:
        """End a client's sleep; no effect on one that is not asleep. `reported`: as for `join`."""
        if client in self.asleep:
            self.asleep.remove(client)
            self.suspended.discard(client)
            self.join(client, reported)

    def _remove(self, client: int) -> None:
        """Take a client out of every state but `jobs`."""
        self.idle = [other for other in self.idle if other != client]
        self.waiting = [other for other in self.waiting if other != client]
        self.asleep.discard(client)
        self.suspended.discard(client)

    def _release(self, client: int) -> int:
        s = self.jobs.pop(client)
        self.suspended.discard(client)
        if self.counts_holders:
            self.holders[s] -= 1
            if not self.holders[s]:
                del self.holders[s]
        return s

    def candidates(self) -> list[int]:
        """The clients at work, and those that a random slot may go to next."""
        return [*self.jobs, *(self.idle if self.random else ())]

    def census(self) -> Census:
        """The number of clients in each state."""
        at_work, waiting, idle = len(self.jobs) - len(self.suspended), len(self.waiting), len(self.idle)
        asleep = len(self.asleep - self.jobs.keys()) + len(self.suspended)
        lost = self.clients - at_work - waiting - idle - asleep
        return Census(self.clients, at_work, waiting, idle, lost, self.buffer, asleep)

    def snapshot(self) -> dict[str, Any]:
        """The state, as plain data."""
        state = {name: getattr(self, name) for name in ("jobs", "idle", "waiting", "serials", "sent")}
        return state | {"asleep": sorted(self.asleep), "suspended": sorted(self.suspended)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        sleepers = {name: set(state.get(name, ())) for name in ("asleep", "suspended")}  # older checkpoints have none
        holders = Counter(state["jobs"].values() if self.counts_holders else ())
        known = {name: state[name] for name in ("jobs", "idle", "waiting", "serials", "sent")}
        vars(self).update(known | sleepers, holders=holders)
