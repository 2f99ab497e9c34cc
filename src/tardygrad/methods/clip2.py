"""Clip²: clipped local steps, and the server clips their mean once more.

J. Sun, D. Yao, X. Gong, T. Rabbani, M. Zaheer, T. Li. Asynchronous Heavy-Tailed Optimization (Algorithms 1 and 2).

    client   x_{i,k} = x_{i,k−1} − η_ℓ^s · Clip(u_s, g_{i,k}),   δ_i = x_{i,K} − x_s,   A_i = Σ_k (η_ℓ^s)² c_k ⊙ c_k
    server   x_t = x_{t−1} + η_t · Clip(ũ_t, (1/M) Σ_i δ_i)                                 vanilla
             x_t = x_{t−1} + η_t · Clip(ũ_t, (1/M) Σ_i δ_i / p_{t,i})                       downplay (SD)
             x_t = x_{t−1} + η_t · Clip(ũ_t, (1/M) Σ_i [δ_i − A_i ⊙ (x_{t−1} − x_s)])       compensate (DC)

When to use: stragglers and heavy-tailed gradients together, which is what it is proved for. There are two thresholds to
tune, and the server keeps no state. The paper's remedy for very late updates is downplay=True, with a larger `lr`; in
our comparisons (docs/evidence.md) it made no difference, or was worse. compensate=True sends a second vector with every
update, and changes little while the model moves little.

Differs from the paper in: nothing by default; the clipped gradient may go into any optimizer of `torch.optim`;
SD with DC together, (δ_i − A_i ⊙ drift_i)/p_{t,i}, is offered as an experiment.
The outer clip can only bind if η_ℓ · K · u > ũ; a run reports the share of coordinates that it changed.
"""

from __future__ import annotations

from typing import Literal, Unpack

from tardygrad.core import algorithm
from tardygrad.core.clipping import Norm
from tardygrad.core.method import Keep, Method, Mode
from tardygrad.core.optimizers import Options
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Chain, Clip, Scale
from tardygrad.methods.shared import MethodSettings, constructor, local
from tardygrad.theory.prescribed import prescribed


@constructor
def clip2(
    *,
    local_lr: float | Schedule | None = None,
    local_clip: float | Schedule | None = None,
    lr: float | Schedule,
    clip: float | Schedule,
    local_lower: float | Schedule = 0.0,
    lower: float | Schedule = 0.0,
    norm: Norm = "coordinate",
    optimizer: str = "SGD",
    options: Options | None = None,
    keep: Keep = False,
    downplay: bool = False,
    compensate: bool = False,
    schedule: Literal["constant", "theory", "theory-tolerant", "theory-unknown-tail"] = "constant",
    tail: float | None = None,
    buffer: int,
    mode: Mode = "server",
    **settings: Unpack[MethodSettings],
) -> Method:
    """Clip².

    Args:
        lr: learning rate η of the server, read at its round.
        clip: threshold ũ of the server's step; inf switches clipping off.
        lower: BiClip's lower threshold of the server's step.
        downplay: SD: divide an update by its delay.
        compensate: DC: correct an update for the drift of the model since the client pulled it.
        schedule: "theory" multiplies `local_lr`, `local_clip`, `lr` and `clip` by powers of the round that the theorem
            prescribes for `tail` (`tardygrad theory` prints them); "theory-tolerant" and "theory-unknown-tail" are
            other choices that it allows without SD.
        tail: α of the noise, above 1 and at most 2; what schedules of the theory need.

    >>> str(clip2(local_lr=0.01, local_clip=0.5, lr=0.1, clip=1.0, buffer=10, local_steps=5, downplay=True))
    'Clip² (server-centric, M=10, K=5, downplayed)'
    """
    at = prescribed("clip2", schedule, tail, downplay=downplay, compensate=compensate)
    return Method(
        name="Clip²",
        inner=local(
            at("local_lr", local_lr),
            at("local_clip", local_clip),
            optimizer,
            options,
            local_lower=local_lower,
            norm=norm,
        ),
        outer=Chain(
            Clip(lift("clip", at("clip", clip), finite=False), lift("lower", lower), norm),
            Scale(lift("lr", at("lr", lr))),
        ),
        weight=algorithm.downplay if downplay else None,
        compensate=compensate,
        keep=keep,
        buffer=buffer,
        mode=mode,
        **settings,
    )
