"""HALoS: clients report to their region's server, regions to a global one, both with delayed Nesterov steps.

G.-W. Kim et al. HALoS: Hierarchical Asynchronous Local SGD over Slow Networks for Geo-Distributed Large Language Model
Training. ICML 2025.

    client   AdamW for K_i steps from its region's model, moments kept;   K_i = max(1, ⌈K · v_i / max_j v_j⌉) over the
             clients j of its region
    region   θ: DN(η_r, β_r, N_r) on every δ_i; the client continues from the new θ at once
             E updates after it last received the global model: sends U = θ − θ_ref, and continues
    global   x: DN(η, β, N) on every U; sends x back to that region only
    region   θ ← (1 − α) θ + α x,   θ_ref ← θ

See `tardygrad.core.hierarchy` for the two levels, and `dn_dylu` for DN's step and the scale of η: N arrivals together.

When to use: workers in several regions, with fast links inside a region and slow links between regions. In one data
centre, `dn_dylu` does the same with one server.

Differs from the paper in: weight decay is the same for all parameters, because the model is one vector; rates may
follow any `Schedule`, read at the region's round; rounds are those of all regions together.
"""

from __future__ import annotations

from typing import Unpack

from tardygrad.core.clipping import Norm
from tardygrad.core.dylu import Pace
from tardygrad.core.method import Keep, Method, Mode, Regions
from tardygrad.core.optimizers import Options
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import DelayedNesterov, below_one
from tardygrad.errors import check_integer
from tardygrad.methods.dn_dylu import LONGEST
from tardygrad.methods.shared import MethodSettings, constructor, local

PUBLISHED_OPTIONS: Options = {"betas": [0.9, 0.95], "weight_decay": 0.1}


@constructor
def halos(
    *,
    regions: int | tuple[int, ...],
    local_lr: float | Schedule | None = None,
    region_lr: float | Schedule = 3.2,
    region_momentum: float = 0.9,
    region_period: int = 16,
    every: int = 32,
    lr: float | Schedule = 0.3,
    momentum: float = 0.5,
    period: int = 2,
    blend: float = 0.25,
    exchange: float = 0.0,
    optimizer: str = "AdamW",
    options: Options | None = None,
    keep: Keep = True,
    local_clip: float | Schedule = 1.0,
    norm: Norm = "l2",
    dylu: bool = True,
    buffer: int = 1,
    mode: Mode = "client",
    **settings: Unpack[MethodSettings],
) -> Method:
    """HALoS.

    Args:
        regions: the number of regions, which get clients in turn; or the number of clients of each, in order.
        local_lr: η_ℓ, read at the round of its region that the client pulled.
        region_lr: η_r, the rate of N_r arrivals at a region's server together, read at its round.
        region_momentum: β_r, of that server.
        region_period: N_r, the arrivals between two updates of its momentum.
        every: E, the rounds of a region between two reports to the global server.
        lr: η, the rate of N reports at the global server together, read at its round.
        momentum: β, of the global server.
        period: N, the reports between two updates of its momentum.
        blend: α, the weight of the global model when a region receives it.
        exchange: seconds that a message between a region and the global server takes.
        options: arguments of the optimizer, such as {weight_decay = 0.1}; for AdamW, None is the paper's.
        norm: clip each coordinate, or the norm of the whole vector ("l2", the paper's).
        dylu: fewer local steps for slower clients; False gives everyone K.
        buffer: M of the regions; 1 is the paper's.
        mode: of the regions; with M = 1 "server" and "client" are the same.

    >>> str(halos(regions=2, local_lr=1e-3, local_steps=8))
    'HALoS (client-centric, M=1, K=8, 2 regions)'
    """
    check_integer("region_period", region_period, most=LONGEST)
    check_integer("period", period, most=LONGEST)
    below_one(region_momentum=region_momentum)
    if options is None and optimizer == "AdamW":
        options = PUBLISHED_OPTIONS
    return Method(
        name="HALoS",
        inner=local(local_lr, local_clip, optimizer, options, norm=norm),
        outer=DelayedNesterov(lift("region_lr", region_lr), region_momentum, region_period),
        keep=keep,
        pace=Pace(rounding="ceil") if dylu else None,
        regions=Regions(
            sizes=regions,
            every=every,
            blend=blend,
            outer=DelayedNesterov(lift("lr", lr), momentum, period),
            exchange=exchange,
        ),
        buffer=buffer,
        mode=mode,
        **settings,
    )
