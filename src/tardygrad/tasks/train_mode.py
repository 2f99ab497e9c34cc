"""Training and evaluation mode of modules, set by `train()` and `eval()` as in a plain training loop.

Modules may override both to do more than set the mode: keep BatchNorm in evaluation mode, or merge adapters into frozen
weights.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


def overrides_train_or_eval(module: nn.Module) -> bool:
    """Whether a module, or a part of it, overrides `train` or `eval`."""
    inherited = (nn.Module.train, nn.Module.eval)
    return any(
        (type(part).train, type(part).eval) != inherited or not vars(part).keys().isdisjoint(("train", "eval"))
        for part in module.modules()
    )


def start_training(module: nn.Module) -> None:
    """Call `train()`. If the module is in training mode already, its parts in evaluation mode stay in it."""
    in_eval = [part for part in module.modules() if not part.training] if module.training else []
    module.train()
    for part in in_eval:
        if not part.training:
            continue
        if overrides_train_or_eval(part):
            part.eval()
        else:
            part.training = False  # not `eval`, which would change parts of it that are in training mode


def draws(module: nn.Module) -> bool:
    """Whether a module is known to use torch's global generator in training."""
    return any(
        isinstance(m, nn.RReLU)
        or (isinstance(m, _DropoutNd) and m.p > 0)
        or (isinstance(m, nn.MultiheadAttention | nn.RNNBase) and m.dropout > 0)
        for m in module.modules()
    )
