"""Training and evaluation mode, as a plain training loop sets them: by `train()` and `eval()`, which modules override.

Such overrides do more than set the mode: they keep BatchNorm in evaluation mode, or merge adapters into frozen weights.
"""

from __future__ import annotations

from torch import nn


def has_own_modes(module: nn.Module) -> bool:
    """Whether a part of a module has a `train` or an `eval` of its own."""
    plain = (nn.Module.train, nn.Module.eval)
    return any(
        (type(part).train, type(part).eval) != plain or not vars(part).keys().isdisjoint(("train", "eval"))
        for part in module.modules()
    )


def start_training(module: nn.Module) -> None:
    """Call `train()`; parts in evaluation mode in a module in training mode are so on purpose, and stay so."""
    on_purpose = [part for part in module.modules() if not part.training] if module.training else []
    module.train()
    for part in on_purpose:
        if not part.training:
            continue
        if has_own_modes(part):
            part.eval()
        else:
            part.training = False  # not `eval`, which would change parts of it that are in training mode
