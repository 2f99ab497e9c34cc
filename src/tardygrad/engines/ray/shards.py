"""A server whose vectors are cut into slices, each held by a process of its own (a shard).

All arithmetic is coordinate-wise, so shards never talk to each other. The driver sends commands and receives numbers;
whole vectors pass through it only for checkpoints and evaluations. All shards validate an update before any of them
adds it: by then each has received its part, so an update is added by all or by none. A shard that dies is not replaced,
because its vectors exist nowhere else but in the last checkpoint: the run fails, and can be resumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tardygrad.core import admission
from tardygrad.core.kernels import Outcome
from tardygrad.core.messages import NOTHING, ModuleBuffers, Parts, Reason, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.transforms import State, Step, Transform
from tardygrad.core.vectors import LocalVectors
from tardygrad.engines.ray.worker import tensor
from tardygrad.engines.wire import BLOCK, Packed, Wire, unpack
from tardygrad.errors import Invalid, WorkFailed


def bounds(parameters: int, shards: int) -> list[int]:
    """Where slices begin and end: at the boundaries of the wire's blocks, which are never split.

    >>> bounds(100_000, 3)
    [0, 32768, 65536, 100000]
    """
    return [parameters * i // shards // BLOCK * BLOCK for i in range(shards)] + [parameters]


def check(method: Method, parameters: int, shards: int) -> None:
    """Raise `Invalid` if the vectors of a method cannot be cut into this number of shards."""
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise Invalid(f"`server_shards` must be a whole number, 1 or more, got {shards!r}.")
    if shards == 1:
        return
    if shards > (most := max(parameters // BLOCK, 1)):
        raise Invalid(f"`server_shards` must be at most one for every {BLOCK:,} parameters ({most}), got {shards}.")
    why = "has regions" if method.regions else "keeps a state for each client" if method.keep else None
    if why is None and not _separable(method.outer):
        why = "has an outer step that is not coordinate-wise, such as a clip by length"
    if why:
        raise Invalid(f"`server_shards` must be 1 for a method that {why}, got {shards} with {method.name}.")


def _separable(outer: Transform) -> bool:
    """Whether a step is coordinate-wise: tries it on half a vector and on the whole, at several magnitudes."""

    def move(v: Tensor) -> Tensor:
        return outer.update(v, outer.init(v), Step(1, (1,), v, v))[0]

    vectors = [torch.tensor([3.0, -1.0, 0.5, 2.0]) * 10.0**power for power in range(-12, 13, 3)]
    return all(torch.equal(move(v)[:2], move(v[:2])) for v in vectors)


class ServerShard:
    """The actor of a shard: it holds one slice of every vector."""

    def __init__(self, method: bytes, loads: Callable[[bytes], Any], threads: int, x: Any, wire: Wire) -> None:
        torch.set_num_threads(threads)
        self.vectors, self.wire = LocalVectors(loads(method), tensor(x)), wire
        self.update: Update | None = None  # validated, but not yet folded into the sum

    def validate(self, facts: Update, part: dict[str, Any]) -> float | Reason:
        """‖δ‖ of this slice of an update, or the reason to refuse it."""
        vectors = {name: unpack(Packed.of(arrays, self.wire), self.wire) for name, arrays in part.items()}
        self.update = facts._replace(delta=vectors["delta"], curvature=vectors.get("curvature"))
        return self.vectors.validate(self.update, None)

    def fold(self, weight: float) -> None:
        assert self.update is not None
        self.vectors.fold(self.update, weight)
        self.update = None

    def advance(self, t: int, delays: tuple[int, ...], denominator: float) -> tuple[tuple[float, ...], bool]:
        """This slice's norms and clipped share of the round, and whether its x is finite."""
        return self.vectors.advance(t, delays, denominator)[1:], self.vectors.finite()

    def hold(self, s: int) -> None:
        self.vectors.hold(s)

    def drop(self, s: int) -> None:
        self.vectors.drop(s)

    def start(self) -> Any:
        """This slice of x, for new jobs."""
        return self.vectors.x.numpy()

    def here(self) -> None:
        """Return at once: a sign of life."""

    def read(self, name: str) -> Any:
        """A vector, or a dictionary of vectors (the outer state by name, past models by round)."""
        value = getattr(self.vectors, name)
        if isinstance(value, dict):
            return {key: item.numpy() for key, item in value.items()}
        return None if value is None else value.numpy()

    def put(self, x: Any, total: Any, state: dict[str, Any], past: dict[int, Any]) -> None:
        own_total = None if total is None else tensor(total).clone()
        own_state = {name: tensor(value).clone() for name, value in state.items()}
        self.vectors.put(tensor(x).clone(), own_total, own_state, {s: tensor(v).clone() for s, v in past.items()})


class ShardedVectors:
    """A `VectorStore` whose vectors are held by several shards.

    Args:
        ray: the module.
        new_actor: starts the actor of a shard, given its slice of x.
        x: the initial model.
        shards: how many.
        keep_waiting: called every second of a wait, with the time when it began; raises an error to end it.
    """

    def __init__(
        self,
        ray: Any,
        new_actor: Callable[[Any], Any],
        method: Method,
        x: Vector,
        shards: int,
        keep_waiting: Callable[[float], None] = lambda since: None,
    ) -> None:
        self._ray, self._method, self._keep_waiting = ray, method, keep_waiting
        self._bounds = bounds(len(x), shards)
        self.actors = [new_actor(part) for part in self._cut(x)]
        self._x: Vector | None = None  # the final model, once `close` was called
        self._finite, self._sent = True, list[Any]()
        self._start: Parts | None = None  # x for new jobs, until the next round
        self._all("start")  # wait until all have started

    @property
    def start(self) -> Parts:
        self._start = self._start or Parts(tuple(actor.start.remote() for actor in self.actors))
        return self._start

    @property
    def x(self) -> Vector:
        return self._x if self._x is not None else _joined(self._all("read", "x"))

    @property
    def sum(self) -> Vector | None:
        totals = self._all("read", "sum")
        return None if totals[0] is None else _joined(totals)

    @property
    def state(self) -> State:
        return _each(self._all("read", "state"))

    @property
    def past(self) -> dict[int, Vector]:
        return _each(self._all("read", "past"))

    def check(self) -> None:
        """Raise `WorkFailed` if a shard has died."""
        self._all("here")

    def close(self) -> None:
        """Copy x to this process; the other vectors are lost with the shards."""
        self._x = self.x

    def validate(self, update: Update, module_buffers: ModuleBuffers | None) -> float | Reason:
        bare = update._replace(delta=NOTHING, curvature=NOTHING if self._method.compensate else None)
        if not isinstance(update.delta, Parts) or len(update.delta.references) != len(self.actors):
            return "wrong shape"
        if not admission.fits(bare, NOTHING, module_buffers, self._method, {}):
            return "wrong shape"
        if not admission.finite(bare, 0.0):
            return "not finite"
        facts, parts = update._replace(delta=NOTHING, module_buffers=None), update.delta.references
        requests = [actor.validate.remote(facts, part) for actor, part in zip(self.actors, parts, strict=True)]
        try:
            norms = self._get(requests)
        except self._ray.exceptions.ObjectLostError:
            return "lost on the way"
        reasons: list[Reason] = [norm for norm in norms if isinstance(norm, str)]  # type: ignore[misc]
        return reasons[0] if reasons else math.hypot(*norms)

    def fold(self, update: Update, weight: float) -> None:
        self._send("fold", weight)

    def advance(self, t: int, delays: tuple[int, ...], denominator: float) -> Outcome:
        results = self._all("advance", t, delays, denominator)
        self._finite, self._start = all(finite for _, finite in results), None
        norms, moves, shares = zip(*(facts for facts, _ in results), strict=True)
        sizes = [b - a for a, b in pairwise(self._bounds)]
        clipped = sum(share * size for share, size in zip(shares, sizes, strict=True)) / self._bounds[-1]
        return Outcome(NOTHING, math.hypot(*norms), math.hypot(*moves), clipped)

    def hold(self, s: int) -> None:
        self._send("hold", s)

    def drop(self, s: int) -> None:
        self._send("drop", s)

    def finite(self) -> bool:
        return self._finite

    def put(self, x: Vector, total: Vector | None, state: State, past: dict[int, Vector]) -> None:
        self._start = None
        totals = self._cut(total) if total is not None else [None] * len(self.actors)
        states = [{name: self._cut(value)[i] for name, value in state.items()} for i in range(len(self.actors))]
        pasts = [{s: self._cut(value)[i] for s, value in past.items()} for i in range(len(self.actors))]
        slices = zip(self.actors, self._cut(x), totals, states, pasts, strict=True)
        self._get([actor.put.remote(*each) for actor, *each in slices])
        self._finite = bool(x.isfinite().all())

    def _cut(self, v: Tensor) -> list[Any]:
        """The slices of a vector. Any other tensor (a step counter) goes to every shard as it is."""
        if v.shape != (self._bounds[-1],):
            return [v.numpy()] * (len(self._bounds) - 1)
        return [v[a:b].numpy() for a, b in pairwise(self._bounds)]

    def _send(self, method: str, *args: Any) -> None:
        """Call a method of every shard without waiting; an error is raised by the next `_get`."""
        self._sent += [getattr(actor, method).remote(*args) for actor in self.actors]

    def _all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every shard, and wait for the answers."""
        return self._get([getattr(actor, method).remote(*args) for actor in self.actors])

    def _get(self, requests: list[Any]) -> list[Any]:
        """Wait for the answers to requests, and to everything sent before."""
        sent, self._sent = self._sent, []
        since = time.monotonic()
        while self._ray.wait(sent + requests, num_returns=len(sent + requests), timeout=1.0)[1]:
            self._keep_waiting(since)
        try:
            answers: list[Any] = self._ray.get(sent + requests)
        except self._ray.exceptions.RayActorError as error:
            raise WorkFailed("a server shard has died. Resume the run.") from error
        return answers[len(sent) :]


def _each(parts: list[dict[Any, Any]]) -> dict[Any, Vector]:
    return {name: _joined(part[name] for part in parts) for name in parts[0]}


def _joined(parts: Iterable[Any]) -> Tensor:
    """A vector from its slices; a scalar, which every shard has, from the first."""
    tensors = [tensor(part) for part in parts]
    return torch.cat(tensors) if tensors[0].dim() else tensors[0].clone()
