"""FedAvg: local SGD, averaged by the server.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · g_{i,k},   δ_i = x_{i,K} − x_s
    server   x_t = x_{t−1} + η · (1/M) Σ_i δ_i,   η = 1

When to use: as the baseline, and for clients that are equally fast. A synchronous round waits for the slowest of its M
clients.

Differs from the paper in: by default all clients have the same weight (the paper's is weight_by="samples"); local
steps may be clipped, and use any optimizer; it runs asynchronously too.
"""

from __future__ import annotations

import math
from typing import Unpack

from tardygrad.core.clipping import Norm
from tardygrad.core.method import Keep, Method, Mode
from tardygrad.core.optimizers import Options
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Scale
from tardygrad.methods.shared import MethodSettings, constructor, local


@constructor
def fedavg(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule = 1.0,
    local_clip: float | Schedule = math.inf,
    norm: Norm = "coordinate",
    optimizer: str = "SGD",
    options: Options | None = None,
    keep: Keep = False,
    buffer: int,
    mode: Mode = "sync",
    **settings: Unpack[MethodSettings],
) -> Method:
    """FedAvg.

    Args:
        lr: learning rate η of the server, read at its round.

    >>> str(fedavg(local_lr=0.1, buffer=10, local_epochs=1))
    'FedAvg (synchronous, M=10, K=1 epoch)'
    """
    inner = local(local_lr, local_clip, optimizer, options, norm=norm)
    return Method(
        name="FedAvg", inner=inner, outer=Scale(lift("lr", lr)), keep=keep, buffer=buffer, mode=mode, **settings
    )
