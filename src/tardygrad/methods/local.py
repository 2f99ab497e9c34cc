"""The client's step of most methods: a clip, which may be infinite, then SGD or any optimizer of `torch.optim`."""

from __future__ import annotations

import math

from tardygrad.core import torch_inner, transforms
from tardygrad.core.clipping import Norm
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.torch_inner import Options
from tardygrad.core.transforms import Transform, chain, scale


def local(
    lr: float | Schedule,
    clip: float | Schedule = math.inf,
    optimizer: str = "SGD",
    options: Options | None = None,
    *,
    lower: float | Schedule = 0.0,
    norm: Norm = "coordinate",
) -> Transform:
    """The arguments are `local_lr`, `local_clip`, `optimizer`, `options`, `local_lower` and `norm` of a method."""
    rate = lift("local_lr", lr)
    plain = optimizer == "SGD" and not options
    return chain(
        transforms.clip(lift("local_clip", clip, finite=False), lift("local_lower", lower), norm),
        scale(rate) if plain else torch_inner.optimizer(optimizer, rate, options),
    )
