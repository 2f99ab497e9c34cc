"""FedBuff: local SGD, and a server that averages a buffer of updates, in which later ones count less.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba. Federated Learning with Buffered Asynchronous
Aggregation. AISTATS 2022.

    client   x_{i,k} = x_{i,k−1} − η_ℓ · g_{i,k},   δ_i = x_{i,K} − x_s
    server   x_t = x_{t−1} + η · (1/M) Σ_i w(s_i) δ_i,   s_i = p_{t,i} − 1,   w(s) = 1/√(1 + s)

Other implementations differ; their variants are options:
    FedScale                weight Polynomial(exponent=0.5), denominator="weights": Σ w in place of M
    NVFlare                 weight Root(fresh=1): 1/(1 + √(s + 1)), a fresh update counts half
    plato                   weight=None: no weights
    FLSim                   weight Polynomial(average=a), over the weight of the expected s; denominator="one": a sum
    APPFL                   toward="model": x_{i,K} − x_{t−1} in place of δ_i (and 1/N, a factor of η)

When to use: the usual first choice for clients of different speeds. With `local_clip` it also withstands heavy-tailed
gradients: tuned equally, it is between 3 points behind and 2 points ahead of Clip² (docs/baselines.md).

Differs from the paper in: local steps may be clipped, and use any optimizer. The paper gives free slots to random
clients: set `concurrency` and dispatch="random" for that.
"""

from __future__ import annotations

import math
from typing import Literal, Unpack

from tardygrad.core.clipping import Norm
from tardygrad.core.method import Denominator, Keep, Method, Mode
from tardygrad.core.optimizers import Options
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Scale
from tardygrad.core.weights import Polynomial, Staleness
from tardygrad.methods.shared import MethodSettings, constructor, local

PUBLISHED_WEIGHT = Polynomial(exponent=0.5)


@constructor
def fedbuff(
    *,
    local_lr: float | Schedule | None = None,
    lr: float | Schedule = 1.0,
    weight: Staleness | None = PUBLISHED_WEIGHT,
    denominator: Denominator = "buffer",
    toward: Literal["delta", "model"] = "delta",
    local_clip: float | Schedule = math.inf,
    norm: Norm = "coordinate",
    optimizer: str = "SGD",
    options: Options | None = None,
    keep: Keep = False,
    buffer: int,
    mode: Mode = "client",
    **settings: Unpack[MethodSettings],
) -> Method:
    """FedBuff.

    Args:
        lr: learning rate η of the server, read at its round.
        weight: weight of an update by the rounds it missed; None counts every update fully.
        denominator: divide the sum by M ("buffer"), by Σ w ("weights") or by nothing ("one").
        toward: move along δ_i, or toward the client's model.

    >>> str(fedbuff(local_lr=0.1, buffer=10, local_steps=5, concurrency=20, dispatch="random"))
    'FedBuff (client-centric, M=10, K=5, weighted)'
    """
    return Method(
        name="FedBuff",
        inner=local(local_lr, local_clip, optimizer, options, norm=norm),
        outer=Scale(lift("lr", lr)),
        weight=weight,
        denominator=denominator,
        pull=toward == "model",
        keep=keep,
        buffer=buffer,
        mode=mode,
        **settings,
    )
