"""Clip, in the paper's coordinate-wise form and the theory's L2 form, each with TailOPT's lower threshold (BiClip)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["coordinate", "l2"]
"""What a threshold bounds: each coordinate, or the length of the whole vector."""


def clip(v: Tensor, upper: float, lower: float = 0.0) -> Tensor:
    """Clip(u, v)_j = sign(v_j) · min(max(|v_j|, d), u), coordinate by coordinate; zeros stay zero.

    With the lower threshold d = 0 this is the paper's Clip, clamp(v_j, −u, u); with d > 0 it is BiClip.

    >>> clip(torch.tensor([-3.0, 0.0, 0.1]), upper=1.0, lower=0.5).tolist()
    [-1.0, 0.0, 0.5]
    """
    largest = torch.finfo(v.dtype).max
    upper = math.inf if upper > largest else upper
    if lower == 0.0:
        return v.clamp(-upper, upper)
    lower = min(lower, largest)
    return v.sign() * v.abs().clamp(lower, upper)


def clip_l2(v: Tensor, upper: float, lower: float = 0.0) -> Tensor:
    """Clip(u, v) = v · min(1, u/‖v‖₂): shortens v to length u, or lengthens it to length d; zero stays zero.

    >>> clip_l2(torch.tensor([3.0, 4.0]), upper=1.0).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    length = float(torch.linalg.vector_norm(v, dtype=torch.float64))  # float64: squares of float32 overflow
    wanted = min(max(length, lower), upper)
    if length in (0.0, wanted):
        return v
    return (v.double() * (wanted / length)).to(v.dtype)  # the factor may overflow too
