"""FedAvgM: local SGD, and a server with momentum.

T.-M. H. Hsu, H. Qi, M. Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. 2019, arXiv:1909.06335.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · g_{i,k},   δ_i = x_{i,K} − x_s
    server   m_t = β m_{t−1} + (1/M) Σ_i δ_i,   x_t = x_{t−1} + η · m_t

When to use: as FedAvg, where clients' data differ so much that the directions of rounds disagree; momentum averages
them.

Differs from the paper in: by default all clients have the same weight (the paper's is weight_by="samples"); local
steps may be clipped; it runs asynchronously too. The text has no η (η = 1, the default).
"""

from __future__ import annotations

import math
from typing import Unpack

from tardygrad.core.method import Method, Mode
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Momentum
from tardygrad.methods.shared import MethodSettings, constructor, local


@constructor
def fedavgm(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule = 1.0,
    momentum: float = 0.9,
    local_clip: float | Schedule = math.inf,
    buffer: int,
    mode: Mode = "sync",
    **settings: Unpack[MethodSettings],
) -> Method:
    """FedAvgM.

    Args:
        lr: learning rate η of the server, read at its round.
        momentum: the server's momentum β.

    >>> str(fedavgm(local_lr=0.1, buffer=10, local_steps=5))
    'FedAvgM (synchronous, M=10, K=5)'
    """
    outer = Momentum(lift("lr", lr), momentum)
    return Method(name="FedAvgM", inner=local(local_lr, local_clip), outer=outer, buffer=buffer, mode=mode, **settings)
