"""The vector work of a local step and of a round, each in one pass over memory, compiled by numba.

Every coordinate goes through the same float32 operations in the same order as in algorithm.py, so the bits are the
same. Sums of squares, which are only reported, are added up in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, carray, float32, float64, int64, njit, types, void
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 2048
"""Coordinates at a time in a round: their sum stays in the first cache while M updates stream by."""

_COUNT = np.int32
_vector, _whole = float32[::1], {"cache": True, "nogil": True, "error_model": "numpy"}


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(int64), build


@njit(inline="always")
def _at(address: int, first: int, count: int) -> Any:
    """`count` coordinates from `first` on of the vector at an address."""
    return carray(_pointer(address + 4 * first), count, np.float32)


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


@njit(void(_vector, _vector, float32), **_whole)
def _add(total: Any, d: Any, w: Any) -> None:
    for j in range(len(total)):
        total[j] += d[j] * w


@njit(void(_vector, _vector, float32, _vector, float32, _vector, float32, _vector, float32), **_whole)
def _add4(total: Any, d0: Any, w0: Any, d1: Any, w1: Any, d2: Any, w2: Any, d3: Any, w3: Any) -> None:
    for j in range(len(total)):
        total[j] = (((total[j] + d0[j] * w0) + d1[j] * w1) + d2[j] * w2) + d3[j] * w3


@njit(void(_vector, _vector, _vector, _vector, _vector, float32), **_whole)
def _add_compensated(total: Any, x: Any, d: Any, a: Any, p: Any, w: Any) -> None:
    for j in range(len(total)):
        total[j] += (d[j] - a[j] * (x[j] - p[j])) * w


@njit(
    void(_vector, _vector, _vector, _vector, _vector, float32, _vector, _vector, _vector, float32),
    **_whole,
)
def _add2_compensated(
    total: Any, x: Any, d0: Any, a0: Any, p0: Any, w0: Any, d1: Any, a1: Any, p1: Any, w1: Any
) -> None:
    for j in range(len(total)):
        first = (d0[j] - a0[j] * (x[j] - p0[j])) * w0
        total[j] = (total[j] + first) + (d1[j] - a1[j] * (x[j] - p1[j])) * w1


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


@njit(
    types.Tuple((int64, float64, float64))(
        _vector, _vector, int64[::1], int64[::1], int64[::1], _vector, boolean, int64, int64, float32, float32, float32
    ),
    **_whole,
)
def aggregate(
    x: Any,
    out: Any,
    deltas: Any,
    curvatures: Any,
    pasts: Any,
    weights: Any,
    compensated: Any,
    start: Any,
    stop: Any,
    lower: Any,
    upper: Any,
    lr: Any,
) -> Any:
    """out ← x + lr · Clip(mean of the contributions) from `start` to `stop`; vectors are given by their addresses.

    Returns how many coordinates were clipped, and the sums of squares of the mean and of the move.
    """
    scratch, updates = np.empty(BLOCK, np.float32), len(deltas)
    clipped, squares, moved = 0, 0.0, 0.0
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        here, there, total = x[first : first + count], out[first : first + count], scratch[:count]
        total[:] = 0.0
        i = 0
        if compensated:
            while i + 2 <= updates:
                _add2_compensated(
                    total, here,
                    _at(deltas[i], first, count), _at(curvatures[i], first, count), _at(pasts[i], first, count),
                    weights[i],
                    _at(deltas[i + 1], first, count), _at(curvatures[i + 1], first, count),
                    _at(pasts[i + 1], first, count), weights[i + 1],
                )  # fmt: skip
                i += 2
            if i < updates:
                _add_compensated(
                    total, here, _at(deltas[i], first, count), _at(curvatures[i], first, count),
                    _at(pasts[i], first, count), weights[i],
                )  # fmt: skip
        else:
            while i + 4 <= updates:
                _add4(
                    total,
                    _at(deltas[i], first, count), weights[i], _at(deltas[i + 1], first, count), weights[i + 1],
                    _at(deltas[i + 2], first, count), weights[i + 2], _at(deltas[i + 3], first, count), weights[i + 3],
                )  # fmt: skip
                i += 4
            while i < updates:
                _add(total, _at(deltas[i], first, count), weights[i])
                i += 1
        changed, a, b = _finish(total, here, there, np.float32(updates), lower, upper, lr)
        clipped, squares, moved = clipped + changed, squares + a, moved + b
    return clipped, squares, moved
