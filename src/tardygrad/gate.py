"""The gate's questions about what an update contains: is it of the right shape, is it finite?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tardygrad.messages import Buffers, Update, Vector
from tardygrad.method import Method
from tardygrad.transforms import State


def fits(update: Update, x: Vector, buffers: Buffers | None, method: Method, kept: State | None) -> bool:
    """Whether an update's every part has the shape and type it should have, and none is there that should not be."""
    curvature = x if method.compensate else None
    if not (_like(update.delta, x) and _like(update.curvature, curvature)):
        return False
    state = update.state
    if (state is not None) != method.keep or not all(_like(v, x) or _number(v) for v in (state or {}).values()):
        return False
    if not (kept or {}).keys() <= (state or {}).keys():
        return False
    theirs = update.buffers
    if theirs is None or buffers is None:
        return theirs is buffers
    return _like(theirs.floats, buffers.floats) and _like(theirs.ints, buffers.ints)


def finite(update: Update, norm: float) -> bool:
    """Whether every number of an update is, its norm being known."""
    others = [update.curvature, update.buffers.floats if update.buffers else None, *(update.state or {}).values()]
    return (math.isfinite(norm) or _all_finite(update.delta)) and all(v is None or _all_finite(v) for v in others)


def _like(a: object, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return isinstance(a, Tensor) and a.shape == b.shape and a.dtype == b.dtype


def _number(a: object) -> bool:
    return isinstance(a, Tensor) and a.numel() == 1


def _all_finite(v: Tensor) -> bool:
    quick = v.dim() == 1 and v.is_floating_point() and math.isfinite(torch.dot(v, v))
    return quick or bool(torch.isfinite(v).all())  # a square can overflow where no coordinate does
