"""FADAS: local SGD, and an AMSGrad server whose rate falls with the delays of a round.

Y. Wang, S. Wang, S. Lu, J. Chen. FADAS: Towards Federated Adaptive Asynchronous Optimization. ICML 2024.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · g_{i,k},   δ_i = x_{i,K} − x_s
    server   Δ_t = (1/M) Σ_i δ_i,   s_t = max_i (p_{t,i} − 1)
             m_t = β₁ m_{t−1} + (1 − β₁) Δ_t,   v_t = β₂ v_{t−1} + (1 − β₂) Δ_t²,   v̂_t = max(v̂_{t−1}, v_t)
             η_t = η if s_t ≤ τ_c, else η / s_t (lr_rule "code") or min(η, 1 / s_t) (lr_rule "paper")
             x_t = x_{t−1} + η_t / (1 − β₁^t) · m_t / (√v̂_t / √(1 − β₂^t) + ε)          bias_correction
             x_t = x_{t−1} + η_t · m_t / (√v̂_t + ε)                                     without

When to use: models that train well with Adam, on clients of different speeds. The server keeps three vectors of the
model's size, the clients none. Updates later than `tau_c` rounds slow down the rounds that they are in.

Differs from the paper in: the defaults are those of its authors' code, whose rate for late rounds and bias correction
are not in the text (lr_rule="paper", bias_correction=False is the text, in which the rate falls only if s_t > 1/η); no
weight decay; local steps may be clipped. The paper gives free slots to random idle clients: set mode="server",
dispatch="random" and `concurrency` for that.
"""

from __future__ import annotations

import math
from typing import Unpack

from tardygrad.core.method import Method, Mode
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import AMSGrad, LateRate
from tardygrad.methods.shared import MethodSettings, constructor, local


@constructor
def fadas(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule,
    tau_c: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
    lr_rule: LateRate = "code",
    bias_correction: bool = True,
    local_clip: float | Schedule = math.inf,
    buffer: int,
    mode: Mode = "server",
    **settings: Unpack[MethodSettings],
) -> Method:
    """FADAS.

    Args:
        lr: learning rate η of the server, read at its round.
        tau_c: τ_c, the rounds that an update may have missed before the rate falls; inf: it never does.
        beta1: β₁ of the server's AMSGrad.
        beta2: β₂ of the server's AMSGrad.
        eps: ε. A coordinate of Δ that is far above it moves by about η however small it is, so where Δ is almost 0
            rounding decides, and runs that differ only by rounding diverge sooner than with other methods.
        lr_rule: the rate after s > τ_c missed rounds: "code" is η/s, "paper" is min(η, 1/s).
        bias_correction: correct the bias of the first steps.

    >>> str(fadas(local_lr=0.1, lr=0.001, tau_c=4, buffer=5, local_steps=5, concurrency=25, dispatch="random"))
    'FADAS (server-centric, M=5, K=5)'
    """
    return Method(
        name="FADAS",
        inner=local(local_lr, local_clip),
        outer=AMSGrad(lift("lr", lr), float(tau_c), beta1, beta2, eps, lr_rule, bias_correction),
        buffer=buffer,
        mode=mode,
        **settings,
    )
