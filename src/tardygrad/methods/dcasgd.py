"""DC-ASGD: every update is corrected for the model's drift, by the squares of its own gradient.

S. Zheng, Q. Meng, T. Wang, W. Chen, N. Yu, Z.-M. Ma, T.-Y. Liu. Asynchronous Stochastic Gradient Descent with Delay
Compensation. ICML 2017.

    client   δ_i = x_{i,K} − x_s, K = 1: −η_ℓ g
    server   x_t = x_{t−1} − η η_ℓ · (g + λ ⊙ g² ⊙ (x_{t−1} − x_s))
             λ = λ₀                                                               DC-ASGD-c, λ₀ = 0.04
             λ = λ₀ / √(MS_i + ε),   MS_i = m MS_i + (1 − m) g²                    DC-ASGD-a, λ₀ = 2, m = 0.95

In the terms of `Server`: DC with A = (λ/η_ℓ) (η_ℓ g)²; the paper on Clip² has λ = η_ℓ. MS_i is the client's own.
With K > 1 local steps g² is (δ/η_ℓ)² (source="delta", as in the authors' system) or Σ_k g_k² (source="steps").

When to use: workers that send every gradient (K = 1, M = 1) and are about equally fast, so that delays are about the
number of workers. The first-order correction is meant for a small drift.

Differs from the paper in: local steps may be clipped; M and K may be more than 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Unpack

from torch import Tensor

from tardygrad.core.method import Curvature, Method, Mode
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Scale, State, Step, Transform, below_one, check_epsilon, zeros
from tardygrad.errors import check_number
from tardygrad.methods.shared import MethodSettings, constructor, local


@constructor
def dcasgd(
    *,
    local_lr: float | Schedule,
    lr: float | Schedule = 1.0,
    adaptive: bool = False,
    strength: float | None = None,
    decay: float = 0.95,
    eps: float = 1e-7,
    source: Literal["delta", "steps"] = "delta",
    local_clip: float | Schedule = math.inf,
    buffer: int = 1,
    mode: Mode = "client",
    **settings: Unpack[MethodSettings],
) -> Method:
    """DC-ASGD.

    Args:
        lr: learning rate η of the server, read at its round.
        adaptive: use the adaptive variant DC-ASGD-a instead of DC-ASGD-c.
        strength: λ₀; None is 0.04, and 2 if it is adaptive.
        decay: m, the share of the mean of squares that stays (DC-ASGD-a).
        eps: ε, added to the mean of squares under the root.
        source: g² with several local steps: "delta" is (δ/η_ℓ)², "steps" is Σ_k g_k².
        buffer: M; 1 is the paper's.
        mode: with M = 1 "server" and "client" are the same.

    >>> str(dcasgd(local_lr=0.1, local_steps=1))
    'DC-ASGD-c (client-centric, M=1, K=1, compensated)'
    """
    strength = (2.0 if adaptive else 0.04) if strength is None else strength
    check_number("strength", strength)
    below_one(decay=decay)
    check_epsilon("eps", eps)
    rate = lift("local_lr", local_lr)
    weigh = ByMeanSquare(rate, strength, decay, eps) if adaptive else BySquare(rate, strength)
    return Method(
        name=f"DC-ASGD-{'a' if adaptive else 'c'}",
        inner=local(local_lr, local_clip),
        outer=Scale(lift("lr", lr)),
        compensate=True,
        curvature=Curvature(weigh=weigh, source=source),
        keep=adaptive,
        buffer=buffer,
        mode=mode,
        **settings,
    )


@dataclass(frozen=True)
class BySquare(Transform):
    """A = (λ₀/η_ℓ) · (η_ℓ g)²."""

    local_lr: Schedule
    strength: float

    def update(self, squares: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        return squares * (self.strength / max(self.local_lr(step.round), _TINY)), state


@dataclass(frozen=True)
class ByMeanSquare(Transform):
    """A = (λ₀/η_ℓ) · (η_ℓ g)² / √(MS + ε), MS = m MS + (1 − m) g² from 0."""

    local_lr: Schedule
    strength: float
    decay: float
    eps: float

    def init(self, x: Tensor) -> State:
        return zeros(x, "mean_square")

    def update(self, squares: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        eta = max(self.local_lr(step.round), _TINY)
        mean_square = self.decay * state["mean_square"] + (1 - self.decay) * (squares / eta**2)
        return squares * (self.strength / eta) / (mean_square + self.eps).sqrt(), {"mean_square": mean_square}


_TINY = 1e-12  # with a rate of 0 nothing moves, and there is nothing to correct
