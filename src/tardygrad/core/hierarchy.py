"""HALoS's two levels of the same `Server`: clients report to their region's server, and regions to the global one.

A region's server does rounds of its own. After every E of them it sends the global one what it has moved since it last
heard of it, U = θ − θ_ref, and goes on; the global one takes U as the update of a client, and its new model comes back:
θ ← (1 − α) θ + α x, θ_ref ← θ. What a region does between sending and hearing back is never sent by itself; it lives on
in the blend.

Messages between servers take `exchange` seconds each way; the client whose update is the E-th has gone on by then. They
are looked at when a client's message comes in: nothing else happens at a server, so that is the same as looking at
once, but for the global model that is evaluated meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import torch

from tardygrad.core.algorithm import LocalVectors, Server
from tardygrad.core.messages import Advanced, Job, Joined, Lost, ModuleBuffers, Refused, Reply, Taken, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.transforms import State
from tardygrad.core.vectors import VectorStore
from tardygrad.errors import Invalid


class RegionMessage(NamedTuple):
    """Under way between a region and the global server: U on its way up, the global model on its way back."""

    due: float
    region: int
    up: bool
    vector: Vector
    module_buffers: ModuleBuffers | None


class Regional:
    """A server for each region and a global one; to an engine they are one server.

    Its rounds are those of all regions together, its model the global one.
    """

    def __init__(
        self, method: Method, x: Vector, *, clients: int, seed: int, module_buffers: ModuleBuffers | None = None
    ) -> None:
        assert method.regions is not None
        self.method, self.clients, self.seed, self.plan = method, clients, seed, method.regions
        self.members = self.plan.members(clients)
        for name in ("buffer", "concurrency"):
            if (getattr(method, name) or 1) > (least := min(map(len, self.members))):
                rule = f"`{name}` must be at most the number of clients of the smallest region ({least})"
                raise Invalid(f"{rule}, got {getattr(method, name)}.")
        self.home = {client: (r, i) for r, each in enumerate(self.members) for i, client in enumerate(each)}
        own = replace(method, regions=None)
        above = Method(name="", inner=method.inner, outer=self.plan.outer, buffer=1, local_steps=1, mode="client")
        self.above = Server(above, x, clients=len(self.members), seed=seed, module_buffers=module_buffers)
        self.regions = [
            Server(own, x, clients=len(each), seed=seed, module_buffers=module_buffers) for each in self.members
        ]
        self.starts = [job.x for job in self.above.dispatch()]  # θ_ref
        self.heard = [0] * len(self.members)  # the region's round when it last heard of the global model
        self.letters: list[tuple[float, int, int, RegionMessage]] = []  # a heap
        self.written = 0

    def receive(self, message: Update | Lost | Joined | Refused, now: float = 0.0) -> Reply:
        """Take one message of a client to its region's server."""
        self._deliver(now)
        r, local = self.home.get(message.client, (0, -1))
        region = self.regions[r]
        happened, jobs = region.receive(message._replace(client=local), now)
        if isinstance(happened, Advanced) and region.round == self.heard[r] + self.plan.every:
            self._post(
                RegionMessage(now + self.plan.exchange, r, True, region.x - self.starts[r], region.module_buffers)
            )
            self._deliver(now)  # where messages take no time
        if isinstance(happened, Refused):
            happened = happened._replace(client=message.client)
        return Reply(self._named(r, happened), self._abroad(r, jobs))

    def dispatch(self) -> list[Job]:
        """Jobs for every free place."""
        return [job for r, region in enumerate(self.regions) for job in self._abroad(r, region.dispatch())]

    def _deliver(self, now: float) -> None:
        """The letters that have arrived by now, in order."""
        while self.letters and self.letters[0][0] <= now:
            letter = heappop(self.letters)[-1]
            r, above, region = letter.region, self.above, self.regions[letter.region]
            if letter.up:
                s, serial = above.jobs[r], above.serials[r] - 1
                (job,) = above.receive(
                    Update(r, serial, s, letter.vector, None, letter.module_buffers), letter.due
                ).jobs
                self._post(RegionMessage(letter.due + self.plan.exchange, r, False, job.x, job.module_buffers))
                continue
            blend = torch.lerp(region.x, letter.vector, self.plan.blend)  # θ ← (1 − α) θ + α x
            region.vectors.put(blend, region.vectors.sum, region.state, {})
            if region.module_buffers and letter.module_buffers:
                floats = torch.lerp(region.module_buffers.floats, letter.module_buffers.floats, self.plan.blend)
                region.module_buffers = ModuleBuffers(floats, letter.module_buffers.ints)
            self.starts[r], self.heard[r] = region.x, region.round

    def _post(self, letter: RegionMessage) -> None:
        self.written += 1
        heappush(self.letters, (letter.due, letter.region, self.written, letter))

    def _abroad(self, r: int, jobs: list[Job]) -> list[Job]:
        return [job._replace(client=self.members[r][job.client]) for job in jobs]

    def _named(self, r: int, happened: Taken | Advanced | Refused | None) -> Taken | Advanced | Refused | None:
        """The same with the clients and the round as everyone else counts them."""
        members = self.members[r]
        if isinstance(happened, Advanced):
            return happened._replace(round=self.round, clients=tuple(members[client] for client in happened.clients))
        if isinstance(happened, Taken):
            return happened._replace(update=happened.update._replace(client=members[happened.update.client]))
        return happened

    # ------------------------------------------------------------------------------------- as one server shows itself

    @property
    def levels(self) -> list[Server]:
        """The global server, then those of the regions."""
        return [self.above, *self.regions]

    @property
    def x(self) -> Vector:
        """The global model."""
        return self.above.x

    @property
    def module_buffers(self) -> ModuleBuffers | None:
        """The global model's."""
        return self.above.module_buffers

    @property
    def round(self) -> int:
        """The rounds of all regions together."""
        return sum(region.round for region in self.regions)

    @property
    def state(self) -> State:
        """What the global server's step remembers."""
        return self.above.state

    @property
    def buffer(self) -> list[Taken]:
        """The updates in the buffers of all regions."""
        return [
            one._replace(update=one.update._replace(client=self.members[r][one.update.client]))
            for r, region in enumerate(self.regions)
            for one in region.buffer
        ]

    @property
    def jobs(self) -> dict[int, int]:
        """At work: client to the round of its region that its job started from."""
        return {self.members[r][i]: s for r, region in enumerate(self.regions) for i, s in region.jobs.items()}

    @property
    def idle(self) -> list[int]:
        """Clients that are free."""
        return [self.members[r][i] for r, region in enumerate(self.regions) for i in region.idle]

    @property
    def draws(self) -> bool:
        """Whether places go to random clients."""
        return self.regions[0].draws

    @property
    def places(self) -> int:
        """Clients at work at once, at most."""
        return sum(region.places for region in self.regions)

    def state_of(self, client: int) -> State | None:
        """What the region's server keeps of a client's inner step."""
        r, local = self.home[client]
        return self.regions[r].state_of(local)

    def census(self) -> dict[str, int]:
        """How many clients are where, in all regions together."""
        each = [region.census() for region in self.regions]
        return {place: sum(one[place] for one in each) for place in each[0]}


def serve(
    method: Method,
    x: Vector,
    *,
    clients: int,
    seed: int,
    module_buffers: ModuleBuffers | None = None,
    vectors: Callable[[Method, Vector], VectorStore] = LocalVectors,
) -> Server | Regional:
    """The server of a method; with regions, one for each and one above them. The arguments are those of `Server`."""
    if method.regions:
        return Regional(method, x, clients=clients, seed=seed, module_buffers=module_buffers)
    return Server(method, x, clients=clients, seed=seed, module_buffers=module_buffers, vectors=vectors)
