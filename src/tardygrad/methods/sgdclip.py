"""SGDClip: clipped local steps, averaged by the server.

J. Sun, D. Yao, X. Gong, T. Rabbani, M. Zaheer, T. Li. Asynchronous Heavy-Tailed Optimization (Algorithms 1 and 2).

    client   x_{i,k} = x_{i,k−1} − η_ℓ^s · Clip(u_s, g_{i,k}),   δ_i = x_{i,K} − x_s,   A_i = Σ_k (η_ℓ^s)² c_k ⊙ c_k
    server   x_t = x_{t−1} + η_t · (1/M) Σ_i δ_i                                  vanilla
             x_t = x_{t−1} + η_t · (1/M) Σ_i δ_i / p_{t,i}                        downplay (SD)
             x_t = x_{t−1} + η_t · (1/M) Σ_i [δ_i − A_i ⊙ (x_{t−1} − x_s)]        compensate (DC)

When to use: as Clip², with one threshold fewer to tune. The clients' steps are bounded, the server's step is not.

Differs from the paper in: nothing by default; the clipped gradient may go into any optimizer of `torch.optim`;
DC with this outer step is in the paper's sweep though not in its listing, and SD
with DC together, (δ_i − A_i ⊙ drift_i)/p_{t,i}, is offered as an experiment.
"""

from __future__ import annotations

from typing import Literal, Unpack

from tardygrad.core import algorithm
from tardygrad.core.clipping import Norm
from tardygrad.core.method import Keep, Method, Mode
from tardygrad.core.optimizers import Options
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Scale
from tardygrad.methods.shared import MethodSettings, constructor, local
from tardygrad.theory.prescribed import prescribed


@constructor
def sgdclip(
    *,
    local_lr: float | Schedule | None = None,
    local_clip: float | Schedule | None = None,
    lr: float | Schedule,
    local_lower: float | Schedule = 0.0,
    norm: Norm = "coordinate",
    optimizer: str = "SGD",
    options: Options | None = None,
    keep: Keep = False,
    downplay: bool = False,
    compensate: bool = False,
    schedule: Literal["constant", "theory"] = "constant",
    tail: float | None = None,
    buffer: int,
    mode: Mode = "server",
    **settings: Unpack[MethodSettings],
) -> Method:
    """SGDClip.

    Args:
        lr: learning rate η of the server, read at its round.
        downplay: SD: divide an update by its delay.
        compensate: DC: correct an update for the drift of the model since the client pulled it.
        schedule: "theory" makes the three numbers c · t^exponent, as the theorem says for the noise's tail index
            (`tardygrad theory` prints them).
        tail: α of the noise, above 1 and at most 2; what the theory's schedule needs.

    >>> str(sgdclip(local_lr=0.1, local_clip=0.5, lr=1.0, buffer=4, local_steps=5, mode="client"))
    'SGDClip (client-centric, M=4, K=5)'
    """
    at = prescribed("sgdclip", schedule, tail, downplay=downplay, compensate=compensate)
    return Method(
        name="SGDClip",
        inner=local(
            at("local_lr", local_lr),
            at("local_clip", local_clip),
            optimizer,
            options,
            local_lower=local_lower,
            norm=norm,
        ),
        outer=Scale(lift("lr", at("lr", lr))),
        weight=algorithm.downplay if downplay else None,
        compensate=compensate,
        keep=keep,
        buffer=buffer,
        mode=mode,
        **settings,
    )
