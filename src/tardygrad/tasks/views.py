"""A module on flat vectors: its parameters, their gradients and its buffers are views, so nothing is ever copied over.

`check` refuses modules that could not be bound without changing what they compute; `Views` is one thread's own copy.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.errors import Invalid

_GENERATOR = threading.Lock()  # torch's global generator is one for all threads


class Views:
    """A deep copy of a module, bound to whatever x it was last given.

    Args:
        template: the module; stays as it is.
    """

    def __init__(self, template: nn.Module) -> None:
        self.module = copied(template)
        self.parameters = list(trainable(self.module).values())
        self.sizes = [p.numel() for p in self.parameters]
        self.g = torch.zeros(sum(self.sizes), device=self.parameters[0].device)
        for p, part in zip(self.parameters, torch.split(self.g, self.sizes), strict=True):
            p.grad = part.view(p.shape)  # backward adds to it in place
        self.floats, self.ints = ([_owner(self.module, name) for name in group] for group in kept(self.module))
        self.x: Vector | None = None
        self.pointer = 0
        self.probed = False

    def bind(self, x: Vector, module_buffers: ModuleBuffers | None, *, training: bool) -> None:
        """Make the parameters views of x and the buffers views of `module_buffers`."""
        if self.module.training != training:
            self.module.train(training)
        if x is not self.x or x.data_ptr() != self.pointer:
            if x.shape != self.g.shape or x.dtype != torch.float32:
                raise Invalid(
                    f"x must be a flat float32 tensor of length {len(self.g)}, got {x.dtype} {list(x.shape)}."
                )
            for p, part in zip(self.parameters, torch.split(x, self.sizes), strict=True):
                p.data = part.view(p.shape)
            self.x, self.pointer = x, x.data_ptr()  # holding x keeps its memory from being given to another vector
        if not self.floats and not self.ints:
            return
        if module_buffers is None:
            raise Invalid(
                "this module has buffers, got none with x. Start with module_buffers=task.init_module_buffers()."
            )
        for buffer, part, same in self._pairs(module_buffers):
            if same:
                buffer.data = part.view(buffer.shape)
            else:
                buffer.copy_(part.view(buffer.shape))

    def keep(self, module_buffers: ModuleBuffers | None) -> None:
        """Write back what a forward pass could not write in place: other dtypes, and buffers that were replaced."""
        if module_buffers is None or not (self.floats or self.ints):
            return
        for buffer, part, same in self._pairs(module_buffers):
            if not same or buffer.data_ptr() != part.data_ptr():
                part.copy_(buffer.detach().reshape(-1))

    def _pairs(self, module_buffers: ModuleBuffers) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """(buffer, its part of the flat tensor, same dtype?)"""
        for owned, flat in zip((self.floats, self.ints), module_buffers, strict=True):
            found = [getattr(owner, leaf) for owner, leaf in owned]
            for buffer, part in zip(found, torch.split(flat, [b.numel() for b in found]), strict=True):
                yield buffer, part, buffer.dtype == flat.dtype


def copied(module: nn.Module) -> nn.Module:
    """A deep copy, with the same weights tied."""
    again = copy.deepcopy(module)
    if _ties(again) != _ties(module):
        raise Invalid(f"a deep copy must keep tied weights tied, got {type(module).__name__} with its own way.")
    return again


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters in the vector, in the module's order; tied ones once, under their first name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def kept(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The buffers that are state: float ones, and integer or bool ones. Non-persistent ones are constants."""
    persistent = module.state_dict().keys()
    found = {name: buffer for name, buffer in module.named_buffers() if name in persistent}
    floats = {name: buffer for name, buffer in found.items() if buffer.is_floating_point()}
    return floats, {name: buffer for name, buffer in found.items() if name not in floats}


def flatten(tensors: Iterable[Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    """One flat tensor with the values of all."""
    parts = [t.detach().reshape(-1).to(dtype) for t in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


def check(module: nn.Module) -> None:
    """Refuse a module that cannot live on flat vectors."""
    name = type(module).__name__
    if lazy := [n for n, p in module.named_parameters() if is_lazy(p)]:
        raise Invalid(f"parameters must have a shape, got lazy `{lazy[0]}` in {name}. Run one forward pass first.")
    parameters = trainable(module)
    if not parameters:
        raise Invalid(f"a module must have parameters to train, got none in {name}. Set requires_grad on some.")
    for n, p in parameters.items():
        if p.dtype != torch.float32:
            raise Invalid(f"trainable parameters must be float32, got {p.dtype} in `{n}`. Use module.float().")
    floats, ints = kept(module)
    for n, b in (floats | ints).items():
        if b.dtype == torch.float64 or b.is_complex():
            raise Invalid(
                f"persistent buffers must fit in float32 or int64, got {b.dtype} in `{n}`. Use module.float()."
            )
    bound, end, last = parameters | floats | ints, 0, ""
    every = dict(module.named_parameters()) | dict(module.named_buffers())
    for n, t in sorted(every.items(), key=lambda item: item[1].data_ptr()):
        if t.numel() and t.data_ptr() < end and (n in bound or last in bound):
            raise Invalid(f"`{last}` and `{n}` share memory. Tie weights as one Parameter under both names.")
        reach = t.data_ptr() + t.numel() * t.element_size()
        end, last = (reach, n) if reach > end else (end, last)


def draws(module: nn.Module) -> bool:
    """Whether a module is known to draw from torch's global generator when it trains."""
    for m in module.modules():
        if isinstance(m, nn.RReLU) or (isinstance(m, _DropoutNd) and m.p > 0):
            return True
        if isinstance(m, nn.MultiheadAttention | nn.RNNBase) and m.dropout > 0:
            return True
    return False


@contextmanager
def keyed(key: int) -> Iterator[None]:
    """Torch's global generator, seeded with a key for a while and then put back; one thread at a time."""
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        yield


def _ties(module: nn.Module) -> list[tuple[str, str]]:
    """Every name of every trainable parameter, with the first name of the same one."""
    first = {id(p): name for name, p in module.named_parameters()}
    return [(n, first[id(p)]) for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
