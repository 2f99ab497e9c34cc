"""Compressed vectors for sending between machines, with error feedback.

1. int8: every `BLOCK` coordinates share a scale s = max|v_j|, and round(v / s · 127) is sent. So neither a curvature of
   1e-12 nor a delta of 1e6 is lost.
2. bfloat16 has float32's range and needs no scale. Its largest number is 3.39e38; larger ones become infinite.
3. Numbers that are not finite stay so (in int8 the whole block does), so the server refuses the update.
4. Blocks are independent: if a and b are multiples of `BLOCK` (or b is the end), packing v[a:b] gives the same blocks
   as packing v.

This file is the definition. `kernels.py` packs long vectors on a CPU as int8 in one pass, with the same result except
for the numbers of a block that is not finite; its scale is the same, so it is still not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from tardygrad.core import kernels
from tardygrad.core.privacy import BLOCK
from tardygrad.errors import check_choice

Wire = Literal["float32", "bfloat16", "int8"]
"""Number format of vectors in transit."""

_CHUNK = 32 * BLOCK  # coordinates packed at a time, so that intermediate results stay in a CPU's cache


class Packed(NamedTuple):
    """A packed vector."""

    numbers: Tensor
    scales: Tensor | None = None  # float32, one for each block

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.numbers.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def between(self, a: int, b: int) -> Packed:
        """The coordinates from a to b, which are multiples of `BLOCK` (b may be the end)."""
        scales = None if self.scales is None else self.scales[a // BLOCK : _blocks(b)]
        return Packed(self.numbers[a:b], scales)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """NumPy arrays on the same memory (a copy, if on a GPU). NumPy has no bfloat16, so that becomes uint16."""
        numbers = self.numbers.view(torch.uint16) if self.numbers.dtype == torch.bfloat16 else self.numbers
        return tuple(tensor.cpu().numpy() for tensor in (numbers, self.scales) if tensor is not None)

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> Self:
        """The inverse of `arrays`, on the same memory: do not write to it if the arrays are read-only."""
        numbers, *scales = map(from_dlpack, arrays)  # `from_numpy` warns of read-only arrays
        return cls(numbers.view(torch.bfloat16) if numbers.dtype == torch.uint16 else numbers, *scales)


def unpack(packed: Packed) -> Tensor:
    """The float32 vector: numbers · s, or numbers / 127 · s for int8; for float32 the same tensor."""
    numbers, scales = packed
    if numbers.dtype == torch.float32:
        return numbers
    expected = (torch.float32, (_blocks(len(numbers)),))
    if numbers.dim() != 1 or (scales is not None and (scales.dtype, tuple(scales.shape)) != expected):
        raise ValueError("a packed vector needs a scale for each of its blocks")
    v = kernels.uninitialized_like(numbers)
    if scales is not None and _has_kernel(v):
        kernels.unpack_int8(numbers, scales, v, BLOCK)
        return v
    for a, b in _pieces(v):
        _read(packed.between(a, b), v[a:b])
    return v


def send(v: Tensor, error: Tensor | None, wire: Wire) -> tuple[Packed, Tensor | None]:
    """Error feedback: pack v + e; returns it and the new error, e ← v + e − unpack(packed), for the next call.

    float32 sends v itself. If v + e is not finite it will be refused, so the error stays unchanged.

    >>> packed, error = send(torch.tensor([1.0, -2.0, 0.5]), None, "int8")
    >>> packed
    Packed(numbers=tensor([  64, -127,   32], dtype=torch.int8), scales=tensor([2.]))
    >>> unpack(packed)
    tensor([ 1.0079, -2.0000,  0.5039])
    """
    check_choice("wire", wire, Wire)
    if wire == "float32":
        return Packed(v), None
    scales = v.new_empty(_blocks(len(v))) if wire == "int8" else None
    packed = Packed(kernels.uninitialized_like(v, getattr(torch, wire)), scales)
    left, finite = kernels.uninitialized_like(v, v.dtype), True
    if scales is not None and _has_kernel(v, error):
        finite = kernels.pack_int8(v, error, packed.numbers, scales, left, BLOCK)
        return packed, left if finite else error
    for a, b in _pieces(v):
        part, e = packed.between(a, b), left[a:b]
        if error is None:
            e.copy_(v[a:b])
        else:
            torch.add(v[a:b], error[a:b], out=e)
        _write(part, e)
        e -= _read(part, torch.empty_like(e))
        finite = finite and bool((e.amax() - e.amin()).isfinite())
    return packed, left if finite else error


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def _has_kernel(v: Tensor, error: Tensor | None = None) -> bool:
    return not v.is_cuda and kernels.fits(v, error)


def _pieces(v: Tensor) -> Iterator[tuple[int, int]]:
    """Where to cut a vector: between blocks, with a shorter last block on its own."""
    step = _CHUNK if v.device.type == "cpu" else 128 * _CHUNK  # on a GPU, few calls are faster
    whole = len(v) // BLOCK * BLOCK
    yield from ((a, min(a + step, whole)) for a in range(0, whole, step))
    if whole < len(v):
        yield whole, len(v)


def _rows(v: Tensor) -> Tensor:
    return v.view(-1, min(BLOCK, len(v)))


def _write(packed: Packed, v: Tensor) -> None:
    if packed.scales is None:
        packed.numbers.copy_(v)
        return
    rows = _rows(v)
    scales = torch.maximum(rows.amax(1), -rows.amin(1), out=packed.scales).abs_()  # NaN if a coordinate is; 0, never −0
    numbers = rows / torch.where(scales == 0, 1.0, scales)[:, None]  # 1 / s would overflow where s is denormal
    numbers.mul_(127).round_()  # NaN becomes some int8, but its scale is not finite, so the product is not either
    _rows(packed.numbers).copy_(numbers)


def _read(packed: Packed, v: Tensor) -> Tensor:
    v.copy_(packed.numbers)
    if packed.scales is not None:
        v *= 1 / 127  # before multiplying by s: 127 s may overflow, and s / 127 may be zero
        _rows(v).mul_(packed.scales[:, None])
    return v
