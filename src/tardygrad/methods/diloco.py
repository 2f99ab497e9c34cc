"""DiLoCo: many AdamW steps at every client, and a Nesterov step on their mean.

A. Douillard, Q. Feng, A. A. Rusu, R. Chhaparia, Y. Donchev, A. Kuncoro, M. Ranzato, A. Szlam, J. Shen. DiLoCo:
Distributed Low-Communication Training of Language Models. 2023, arXiv:2311.08105.

    client   AdamW for K steps from x_s, its moments kept from job to job;   δ_i = x_{i,K} − x_s
    server   Δ_t = (1/M) Σ_i δ_i,   m_t = β m_{t−1} + Δ_t,   x_t = x_{t−1} + η · (Δ_t + β m_t)

When to use: a few equally fast workers behind slow links, each of which trains for hundreds of steps between two
exchanges.

Differs from the paper in: it is written from the paper, not from its code; weight decay is the same for all parameters,
because the model is one vector; local steps may be clipped (the paper clips the gradient's length: norm="l2"); it runs
asynchronously too.
"""

from __future__ import annotations

import math
from typing import Unpack

from tardygrad.core.clipping import Norm
from tardygrad.core.method import Keep, Method, Mode
from tardygrad.core.optimizers import Options
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Momentum
from tardygrad.methods.shared import MethodSettings, constructor, local


@constructor
def diloco(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule = 0.7,
    momentum: float = 0.9,
    optimizer: str = "AdamW",
    options: Options | None = None,
    keep: Keep = True,
    local_clip: float | Schedule = math.inf,
    norm: Norm = "coordinate",
    buffer: int,
    mode: Mode = "sync",
    **settings: Unpack[MethodSettings],
) -> Method:
    """DiLoCo.

    Args:
        lr: learning rate η of the server, read at its round.
        momentum: the server's momentum β.
        mode: "sync" is the paper's, with `buffer` all clients.

    >>> str(diloco(local_lr=4e-4, buffer=8, local_steps=500))
    'DiLoCo (synchronous, M=8, K=500)'
    """
    return Method(
        name="DiLoCo",
        inner=local(local_lr, local_clip, optimizer, options, norm=norm),
        outer=Momentum(lift("lr", lr), momentum, nesterov=True),
        keep=keep,
        buffer=buffer,
        mode=mode,
        **settings,
    )
