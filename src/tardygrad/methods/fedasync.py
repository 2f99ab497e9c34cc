"""FedAsync: every update pulls the global model towards the client's, later ones less.

C. Xie, S. Koyejo, I. Gupta. Asynchronous Federated Optimization. 2019, arXiv:1903.03934.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · (g_{i,k} + ρ (x_{i,k−1} − x_s))
    server   x_t = (1 − a_t) x_{t−1} + a_t x_{i,K},   a_t = η · S(p_t − 1)
             S(s) = 1 (weight None), (1 + s)^−a (Polynomial) or 1 up to b, then 1/(a (s − b) + 1) (Hinge)

In the terms of `Server`: x_t = x_{t−1} + a_t · (δ_i − (x_{t−1} − x_s)), delay compensation with A = 1. The paper's α is
`lr` here.

Other implementations differ; their variants are options: FedLab's hinge (`Hinge(jump=True)`); plato's mixing weight,
which every update multiplies by S, so that it tends to 0 (mixing="compound").

When to use: the simplest asynchronous server, one round for every update and no buffer to choose. With many clients at
work, delays are as long as the number of clients: then take `fedbuff`.

Differs from the paper in: local steps may be clipped; with M > 1 the mean of M updates pulls the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor

from tardygrad.core.method import Method, Mode, Weight
from tardygrad.core.schedules import Constant, Schedule, lift
from tardygrad.core.transforms import Proximal, Scale, State, Step, Transform
from tardygrad.core.weights import Staleness
from tardygrad.errors import Invalid
from tardygrad.methods.fedbuff import PUBLISHED_WEIGHT
from tardygrad.methods.shared import MethodSettings, constructor, local


@constructor
def fedasync(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule = 0.6,
    weight: Staleness | None = PUBLISHED_WEIGHT,
    rho: float = 0.005,
    mixing: Literal["each", "compound"] = "each",
    local_clip: float | Schedule = math.inf,
    buffer: int = 1,
    mode: Mode = "client",
    **settings: Unpack[MethodSettings],
) -> Method:
    """FedAsync.

    Args:
        lr: η, the weight of a fresh update's model, read at the server's round; a number if mixing is "compound".
        weight: weight S of an update by the rounds it missed; None is constant.
        rho: ρ of the proximal term; 0 switches it off.
        mixing: a_t = η S(s) for each update, or a_t = a_{t−1} S(s) ("compound").
        local_clip: u of the local steps, the term's gradient included, read at the same round as local_lr; inf
            switches clipping off.
        buffer: M; 1 is the paper's.
        mode: with M = 1 "server" and "client" are the same.

    >>> str(fedasync(local_lr=0.1, local_steps=5))
    'FedAsync (client-centric, M=1, K=5, weighted)'
    """
    rate, compound = lift("lr", lr), mixing == "compound" and weight is not None
    if compound and not isinstance(rate, Constant):
        fix = "Use a number, or mixing='each'."
        raise Invalid(f"`lr` must be a number with mixing='compound', which reads it only once, got {lr!r}. {fix}")
    inner = local(local_lr, local_clip)
    return Method(
        name="FedAsync",
        inner=inner if local_lr is None or rho == 0 else Proximal(inner, rho),
        outer=Compounded(rate, weight) if compound and weight else Scale(rate),
        weight=None if compound else weight,
        pull=True,
        buffer=buffer,
        mode=mode,
        **settings,
    )


@dataclass(frozen=True)
class Compounded(Transform):
    """move = a · direction, with a = η before the first step and a · S(s) of every update from then on."""

    lr: Schedule
    weight: Weight

    def init(self, x: Tensor) -> State:
        return {"mixing": torch.tensor(self.lr(1), dtype=torch.float64)}

    def update(self, direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        mixing = state["mixing"] * math.prod(map(self.weight, step.delays))
        return direction * float(mixing), {"mixing": mixing}
