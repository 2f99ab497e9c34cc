"""DN+DyLU: delayed Nesterov at the server, and fewer local steps for slower clients.

B. Liu, R. Chhaparia, A. Douillard, S. Kale, A. A. Rusu, J. Shen, A. Szlam, M. Ranzato. Asynchronous Local-SGD Training
for Language Modeling. 2024, arXiv:2401.09135.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · g_{i,k} for k ≤ K_i,   δ_i = x_{i,K_i} − x_s
             K_i = max(1, ⌊K · v_i / max_j v_j⌋), v the measured speeds                                    DyLU
    server, at every arrival t
             D ← D + δ_i
             t divisible by N:   m ← β m + D/N;   x_t = x_{t−1} + η · [(1 − cN + c) β m + δ_i/N];   D ← 0
             else:               x_t = x_{t−1} + η · [c β m + δ_i/N]

The scale of η: an arrival moves x by η/N of its δ, so N arrivals together make one Nesterov step of rate η on their
mean. If a paper gives a rate per arrival, η is N times that rate.

When to use: language models on a few workers of different speeds, with many local steps each. A slow worker makes fewer
steps, so its updates are hardly late.

Differs from the paper in: plain local steps by default, which may be clipped, in place of AdamW (optimizer="AdamW",
keep=True) and its schedules, as in the comparison of the paper on Clip²; K_i is at least 1 (`least`), and K until a
client has been measured; speeds are averages over a client's jobs, each from dispatch to arrival, messages and queues
included; no grace period. K may count epochs: then so does K_i, and with K = 1 there is nothing to shorten.
"""

from __future__ import annotations

import math
from typing import Literal, Unpack

from tardygrad.core.clipping import Norm
from tardygrad.core.dylu import Pace
from tardygrad.core.method import Keep, Method, Mode
from tardygrad.core.optimizers import Options
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import DelayedNesterov
from tardygrad.errors import check_integer
from tardygrad.methods.shared import MethodSettings, constructor, local

LONGEST = 10**9
"""The largest N: with more, an arrival would move x by less than float32 can represent."""


@constructor
def dn_dylu(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule,
    period: int,
    momentum: float = 0.9,
    c: float = 0.0,
    local_clip: float | Schedule = math.inf,
    norm: Norm = "coordinate",
    dylu: bool = True,
    percentile: float = 100.0,
    smoothing: float = 0.5,
    rounding: Literal["floor", "ceil"] = "floor",
    least: int = 1,
    optimizer: str = "SGD",
    options: Options | None = None,
    keep: Keep = False,
    buffer: int = 1,
    mode: Mode = "server",
    **settings: Unpack[MethodSettings],
) -> Method:
    """DN, with DyLU or without.

    Args:
        lr: η, read at the server's round: the rate of N arrivals together.
        period: N, the arrivals between two updates of the momentum.
        momentum: the server's momentum β.
        c: the share of the momentum that every arrival gets, from 0 (all of it at the N-th) to 1/N.
        dylu: fewer local steps for slower clients; False gives everyone K.
        percentile: of the measured speeds, with which DyLU compares a client's; 100 is the fastest.
        smoothing: how much of a client's measured speed stays when a new measurement comes in.
        rounding: of K_i, "floor" (the paper's) or "ceil" (HALoS's).
        least: the smallest K_i; 5 in its authors' notebook.
        optimizer: name of the class of `torch.optim` for the local steps; the paper's is "AdamW", with keep=True.
        buffer: M; 1 is the paper's, more takes the mean of M updates for an arrival.

    >>> str(dn_dylu(local_lr=0.1, lr=0.7, period=4, local_steps=20, mode="client"))
    'DN+DyLU (client-centric, M=1, K=20)'
    """
    check_integer("period", period, most=LONGEST)
    pace = Pace(percentile=percentile, smoothing=smoothing, rounding=rounding, least=least)
    return Method(
        name="DN+DyLU" if dylu else "DN",
        inner=local(local_lr, local_clip, optimizer, options, norm=norm),
        outer=DelayedNesterov(lift("lr", lr), momentum, period, c),
        buffer=buffer,
        pace=pace if dylu else None,
        keep=keep,
        mode=mode,
        **settings,
    )
