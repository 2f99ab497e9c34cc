"""Which layers of a pretrained network are trained, and their inputs, computed once.

"last-N" trains the last N layers and everything after them. The layers before are frozen, without dropout, so their
output depends only on the row: it is computed once per row and kept on disk, and the task's module has only the trained
layers. Parameters, their order, buffers and x_0 are those of the whole network.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tardygrad.errors import Invalid
from tardygrad.tasks.data.files import Tensors
from tardygrad.tasks.views import buffers, trainable

_ENTRIES = ("embeddings", "patch_embed")  # first modules of transformers' encoders and of TinyViT
_ROWS = 32  # per batch


class CachedInput(nn.Module):
    """Replaces a network's embeddings: passes on the cached output of the frozen layers."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        if hasattr(embeddings, "patch_embeddings"):
            self.patch_embeddings = embeddings.patch_embeddings  # ViT reads its dtype

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point())


def check_train(train: str) -> None:
    """Raise `Invalid` unless `train` names a part of a network."""
    if train not in ("head", "all") and not re.fullmatch(r"last-[1-9]\d*", train):
        raise Invalid(f"`train` must be 'head', 'all' or 'last-N' with a number of layers N, got {train!r}.")


def freeze(network: nn.Module, train: str) -> None:
    """Freeze all parameters before the last N layers."""
    if train == "all":
        return
    _, layers = _layers(network)
    count = int(train.removeprefix("last-"))
    if count > len(layers):
        raise Invalid(f"train='last-N' must have N from 1 to the network's {len(layers)} layers, got {train!r}.")
    first = next(layers[-count].parameters())
    for p in network.parameters():
        if p is first:
            break
        p.requires_grad_(False)


def set_frozen_to_eval(network: nn.Module) -> None:
    """Set frozen parts to evaluation mode: no dropout, fixed statistics."""
    for part in network.modules():
        parameters = list(part.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            part.eval()


def cut(network: nn.Module, train: str) -> bool:
    """Remove the embeddings and the layers before the last N; returns False, with nothing changed, if impossible."""
    path, layers = _layers(network)
    entry = next((name for name, _ in network.named_modules() if name.rpartition(".")[2] in _ENTRIES), "")
    count, before = int(train.removeprefix("last-")), _state(network)
    if not entry or count > len(layers):
        return False
    old = network.get_submodule(entry)
    _put(network, entry, CachedInput(old))
    _put(network, path, layers[-count:])
    after = _state(network)
    if len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True)):
        return True
    _put(network, entry, old)
    _put(network, path, layers)
    return False


@torch.no_grad()
def layer_inputs(
    whole: nn.Module,
    network: nn.Module,
    train: str,
    rows: Sequence[Tensor],
    *,
    arguments: int = 1,
    also: Sequence[Tensor] = (),
    order: Tensor | None = None,
) -> Tensors:
    """Inputs of the last N layers of a network, row by row; empty if the cut network gives other outputs.

    Args:
        whole: called with the rows: the network itself, or with its preparation.
        network: the part that can be cut, already frozen.
        train: "last-N".
        rows: inputs of `whole`.
        arguments: how many arguments of the first trained layer to record.
        also: further inputs of the cut network.
        order: of the rows, the largest shape first; None is any.
    """
    last = copy.deepcopy(network).eval()
    if not cut(last, train):
        return {}
    device = next(whole.parameters()).device
    seen: list[tuple[Tensor, ...]] = []
    first = _layers(network)[1][-int(train.removeprefix("last-"))]
    first.register_forward_pre_hook(lambda _, args: seen.append(args[:arguments]))
    result: Tensors = {}
    for batch in torch.split(torch.arange(len(rows[0])) if order is None else order, _ROWS):
        output = whole.eval()(*(tensor[batch].to(device) for tensor in rows))
        parts = seen.pop() if seen else ()
        if not result:
            if not _same(last, [*parts, *(tensor[batch].to(device) for tensor in also)], output):
                return {}
            result = {str(i): torch.zeros(len(rows[0]), *part.shape[1:]) for i, part in enumerate(parts)}
        for states, part in zip(result.values(), parts, strict=True):
            states[batch, : part.shape[1]] = part.cpu()
    return result


def _same(last: nn.Module, inputs: Sequence[Tensor], output: Tensor) -> bool:
    try:
        return torch.allclose(last(*inputs), output, rtol=1e-4, atol=1e-5)
    except Exception:  # a network that is not a stack of layers on embeddings can fail in many ways
        return False


def _layers(network: nn.Module) -> tuple[str, nn.ModuleList]:
    """The name and the modules of the outermost list of layers; the longest if there are several."""
    lists = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.ModuleList)]
    return min(
        lists,
        key=lambda found: (len(found[1]) < 2, found[0].count("."), -len(found[1])),
        default=("", nn.ModuleList()),
    )


def _state(network: nn.Module) -> list[Tensor]:
    """The tensors of a network that change in training."""
    return [tensor for group in (trainable(network), *buffers(network)) for tensor in group.values()]


def _put(network: nn.Module, name: str, part: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(owner), leaf, part)
