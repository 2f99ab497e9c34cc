"""A server whose vectors are cut into slices, each held by a process of its own (a shard).

All arithmetic is coordinate-wise, so shards never talk to each other. The driver sends commands and receives numbers;
whole vectors pass through it only for checkpoints and evaluations. All shards validate an update before any of them
adds it: by then each has received its part, so an update is added by all or by none. A shard that dies is not replaced,
because its vectors exist nowhere else but in the last checkpoint: the run fails, and can be resumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from tardygrad.core import admission
from tardygrad.core.algorithm import LocalVectors
from tardygrad.core.kernels import Outcome
from tardygrad.core.messages import NOTHING, ModuleBuffers, Parts, Reason, Update, Vector
from tardygrad.core.method import Method
from tardygrad.core.privacy import BLOCK, RoundNoise
from tardygrad.core.transforms import Step, Transform
from tardygrad.core.vectors import Held
from tardygrad.engines.ray.worker import received, tensors
from tardygrad.engines.threads import use_threads
from tardygrad.errors import Invalid, WorkFailed, check_integer


def bounds(parameters: int, shards: int) -> list[int]:
    """Where slices begin and end: at the boundaries of the wire's blocks, which are never split.

    >>> bounds(100_000, 3)
    [0, 32768, 65536, 100000]
    """
    return [parameters * i // shards // BLOCK * BLOCK for i in range(shards)] + [parameters]


SENT = "sends a state with each job"


def check_shards(method: Method, parameters: int, shards: int) -> None:
    """Raise `Invalid` if the vectors of a method cannot be cut into this number of shards."""
    check_integer("server_shards", shards)
    if shards == 1:
        return
    if shards > (most := max(parameters // BLOCK, 1)):
        raise Invalid(f"`server_shards` must be at most one for every {BLOCK:,} parameters ({most}), got {shards}.")
    why = "has regions" if method.regions else SENT if method.keep is True else None
    if why is None and not _separable(method.outer):
        why = "has an outer step that is not coordinate-wise, such as a clip by length"
    if why:
        fix = " Use keep='worker'." if why == SENT and not method.curvature else ""
        raise Invalid(f"`server_shards` must be 1 for a method that {why}, got {shards} with {method.name}.{fix}")


def _separable(outer: Transform) -> bool:
    """Whether a step is coordinate-wise: tries it on half a vector and on the whole, at several magnitudes."""

    def move(v: Tensor) -> Tensor:
        return outer.update(v, outer.init(v), Step(1, (1,), v, v))[0]

    vectors = [torch.tensor([3.0, -1.0, 0.5, 2.0]) * 10.0**power for power in range(-12, 13, 3)]
    return all(torch.equal(move(v)[:2], move(v[:2])) for v in vectors)


class ServerShard:
    """The actor of a shard: it holds one slice of every vector."""

    def __init__(self, method: bytes, loads: Callable[[bytes], Any], threads: int, x: Any) -> None:
        use_threads()
        torch.set_num_threads(threads)
        self.vectors = LocalVectors(loads(method), tensors(x))
        self.update: Update | None = None  # validated, but not yet folded into the sum

    def validate(self, header: Update, part: dict[str, Any]) -> float | Reason:
        """‖δ‖ of this slice of an update, or the reason to refuse it."""
        self.update = received(header, part)
        return self.vectors.validate(self.update, None)

    def squares(self) -> list[float]:
        """‖contribution‖² in each block of this slice of the update."""
        assert self.update is not None
        return self.vectors.squares(self.update)

    def fold(self, weight: float) -> None:
        """Add the update; with the weight 0 nothing, and it need not have been sent here."""
        assert self.update is not None or not weight
        self.vectors.fold(cast(Update, self.update), weight)
        self.update = None

    def advance(
        self, t: int, delays: tuple[int, ...], denominator: float, noise: RoundNoise | None
    ) -> tuple[tuple[float, ...], bool]:
        """This slice's norms and clipped share of the round, and whether its x is finite."""
        return self.vectors.advance(t, delays, denominator, noise)[1:], self.vectors.finite()

    def hold(self, s: int) -> None:
        self.vectors.hold(s)

    def drop(self, s: int) -> None:
        self.vectors.drop(s)

    def ping(self) -> None:
        """Return at once: a sign of life."""

    def x(self) -> np.ndarray:
        """This slice of the model."""
        return self.vectors.x.numpy()

    def held(self) -> Any:
        """This slice of all vectors, as arrays."""
        return tree_map_only(Tensor, Tensor.numpy, tuple(self.vectors.held))

    def put(self, *vectors: Any) -> None:
        """Replace all vectors; the arguments are the fields of `Held`, as arrays."""
        self.vectors.put(Held(*tree_map_only(Tensor, Tensor.clone, tensors(vectors))))


class ShardedVectors:
    """A `VectorStore` whose vectors are held by several shards.

    Args:
        ray: the module.
        new_actor: starts the actor of a shard, given its slice of x.
        x: the initial model.
        shards: how many.
        check_timeout: called every second of a wait, with the time when it began; raises an error to end it.
    """

    def __init__(
        self,
        ray: Any,
        new_actor: Callable[[Any], Any],
        method: Method,
        x: Vector,
        shards: int,
        check_timeout: Callable[[float], None] = lambda since: None,
    ) -> None:
        self._ray, self._method, self._check_timeout = ray, method, check_timeout
        self._bounds = bounds(len(x), shards)
        self.actors = [new_actor(self._slice(i, x)) for i in range(shards)]
        self._x: Vector | None = None  # the final model, once `close` was called
        self._finite, self._sent = True, list[Any]()
        self._start: Parts | None = None  # x for new jobs, until the next round
        self.check()  # wait until all have started

    @property
    def start(self) -> Parts:
        self._start = self._start or Parts(tuple(actor.x.remote() for actor in self.actors))
        return self._start

    @property
    def x(self) -> Vector:
        return cast(Vector, tree_map(_joined, *self._all("x"))) if self._x is None else self._x

    @property
    def held(self) -> Held:
        return Held(*tree_map(_joined, *self._all("held")))

    def check(self) -> None:
        """Raise `WorkFailed` if a shard has died."""
        self._all("ping")

    def close(self) -> None:
        """Copy x to this process; the other vectors are lost with the shards."""
        self._x = self.x

    def validate(self, update: Update, module_buffers: ModuleBuffers | None) -> float | Reason:
        bare = update._replace(delta=NOTHING, curvature=NOTHING if self._method.compensate else None)
        if not isinstance(update.delta, Parts) or len(update.delta.references) != len(self.actors):
            return "wrong shape"
        if self._method.keep == "worker" and isinstance(update.state, dict):  # a worker keeps every finite state
            return "not finite"
        if not admission.fits(bare, NOTHING, module_buffers, self._method, {}):
            return "wrong shape"
        if not admission.finite(bare, 0.0):
            return "not finite"
        header, parts = update._replace(delta=NOTHING, module_buffers=None), update.delta.references
        requests = [actor.validate.remote(header, part) for actor, part in zip(self.actors, parts, strict=True)]
        try:
            norms = self._get(requests)
        except self._ray.exceptions.ObjectLostError:
            return "lost on the way"
        reasons: list[Reason] = [norm for norm in norms if isinstance(norm, str)]  # type: ignore[misc]
        if not reasons and math.hypot(*norms) > admission.LARGEST_NORM:
            return "not finite"
        return reasons[0] if reasons else math.hypot(*norms)

    def norm(self, update: Update) -> float:
        return math.sqrt(math.fsum(chain(*self._all("squares"))))

    def fold(self, update: Update, weight: float) -> None:
        self._send("fold", weight)

    def advance(self, t: int, delays: tuple[int, ...], denominator: float, noise: RoundNoise | None = None) -> Outcome:
        own = [noise and noise._replace(start=start) for start in self._bounds[:-1]]
        requests = zip(self.actors, own, strict=True)
        results = self._get([actor.advance.remote(t, delays, denominator, each) for actor, each in requests])
        self._finite, self._start = all(finite for _, finite in results), None
        norms, moves, shares = zip(*(numbers for numbers, _ in results), strict=True)
        sizes = [b - a for a, b in pairwise(self._bounds)]
        clipped = sum(share * size for share, size in zip(shares, sizes, strict=True)) / self._bounds[-1]
        return Outcome(NOTHING, math.hypot(*norms), math.hypot(*moves), clipped)

    def hold(self, s: int) -> None:
        self._send("hold", s)

    def drop(self, s: int) -> None:
        self._send("drop", s)

    def finite(self) -> bool:
        return self._finite

    def put(self, held: Held) -> None:
        self._start = None
        slices = [tree_map_only(Tensor, partial(self._slice, i), tuple(held)) for i in range(len(self.actors))]
        self._get([actor.put.remote(*each) for actor, each in zip(self.actors, slices, strict=True)])
        self._finite = bool(held.x.isfinite().all())

    def _slice(self, i: int, v: Tensor) -> np.ndarray:
        """Slice i of a vector. Any other tensor (a step counter) goes to every shard as it is."""
        is_vector = v.shape == (self._bounds[-1],)
        return (v[self._bounds[i] : self._bounds[i + 1]] if is_vector else v).numpy()

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
            self._check_timeout(since)
        try:
            answers: list[Any] = self._ray.get(sent + requests)
        except self._ray.exceptions.RayActorError as error:
            raise WorkFailed("a server shard has died. Resume the run.") from error
        return answers[len(sent) :]


def _joined(*slices: np.ndarray | None) -> Tensor | None:
    """A vector from its slices; a scalar, which every shard has, from the first."""
    vectors: tuple[Tensor | None, ...] = tensors(slices)
    if vectors[0] is None:
        return None
    return torch.cat(vectors) if vectors[0].dim() else vectors[0].clone()  # type: ignore[arg-type]
