"""FedAdam and FedYogi: local SGD, and Adam without bias correction or Yogi at the server.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan. Adaptive Federated
Optimization. ICLR 2021.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · g_{i,k},   δ_i = x_{i,K} − x_s
    server   Δ_t = (1/M) Σ_i δ_i,   m_t = β₁ m_{t−1} + (1 − β₁) Δ_t,   v_0 = τ²
             v_t = β₂ v_{t−1} + (1 − β₂) Δ_t²                                     FedAdam
             v_t = v_{t−1} − (1 − β₂) Δ_t² sign(v_{t−1} − Δ_t²)                   FedYogi
             x_t = x_{t−1} + η · m_t / (√v_t + τ)

When to use: rounds of equally fast clients, on models whose coordinates have gradients of very different size, such as
embeddings of text. Yogi forgets large gradients more slowly than Adam.

Differs from the paper in: by default all clients have the same weight (weight_by="samples" weights them by their
data); local steps may be clipped; both run asynchronously too. The paper requires v_0 ≥ τ²; it is τ² here.
"""

from __future__ import annotations

import math
from typing import Unpack

from tardygrad import constructors
from tardygrad.core.method import Method, Mode
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Adaptive
from tardygrad.methods.shared import MethodSettings, constructor, local


@constructor
def fedadam(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    local_clip: float | Schedule = math.inf,
    buffer: int,
    mode: Mode = "sync",
    **settings: Unpack[MethodSettings],
) -> Method:
    """FedAdam: local SGD, and Adam without bias correction at the server.

    Args:
        lr: learning rate η of the server, read at its round.
        beta1: β₁ of the server's step.
        beta2: β₂ of the server's step.
        eps: τ, added to the denominator of the server's step.

    >>> str(fedadam(local_lr=0.1, lr=0.01, buffer=10, local_steps=5))
    'FedAdam (synchronous, M=10, K=5)'
    """
    outer = Adaptive(lift("lr", lr), "mean", beta1, beta2, eps, initial=eps**2)
    return Method(name="FedAdam", inner=local(local_lr, local_clip), outer=outer, buffer=buffer, mode=mode, **settings)


@constructors.constructor(passes_to=(fedadam,))
def fedyogi(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    local_clip: float | Schedule = math.inf,
    buffer: int,
    mode: Mode = "sync",
    **settings: Unpack[MethodSettings],
) -> Method:
    """FedYogi: local SGD, and Yogi at the server.

    >>> str(fedyogi(local_lr=0.1, lr=0.01, buffer=10, local_steps=5))
    'FedYogi (synchronous, M=10, K=5)'
    """
    outer = Adaptive(lift("lr", lr), "yogi", beta1, beta2, eps, initial=eps**2)
    return Method(name="FedYogi", inner=local(local_lr, local_clip), outer=outer, buffer=buffer, mode=mode, **settings)
