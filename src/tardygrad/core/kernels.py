"""The local step, the fold and the finish of algorithm.py and the packing of wire.py, each in one pass over memory.

They are compiled by numba (`fused.py`, the extra `fast`). Without it, on a GPU, for short vectors, and for steps that
are more than a clip and a rate, the plain code of those files runs instead. The models have the same bits either way;
norms and clipped shares agree to six digits.

Long vectors are computed in slices. `run_slices` computes them one after the other; `use_threads` of engines/threads.py
replaces it by a version with threads; core/ itself starts none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MIN_LENGTH = 1 << 18
"""The length from which a compiled kernel is faster than several calls of torch."""

_PER_THREAD = 1 << 22  # fewest coordinates for which a thread is worth its start

SliceKernel = Callable[[int, int], Sequence[float]]
"""Computes the coordinates from a to b; returns numbers, which are summed over all slices."""


def _one_by_one(kernel: SliceKernel, starts: Sequence[int], ends: Sequence[int]) -> list[Sequence[float]]:
    return list(map(kernel, starts, ends))


run_slices: Callable[[SliceKernel, Sequence[int], Sequence[int]], list[Sequence[float]]] = _one_by_one


class ClipAndRate(NamedTuple):
    """The numbers of a transform that is a clip and a rate: move = lr · BiClip(direction)."""

    upper: float = math.inf
    lower: float = 0.0
    lr: float = 1.0


class Contribution(NamedTuple):
    """The part of an update that enters a round's sum: δ, its weight, and for DC its A and the x_s it started from."""

    delta: Tensor
    weight: float = 1.0
    curvature: Tensor | None = None
    past: Tensor | None = None


class Outcome(NamedTuple):
    """The result of a round."""

    x: Tensor  # x_t
    norm: float  # ‖Δ_t‖
    move: float  # ‖x_t − x_{t−1}‖
    clipped: float  # share of Δ_t's coordinates


def fits(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the compiled kernels can compute with these vectors; None stands for a vector that is not used."""
    if len(x) < MIN_LENGTH or x.device.type != "cpu" or _fused() is None:
        return False
    return all(
        v.dtype == torch.float32 and v.is_contiguous() and v.shape == x.shape and v.device == x.device
        for v in (x, *others)
        if v is not None
    )


def local_step(x: Tensor, g: Tensor, curvature: Tensor | None, form: ClipAndRate) -> Tensor:
    """x ← x − move and A ← A + move ⊙ move in place, with move = lr · Clip(g); returns the clipped share of g."""
    fused = _numba()
    vectors = [v.detach().numpy() for v in (x, g, curvature) if v is not None]
    kernel = fused.local_step if curvature is None else fused.local_step_curved
    clipped = _in_slices(len(x), lambda a, b: (kernel(*(v[a:b] for v in vectors), *_thresholds(form)),))
    return torch.tensor(clipped[0] / len(x))


def fold(total: Tensor | None, contribution: Contribution, x: Tensor, scratch: Tensor | None = None) -> Tensor:
    """Add a contribution to total in place; without a total, start one in `scratch` or new memory. Not for `pull`."""
    delta, weight, curvature, past = contribution
    fused, first = _numba(), total is None
    if total is None:
        total = uninitialized_like(x) if scratch is None else scratch
    compensated = curvature is not None and past is not None
    kernel = fused.fold_compensated if compensated else fused.fold
    tensors = (total, delta, curvature, past, x) if compensated else (total, delta)
    vectors = [v.detach().numpy() for v in tensors if v is not None]
    w = _to_float32(weight)

    def part(a: int, b: int) -> Sequence[float]:
        kernel(*(v[a:b] for v in vectors), w, first)
        return ()

    _in_slices(len(x), part)
    return total


def finish(x: Tensor, total: Tensor, denominator: float, form: ClipAndRate, out: Tensor | None = None) -> Outcome:
    """Compute x + lr · Clip(total / denominator), in new memory or in `out`."""
    fused = _numba()
    out = uninitialized_like(x) if out is None else out
    vectors = [v.detach().numpy() for v in (total, x, out)]
    scalars = (_to_float32(denominator), *_thresholds(form))
    clipped, squares, moved = _in_slices(len(x), lambda a, b: fused.finish(*(v[a:b] for v in vectors), *scalars))
    return Outcome(out, math.sqrt(squares), math.sqrt(moved), clipped / len(x))


def pack_int8(v: Tensor, error: Tensor | None, numbers: Tensor, scales: Tensor, left: Tensor, block: int) -> bool:
    """Pack v + error into int8 numbers and scales, the rounding error into `left`; returns whether it is finite."""
    fused, data = _numba(), v.detach().numpy()
    e = np.empty(0, np.float32) if error is None else error.detach().numpy()
    packed, s, rest = numbers.numpy(), scales.numpy(), left.numpy()

    def part(a: int, b: int) -> Sequence[float]:
        return (fused.pack_int8(data[a:b], e[a:b], packed[a:b], s[a // block : -(-b // block)], rest[a:b], block),)

    return not _in_slices(len(v), part)[0]


def unpack_int8(numbers: Tensor, scales: Tensor, v: Tensor, block: int) -> None:
    """v ← int8 numbers / 127 · s."""
    fused, vectors = _numba(), [t.numpy() for t in (numbers, scales, v)]

    def part(a: int, b: int) -> Sequence[float]:
        n, s, out = vectors
        fused.unpack_int8(n[a:b], s[a // block : -(-b // block)], out[a:b], block)
        return ()

    _in_slices(len(v), part)


def uninitialized_like(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uninitialized memory for a vector like x, on a CPU from NumPy: it requests huge pages, which are faster."""
    if x.device.type != "cpu" or not len(x):
        return torch.empty_like(x, dtype=dtype)
    return torch.from_numpy(np.empty(len(x) * dtype.itemsize, np.uint8)).view(dtype)


@cache
def _fused() -> ModuleType | None:
    try:
        from tardygrad.core import fused
    except Exception:  # no numba, or it cannot compile here, or cannot cache the result
        return None
    return fused


def _numba() -> ModuleType:
    fused = _fused()
    assert fused is not None  # `fits` was called before
    return fused


def _to_float32(value: float) -> np.float32:
    with np.errstate(over="ignore"):  # as in torch: a number too large for float32 is infinite
        return np.float32(value)


def _thresholds(form: ClipAndRate) -> tuple[np.float32, ...]:
    lower = min(form.lower, float(np.finfo(np.float32).max))  # as in clipping.py
    return _to_float32(lower), _to_float32(form.upper), _to_float32(form.lr)


def _in_slices(n: int, kernel: SliceKernel) -> list[float]:
    """Run a kernel on a vector of length n, in as many slices as torch has threads if it is long; sums the results."""
    block = 1 << 16  # a multiple of privacy.BLOCK, since slices must begin where its blocks do
    parts = max(min(torch.get_num_threads(), n // _PER_THREAD), 1)
    if parts == 1:
        return list(kernel(0, n))
    bounds = [n * i // parts // block * block for i in range(parts)] + [n]
    return [sum(each) for each in zip(*run_slices(kernel, bounds[:-1], bounds[1:]), strict=True)]
