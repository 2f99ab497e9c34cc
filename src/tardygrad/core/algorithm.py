"""The heart: the paper's Algorithms 1 and 2, the client's work and the server's round.

Rules of this file:
1. It holds the whole data path, in the paper's order and vocabulary, and nothing else.
2. It knows no clock, no threads, no network, no files and no `torch.nn`: the model is a vector x ∈ R^d. The time comes
   with a message, and is handed on to whoever asks (pace.py, regions.py).
3. `Server.receive` never waits, sends, logs or draws a number that is not keyed: same state + same input = same output.
4. Vectors are never changed in place once they have left the function that made them.
5. Time stamps are rounds. An update that started from x_s and is aggregated in round t has the delay p = t − s ≥ 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.core import admission, kernels
from tardygrad.core.dylu import Speeds
from tardygrad.core.kernels import Contribution, Outcome
from tardygrad.core.messages import (
    NOTHING,
    Advanced,
    Job,
    Joined,
    Lost,
    ModuleBuffers,
    Reason,
    Refused,
    Reply,
    Taken,
    Update,
    Vector,
)
from tardygrad.core.method import Method
from tardygrad.core.transforms import State, Step, Transform, below, clipped_share
from tardygrad.core.vectors import VectorStore
from tardygrad.errors import Invalid, check_integer

# ------------------------------------------------------------------------------------------------- client side


class Task(Protocol):
    """What there is to learn. Only a task knows that the vector is a network."""

    @property
    def clients(self) -> int: ...

    @property
    def parameters(self) -> int:
        """d, the length of the vector."""

    def init(self, seed: int) -> Vector:
        """x_0."""

    def init_module_buffers(self) -> ModuleBuffers | None:
        """The buffers that go with x_0, if the model has any."""

    def batches(self, job: Job) -> Iterator[Any]:
        """ξ_{i,1}, ξ_{i,2}, …: K steps or K epochs of the client's own data, drawn from the job's streams."""

    def gradient(self, x: Vector, batch: Any, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        """F(x; ξ) and ∇F(x; ξ). Updates the buffers in place; the gradient may be overwritten by the next call."""

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """Named scores on the test set; `loss` is one of them."""


Ask = tuple[Vector, Any, ModuleBuffers | None]
"""x_{i,k−1}, ξ_{i,k}, and the model's buffers: the arguments of `Task.gradient`."""

Steps = Generator[Ask, tuple[Tensor, Vector], Update]


def local(job: Job, task: Task, method: Method) -> Steps:
    """The client side of Algorithms 1 and 2: K local steps from x_s.

    A gradient is asked for by `yield`, so that whoever answers may compute those of several clients at once.
    """
    x = job.x.clone()  # x_{i,0} ← x_s
    module_buffers = (
        ModuleBuffers(job.module_buffers.floats.clone(), job.module_buffers.ints.clone())
        if job.module_buffers
        else None
    )
    curvature = torch.zeros_like(x) if method.compensate else None  # A_{s,i} ← 0
    state = below(job.state or {}, "inner.") or method.inner.init(x)
    step = Step(max(job.round, 1), x=x, start=job.x)
    steps = 0
    loss: Tensor | float = 0.0
    clipped: Tensor | float = 0.0

    for batch in task.batches(job):
        value, g = yield x, batch, module_buffers  # g_{i,k} ← ∇F(x_{i,k−1}; ξ_{i,k})
        state = local_step(
            x, g, curvature, method.inner, state, step
        )  # x_{i,k} ← x_{i,k−1} − η_ℓ^s · Clip(u_s, g_{i,k})
        steps, loss, clipped = steps + 1, loss + value, clipped + clipped_share(state)

    delta = x - job.x  # δ_i ← x_{i,K} − x_s
    kept = {f"inner.{name}": value for name, value in state.items() if name != "clipped"}
    if method.curvature and curvature is not None:
        kept_squares = below(job.state or {}, "curvature.")
        curvature, bent = method.curvature.of(delta, curvature, kept_squares, step)  # DC-ASGD's A
        kept |= {f"curvature.{name}": value for name, value in bent.items()}
    mean = (float(loss) / steps, float(clipped) / steps) if steps else (math.nan, 0.0)
    named = job.client, job.serial, job.round
    return Update(*named, delta, curvature, module_buffers, steps, *mean, kept if method.keep else None)


def local_step(x: Vector, g: Vector, curvature: Vector | None, inner: Transform, state: State, step: Step) -> State:
    """One local step: x and A, which are the client's own, are changed in place."""
    if kernels.fits(x, g, curvature) and (form := inner.form(step.round)):
        return {"clipped": kernels.local_step(x, g, curvature, form)}  # the lines below, in one pass over memory
    move, state = inner.update(g, state, step)  # η_ℓ^s · Clip(u_s, g_{i,k})
    x -= move  # x_{i,k} ← x_{i,k−1} − move
    if curvature is not None:
        curvature += move * move  # A_{s,i} ← A_{s,i} + move ⊙ move
    return state


class Batched(Task, Protocol):
    """A task that can do several clients' steps at once."""

    def gradients(self, asked: Sequence[Ask]) -> list[tuple[Tensor, Vector]]:
        """`gradient` of each, up to the last bits; raises `Invalid`, even for none, where it cannot."""


def work(job: Job, task: Task, method: Method) -> Update:
    """One client's work."""
    steps = local(job, task, method)
    said = _advance(steps)
    while not isinstance(said, Update):
        said = _advance(steps, task.gradient(*said))
    return said


def work_together(jobs: Sequence[Job], task: Batched, method: Method) -> list[Update]:
    """Several clients' work in step, their gradients computed at once."""
    steps = [local(job, task, method) for job in jobs]
    said = [_advance(one) for one in steps]
    while asked := {i: one for i, one in enumerate(said) if not isinstance(one, Update)}:
        for i, answer in zip(asked, task.gradients(list(asked.values())), strict=True):
            said[i] = _advance(steps[i], answer)
    return [one for one in said if isinstance(one, Update)]


def _advance(steps: Steps, answer: tuple[Tensor, Vector] | None = None) -> Ask | Update:
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as done:
        update: Update = done.value
        return update


# ------------------------------------------------------------------------------------------------- server side


def downplay(delay: int) -> float:
    """SD: an update of delay p counts 1/p."""
    return 1.0 / delay


def compensate(delta: Vector, curvature: Vector, drift: Vector) -> Vector:
    """DC: what the update would have been from x_{t−1}, to first order: δ − A ⊙ (x_{t−1} − x_s)."""
    return delta - curvature * drift


def contribution(late: Contribution, x: Vector) -> Vector:
    """What one update adds to the sum: vanilla δ, SD δ/p, DC δ − A ⊙ drift, or both; FedAsync δ − drift."""
    delta = late.delta  # δ_i
    if late.past is not None:
        drift = x - late.past  # x_{t−1} − x_s
        delta = delta - drift if late.curvature is None else compensate(delta, late.curvature, drift)
    return delta * late.weight if late.weight != 1.0 else delta


def fold(total: Vector | None, late: Contribution, x: Vector, scratch: Vector | None = None) -> Vector:
    """Σ_i contribution_i so far, with one update more: the sum is the server's own and changed in place.

    The first of a round may have room in memory that was used before, which is quicker than new.
    """
    if kernels.fits(x, late.delta, late.curvature, late.past) and (late.past is None or late.curvature is not None):
        return kernels.fold(total, late, x, scratch)  # the lines below, in one pass over memory
    total = torch.zeros_like(x) if total is None else total
    total += contribution(late, x)
    return total


def finish(
    x: Vector, total: Vector, denominator: float, outer: Transform, state: State, step: Step
) -> tuple[Outcome, State]:
    """x_{t−1} and the sum of M contributions become x_t."""
    if kernels.fits(x, total) and (form := outer.form(step.round)):
        made = kernels.finish(x, total, denominator, form)  # the lines below, in one pass over memory
        return made, {"clipped": torch.tensor(made.clipped)}
    delta = total.div_(denominator)  # Δ_t ← (1/M) Σ_i contribution_i
    move, state = outer.update(delta, state, step)  # η_t · Clip(ũ_t, Δ_t)
    norm, length = (float(torch.linalg.vector_norm(v, dtype=torch.float64)) for v in (delta, move))
    return Outcome(x + move, norm, length, float(clipped_share(state))), state  # x_t ← x_{t−1} + move


class LocalVectors:
    """All of a server's vectors (`VectorStore`) here, in one piece each."""

    def __init__(self, method: Method, x: Vector) -> None:
        self.method, self.x = method, x.detach().clone()
        self.sum: Vector | None = None
        self.scratch: Vector | None = None  # the sum's memory between two rounds
        self.state = method.outer.init(self.x)
        self.past: dict[int, Vector] = {}
        self.drifts = method.compensate or method.pull

    @property
    def start(self) -> Vector:
        return self.x

    def validate(self, update: Update, module_buffers: ModuleBuffers | None, keeps: admission.Kept) -> float | Reason:
        if not admission.fits(update, self.x, module_buffers, self.method, keeps):
            return "wrong shape"
        norm = math.sqrt(torch.dot(update.delta, update.delta))
        return norm if admission.finite(update, norm) else "not finite"

    def fold(self, update: Update, weight: float) -> None:
        past = self.past[update.round] if self.drifts else None  # x_s
        self.sum = fold(self.sum, Contribution(update.delta, weight, update.curvature, past), self.x, self.scratch)

    def advance(self, t: int, delays: tuple[int, ...], denominator: float) -> Outcome:
        assert self.sum is not None
        step = Step(t, delays, self.x)
        made, self.state = finish(self.x, self.sum, denominator, self.method.outer, self.state, step)
        alone = kernels.fits(self.x) and self.method.outer.form(t)  # else an outer step may have kept the sum
        self.x, self.sum, self.scratch = made.x, None, self.sum if alone else None
        return made

    def hold(self, s: int) -> None:
        self.past[s] = self.x

    def drop(self, s: int) -> None:
        del self.past[s]

    def finite(self) -> bool:
        return bool(self.x.isfinite().all())

    def put(self, x: Vector, total: Vector | None, state: State, past: dict[int, Vector]) -> None:
        self.x, self.sum, self.state, self.past = x, total, state, past


class Server:
    """The server side of Algorithms 1 and 2, as a state machine: messages in, jobs out.

    Every client is in one place: at work (`jobs`), done and waiting for the round to end (`waiting`: sync and
    server-centric), free (`idle`), or lost (nowhere).

    Args:
        method: what to do; one with regions needs two levels of servers (`regions.serve`).
        x: the initial model x_0.
        clients: N.
        seed: of every random stream of the run.
        module_buffers: the initial model's buffers, if it has any.
        vectors: what holds x and all that is as long; here, in one piece, if nothing else is said.
    """

    def __init__(
        self,
        method: Method,
        x: Vector,
        *,
        clients: int,
        seed: int,
        module_buffers: ModuleBuffers | None = None,
        vectors: Callable[[Method, Vector], VectorStore] = LocalVectors,
    ) -> None:
        check_integer("clients", clients)
        for name, value, fix in (
            ("buffer", method.buffer, f"Use buffer={clients} for full synchronisation."),
            ("concurrency", method.concurrency or 1, "Leave it out to let all clients work."),
        ):
            if value > clients:
                raise Invalid(f"`{name}` must be between 1 and the number of clients ({clients}), got {value}. {fix}")
        if method.regions:
            raise Invalid(f"{method.name} has regions, and needs a server for each: use `tardygrad.serve`.")
        self.method, self.clients, self.seed = method, clients, seed
        self.vectors, self.module_buffers, self.round = vectors(method, x), module_buffers, 0
        self.buffer: list[Taken] = []  # without their vectors, which are in the sum
        self.jobs: dict[int, int] = {}  # at work: client to the round its job started from
        self.idle = list(range(clients - 1, -1, -1))  # places are given from the end: client 0 first
        self.waiting: list[int] = []
        self.serials = [0] * clients
        self.sent = 0
        self.holders: Counter[int] = Counter()  # how many jobs in flight started from x_s, if past models are needed
        self.now = 0.0  # of the last message
        self.speeds = Speeds(method.pace) if method.pace else None
        self.kept: dict[int, State] = {}  # the inner step's state of each client, if the method keeps it
        self.keeps = admission.expected(method)
        self.drifts = method.compensate or method.pull  # whether past models are needed
        # A sync round is server-centric with M places, each given to a random client.
        self.places = method.buffer if method.mode == "sync" else method.concurrency or clients
        self.draws = method.mode == "sync" or method.dispatch == "random"

    @property
    def x(self) -> Vector:
        """The global model."""
        return self.vectors.x

    @property
    def state(self) -> State:
        """What the outer step remembers."""
        return self.vectors.state

    def receive(self, message: Update | Lost | Joined | Refused, now: float = 0.0) -> Reply:
        """Take one message. Aggregates first, then dispatches, so whoever completes the buffer gets the new model.

        Args:
            now: when it came, by the engine's clock; only DyLU and regions.py read it.
        """
        self.now = now
        happened: Taken | Advanced | Refused | None = None
        if isinstance(message, Update):
            admitted = self.admit(message)
            if not isinstance(admitted, Taken):
                return self.refuse(message, admitted)
            self.take(happened := admitted)
            if len(self.buffer) == self.method.buffer:
                happened = self.advance()
        elif isinstance(message, Lost):
            self.lose(message.client)
        elif isinstance(message, Joined):
            self.join(message.client)
        elif isinstance(message, Refused):  # on the way here
            return self.refuse(message, message.reason)
        else:
            raise TypeError(f"a server receives Update, Lost, Joined or Refused, got {type(message).__name__}")
        return Reply(happened, self.dispatch())

    def advance(self) -> Advanced:
        """One global round t."""
        t = self.round + 1
        taken = self.buffer
        delays = tuple(one.delay for one in taken)  # p_{t,i} ← t − τ_{t,i}
        weights = tuple(one.weight for one in taken)
        made = self.vectors.advance(t, delays, self.denominator(weights))  # x_t ← x_{t−1} + η_t · Clip(ũ_t, Δ_t)
        self.round = t
        if self.module_buffers is not None:
            self.module_buffers = _merge([one.update.module_buffers for one in taken if one.update.module_buffers])

        updates = [one.update for one in taken]
        self.buffer = []
        self.idle += self.waiting
        self.waiting = []
        return Advanced(
            round=t,
            clients=tuple(update.client for update in updates),
            delays=delays,
            weights=weights,
            norms=tuple(one.norm for one in taken),
            norm=made.norm,
            move=made.move,
            clipped=made.clipped,
            local_clipped=sum(update.clipped for update in updates) / len(updates),
            loss=sum(update.loss for update in updates) / len(updates),
            steps=sum(update.steps for update in updates),
            snapshots=len(self.holders),
        )

    def denominator(self, weights: tuple[float, ...]) -> float:
        """What the sum of the contributions is divided by."""
        if self.method.denominator == "weights":
            return sum(weights) or 1.0
        return 1.0 if self.method.denominator == "one" else len(weights)

    # ------------------------------------------------------------------------------------------- who works when

    def dispatch(self) -> list[Job]:
        """Jobs for every free place. The first call starts the run; on a resumed server it finds nothing to do."""
        places = self.places
        if self.method.mode != "client":
            places -= len(self.buffer)  # whoever has reported keeps its place until the round ends
        jobs = []
        while self.idle and len(self.jobs) < places:
            jobs.append(self._send(self._pick()))
        return jobs

    def _pick(self) -> int:
        if self.draws:
            chosen = int(streams.uniform(self.seed, "dispatch", self.sent) * len(self.idle))
            self.idle[chosen], self.idle[-1] = self.idle[-1], self.idle[chosen]
        return self.idle.pop()

    def _send(self, client: int) -> Job:
        method, serial = self.method, self.serials[client]
        self.jobs[client] = self.round
        self.serials[client] = serial + 1
        self.sent += 1
        self._hold(self.round)
        steps, epochs = method.local_steps, method.local_epochs
        if self.speeds:
            K = self.speeds.share(client, steps or epochs or 1, self.now)
            steps, epochs = (K, None) if steps else (None, K)
        named = client, serial, self.round
        return Job(*named, self.vectors.start, steps, epochs, self.seed, self.module_buffers, self.state_of(client))

    def _hold(self, s: int) -> None:
        if self.drifts:
            if s not in self.holders:
                self.vectors.hold(s)
            self.holders[s] += 1

    def _release(self, s: int) -> None:
        if self.drifts:
            self.holders[s] -= 1
            if not self.holders[s]:
                del self.holders[s]
                self.vectors.drop(s)

    # ------------------------------------------------------------------------------------- the gate, lost clients

    def admit(self, update: Update) -> Taken | Reason:
        """The gate: an update that may touch x, with its delay and norm, or why it must not."""
        if not admission.formed(update):
            return "wrong shape"
        delay = self.round + 1 - update.round  # p ← t − s
        if delay < 1:
            return "from the future"
        if not self._is_out(update) or self.jobs[update.client] != update.round:
            given = 0 <= update.client < self.clients and 0 <= update.serial < self.serials[update.client]
            return "finished job" if given and not self._is_out(update) else "unknown job"
        norm = self.vectors.validate(update, self.module_buffers, self.keeps)
        if isinstance(norm, str):
            return norm
        if self.method.max_delay is not None and delay > self.method.max_delay:
            return "too stale"
        weight = self.method.weight(delay) if self.method.weight else 1.0
        return Taken(update, delay, norm, weight)

    def take(self, taken: Taken) -> None:
        """Fold an update into the round's sum; its client is free, or waits for the round to end."""
        update, client = taken.update, taken.update.client
        self.vectors.fold(update, taken.weight)
        self._release(self.jobs.pop(client))
        (self.idle if self.method.mode == "client" else self.waiting).append(client)
        self.buffer.append(taken._replace(update=update._replace(delta=NOTHING, curvature=None, state=None)))
        if update.state is not None:
            self.kept[client] = update.state
        if self.speeds:
            self.speeds.measure(client, self.now)

    def refuse(self, update: Update | Refused, reason: Reason) -> Reply:
        """Turn an update away; if its job was out, the client is free for new work."""
        if self._is_out(update):
            self._release(self.jobs.pop(update.client))
            self.idle.append(update.client)  # last in, first out: under `same` dispatch the job goes to this client
        return Reply(Refused(update.client, update.serial, update.round, reason), self.dispatch())

    def lose(self, client: int) -> None:
        """Forget a client and its job; what it has already delivered stays in the buffer."""
        if client in self.jobs:
            self._release(self.jobs.pop(client))
        self.idle = [other for other in self.idle if other != client]
        self.waiting = [other for other in self.waiting if other != client]
        if self.speeds:
            self.speeds.forget(client)

    def join(self, client: int) -> None:
        """Take a lost client back; one that was never lost, or never was, changes nothing."""
        present = client in self.jobs or client in self.idle or client in self.waiting
        if 0 <= client < self.clients and not present:
            reported = self.method.mode != "client" and any(one.update.client == client for one in self.buffer)
            (self.waiting if reported else self.idle).append(client)  # one update of each client in a round

    def state_of(self, client: int) -> State | None:
        """The inner step's state, as a client's last job left it; None if it had none, or the method keeps none."""
        return self.kept.get(client)

    @property
    def levels(self) -> list[Server]:
        """This server alone; see regions.py for others."""
        return [self]

    def census(self) -> dict[str, int]:
        """How many clients are where, and how full the buffer is."""
        present = len(self.jobs) + len(self.waiting) + len(self.idle)
        return {
            "clients": self.clients, "at work": len(self.jobs), "waiting": len(self.waiting), "idle": len(self.idle),
            "lost": self.clients - present, "buffered": len(self.buffer), "buffer": self.method.buffer,
        }  # fmt: skip

    def _is_out(self, update: Update | Refused) -> bool:
        """Whether this very job is at work: a client has one at a time, the last it was given."""
        return update.client in self.jobs and update.serial == self.serials[update.client] - 1


def _merge(module_buffers: list[ModuleBuffers]) -> ModuleBuffers:
    """Float buffers averaged over the M updates; integer ones from the newest."""
    floats = torch.stack([b.floats.double() for b in module_buffers]).mean(
        0
    )  # in float64: a sum of float32 may overflow
    return ModuleBuffers(floats.float(), module_buffers[-1].ints)
