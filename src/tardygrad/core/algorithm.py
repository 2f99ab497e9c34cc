"""The paper's Algorithms 1 and 2: the client's local steps and the server's rounds.

Rules of this file:
1. It contains the whole data path, in the paper's order and vocabulary, and nothing else. roster.py decides who works
   when; the server's vectors are in a store (vectors.py), so that an engine may keep them in shards.
2. It uses no clock, threads, network, files or `torch.nn`: the model is a vector x ∈ R^d. The time comes with each
   message and is only passed on (to dylu.py and hierarchy.py).
3. `Server.receive` is deterministic: the same state and message give the same reply. Its random numbers are keyed.
4. Only these are changed in place: a client's own x, A and copy of the module's buffers during its job, and the
   round's sum until the round ends. Models, and vectors in messages, are never changed.
5. Time stamps are rounds. An update that started from x_s and is aggregated in round t has the delay p = t − s ≥ 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tardygrad.constructors import checked
from tardygrad.core import admission, faults, kernels
from tardygrad.core.dylu import Speeds
from tardygrad.core.kernels import Contribution, Outcome
from tardygrad.core.messages import (
    Advanced,
    Asleep,
    Awake,
    Happened,
    Job,
    Joined,
    Lost,
    Message,
    ModuleBuffers,
    Reason,
    Refused,
    Reply,
    StateReference,
    Taken,
    Update,
    Vector,
    as_vector,
)
from tardygrad.core.method import Method, check_method
from tardygrad.core.own_loop import OwnLoop, own_update
from tardygrad.core.privacy import BLOCK, GaussianMechanism, RoundNoise
from tardygrad.core.roster import Roster
from tardygrad.core.task import LocalWork, Task, gradient_of, next_request
from tardygrad.core.transforms import State, Step, Transform, clipped_share, strip_prefix
from tardygrad.core.vectors import Held, VectorStore
from tardygrad.core.weights import SampleShares
from tardygrad.errors import Invalid

# ------------------------------------------------------------------------------------------------- client side


def local(job: Job, task: Task, method: Method) -> LocalWork:
    """The client side of Algorithms 1 and 2: K local steps from x_s.

    It requests gradients by `yield`, so that the caller can compute those of several clients at once (batching.py).
    """
    start = as_vector(job.x)
    x = start.clone()  # x_{i,0} ← x_s
    module_buffers = job.module_buffers.clone() if job.module_buffers else None
    curvature = torch.zeros_like(x) if method.compensate else None  # A_{s,i} ← 0
    last, lost = (job.state, False) if isinstance(job.state, dict) else ({}, job.state is not None)
    state = strip_prefix(last, "inner.") or method.inner.init(x)
    step = Step(max(job.round, 1), x=x, start=start, groups=task.groups)
    steps = 0
    loss: Tensor | float = 0.0
    clipped: Tensor | float = 0.0

    for batch in task.batches(job):
        value, g = yield x, batch, module_buffers  # g_{i,k} ← ∇F(x_{i,k−1}; ξ_{i,k})
        state = local_step(x, g, curvature, method.inner, state, step)
        steps, loss, clipped = steps + 1, loss + value, clipped + clipped_share(state)

    delta = x - start  # δ_i ← x_{i,K} − x_s
    next_state: State | None = None
    if method.keep:
        next_state = {f"inner.{name}": value for name, value in state.items() if name != "clipped"}
    if method.curvature and curvature is not None:
        squares = strip_prefix(last, "curvature.")
        curvature, squares = method.curvature.of(delta, curvature, squares, step)  # DC-ASGD's A
        if next_state is not None:
            next_state |= {f"curvature.{name}": value for name, value in squares.items()}
    means = (float(loss) / steps, float(clipped) / steps) if steps else (math.nan, 0.0)
    return Update(*job[:3], delta, curvature, module_buffers, steps, *means, next_state, state_lost=lost)


def local_step(x: Vector, g: Vector, curvature: Vector | None, inner: Transform, state: State, step: Step) -> State:
    """One local step; changes the client's own x and A in place."""
    if kernels.fits(x, g, curvature) and (form := inner.form(step.round)):
        return {"clipped": kernels.local_step(x, g, curvature, form)}  # the lines below, in one pass over memory
    move, state = inner.update(g, state, step)  # η_ℓ^s · Clip(u_s, g_{i,k})
    x -= move  # x_{i,k} ← x_{i,k−1} − move
    if curvature is not None:
        curvature += move * move  # A_{s,i} ← A_{s,i} + move ⊙ move
    return state


def work(job: Job, task: Task, method: Method) -> Update:
    """Do a job: the local steps of one client."""
    if isinstance(task, OwnLoop):
        return with_fault(own_update(job, task, method), job, task, method)
    steps = local(job, task, method)
    message = next_request(steps)
    while not isinstance(message, Update):
        message = next_request(steps, gradient_of(task, message))
    return with_fault(message, job, task, method) if message.steps else message  # without steps, δ_i is zero


def with_fault(update: Update, job: Job, task: Task, method: Method) -> Update:
    """An update that says why it is not finite. A private client must not say so."""
    if method.privacy or admission.finite(update):
        return update
    if isinstance(task, OwnLoop):
        return update._replace(fault=faults.fault_of_loop(job, task))
    return update._replace(fault=faults.fault_of(job, task, local(job, task, method)))


# ------------------------------------------------------------------------------------------------- server side


def downplay(delay: int) -> float:
    """SD: the weight of an update with delay p is 1/p."""
    return 1.0 / delay


def compensate(delta: Vector, curvature: Vector, drift: Vector) -> Vector:
    """DC: the update as if it had started from x_{t−1}, to first order: δ − A ⊙ (x_{t−1} − x_s)."""
    return delta - curvature * drift


def weighted_delta(contribution: Contribution, x: Vector) -> Vector:
    """The term of one update in the sum: vanilla δ, SD δ/p, DC δ − A ⊙ drift, or both; FedAsync δ − drift."""
    delta, weight, curvature, past = contribution  # δ_i, its weight, A_{s,i}, x_s
    if past is not None:
        drift = x - past  # x_{t−1} − x_s
        delta = delta - drift if curvature is None else compensate(delta, curvature, drift)
    return delta * weight if weight != 1.0 else delta


def fold(total: Vector | None, contribution: Contribution, x: Vector, scratch: Vector | None = None) -> Vector:
    """Add one contribution to the round's sum Σ_i contribution_i, in place; the sum is the server's own.

    Args:
        total: the sum so far; None: this is the round's first contribution.
        scratch: memory to reuse for a new sum, which is faster than allocating it.
    """
    delta, _, curvature, past = contribution
    if kernels.fits(x, delta, curvature, past) and (past is None or curvature is not None):
        return kernels.fold(total, contribution, x, scratch)  # the lines below, in one pass over memory
    total = torch.zeros_like(x) if total is None else total
    total += weighted_delta(contribution, x)
    return total


def finish(
    x: Vector, total: Vector, denominator: float, outer: Transform, state: State, step: Step
) -> tuple[Outcome, State]:
    """Compute x_t from x_{t−1} and the sum of M contributions."""
    if kernels.fits(x, total) and (form := outer.form(step.round)):
        outcome = kernels.finish(x, total, denominator, form)  # the lines below, in one pass over memory
        return outcome, {"clipped": torch.tensor(outcome.clipped)}
    delta = total.div_(denominator)  # Δ_t ← (1/M) Σ_i contribution_i
    move, state = outer.update(delta, state, step)  # η_t · Clip(ũ_t, Δ_t)
    norm, length = (float(torch.linalg.vector_norm(v, dtype=torch.float64)) for v in (delta, move))
    return Outcome(x + move, norm, length, float(clipped_share(state))), state  # x_t ← x_{t−1} + move


class LocalVectors:
    """A `VectorStore` in the memory of this process."""

    def __init__(self, method: Method, x: Vector) -> None:
        self.method = method
        self._set(x.detach().clone())
        self.sum: Vector | None = None
        self.scratch: Vector | None = None  # memory of the last sum, to be reused by the next
        self.state = method.outer.init(self.x)
        self.past: dict[int, Vector] = {}
        self.expected_state = admission.expected_state(method)

    def _set(self, x: Vector) -> None:
        self.x, self._version = x, x._version  # torch counts the changes in place

    @property
    def start(self) -> Vector:
        return self.x

    def validate(self, update: Update, module_buffers: ModuleBuffers | None) -> float | Reason:
        if not admission.fits(update, self.x, module_buffers, self.method, self.expected_state):
            return "wrong shape"
        norm = admission.norm_of(as_vector(update.delta))
        return norm if admission.finite(update, norm) else "not finite"

    def norm(self, update: Update) -> float:
        return math.sqrt(math.fsum(self.squares(update)))

    def squares(self, update: Update) -> list[float]:
        """‖contribution‖² in each block; their exact sum is the same in one piece and in shards."""
        term = weighted_delta(self._contribution(update), self.x)
        blocks = (part.double() for part in torch.split(term, BLOCK))
        return [float(torch.dot(block, block)) for block in blocks]

    def fold(self, update: Update, weight: float) -> None:
        if self.x._version != self._version:
            raise Invalid("the model must not be changed in place while a run goes on. Use x.clone().")
        if weight:
            self.sum = fold(self.sum, self._contribution(update, weight), self.x, self.scratch)
        elif self.sum is None:  # 0 · NaN is not 0
            self.sum = torch.zeros_like(self.x)

    def _contribution(self, update: Update, weight: float = 1.0) -> Contribution:
        past = self.past[update.round] if self.method.needs_past else None  # x_s
        return Contribution(as_vector(update.delta), weight, update.curvature, past)

    def advance(self, t: int, delays: tuple[int, ...], denominator: float, noise: RoundNoise | None = None) -> Outcome:
        assert self.sum is not None
        if noise:
            noise.add_to(self.sum)
        outer, step = self.method.outer, Step(t, delays, self.x)
        outcome, self.state = finish(self.x, self.sum, denominator, outer, self.state, step)
        reusable = kernels.fits(self.x) and outer.form(t)  # otherwise the outer step's state may refer to the sum
        self._set(outcome.x)
        self.sum, self.scratch = None, self.sum if reusable else None
        return outcome

    def hold(self, s: int) -> None:
        self.past[s] = self.x

    def drop(self, s: int) -> None:
        del self.past[s]

    def finite(self) -> bool:
        return bool(self.x.isfinite().all())

    @property
    def held(self) -> Held:
        return Held(self.x, self.sum, self.state, self.past)

    def put(self, held: Held) -> None:
        x, self.sum, self.state, self.past = held
        self._set(x)


class Server:
    """The server side of Algorithms 1 and 2, as a state machine: messages in, jobs out.

    Args:
        method: the method; if it has regions, use `tardygrad.serve`.
        x: the initial model x_0.
        clients: N.
        seed: of every random stream except the task's data and split.
        module_buffers: the initial model's buffers, if it has any.
        vectors: creates the store of x and all vectors of its length; None stores them in this process.
        samples: the number of training samples of each client, if the method weights updates by them.
    """

    @checked
    def __init__(
        self,
        method: Method,
        x: Vector,
        *,
        clients: int,
        seed: int,
        module_buffers: ModuleBuffers | None = None,
        vectors: Callable[[Method, Vector], VectorStore] | None = None,
        samples: Sequence[int] | None = None,
    ) -> None:
        check_method(method)
        if method.regions:
            raise Invalid(f"{method.name} has regions, and needs a server for each: use `tardygrad.serve`.")
        self.method, self.clients, self.seed = method, clients, seed
        self.vectors, self.module_buffers, self.round = (vectors or LocalVectors)(method, x), module_buffers, 0
        self.roster = Roster(method, clients, seed)
        self.shares = SampleShares(method.weight_by, samples, clients)
        self.privacy = GaussianMechanism(method.privacy, seed, module_buffers)
        self.buffer: list[Taken] = []  # updates of this round, without their vectors, which are in the sum
        self.client_states: dict[int, State | StateReference] = {}  # of the inner step, if the method keeps it
        self.speeds = Speeds(method.pace) if method.pace else None
        self.now = 0.0  # the time of the last message

    @property
    def x(self) -> Vector:
        """The global model."""
        return self.vectors.x

    @property
    def levels(self) -> list[Server]:
        """This server; a hierarchical one has several levels."""
        return [self]

    def models(self) -> list[Vector]:
        """The models that the server holds, without past ones."""
        return [self.x]

    def receive(self, message: Message, now: float = 0.0) -> Reply:
        """Handle one message at the engine's time `now`. Aggregates before it dispatches, so the client that fills the
        buffer gets the new model."""
        self.now = now
        happened: Happened = None
        if isinstance(message, Update):
            admitted = self.admit(message)
            if not isinstance(admitted, Taken):
                return self.refuse(message, admitted)
            self.take(happened := admitted)
            if len(self.buffer) == self.method.buffer:
                happened = self.advance()
        elif isinstance(message, Lost):
            self.lose(message.client)
        elif isinstance(message, Asleep):
            self._drop(self.roster.sleep(*message))
        elif isinstance(message, Joined | Awake):
            returns = self.roster.join if isinstance(message, Joined) else self.roster.wake
            returns(message.client, any(taken.update.client == message.client for taken in self.buffer))
        elif isinstance(message, Refused):  # the engine could not deliver the update
            return self.refuse(message, message.reason)
        else:
            raise TypeError(f"a server receives messages such as Update or Lost, got {type(message).__name__}")
        return Reply(happened, self.dispatch())

    def admit(self, update: Update) -> Taken | Reason:
        """Check an update before it may touch x: returns its delay, norm and weight, or the reason to refuse it.

        A private client's update that is not finite is admitted with the norm NaN, and counts as 0."""
        if not admission.has_valid_types(update):
            return "wrong shape"
        delay = self.round + 1 - update.round  # p ← t − s
        if delay < 1:
            return "from the future"
        if mismatch := self.roster.mismatch(update.client, update.serial, update.round):
            return mismatch
        norm = self.privacy.norm_or_reason(self.vectors.validate(update, self.module_buffers))
        if isinstance(norm, str):
            return norm
        if self.method.max_delay is not None and delay > self.method.max_delay:
            return "too stale"
        return Taken(update, delay, norm, self.method.weight_of(delay) * self.shares.of(update.client))

    def take(self, taken: Taken) -> None:
        """Add an admitted update to the round's sum; its client is then free, or waits for the round to end."""
        update, client = taken.update, taken.update.client
        self.vectors.fold(update, self.privacy.clipped_weight(taken, self.vectors))
        self._drop(self.roster.finish_job(client))
        self.buffer.append(taken._replace(update=update.without_vectors()))
        if update.state is not None and not math.isnan(taken.norm):  # NaN: the update counts as 0
            self.client_states[client] = update.state
        if self.speeds:
            self.speeds.measure(client, self.now)

    def advance(self) -> Advanced:
        """Complete round t: x_t ← x_{t−1} + η_t · Clip(ũ_t, Δ_t), with the mean contribution Δ_t."""
        t, taken = self.round + 1, self.buffer
        delays = tuple(each.delay for each in taken)  # p_{t,i} ← t − τ_{t,i}
        denominator = self.method.divisor([each.weight for each in taken], self.shares.of_round(taken))
        outcome = self.vectors.advance(t, delays, denominator, self.privacy.noise(t, taken))  # None without privacy
        if self.module_buffers is not None:
            self.module_buffers = ModuleBuffers.merge([each.update.module_buffers for each in taken])
        self.round, self.buffer = t, []
        self.roster.end_round()
        return Advanced.of(t, taken, outcome, snapshots=len(self.roster.holders))

    def dispatch(self, asleep: Iterable[int] = ()) -> list[Job]:
        """Jobs for every free slot. The first call starts a run, some of whose clients may be asleep; after a resume
        there are none."""
        for client in asleep:
            self.roster.sleep(client, "suspend")
        first = self.method.needs_past and self.round not in self.roster.holders
        assigned = self.roster.assign(self.round, len(self.buffer))
        if assigned and first:
            self.vectors.hold(self.round)
        return [self._job(client, serial) for client, serial in assigned]

    def _job(self, client: int, serial: int) -> Job:
        steps, epochs = self.method.local_steps, self.method.local_epochs
        if self.speeds:
            K_i = self.speeds.steps(client, steps or epochs or 1, self.now)
            steps, epochs = (K_i, None) if steps else (None, K_i)
        state = self.client_states.get(client)
        return Job(client, serial, self.round, self.vectors.start, steps, epochs, self.seed, self.module_buffers, state)

    def refuse(self, update: Update | Refused, reason: Reason) -> Reply:
        """Refuse an update; if it belongs to a job at work, its client is free for a new one."""
        if self.roster.is_current(update.client, update.serial):
            self._drop(self.roster.cancel_job(update.client))
        fault = update.fault if reason == "not finite" else ""
        return Reply(Refused(update.client, update.serial, update.round, reason, fault), self.dispatch())

    def lose(self, client: int) -> None:
        """Forget a client and its job; the updates it has delivered stay in the buffer."""
        self._drop(self.roster.lose(client))
        if self.speeds:
            self.speeds.forget(client)

    def _drop(self, s: int | None) -> None:
        """Forget the past model x_s after a job that started from it, if no other job did."""
        if self.method.needs_past and s is not None and s not in self.roster.holders:
            self.vectors.drop(s)

    def snapshot(self) -> dict[str, Any]:
        """The state between two messages, without past models: plain data with messages and tensors in it."""
        held, speeds = self.vectors.held, self.speeds.snapshot() if self.speeds else None
        total = None if held.sum is None else held.sum.clone()  # it changes in place
        return held._replace(sum=total, past={})._asdict() | {
            "round": self.round, "module_buffers": self.module_buffers, "buffer": self.buffer, "speeds": speeds,
            "client_states": self.client_states, "roster": self.roster.snapshot(), "privacy": self.privacy.snapshot(),
        }  # fmt: skip

    def restore(self, state: dict[str, Any], starts: dict[int, Vector]) -> None:
        """Continue from a snapshot; `starts` maps rounds s to x_s, for the jobs at work that the engine has saved."""
        self.round, self.module_buffers, self.buffer = state["round"], state["module_buffers"], state["buffer"]
        self.client_states = state["client_states"]
        self.roster.restore(state["roster"])
        if self.speeds:
            self.speeds.restore(state["speeds"])
        self.privacy.restore(state.get("privacy"))  # older checkpoints have none
        past = {s: starts.get(s, state["x"]) for s in self.roster.holders}
        self.vectors.put(Held(**{name: state[name] for name in Held._fields})._replace(past=past))
