"""What the constructors of methods share: common settings, the check of arguments, and the clients' usual step."""

from __future__ import annotations

import math
from typing import TypedDict

from tardygrad import constructors
from tardygrad.core.clipping import Norm
from tardygrad.core.method import Dispatch, Method, WeightBy
from tardygrad.core.optimizers import Optimizer, Options
from tardygrad.core.privacy import Privacy
from tardygrad.core.schedules import Schedule, lift
from tardygrad.core.transforms import Chain, Clip, NoSteps, Scale, Transform
from tardygrad.errors import Invalid


class MethodSettings(TypedDict, total=False):
    """The settings of `Method` that every constructor passes on; for `buffer` and `mode` it has its own defaults."""

    local_steps: int | None
    local_epochs: int | None
    max_delay: int | None
    concurrency: int | None
    dispatch: Dispatch
    weight_by: WeightBy | None
    privacy: Privacy | None


def local(
    local_lr: float | Schedule | None,
    local_clip: float | Schedule | None = math.inf,
    optimizer: str = "SGD",
    options: Options | None = None,
    *,
    local_lower: float | Schedule = 0.0,
    norm: Norm = "coordinate",
) -> Transform:
    """The client's step of most methods: a clip, which may be infinite, then SGD or any optimizer of `torch.optim`.

    Args:
        local_lr: learning rate η_ℓ of the local steps, read at the round whose model the client pulled; required,
            unless the task has a training loop of its own (`TrainerTask`): leave it out then.
        local_clip: threshold u of the local steps; inf switches clipping off.
        optimizer: name of the class of `torch.optim` that makes the local steps.
        options: arguments of the optimizer, such as {weight_decay = 0.1}.
        local_lower: BiClip's lower threshold d of the local steps; 0 switches it off.
        norm: clip each coordinate, or the norm of the whole vector ("l2").
    """
    if local_lr is None:
        return NoSteps()
    if local_clip is None:
        raise Invalid("a clipped method needs `local_clip`, the threshold of its local steps. Use inf for none.")
    rate = lift("local_lr", local_lr)
    plain = optimizer == "SGD" and not options
    return Chain(
        Clip(lift("local_clip", local_clip, finite=False), lift("local_lower", local_lower), norm),
        Scale(rate) if plain else Optimizer(optimizer, rate, dict(options or {})),
    )


constructor = constructors.constructor(passes_to=(Method, local))
"""What every constructor of a method is: its help shows the settings that methods share."""
