"""Which layers of a pretrained network are trained, and what enters them, computed once.

"last-N" trains the last N of a network's layers and whatever follows them. All before is frozen, without dropout, and
so a function of the row: it is computed once for every row and kept on disk, and the task's module is the tail, the
layers that are trained. Parameters, their order and x_0 are those of the whole network, and so are its buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tardygrad.errors import Invalid
from tardygrad.tasks.data.cache import Tensors
from tardygrad.tasks.views import buffers, trainable

LIMIT = 4 << 30
"""Bytes of what enters the tail, over all rows."""

_ENTRIES = ("embeddings", "patch_embed")  # of transformers' encoders, and of TinyViT
_ROWS = 32  # at a time


class Given(nn.Module):
    """Stands where a network's embeddings were, and hands on what they and the frozen layers made of a row."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        if hasattr(embeddings, "patch_embeddings"):
            self.patch_embeddings = embeddings.patch_embeddings  # ViT asks for its dtype

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point())


def freeze(network: nn.Module, train: str) -> None:
    """Freeze every parameter that stands before the last N layers."""
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


def rest(network: nn.Module) -> None:
    """Put the frozen parts into evaluation mode: no dropout, and statistics as they are."""
    for part in network.modules():
        parameters = list(part.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            part.eval()


def cut(network: nn.Module, train: str) -> bool:
    """Take off the embeddings and the layers before the last N; False if that cannot be, and nothing has changed."""
    path, layers = _layers(network)
    entry = next((name for name, _ in network.named_modules() if name.rpartition(".")[2] in _ENTRIES), "")
    count, before = int(train.removeprefix("last-")), _state(network)
    if not entry or count > len(layers):
        return False
    old = network.get_submodule(entry)
    _put(network, entry, Given(old))
    _put(network, path, layers[-count:])
    after = _state(network)
    if len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True)):
        return True
    _put(network, entry, old)
    _put(network, path, layers)
    return False


@torch.no_grad()
def entering(
    whole: nn.Module,
    network: nn.Module,
    train: str,
    held: Sequence[Tensor],
    *,
    arguments: int = 1,
    also: Sequence[Tensor] = (),
    order: Tensor | None = None,
    fix: str,
) -> Tensors:
    """What enters the last N layers of a network, row by row; nothing if its tail does not answer as it does.

    Args:
        whole: what is called with the rows: the network, or something before it and the network.
        network: what can be cut; frozen as it should be.
        train: "last-N".
        held: inputs of `whole`.
        arguments: so many of those of the first trained layer are what enters.
        also: further inputs of the tail.
        order: of the rows, those of the largest shape first; None is any.
        fix: what to do if it is too much.
    """
    tail = copy.deepcopy(network).eval()
    if not cut(tail, train):
        return {}
    device = next(whole.parameters()).device
    seen: list[tuple[Tensor, ...]] = []
    first = _layers(network)[1][-int(train.removeprefix("last-"))]
    first.register_forward_pre_hook(lambda _, args: seen.append(args[:arguments]))
    found: Tensors = {}
    for rows in torch.split(torch.arange(len(held[0])) if order is None else order, _ROWS):
        said = whole.eval()(*(tensor[rows].to(device) for tensor in held))
        parts = seen.pop() if seen else ()
        if not found:
            if not _same(tail, [*parts, *(tensor[rows].to(device) for tensor in also)], said):
                return {}
            _fits(parts, len(held[0]), fix)
            found = {str(i): torch.zeros(len(held[0]), *part.shape[1:]) for i, part in enumerate(parts)}
        for states, part in zip(found.values(), parts, strict=True):
            states[rows, : part.shape[1]] = part.cpu()
    return found


def _same(tail: nn.Module, given: Sequence[Tensor], said: Tensor) -> bool:
    try:
        return torch.allclose(tail(*given), said, rtol=1e-4, atol=1e-5)
    except Exception:  # there are many ways not to be a stack of layers on embeddings
        return False


def _fits(parts: Sequence[Tensor], rows: int, fix: str) -> None:
    size = rows * sum(part[0].numel() * part.element_size() for part in parts)
    if size > LIMIT:
        shape = " + ".join(" × ".join(map(str, part.shape[1:])) for part in parts)
        rule = f"what enters the trained layers must fit into {LIMIT >> 30} GiB, where it is kept"
        raise Invalid(f"{rule}, got {rows} rows of {shape} numbers, {size / 2**30:.1f} GiB. {fix}")


def _layers(network: nn.Module) -> tuple[str, nn.ModuleList]:
    """The outermost list of layers, the longest if there are several, and its name."""
    lists = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.ModuleList)]
    return min(
        lists,
        key=lambda found: (len(found[1]) < 2, found[0].count("."), -len(found[1])),
        default=("", nn.ModuleList()),
    )


def _state(network: nn.Module) -> list[Tensor]:
    """What a task keeps of a network."""
    return [tensor for held in (trainable(network), *buffers(network)) for tensor in held.values()]


def _put(network: nn.Module, name: str, part: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(owner), leaf, part)
