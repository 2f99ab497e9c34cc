"""FedAvg: local SGD, averaged by the server.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · g_{i,k},   δ_i = x_{i,K} − x_s
    server   x_t = x_{t−1} + η · (1/M) Σ_i δ_i,   η = 1

Differs from the paper in: all clients have the same weight, however much data they have; local steps may be clipped,
and use any optimizer; it runs asynchronously too.
"""

from __future__ import annotations

import math
from typing import Unpack

from tardygrad.core.method import Method, MethodSettings, Mode
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.torch_inner import Options
from tardygrad.core.transforms import scale
from tardygrad.errors import checked_call
from tardygrad.methods.local import local


@checked_call
def fedavg(
    *,
    local_lr: float | Schedule,
    lr: float | Schedule = 1.0,
    local_clip: float | Schedule = math.inf,
    optimizer: str = "SGD",
    options: Options | None = None,
    keep: bool = False,
    buffer: int,
    mode: Mode = "sync",
    **how: Unpack[MethodSettings],
) -> Method:
    """FedAvg.

    Args:
        local_lr: learning rate η_ℓ of the local steps, read at the round whose model the client pulled.
        lr: learning rate η of the server, read at its round.
        local_clip: threshold u of the local steps; inf switches clipping off.
        optimizer: name of the class of `torch.optim` that makes the local steps.
        options: arguments of the optimizer, such as {weight_decay = 0.1}.
        keep: keep the optimizer's state from one job of a client to the next.
        mode: who works when; "sync" is the paper's.
        how: `buffer`, `local_steps` or `local_epochs`, `max_delay`, `concurrency`, `dispatch` of `Method`.

    >>> str(fedavg(local_lr=0.1, buffer=10, local_epochs=1))
    'FedAvg (synchronous, M=10, K=1 epoch)'
    """
    inner = local(local_lr, local_clip, optimizer, options)
    return Method(name="FedAvg", inner=inner, outer=scale(lift("lr", lr)), keep=keep, buffer=buffer, mode=mode, **how)
