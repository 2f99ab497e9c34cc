"""A module on flat vectors: its parameters, gradients and buffers are views of them; only those
in bfloat16 are copied.

`check` rejects modules that cannot be bound to vectors without changing their results; `Views` is one thread's copy.
"""

from __future__ import annotations

import copy
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import is_
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.core.transforms import ParameterGroup
from tardygrad.errors import Invalid, type_and_first_line
from tardygrad.tasks.compiled import compile_in_place
from tardygrad.tasks.plain_attributes import PlainAttributes
from tardygrad.tasks.train_mode import start_training

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


class Views:
    """A deep copy of `template`, bound to the last x it was given.

    Args:
        loss: the loss, if it is a module; threads share it.
        share_frozen: whether copy and template share the frozen parameters.
        compiled: whether the copy is compiled by torch.compile.
    """

    def __init__(
        self,
        template: nn.Module,
        loss: nn.Module | None = None,
        *,
        share_frozen: bool = True,
        compiled: bool = False,
    ) -> None:
        keep_freed_memory()
        self.module = copied(template, share_frozen=share_frozen)
        if compiled:
            compile_in_place(self.module)
        names = trainable(self.module)
        self.parameters = list(names.values())
        self.owners = [_owner(self.module, name) for name in names]
        self.modules = list(self.module.modules())
        start_training(self.module)
        self.modes = [module.training for module in self.modules]
        self.sizes = [p.numel() for p in self.parameters]
        self.g = torch.zeros(sum(self.sizes), device=self.parameters[0].device)
        self.narrow = []  # parameters in bfloat16, whose values and gradients are copied
        for p, part in zip(self.parameters, torch.split(self.g, self.sizes), strict=True):
            if p.dtype == torch.float32:
                p.grad = part.view(p.shape)  # backward adds to it in place
            else:
                p.grad = torch.zeros_like(p)
                self.narrow.append((p, part.view(p.shape)))
        self.gradients = [p.grad for p in self.parameters]
        self.floats, self.ints = ([_owner(self.module, name) for name in group] for group in buffers(self.module))
        persistent = self.module.state_dict().keys()
        self.frozen: dict[str, Tensor] = {n: p for n, p in self.module.named_parameters() if not p.requires_grad}
        self.frozen |= {name: buffer for name, buffer in self.module.named_buffers() if name not in persistent}
        self.attributes = PlainAttributes({"": self.module} | ({"loss": loss} if loss is not None else {}))
        bound = {id(tensor) for tensor in (*self.module.parameters(), *self.module.buffers())}
        self.frozen |= {name: tensor for name, tensor in self.attributes.tensors() if id(tensor) not in bound}
        self.frozen |= {f"loss.{name}": buffer for name, buffer in loss.named_buffers()} if loss is not None else {}
        self.frozen = {name: tensor for name, tensor in self.frozen.items() if not tensor.is_inference()}
        self.versions = [p._version for p in self.frozen.values()]
        self.x: Vector | None = None
        self.pointer = 0
        self.probed = False
        self.passes = 0
        self.restores_together = False  # whether torch.func leaves its tensors in attributes, as in those of an LSTM
        self.restores = False  # whether forward passes change plain attributes, which every step then finds unchanged

    def bind(self, x: Vector, module_buffers: ModuleBuffers | None, *, training: bool) -> None:
        """Make the parameters views of x and the buffers views of `module_buffers`, and set the mode."""
        if training and not self.module.training:
            for module, mode in zip(self.modules, self.modes, strict=True):
                module.training = mode
        self._bind(x, module_buffers)
        if self.module.training and not training:
            self.module.eval()  # after x is bound: it may merge adapters
            self.versions = [p._version for p in self.frozen.values()]
        if self.restores:
            self.attributes.restore()

    def _bind(self, x: Vector, module_buffers: ModuleBuffers | None) -> None:
        if x is not self.x or x.data_ptr() != self.pointer:
            if x.shape != self.g.shape or x.dtype != torch.float32:
                raise Invalid(
                    f"x must be a flat float32 tensor of length {len(self.g)}, got {x.dtype} {list(x.shape)}."
                )
            for p, part in zip(self.parameters, torch.split(x, self.sizes), strict=True):
                if p.dtype == torch.float32:
                    p.data = part.view(p.shape)
            self.x, self.pointer = x, x.data_ptr()  # a reference to x, so that its memory is not reused
        if self.narrow:
            for p, part in zip(self.parameters, torch.split(x, self.sizes), strict=True):
                if p.dtype != torch.float32:
                    p.data.copy_(part.view(p.shape))
        if not self.floats and not self.ints:
            return
        if module_buffers is None:
            raise Invalid("this module has buffers, got none. Start with module_buffers=task.init_module_buffers().")
        for buffer, part, same in self._pairs(module_buffers):
            if same:
                buffer.data = part.view(buffer.shape)
            else:
                buffer.copy_(part.view(buffer.shape))

    def clear_gradient(self) -> None:
        """Set the gradient to zero."""
        self.g.zero_()
        for p, _ in self.narrow:
            p.grad.zero_()  # type: ignore[union-attr]

    def check_frozen(self, who: str) -> None:
        """Raise `Invalid` if a frozen parameter or another constant has changed, which later jobs would see."""
        for (name, p), version in zip(self.frozen.items(), self.versions, strict=True):
            if p._version != version:
                rule = f"{who} must not change frozen parameters or constants, which all jobs share"
                fix = "Keep it in a persistent buffer, or train the parameter."
                if name.startswith("loss."):
                    fix = "Make the loss a part of the module, and use a loss of (module, batch)."
                raise Invalid(f"{rule}, got `{name}`. {fix}")

    def check_reached(self, loss: Tensor) -> None:
        """Raise `Invalid` if the loss depends on another module's parameter in place of one of this module."""
        nodes, seen, reached = [loss.grad_fn], set(), {}
        while nodes:
            if (node := nodes.pop()) is None or node in seen:
                continue
            seen.add(node)
            nodes += (following for following, _ in node.next_functions)
            if (leaf := getattr(node, "variable", None)) is not None:
                reached[id(leaf)] = leaf
        missing = [(owner, leaf, p) for p, (owner, leaf) in zip(self.parameters, self.owners, strict=True)]
        missing = [(owner, leaf, p) for owner, leaf, p in missing if reached.pop(id(p), None) is None]
        others = [leaf for leaf in reached.values() if isinstance(leaf, nn.Parameter)]
        for owner, leaf, p in missing:
            if any(p.shape == other.shape for other in others):
                rule = "the loss must use the module that the task trains, a copy of the one it was given"
                got = f"`{leaf}` of another {type(owner).__name__}"
                raise Invalid(f"{rule}, got {got}. Let functions take the module as an argument, or be its methods.")
        if others:
            rule = "the loss must depend on no parameter that is not the module's, since nothing would train it"
            fix = "Make it a part of the module (of a list, an nn.ModuleList), or freeze it: requires_grad_(False)."
            raise Invalid(f"{rule}, got one of shape {list(others[0].shape)}. {fix}")

    def check_unchanged(self, who: str) -> None:
        """Raise `Invalid` if user code has left the module changed, which would affect later steps and jobs."""
        parts = zip(self.parameters, self.owners, self.gradients, strict=True)
        if any(owner._parameters[leaf] is not p or p.grad is not g for p, (owner, leaf), g in parts):
            fix = "Do not call zero_grad, which the task does, and do not replace parameters."
            raise Invalid(f"{who} must leave parameters and their gradients in place. {fix}")
        if not all(p.requires_grad for p in self.parameters):
            raise Invalid(f"{who} must not freeze parameters. Freeze them before the module is given to the task.")
        if [module.training for module in self.modules] != self.modes:
            raise Invalid(
                f"{who} must leave every part of the module in the mode, training or evaluation, that it had."
            )

    def collect_gradient(self) -> None:
        """Copy the gradients that are not views of the vector into it."""
        for p, part in self.narrow:
            part.copy_(p.grad)  # type: ignore[arg-type]

    def write_back(self, module_buffers: ModuleBuffers | None) -> None:
        """Copy back buffers that the forward pass could not change in place: other dtypes, and replaced tensors."""
        if module_buffers is None or not (self.floats or self.ints):
            return
        for buffer, part, same in self._pairs(module_buffers):
            if not same or buffer.data_ptr() != part.data_ptr():
                part.copy_(buffer.detach().reshape(-1))

    def _pairs(self, module_buffers: ModuleBuffers) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """(buffer, its slice of the flat tensor, whether their dtypes agree)"""
        for owned, flat in zip((self.floats, self.ints), module_buffers, strict=True):
            tensors = [getattr(owner, leaf) for owner, leaf in owned]
            for buffer, part in zip(tensors, torch.split(flat, [b.numel() for b in tensors]), strict=True):
                yield buffer, part, buffer.dtype == flat.dtype


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next training step: blocks of up to 256 MiB, and 512 MiB in all.

    By default it soon returns memory to the system and gets it back page by page, which can take a fifth of a step's
    time. A limit in the environment (MALLOC_MMAP_THRESHOLD_) is respected. Other allocators lack this function.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:  # noqa: TID251  (a setting of glibc, not of ours)
        return
    with suppress(OSError, AttributeError, TypeError):
        change = ctypes.CDLL(None).mallopt
        change(_MMAP_THRESHOLD, 2**28)
        change(_TRIM_THRESHOLD, 2**29)


def copied(module: nn.Module, *, share_frozen: bool = False) -> nn.Module:
    """A deep copy with the same tied weights.

    Args:
        share_frozen: whether copy and original share the frozen parameters.
    """
    frozen = [p for p in module.parameters() if not p.requires_grad] if share_frozen else []
    copies: dict[int, Any] = {id(p): p for p in frozen}
    try:
        clone = copy.deepcopy(module, copies)
    except RuntimeError as error:
        fix = "Replace torch.nn.utils.weight_norm, for example, by torch.nn.utils.parametrizations.weight_norm."
        raise Invalid(f"a module must be one that can be copied: {type_and_first_line(error)}. {fix}") from error
    for part in clone.modules():
        vars(part).update({name: _rebound(value, copies) for name, value in vars(part).items() if callable(value)})
    if _ties(clone) != _ties(module):
        raise Invalid(f"a deep copy must keep tied weights tied, got {type(module).__name__}, which unties them.")
    return clone


def _rebound(value: Any, copies: dict[int, Any], depth: int = 3) -> Any:
    """A copied value; a function gets a closure over copies of modules, since `deepcopy` leaves functions as they are.

    Args:
        copies: by the id of the original.
        depth: of functions in closures of functions.
    """
    if isinstance(value, nn.Module | Tensor):
        return copies.get(id(value), value)
    if not isinstance(value, FunctionType) or not value.__closure__ or not depth:
        return value
    cells = [cell.cell_contents for cell in value.__closure__ if cell != CellType()]
    own = [_rebound(content, copies, depth - 1) for content in cells]
    if len(cells) < len(value.__closure__) or all(map(is_, own, cells)):
        return value
    again = FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, tuple(map(CellType, own))
    )
    again.__kwdefaults__ = value.__kwdefaults__
    return again


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters in the vector, in the module's order; tied ones once, under their first name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def buffers(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Persistent buffers: the float ones, and the integer and bool ones. Others are constants."""
    persistent = module.state_dict().keys()
    every = {name: buffer for name, buffer in module.named_buffers() if name in persistent}
    floats = {name: buffer for name, buffer in every.items() if buffer.is_floating_point()}
    return floats, {name: buffer for name, buffer in every.items() if name not in floats}


def flatten(tensors: Iterable[Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    """All values in one flat tensor."""
    parts = [t.detach().reshape(-1).to(dtype) for t in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


def fingerprint(p: Tensor) -> tuple[Any, ...]:
    """What tells whether a frozen parameter has changed, even through `.data`: one pass over its bits."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(p.element_size(), torch.uint8)
    values = p.detach().contiguous().view(-1).view(bits)
    sums = [int(part.sum(dtype=torch.int64)) for part in (values[0::2], values[1::2])]
    return p.shape, p.dtype, p.requires_grad, *sums


def flat_buffers(module: nn.Module) -> ModuleBuffers | None:
    """The persistent buffers of a module in flat tensors; None if it has none."""
    floats, ints = buffers(module)
    if not floats and not ints:
        return None
    return ModuleBuffers(flatten(floats.values()), flatten(ints.values(), torch.int64))


def groups_of(
    module: nn.Module, parameter_groups: Callable[[nn.Module], Sequence[Mapping[str, Any]]]
) -> tuple[ParameterGroup, ...]:
    """Parameter groups, as `torch.optim` takes them, as parts of the vector."""
    names, at = trainable(module), 0
    slices: dict[int, slice] = {}
    for p in names.values():
        slices[id(p)], at = slice(at, at + p.numel()), at + p.numel()
    groups = []
    rule = "`parameter_groups` must be a function of the module to a list of groups, each a dict with `params`"
    found = parameter_groups(module) if callable(parameter_groups) else None
    if not isinstance(found, Sequence):
        raise Invalid(f"{rule}, got {type(parameter_groups if found is None else found).__name__}.")
    for given in found:
        if not isinstance(given, Mapping) or "params" not in given:
            got = f"one with {[*given]}" if isinstance(given, Mapping) else type(given).__name__
            raise Invalid(f"{rule}, got {got}.")
        options = {key: value for key, value in given.items() if key != "params"}
        if "lr" in options:
            raise Invalid(
                f"parameter groups have the method's `local_lr`, got lr={options['lr']!r} in one. Leave it out."
            )
        own = [p for p in _parameters(given["params"], rule) if p.requires_grad]
        groups.append(ParameterGroup(tuple(slices.pop(id(p), slice(0, 0)) for p in own), options))
        if any(part.start == part.stop for part in groups[-1].slices):
            raise Invalid("every parameter must be in one group, got one in two, or one that is not trained.")
    if slices:
        missing = next(name for name, p in names.items() if id(p) in slices)
        raise Invalid(f"every trainable parameter must be in a parameter group, and `{missing}` is in none.")
    return tuple(group for group in groups if group.slices)


def _parameters(params: Any, rule: str) -> list[Tensor]:
    """The parameters of a group, in the forms that `torch.optim` takes: tensors, one tensor, or pairs with names."""
    given = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterable) else [params]
    found: list[Any] = [item[1] if isinstance(item, tuple) and len(item) == 2 else item for item in given]
    for item in found:
        if not isinstance(item, Tensor):
            raise Invalid(f"{rule}, got `params` with an item of type {type(item).__name__}.")
    return found


def without_numbers(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors that are not dense, or have no data."""
    return [name for name, t in tensors.items() if t.layout != torch.strided or t.is_meta]


def check(module: nn.Module) -> None:
    """Raise `Invalid` for a module that cannot be bound to flat vectors."""
    name = type(module).__name__
    if lazy := [n for n, p in module.named_parameters() if is_lazy(p)]:
        raise Invalid(f"parameters must have a shape, got lazy `{lazy[0]}` in {name}. Run one forward pass first.")
    parameters, every = trainable(module), dict(module.named_parameters()) | dict(module.named_buffers())
    if bad := without_numbers(every):
        raise Invalid(f"parameters and buffers must be dense tensors with data, got `{bad[0]}`, which is not.")
    if not parameters:
        raise Invalid(f"a module must have parameters to train, got none in {name}. Set requires_grad on some.")
    for n, p in parameters.items():
        if p.dtype not in (torch.float32, torch.bfloat16):
            rule = "trainable parameters must be float32 or bfloat16"
            raise Invalid(f"{rule}, got {p.dtype} in `{n}`. Use module.float().")
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            fix = "Use register_full_backward_hook of its module, or freeze it."
            raise Invalid(f"a parameter must have no hooks, which copies of a module lose, got some on `{n}`. {fix}")
    for n, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and trainable(part):
            fix = "Give the task the Python module, or freeze this part."
            raise Invalid(f"torch.jit modules cannot be trained here, got one at {n or 'the top'!r}. {fix}")
    floats, ints = buffers(module)
    for n, b in (floats | ints).items():
        if b.dtype == torch.float64 or b.is_complex():
            rule = "persistent buffers must fit in float32 or int64"
            raise Invalid(f"{rule}, got {b.dtype} in `{n}`. Use module.float().")
    bound, end, last = parameters | floats | ints, 0, ""
    for n, t in sorted(every.items(), key=lambda item: item[1].data_ptr()):
        if t.numel() and t.data_ptr() < end and (n in bound or last in bound):
            raise Invalid(f"`{last}` and `{n}` share memory. Tie weights as one Parameter under both names.")
        reach = t.data_ptr() + t.numel() * t.element_size()
        end, last = (reach, n) if reach > end else (end, last)


def _ties(module: nn.Module) -> list[tuple[str, str]]:
    """(name, first name of the same parameter) for every trainable parameter."""
    first = {id(p): name for name, p in module.named_parameters()}
    return [(n, first[id(p)]) for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
