"""The vector work of a local step and of a round, each in one pass over memory, compiled by numba.

Every coordinate goes through the same float32 operations in the same order as in algorithm.py, so the bits are the
same. Sums of squares, which are only reported, are added up in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, float32, float64, int64, njit, types, void

BLOCK = 2048
"""Coordinates whose squares are added up in float32."""

_COUNT = np.int32
_vector, _whole = float32[::1], {"cache": True, "nogil": True, "error_model": "numpy"}


@njit(inline="always")
def _clip(v: Any, lower: Any, upper: Any) -> Any:
    """BiClip as in clipping.py; a NaN stays one."""
    size = abs(v)
    kept = upper if size > upper else size
    kept = lower if kept < lower else kept
    zero = size == 0.0 and lower > 0.0
    return np.float32(0.0) if zero else np.copysign(kept, v)


@njit(int64(_vector, _vector, float32, float32, float32), **_whole)
def walk(x: Any, g: Any, lower: Any, upper: Any, lr: Any) -> Any:
    """x ← x − lr · Clip(g); how many coordinates were clipped."""
    clipped = 0
    for j in range(len(x)):
        c = _clip(g[j], lower, upper)
        clipped += c != g[j]
        x[j] -= c * lr
    return clipped


@njit(int64(_vector, _vector, _vector, float32, float32, float32), **_whole)
def walk_curved(x: Any, g: Any, curvature: Any, lower: Any, upper: Any, lr: Any) -> Any:
    """The same, and A ← A + move ⊙ move."""
    clipped = 0
    for j in range(len(x)):
        c = _clip(g[j], lower, upper)
        clipped += c != g[j]
        move = c * lr
        x[j] -= move
        curvature[j] += move * move
    return clipped


@njit(
    types.Tuple((int64, float64, float64))(_vector, _vector, _vector, float32, float32, float32, float32),
    fastmath={"reassoc"},  # of the sums; nothing else here can be put in another order
    **_whole,
)
def _finish(total: Any, x: Any, out: Any, count: Any, lower: Any, upper: Any, lr: Any) -> Any:
    clipped, squares, moved = _COUNT(0), np.float32(0), np.float32(0)
    for j in range(len(total)):
        mean = total[j] / count
        c = _clip(mean, lower, upper)
        move = c * lr
        out[j] = x[j] + move
        clipped += _COUNT(c != mean)
        squares += mean * mean
        moved += move * move
    return int64(clipped), float64(squares), float64(moved)


@njit(void(_vector, _vector, float32, boolean), **_whole)
def fold(total: Any, d: Any, w: Any, first: Any) -> None:
    """total ← total + δ · w, or 0 + δ · w if it is the first: what was in that memory is not read."""
    if first:
        for j in range(len(total)):
            total[j] = np.float32(0.0) + d[j] * w  # the sum of 0 and −0 is 0
    else:
        for j in range(len(total)):
            total[j] += d[j] * w


@njit(void(_vector, _vector, _vector, _vector, _vector, float32, boolean), **_whole)
def fold_compensated(total: Any, d: Any, a: Any, p: Any, x: Any, w: Any, first: Any) -> None:
    """The same of (δ − A ⊙ (x − past)) · w."""
    if first:
        for j in range(len(total)):
            total[j] = np.float32(0.0) + (d[j] - a[j] * (x[j] - p[j])) * w
    else:
        for j in range(len(total)):
            total[j] += (d[j] - a[j] * (x[j] - p[j])) * w


@njit(
    types.Tuple((int64, float64, float64))(_vector, _vector, _vector, float32, float32, float32, float32),
    **_whole,
)
def finish(total: Any, x: Any, out: Any, over: Any, lower: Any, upper: Any, lr: Any) -> Any:
    """out ← x + lr · Clip(total / over).

    Returns how many coordinates were clipped, and the sums of squares of the mean and of the move.
    """
    clipped, squares, moved = 0, 0.0, 0.0
    for i in range(0, len(total), BLOCK):
        k = min(i + BLOCK, len(total))
        changed, a, b = _finish(total[i:k], x[i:k], out[i:k], over, lower, upper, lr)
        clipped, squares, moved = clipped + changed, squares + a, moved + b
    return clipped, squares, moved
