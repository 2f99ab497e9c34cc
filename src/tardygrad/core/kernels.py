"""The local step, the fold and the finish of algorithm.py and the packing of wire.py, each in one pass over memory.

On a CPU numba makes them (`fused.py`, the extra `fast`), on a GPU torch.compile, but not those of the wire. Where there
is neither, where vectors are small, or where a method's steps are more than a clip and a rate, the lines of those files
run as they stand. On a CPU models have the same bits either way; norms and shares in the record agree to six digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LEAST = 1 << 18
"""Coordinates from which on a pass over memory costs more than calling torch a few times more."""

_SHARE = 1 << 22  # coordinates that are worth a thread


class Form(NamedTuple):
    """A transform as numbers: move = lr · BiClip(direction) with these thresholds."""

    upper: float = math.inf
    lower: float = 0.0
    lr: float = 1.0


class Contribution(NamedTuple):
    """An update as it enters a round: δ, its weight, and for DC its A and the x_s it started from."""

    delta: Tensor
    weight: float = 1.0
    curvature: Tensor | None = None
    past: Tensor | None = None


class Outcome(NamedTuple):
    """What a round came to."""

    x: Tensor  # x_t
    norm: float  # ‖Δ_t‖
    move: float  # ‖x_t − x_{t−1}‖
    clipped: float  # share of Δ_t's coordinates


def fits(x: Tensor, *others: Tensor | None) -> bool:
    """Whether there are kernels for a vector like this and those that go with it."""
    if len(x) < LEAST or not (x.is_cuda or (x.device.type == "cpu" and _fused() is not None)):
        return False
    return all(
        v.dtype == torch.float32 and v.is_contiguous() and v.shape == x.shape and v.device == x.device
        for v in (x, *others)
        if v is not None
    )


def local_step(x: Tensor, g: Tensor, curvature: Tensor | None, form: Form) -> Tensor:
    """x ← x − move and A ← A + move ⊙ move in place, with move = lr · Clip(g); the share of g that was clipped."""
    if x.is_cuda:
        share: Tensor = _compiled(_walk)(x, g, curvature, *_scalars(form, x))
        return share
    fused = _numba()
    vectors = [one.detach().numpy() for one in (x, g, curvature) if one is not None]
    kernel = fused.local_step if curvature is None else fused.local_step_curved
    clipped = _spread(len(x), lambda a, b: (kernel(*(v[a:b] for v in vectors), *_float32(form)),))
    return torch.tensor(clipped[0] / len(x))


def fold(total: Tensor | None, late: Contribution, x: Tensor, scratch: Tensor | None = None) -> Tensor:
    """total + contribution, in place, or 0 + contribution in `scratch` or new memory; a `pull` is not for kernels."""
    delta, weight, curvature, past = late
    if x.is_cuda:
        made: Tensor = _compiled(_fold)(total, delta, curvature, past, x, torch.tensor(weight, device=x.device))
        return made
    fused, first = _numba(), total is None
    if total is None:
        total = fresh(x) if scratch is None else scratch
    compensated = curvature is not None and past is not None
    kernel = fused.fold_compensated if compensated else fused.fold
    given = (total, delta, curvature, past, x) if compensated else (total, delta)
    vectors = [one.detach().numpy() for one in given if one is not None]
    w = _single(weight)

    def part(a: int, b: int) -> Sequence[float]:
        kernel(*(v[a:b] for v in vectors), w, first)
        return ()

    _spread(len(x), part)
    return total


def finish(x: Tensor, total: Tensor, denominator: float, form: Form, out: Tensor | None = None) -> Outcome:
    """x + lr · Clip(total / denominator), in new memory or, on a CPU, in that of `out`."""
    if x.is_cuda:
        made, *facts = _compiled(_finished)(x, total, torch.tensor(denominator, device=x.device), *_scalars(form, x))
        return Outcome(made, *map(float, facts))
    fused = _numba()
    out = fresh(x) if out is None else out
    vectors = [one.detach().numpy() for one in (total, x, out)]
    numbers = (_single(denominator), *_float32(form))
    clipped, squares, moved = _spread(len(x), lambda a, b: fused.finish(*(v[a:b] for v in vectors), *numbers))
    return Outcome(out, math.sqrt(squares), math.sqrt(moved), clipped / len(x))


def narrow(
    v: Tensor, error: Tensor | None, numbers: Tensor, scales: Tensor | None, left: Tensor | None, block: int
) -> bool:
    """v + error into numbers and scales, and what those leave out into `left`; whether all of it arrives finite."""
    fused, none = _numba(), np.empty(0, np.float32)
    data, e, s, rest = (none if one is None else one.detach().numpy() for one in (v, error, scales, left))
    raw, width = numbers.view(torch.uint8).numpy(), numbers.itemsize

    def part(a: int, b: int) -> Sequence[float]:
        those = s[a // block : -(-b // block)]
        return (fused.narrow(data[a:b], e[a:b], raw[width * a : width * b], those, rest[a:b], block),)

    return not _spread(len(v), part)[0]


def widen(numbers: Tensor, scales: Tensor, v: Tensor, block: int) -> None:
    """int8 numbers / 127 · s into v."""
    fused, vectors = _numba(), [one.numpy() for one in (numbers, scales, v)]

    def part(a: int, b: int) -> Sequence[float]:
        n, s, out = vectors
        fused.widen(n[a:b], s[a // block : -(-b // block)], out[a:b], block)
        return ()

    _spread(len(v), part)


def fresh(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """New memory for a vector like x: on a CPU numpy asks for huge pages, which are cleared sooner."""
    if x.device.type != "cpu" or not len(x):
        return torch.empty_like(x, dtype=dtype)
    return torch.from_numpy(np.empty(len(x) * dtype.itemsize, np.uint8)).view(dtype)


@cache
def _fused() -> ModuleType | None:
    try:
        from tardygrad.core import fused
    except Exception:  # no numba, or one that cannot compile here, or not keep what it compiled
        return None
    return fused


def _numba() -> ModuleType:
    made = _fused()
    assert made is not None  # `fits` has said so
    return made


def _single(value: float) -> np.float32:
    with np.errstate(over="ignore"):  # as torch takes a number: one that is too large for float32 is infinite
        return np.float32(value)


def _float32(form: Form) -> tuple[np.float32, ...]:
    with np.errstate(over="ignore"):  # as in clipping.py: a threshold that is too large for float32 is infinite
        lower = min(form.lower, float(np.finfo(np.float32).max))
        return np.float32(lower), np.float32(form.upper), np.float32(form.lr)


def _spread(n: int, part: Callable[[int, int], Sequence[float]]) -> list[float]:
    """The sums of a kernel's results over the parts of a vector, one for each of torch's threads if it is long."""
    block = 1 << 16
    parts = max(min(torch.get_num_threads(), n // _SHARE), 1)
    bounds = [n * i // parts // block * block for i in range(parts)] + [n]
    if parts == 1:
        return list(part(0, n))
    with ThreadPoolExecutor(parts) as pool:
        return [sum(each) for each in zip(*pool.map(part, bounds, bounds[1:]), strict=True)]


# ------------------------------------------------------------------------------------------------------- for a GPU


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function)
    return made


def _scalars(form: Form, x: Tensor) -> tuple[Tensor, ...]:
    """As tensors: a number that changes from round to round would be compiled anew."""
    return tuple(torch.tensor(value, device=x.device) for value in (form.lower, form.upper, form.lr))


def _walk(x: Tensor, g: Tensor, curvature: Tensor | None, lower: Tensor, upper: Tensor, lr: Tensor) -> Tensor:
    c = _biclip(g, lower, upper)
    move = c * lr
    x -= move
    if curvature is not None:
        curvature += move * move
    return (c != g).float().mean()


def _fold(
    total: Tensor | None, delta: Tensor, curvature: Tensor | None, past: Tensor | None, x: Tensor, weight: Tensor
) -> Tensor:
    if curvature is not None and past is not None:
        delta = delta - curvature * (x - past)
    if total is None:
        return 0.0 + delta * weight
    total += delta * weight
    return total


def _finished(
    x: Tensor, total: Tensor, denominator: Tensor, lower: Tensor, upper: Tensor, lr: Tensor
) -> tuple[Tensor, ...]:
    mean = total / denominator
    c = _biclip(mean, lower, upper)
    move = c * lr
    return x + move, torch.linalg.vector_norm(mean), torch.linalg.vector_norm(move), (c != mean).float().mean()


def _biclip(v: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    return torch.where(lower > 0, v.sign() * v.abs().clamp(lower, upper), v.clamp(-upper, upper))
