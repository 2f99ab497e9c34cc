"""Compressed vectors for sending between machines, with error feedback.

1. float16 and int8: every `BLOCK` coordinates share a scale s = max|v_j|. float16 sends v / s, int8 round(v / s · 127).
   So a curvature of 1e-12 and a delta of 1e6 both arrive.
2. bfloat16 has float32's range and needs no scale; it ends at 3.39e38, and what is larger arrives as infinity.
3. What is not finite arrives as not finite, in float16 and int8 with its whole block, so that the server refuses it.
4. Blocks know nothing of each other: with a and b multiples of `BLOCK` (or b the end), the packing of v[a:b] is those
   blocks of the packing of v.

This file is the definition. `kernels.py` packs long vectors on a CPU as int8 in one pass with the same result, except
that the numbers of a block that is not finite differ; it arrives as not finite all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor

from tardygrad.core import kernels
from tardygrad.errors import Invalid

Wire = Literal["float32", "float16", "bfloat16", "int8"]
"""What numbers travel as."""

BLOCK = 4096
"""Coordinates that share a scale."""

_CHUNK = 32 * BLOCK  # coordinates at a time, so that what is between the steps stays in a CPU's cache
_SCALED = ("float16", "int8")


class Packed(NamedTuple):
    """A vector as it travels."""

    numbers: Tensor
    scales: Tensor | None = None  # float32, one for each block

    @property
    def nbytes(self) -> int:
        """What travels, in bytes."""
        return self.numbers.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def between(self, a: int, b: int) -> Packed:
        """The part from a, a multiple of `BLOCK`, to b, another one or the end."""
        scales = None if self.scales is None else self.scales[a // BLOCK : _blocks(b)]
        return Packed(self.numbers[a:b], scales)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The same memory for NumPy, which has no bfloat16: that is viewed as uint16. From a GPU it is a copy."""
        numbers = self.numbers.view(torch.uint16) if self.numbers.dtype == torch.bfloat16 else self.numbers
        return tuple(one.cpu().numpy() for one in (numbers, self.scales) if one is not None)

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], wire: Wire) -> Self:
        """What `arrays` gave, on the same memory: where that is read-only, nothing may write to these tensors."""
        _known(wire)
        size = arrays[0].size if arrays else 0
        wanted = [(np.dtype("uint16" if wire == "bfloat16" else wire), (size,))]
        if wire in _SCALED:
            wanted.append((np.dtype("float32"), (_blocks(size),)))
        if [(one.dtype, one.shape) for one in arrays] != wanted or not all(one.flags.c_contiguous for one in arrays):
            kinds = " and ".join(f"{dtype}{list(shape)}" for dtype, shape in wanted)
            got = " and ".join(f"{one.dtype}{list(one.shape)}" for one in arrays) or "nothing"
            raise Invalid(f"what travels as {wire!r} must be contiguous arrays {kinds}, got {got}.")
        numbers, *scales = map(_tensor, arrays)
        return cls(numbers.view(torch.bfloat16) if wire == "bfloat16" else numbers, *scales)


def pack(v: Tensor, wire: Wire) -> Packed:
    """A float32 vector as it travels; for float32 that is v itself.

    >>> pack(torch.tensor([1.0, -2.0, 0.5]), "int8")
    Packed(numbers=tensor([  64, -127,   32], dtype=torch.int8), scales=tensor([2.]))
    """
    _known(wire)
    if wire == "float32":
        return Packed(v)
    packed = _room(v, wire)
    if packed.scales is not None and wire == "int8" and _quick(v):
        kernels.narrow(v, None, packed.numbers, packed.scales, None, BLOCK)
        return packed
    for a, b in _pieces(v):
        _write(packed.between(a, b), v[a:b])
    return packed


def unpack(packed: Packed, wire: Wire) -> Tensor:
    """What arrives, as float32: numbers · s, and with int8 numbers / 127 · s; for float32 the very tensor.

    >>> unpack(pack(torch.tensor([1.0, -2.0, 0.5]), "int8"), "int8")
    tensor([ 1.0079, -2.0000,  0.5039])
    """
    _known(wire)
    if packed.numbers.dtype != getattr(torch, wire):
        raise Invalid(f"numbers must be unpacked as what they travel as, {packed.numbers.dtype}, got {wire!r}.")
    if wire == "float32":
        return packed.numbers
    v, scales = kernels.fresh(packed.numbers), packed.scales
    if wire == "int8" and scales is not None and _regular(scales, v) and _quick(v):  # others gain little
        kernels.widen(packed.numbers, scales, v, BLOCK)
        return v
    for a, b in _pieces(v):
        _read(packed.between(a, b), v[a:b])
    return v


def send(v: Tensor, error: Tensor | None, wire: Wire) -> tuple[Packed, Tensor | None]:
    """Error feedback: v + e as it travels, and what that leaves out, e ← v + e − unpack(packed), for the next time.

    If v + e does not arrive as finite numbers it will be refused, so the error stays what it was.
    """
    _known(wire)
    if wire == "float32":
        return Packed(v), None
    packed, left, finite = _room(v, wire), kernels.fresh(v, v.dtype), True
    if packed.scales is not None and wire == "int8" and _quick(v, error):
        finite = kernels.narrow(v, error, packed.numbers, packed.scales, left, BLOCK)
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


def _known(wire: Wire) -> None:
    if wire not in get_args(Wire):
        raise Invalid(f"`wire` must be 'float32', 'float16', 'bfloat16' or 'int8', got {wire!r}.")


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def _regular(scales: Tensor, v: Tensor) -> bool:
    return scales.dtype == v.dtype and len(scales) == _blocks(len(v))


def _quick(v: Tensor, error: Tensor | None = None) -> bool:
    return not v.is_cuda and kernels.fits(v, error)


def _pieces(v: Tensor) -> Iterator[tuple[int, int]]:
    """Where to cut a vector: between blocks, and before the last one if it is shorter."""
    step = _CHUNK if v.device.type == "cpu" else 128 * _CHUNK  # a GPU wants few calls
    whole = len(v) // BLOCK * BLOCK
    yield from ((a, min(a + step, whole)) for a in range(0, whole, step))
    if whole < len(v):
        yield whole, len(v)


def _room(v: Tensor, wire: Wire) -> Packed:
    numbers = kernels.fresh(v, getattr(torch, wire))
    return Packed(numbers, v.new_empty(_blocks(len(v))) if wire in _SCALED else None)


def _rows(v: Tensor) -> Tensor:
    return v.view(-1, min(BLOCK, len(v)))


def _write(packed: Packed, v: Tensor) -> None:
    if packed.scales is None:
        packed.numbers.copy_(v)
        return
    rows = _rows(v)
    scales = torch.maximum(rows.amax(1), -rows.amin(1), out=packed.scales).abs_()  # NaN if one of them is; 0, never −0
    numbers = rows / torch.where(scales == 0, 1.0, scales)[:, None]  # 1 / s would overflow where s is denormal
    if packed.numbers.dtype == torch.int8:
        numbers.mul_(127).round_()  # NaN becomes some int8, but its scale is not finite and neither is their product
    _rows(packed.numbers).copy_(numbers)


def _read(packed: Packed, v: Tensor) -> Tensor:
    v.copy_(packed.numbers)
    if packed.numbers.dtype == torch.int8:
        v *= 1 / 127  # before s: 127 s may overflow, and s / 127 be zero
    if packed.scales is not None:
        _rows(v).mul_(packed.scales[:, None])
    return v


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor on an array's memory: torch warns of read-only arrays, so it is shown one that says it is not."""
    memory = {**array.__array_interface__, "data": (array.__array_interface__["data"][0], False)}
    return torch.from_numpy(np.asarray(SimpleNamespace(__array_interface__=memory, owner=array)))
