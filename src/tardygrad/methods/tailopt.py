"""TailOPT's family: clipped or adaptive local steps, and an outer step on the mean of the updates.

S. H. Lee, M. Zaheer, T. Li. Efficient Distributed Optimization under Heavy-Tailed Noise. 2025, arXiv:2502.04164.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · Inner(g_{i,k}),   δ_i = x_{i,K} − x_s
    server   Δ_t = (1/M) Σ_i δ_i,   x_t = x_{t−1} + η · Outer(Δ_t)
    BiClip   sign(v_j) · min(max(|v_j|, d), u) for every coordinate j; zeros stay zero
    L2Clip   v · min(1, u/‖v‖)
    Adagrad  v = v + Δ²;  RMSProp  v = β₂ v + (1 − β₂) Δ²;  both  Δ / (√v + τ)
    Adam     m = β₁ m + (1 − β₁) Δ,  v as RMSProp;  m / (√v + τ)

Members are named outer-inner: Avg-L2Clip, Avg-BiClip, RMSProp-BiClip, …; Bi²Clip is BiClip-BiClip, Adam² Adam-Adam.
Avg-SGD is FedAvg, Adam-SGD nearly FedAdam. SGDClip is Avg-BiClip, Clip² is Bi²Clip with d = 0.

When to use: synchronous rounds under heavy-tailed gradients without Adam's state at the clients (inner "biclip"), or to
vary the step of the clients and the step of the server independently.

Differs from the paper in: it is written from the paper, not from its code; any setting may follow a schedule (`Power`);
the inner Adam is torch's, with bias correction, and starts again with every job; L2Clip may have a lower threshold too;
a round may take M of N clients, and runs may be asynchronous. We do not know the paper's own settings.
"""

from __future__ import annotations

import math
from typing import Literal, Unpack

from tardygrad.core.method import Method, Mode
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Adaptive, Chain, Clip, Scale, Transform
from tardygrad.errors import Invalid
from tardygrad.methods.shared import MethodSettings, constructor, local

Outer = Literal["avg", "biclip", "adagrad", "rmsprop", "adam"]
Inner = Literal["sgd", "biclip", "l2clip", "adam"]
_WORDS = {
    "avg": "Avg", "biclip": "BiClip", "adagrad": "Adagrad", "rmsprop": "RMSProp", "adam": "Adam",
    "sgd": "SGD", "l2clip": "L2Clip",
}  # fmt: skip
_SQUARED = {("biclip", "biclip"): "Bi²Clip", ("adam", "adam"): "Adam²"}


@constructor
def tailopt(
    *,
    outer: Outer = "biclip",
    inner: Inner = "biclip",
    local_lr: float | Schedule | None = None,
    lr: float | Schedule,
    local_clip: float | Schedule = math.inf,
    local_lower: float | Schedule = 0.0,
    clip: float | Schedule = math.inf,
    lower: float | Schedule = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    unbiased: bool = False,
    buffer: int,
    mode: Mode = "sync",
    **settings: Unpack[MethodSettings],
) -> Method:
    """A member of TailOPT's family.

    Args:
        outer: the server's step.
        inner: the clients' step.
        lr: learning rate η of the server, read at its round.
        local_clip: u of inner "biclip" and "l2clip"; inf switches clipping off.
        local_lower: lower threshold d of inner "biclip", and of the norm of "l2clip"; 0 switches it off.
        clip: u of outer "biclip".
        lower: d of outer "biclip".
        beta1: β₁ of outer "adam"; the inner one has torch's.
        beta2: β₂ of outer "adam" and "rmsprop".
        eps: τ, added to the denominator of the server's step.
        unbiased: correct the bias of outer "adam".

    >>> str(tailopt(outer="rmsprop", local_lr=0.1, local_clip=1.0, local_lower=0.1, lr=0.01, buffer=10, local_steps=5))
    'RMSProp-BiClip (synchronous, M=10, K=5)'
    """
    clips = inner in ("biclip", "l2clip")
    step = f"outer={outer!r}"
    _unused(outer != "biclip", "clip", clip, math.inf, step)
    _unused(outer != "biclip", "lower", lower, 0.0, step)
    _unused(outer != "adam", "beta1", beta1, 0.9, step)
    _unused(outer not in ("adam", "rmsprop"), "beta2", beta2, 0.99, step)
    _unused(outer in ("avg", "biclip"), "eps", eps, 1e-3, step)
    _unused(outer != "adam", "unbiased", unbiased, False, step)
    _unused(not clips, "local_clip", local_clip, math.inf, f"inner={inner!r}")
    _unused(not clips, "local_lower", local_lower, 0.0, f"inner={inner!r}")
    rate = lift("lr", lr)
    if outer == "avg":
        server: Transform = Scale(rate)
    elif outer == "biclip":
        server = Chain(Clip(lift("clip", clip, finite=False), lift("lower", lower)), Scale(rate))
    else:
        first = beta1 if outer == "adam" else 0.0
        server = Adaptive(rate, "sum" if outer == "adagrad" else "mean", first, beta2, eps, unbiased=unbiased)
    return Method(
        name=_SQUARED.get((outer, inner)) or f"{_WORDS[outer]}-{_WORDS[inner]}",
        inner=local(
            local_lr,
            local_clip,
            "Adam" if inner == "adam" else "SGD",
            local_lower=local_lower,
            norm="l2" if inner == "l2clip" else "coordinate",
        ),
        outer=server,
        buffer=buffer,
        mode=mode,
        **settings,
    )


def _unused(holds: bool, name: str, value: object, default: float, why: str) -> None:
    """Raise `Invalid` for a setting that has no effect."""
    if holds and value != default:
        raise Invalid(f"`{name}` has no effect with {why}, got {value!r}. Leave it out.")
