"""The vector arithmetic of a local step, a round and the wire, each in one pass over memory, compiled by numba.

Every coordinate goes through the same float32 operations in the same order as in algorithm.py and wire.py, so the bits
are the same. Sums of squares, which are only reported, are added up in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import boolean, float32, float64, int8, int64, njit, types, void

BLOCK = 2048
"""Coordinates whose squares are summed in float32; the sums of blocks are added in float64."""

_INT = np.int32
_vector, _options = float32[::1], {"cache": True, "nogil": True, "error_model": "numpy"}


@njit(inline="always")
def _clip(v: Any, lower: Any, upper: Any) -> Any:
    """BiClip as in clipping.py; NaN stays NaN."""
    size = abs(v)
    clipped = lower if size < lower else size
    clipped = upper if clipped > upper else clipped
    zero = size == 0.0 and lower > 0.0
    return np.float32(0.0) if zero else np.copysign(clipped, v)


@njit(int64(_vector, _vector, float32, float32, float32), **_options)
def local_step(x: Any, g: Any, lower: Any, upper: Any, lr: Any) -> Any:
    """x ← x − lr · Clip(g); returns the number of clipped coordinates."""
    clipped = 0
    for j in range(len(x)):
        c = _clip(g[j], lower, upper)
        clipped += c != g[j]
        x[j] -= c * lr
    return clipped


@njit(int64(_vector, _vector, _vector, float32, float32, float32), **_options)
def local_step_curved(x: Any, g: Any, curvature: Any, lower: Any, upper: Any, lr: Any) -> Any:
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
    fastmath={"reassoc"},  # only the sums can be reordered
    **_options,
)
def _finish(total: Any, x: Any, out: Any, denominator: Any, lower: Any, upper: Any, lr: Any) -> Any:
    """out ← x + lr · Clip(total / denominator); returns the clipped coordinates, ‖Δ‖² and the move's square."""
    clipped, squares, moved = _INT(0), np.float32(0), np.float32(0)
    for j in range(len(total)):
        mean = total[j] / denominator
        c = _clip(mean, lower, upper)
        move = c * lr
        out[j] = x[j] + move
        clipped += _INT(c != mean)
        squares += mean * mean
        moved += move * move
    return int64(clipped), float64(squares), float64(moved)


@njit(void(_vector, _vector, float32, boolean), **_options)
def fold(total: Any, d: Any, w: Any, first: Any) -> None:
    """total ← total + δ · w, or 0 + δ · w for the first, without reading total."""
    if first:
        for j in range(len(total)):
            total[j] = np.float32(0.0) + d[j] * w  # the sum of 0 and −0 is 0
    else:
        for j in range(len(total)):
            total[j] += d[j] * w


@njit(void(_vector, _vector, _vector, _vector, _vector, float32, boolean), **_options)
def fold_compensated(total: Any, d: Any, a: Any, p: Any, x: Any, w: Any, first: Any) -> None:
    """The same with (δ − A ⊙ (x − past)) · w."""
    if first:
        for j in range(len(total)):
            total[j] = np.float32(0.0) + (d[j] - a[j] * (x[j] - p[j])) * w
    else:
        for j in range(len(total)):
            total[j] += (d[j] - a[j] * (x[j] - p[j])) * w


@njit(
    types.Tuple((int64, float64, float64))(_vector, _vector, _vector, float32, float32, float32, float32),
    **_options,
)
def finish(total: Any, x: Any, out: Any, denominator: Any, lower: Any, upper: Any, lr: Any) -> Any:
    """out ← x + lr · Clip(total / denominator).

    Returns the number of clipped coordinates, and the sums of squares of the mean and of the move.
    """
    clipped, squares, moved = 0, 0.0, 0.0
    for i in range(0, len(total), BLOCK):
        k = min(i + BLOCK, len(total))
        changed, a, b = _finish(total[i:k], x[i:k], out[i:k], denominator, lower, upper, lr)
        clipped, squares, moved = clipped + changed, squares + a, moved + b
    return clipped, squares, moved


# ----------------------------------------------------------------------------------------------------- for the wire


@njit(inline="always")
def _bits(v: Any) -> Any:
    return np.float32(v).view(np.int32)


@njit(inline="always")
def _number(bits: Any) -> Any:
    return _INT(bits).view(np.float32)


@njit(float32(_vector, _vector, _vector), **_options)
def _add_error(v: Any, error: Any, e: Any) -> Any:
    """e ← v + error, or v if there is none; returns max|e_j|. Bits compare like the numbers, and NaN as the largest."""
    largest = _INT(0)
    if len(error):
        for j in range(len(v)):
            e[j] = v[j] + error[j]
            largest = max(largest, _bits(e[j]) & _INT(0x7FFFFFFF))
    else:
        for j in range(len(v)):
            e[j] = v[j]
            largest = max(largest, _bits(e[j]) & _INT(0x7FFFFFFF))
    return _number(largest)


@njit(void(_vector, int8[::1], float32), **_options)
def _int8(e: Any, numbers: Any, s: Any) -> None:
    denominator = np.float32(1) if s == 0 else s
    for j in range(len(e)):
        numbers[j] = np.int8(np.rint(e[j] / denominator * np.float32(127)))
        e[j] -= np.float32(numbers[j]) * np.float32(1 / 127) * s


@njit(int64(_vector, _vector, int8[::1], _vector, _vector, int64), **_options)
def pack_int8(v: Any, error: Any, numbers: Any, scales: Any, left: Any, block: Any) -> Any:
    """`send` of wire.py for int8; returns the number of blocks that are not finite.

    Such a block has the numbers 0, and its scale makes them NaN.
    """
    not_finite = 0
    for i in range(-(-len(v) // block)):
        a, b = i * block, min((i + 1) * block, len(v))
        e, n = left[a:b], numbers[a:b]
        largest = _add_error(v[a:b], error[a:b], e)
        scales[i] = largest
        if np.isfinite(largest):
            _int8(e, n, largest)
        else:
            n[:] = 0
            not_finite += 1
    return not_finite


@njit(void(int8[::1], _vector, _vector, int64), **_options)
def unpack_int8(numbers: Any, scales: Any, v: Any, block: Any) -> None:
    """`unpack` of wire.py for int8."""
    for i in range(len(scales)):
        a, b, s = i * block, min((i + 1) * block, len(v)), scales[i]
        n, out = numbers[a:b], v[a:b]
        for j in range(len(out)):
            out[j] = np.float32(n[j]) * np.float32(1 / 127) * s
