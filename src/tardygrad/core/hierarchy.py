"""HALoS: two levels of the same `Server`. Clients report to their region's server, regions to the global server.

A region's server does rounds of its own. After every E of them it sends the global server how far it has moved since it
last received the global model, U = θ − θ_ref, and continues. The global server handles U like the update of a client
and sends its new model back: θ ← (1 − α) θ + α x, θ_ref ← θ. What a region learns between its report and the answer is
never reported separately, but stays in θ through the blend.

A message between two servers takes `exchange` seconds each way; the client whose update completed the E-th round gets
its next job before that. A message that is due is delivered when the next message of a client arrives. Nothing else
happens in between, so the result is the same, except that an evaluation may see the global model before the delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

import torch

from tardygrad.constructors import checked
from tardygrad.core.algorithm import Server
from tardygrad.core.messages import (
    Advanced,
    Job,
    Message,
    ModuleBuffers,
    Refused,
    Reply,
    Taken,
    Update,
    Vector,
    as_vector,
)
from tardygrad.core.method import Method, check_method
from tardygrad.core.roster import Census
from tardygrad.core.vectors import VectorStore
from tardygrad.core.weights import SampleShares
from tardygrad.errors import Invalid


class RegionMessage(NamedTuple):
    """A message between a region and the global server: U on its way up, or the global model on its way down."""

    due: float
    region: int
    up: bool
    vector: Vector
    module_buffers: ModuleBuffers | None


class HierarchicalServer:
    """A server for each region and a global server, which an engine uses like one server.

    Its round is the sum of the regions' rounds, and its model is the global one.
    """

    def __init__(
        self,
        method: Method,
        x: Vector,
        *,
        clients: int,
        seed: int,
        module_buffers: ModuleBuffers | None = None,
        samples: Sequence[int] | None = None,
    ) -> None:
        assert method.regions is not None
        self.method, self.clients, self.seed, self.plan = method, clients, seed, method.regions
        self.members = self.plan.members(clients)
        for name in ("buffer", "concurrency"):
            if (getattr(method, name) or 1) > (least := min(map(len, self.members))):
                rule = f"`{name}` must be at most the number of clients of the smallest region ({least})"
                raise Invalid(f"{rule}, got {getattr(method, name)}.")
        self.home = {client: (r, i) for r, group in enumerate(self.members) for i, client in enumerate(group)}
        lower = replace(method, regions=None)
        upper = Method(name="", inner=method.inner, outer=self.plan.outer, buffer=1, local_steps=1, mode="client")
        self.upper = Server(upper, x, clients=len(self.members), seed=seed, module_buffers=module_buffers)
        SampleShares(method.weight_by, samples, clients)  # checks the samples
        counts = [[samples[client] for client in each] if samples else None for each in self.members]
        self.regions = [
            Server(lower, x, clients=len(each), seed=seed, module_buffers=module_buffers, samples=own)
            for each, own in zip(self.members, counts, strict=True)
        ]
        for r, region in enumerate(self.regions):
            region.privacy.history = f"region {r}"  # no two have the same noise
        self.references = [as_vector(job.x) for job in self.upper.dispatch()]  # θ_ref of each region
        self.synced = [0] * len(self.members)  # the region's round when it last received the global model
        self.transit: list[tuple[float, int, int, RegionMessage]] = []  # a heap of messages
        self.posted = 0

    def receive(self, message: Message, now: float = 0.0) -> Reply:
        """Pass a client's message to its region's server, after the messages between servers that are due."""
        self._deliver(now)
        known = type(message.client) is int and message.client in self.home  # True and 1.0 are equal to 1
        r, local = self.home[message.client] if known else (0, -1)
        region = self.regions[r]
        happened, jobs = region.receive(message._replace(client=local), now)
        if isinstance(happened, Advanced) and region.round == self.synced[r] + self.plan.every:
            U = region.x - self.references[r]
            self._post(RegionMessage(now + self.plan.exchange, r, True, U, region.module_buffers))
            self._deliver(now)  # at once if `exchange` is 0
        if isinstance(happened, Refused):
            happened = happened._replace(client=message.client)
        elif isinstance(happened, Taken):
            happened = self._global_taken(r, happened)
        elif isinstance(happened, Advanced):
            clients = tuple(self.members[r][client] for client in happened.clients)
            happened = happened._replace(round=self.round, clients=clients)
        return Reply(happened, self._global_jobs(r, jobs))

    def dispatch(self, asleep: Iterable[int] = ()) -> list[Job]:
        """Jobs for every free slot of all regions; `asleep`: clients that are asleep when the run begins."""
        sleepers = [self.home[client] for client in asleep]
        return [
            job
            for r, region in enumerate(self.regions)
            for job in self._global_jobs(r, region.dispatch(i for home, i in sleepers if home == r))
        ]

    def _deliver(self, now: float) -> None:
        """Deliver the messages between servers that are due, in order."""
        while self.transit and self.transit[0][0] <= now:
            due, r, up, vector, module_buffers = heappop(self.transit)[-1]
            upper, region = self.upper, self.regions[r]
            if up:
                s, serial = upper.roster.jobs[r], upper.roster.serials[r] - 1
                (job,) = upper.receive(Update(r, serial, s, vector, None, module_buffers), due).jobs
                self._post(RegionMessage(due + self.plan.exchange, r, False, as_vector(job.x), job.module_buffers))
                continue
            blend = torch.lerp(region.x, vector, self.plan.blend)  # θ ← (1 − α) θ + α x
            region.vectors.put(region.vectors.held._replace(x=blend))
            if region.module_buffers and module_buffers:
                floats = torch.lerp(region.module_buffers.floats, module_buffers.floats, self.plan.blend)
                region.module_buffers = ModuleBuffers(floats, module_buffers.ints)
            self.references[r], self.synced[r] = region.x, region.round

    def _post(self, message: RegionMessage) -> None:
        self.posted += 1
        heappush(self.transit, (message.due, message.region, self.posted, message))

    def _global_jobs(self, r: int, jobs: list[Job]) -> list[Job]:
        return [job._replace(client=self.members[r][job.client]) for job in jobs]

    def _global_taken(self, r: int, taken: Taken) -> Taken:
        return taken._replace(update=taken.update._replace(client=self.members[r][taken.update.client]))

    @property
    def levels(self) -> list[Server]:
        """The global server, then those of the regions."""
        return [self.upper, *self.regions]

    @property
    def x(self) -> Vector:
        """The global model."""
        return self.upper.x

    @property
    def module_buffers(self) -> ModuleBuffers | None:
        """The buffers of the global model."""
        return self.upper.module_buffers

    @property
    def round(self) -> int:
        """The number of rounds so far, of all regions together."""
        return sum(region.round for region in self.regions)

    @property
    def buffer(self) -> list[Taken]:
        """The updates of unfinished rounds."""
        return [self._global_taken(r, taken) for r, region in enumerate(self.regions) for taken in region.buffer]

    @property
    def roster(self) -> JointRoster:
        """Which clients work when."""
        return JointRoster(self.regions, self.members)

    def models(self) -> list[Vector]:
        """The models that the servers hold, without past ones."""
        return [*(level.x for level in self.levels), *self.references, *(each[-1].vector for each in self.transit)]

    def snapshot(self) -> dict[str, Any]:
        """The state between two messages, without past models: plain data with messages and tensors in it."""
        own = {"references": self.references, "synced": self.synced, "transit": self.transit, "posted": self.posted}
        return own | {"levels": [level.snapshot() for level in self.levels]}

    def restore(self, state: dict[str, Any], starts: dict[int, Vector]) -> None:
        """Continue from a snapshot; `starts` maps rounds s to x_s, for the jobs at work that the engine has saved."""
        for level, saved in zip(self.levels, state["levels"], strict=True):
            level.restore(saved, starts)
        self.references, self.synced = state["references"], state["synced"]
        self.transit, self.posted = state["transit"], state["posted"]


class JointRoster(NamedTuple):
    """The rosters of all regions as one; see roster.py."""

    regions: list[Server]
    members: list[list[int]]

    @property
    def jobs(self) -> dict[int, int]:
        return {self.members[r][i]: s for r, region in enumerate(self.regions) for i, s in region.roster.jobs.items()}

    @property
    def slots(self) -> int:
        return sum(region.roster.slots for region in self.regions)

    def candidates(self) -> list[int]:
        return [self.members[r][i] for r, region in enumerate(self.regions) for i in region.roster.candidates()]

    def census(self) -> Census:
        return Census(*map(sum, zip(*(region.roster.census() for region in self.regions), strict=True)))


ServerLike = Server | HierarchicalServer
"""What loops, checkpoints and reports take for a server."""


@checked
def serve(
    method: Method,
    x: Vector,
    *,
    clients: int,
    seed: int,
    module_buffers: ModuleBuffers | None = None,
    vectors: Callable[[Method, Vector], VectorStore] | None = None,
    samples: Sequence[int] | None = None,
) -> ServerLike:
    """Create the server of a method: a `HierarchicalServer` if it has regions. The arguments are those of `Server`.

    A hierarchical server keeps its vectors in the memory of this process.
    """
    check_method(method)
    if method.regions:
        return HierarchicalServer(method, x, clients=clients, seed=seed, module_buffers=module_buffers, samples=samples)
    return Server(
        method, x, clients=clients, seed=seed, module_buffers=module_buffers, vectors=vectors, samples=samples
    )
