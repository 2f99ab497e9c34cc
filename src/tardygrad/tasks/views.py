"""A module on flat vectors: its parameters, gradients and buffers are views of them; only those
in bfloat16 are copied.

`check` rejects modules that cannot be bound to vectors without changing their results; `Views` is one thread's copy.
"""

from __future__ import annotations

import copy
import ctypes
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, compress
from operator import attrgetter, is_
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.core.transforms import ParameterGroup
from tardygrad.errors import Invalid, type_and_first_line
from tardygrad.tasks.module_state import PlainState, arrays, arrays_of, shared

_REQUIRES_GRAD = attrgetter("requires_grad")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


class Views:
    """A deep copy of a module and its loss, bound to the last x it was given.

    Args:
        loss: what is a module is copied with the template.
        share_frozen: whether copy and template share the frozen parameters.
        compiled: whether the copy is compiled by torch.compile.
    """

    def __init__(
        self, template: nn.Module, loss: Any = None, *, share_frozen: bool = True, compiled: bool = False
    ) -> None:
        keep_freed_memory()
        both = [template, loss] if isinstance(loss, nn.Module) else [template]
        self.module, *own_loss = copied_together(both, share_frozen=share_frozen)
        self.loss = own_loss[0] if own_loss else loss
        if compiled:
            compile_in_place(self.module)
        start_training(self.module)
        self.modules = list(self.module.modules())
        self.modes = [module.training for module in self.modules]
        self.names, self.parameters = list(trainable(self.module)), list(trainable(self.module).values())
        every = trainable(self.module, ties=True)
        self.places = [(owner._parameters, leaf) for owner, leaf in (_owner(self.module, name) for name in every)]
        self.placed = list(every.values())
        self.g = torch.zeros(sum(p.numel() for p in self.parameters), device=self.parameters[0].device)
        self.slopes = _as_parameters(self.g, self.parameters)
        self.is_wide = [p.dtype == torch.float32 for p in self.parameters]
        self.narrow = [i for i, wide in enumerate(self.is_wide) if not wide]  # are copied from x, and to the gradient
        self.wide = [*compress(self.parameters, self.is_wide)]
        for p, slope in zip(self.parameters, self.slopes, strict=True):
            p.grad = slope.view(p.shape) if p.dtype == slope.dtype else torch.zeros_like(p)  # backward adds to it
        self.gradients: list[Any] = [p.grad for p in self.parameters]
        self.wide_gradients = [*compress(self.gradients, self.is_wide)], [*compress(self.slopes, self.is_wide)]
        self.buffer_owners = [[_owner(self.module, name) for name in group] for group in buffers(self.module)]
        self.buffers = self._own_buffers()
        self.forms = _forms(self.buffers)
        self.frozen = {n: p for n, p in self.module.named_parameters() if not p.requires_grad and not p.is_inference()}
        self.marks = [_mark(p) for p in self.frozen.values()]
        self.state = PlainState({"": self.module} | ({"loss": self.loss} if own_loss else {}), chain(*self.buffers))
        self.x: Vector | None = None
        self.pointer = 0
        self.parts: list[Tensor] = []  # of x, in the form of the parameters
        self.wide_parts: list[Tensor] = []
        self.mirrored: tuple[Any, ...] = ()  # the vectors of buffers that are equal to the module's own, and versions
        self.probed = False

    def is_as_given(self) -> bool:
        """Whether the copy can serve another job: it is as the module was given, but for parameters and buffers."""
        self._set_modes()
        self._install(self.buffers)
        self.mirrored = ()
        if name := self.state.changed():
            self._warn(name)
        return self.state.known and not name

    def changed(self) -> bool:
        """Whether a training pass has changed something besides parameters and persistent buffers; warns of it."""
        now = self._own_buffers()
        self._install(self.buffers)
        name = self.state.changed()
        self._install(now)
        if name:
            self._warn(name)
        return bool(name) or not self.state.known

    def _warn(self, name: str) -> None:
        rule = f"`{name}` of {type(self.module).__name__} changed, and every job starts from the module as it was given"
        warnings.warn(f"{rule}. What must last longer than a job belongs in a persistent buffer.", stacklevel=2)

    def _own_buffers(self) -> list[list[Tensor]]:
        return [[owner._buffers.get(leaf) for owner, leaf in owners] for owners in self.buffer_owners]  # type: ignore[misc]

    def _install(self, tensors: list[list[Tensor]]) -> None:
        for owners, own in zip(self.buffer_owners, tensors, strict=True):
            for (owner, leaf), buffer in zip(owners, own, strict=True):
                owner._buffers[leaf] = buffer

    def _set_modes(self) -> None:
        if [module.training for module in self.modules] == self.modes:
            return
        for module, mode in zip(self.modules, self.modes, strict=True):
            module.training = mode
        self._collect_gradient()  # an evaluation may have left others

    def bind(self, x: Vector, module_buffers: ModuleBuffers | None, *, training: bool) -> None:
        """Make the parameters views of x, give the buffers their values, and set the mode."""
        if training and not self.module.training:
            self._set_modes()
        if x is not self.x or x.data_ptr() != self.pointer:
            if x.shape != self.g.shape or x.dtype != torch.float32:
                raise Invalid(
                    f"x must be a flat float32 tensor of length {len(self.g)}, got {x.dtype} {list(x.shape)}."
                )
            self.parts = _as_parameters(x, self.parameters)
            self.wide_parts = [*compress(self.parts, self.is_wide)]
            for p, part in zip(self.wide, self.wide_parts, strict=True):
                p.data = part
            self.x, self.pointer = x, x.data_ptr()  # a reference to x, so that its memory is not reused
        for i in self.narrow:
            self.parameters[i].data.copy_(self.parts[i])
        if any(self.buffers) and (module_buffers is None or self.mirrored != _versions(module_buffers)):
            if module_buffers is None:
                fix = "Start with module_buffers=task.init_module_buffers()."
                raise Invalid(f"this module has buffers, got none. {fix}")
            for own, flat in zip(self._own_buffers(), module_buffers, strict=True):
                for buffer, part in zip(own, _as_parameters(flat, own), strict=True):
                    buffer.data.copy_(part)
            self.mirrored = ()
        if self.module.training and not training:
            self.module.eval()  # after x is bound: it may merge adapters
            self.marks = [_mark(p) for p in self.frozen.values()]

    def clear_gradient(self) -> None:
        """Set the gradient to zero."""
        self.g.zero_()
        for i in self.narrow:
            self.gradients[i].zero_()

    def check_frozen(self, who: str) -> None:
        """Raise `Invalid` if a frozen parameter has changed, which all jobs share."""
        for (name, p), mark in zip(self.frozen.items(), self.marks, strict=True):
            if _mark(p) != mark:
                fix = "Keep it in a persistent buffer, or train the parameter."
                raise Invalid(f"{who} must not change frozen parameters, which all jobs share, got `{name}`. {fix}")

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
        named = zip(self.names, self.parameters, strict=True)
        missing = [(name, p) for name, p in named if reached.pop(id(p), None) is None]
        others = [leaf for leaf in reached.values() if isinstance(leaf, nn.Parameter)]
        for name, p in missing:
            if any(p.shape == other.shape for other in others):
                rule = "the loss must use the module that the task trains, a copy of the one it was given"
                got = f"`{name}` of another {type(self.module).__name__}"
                raise Invalid(f"{rule}, got {got}. Let functions take the module as an argument, or be its methods.")
        if others:
            rule = "the loss must depend on no parameter that is not the module's, since nothing would train it"
            fix = "Make it a part of the module (of a list, an nn.ModuleList), or freeze it: requires_grad_(False)."
            raise Invalid(f"{rule}, got one of shape {list(others[0].shape)}. {fix}")

    def collect(self, module_buffers: ModuleBuffers | None) -> None:
        """Take over into x, the gradient and the buffers what a step has left in other memory."""
        found = [table.get(leaf) for table, leaf in self.places]
        if not all(map(is_, found, self.placed)) or not all(map(_REQUIRES_GRAD, self.placed)):
            rule = f"a pass must not replace or freeze parameters of {type(self.module).__name__}"
            raise Invalid(f"{rule}. Change their values in place, or freeze them before the task gets the module.")
        if not all(map(Tensor.is_set_to, self.wide, self.wide_parts)):
            self._take_over()
        for i in self.narrow:
            now, then = self.parameters[i].detach().contiguous(), self.parts[i].to(torch.bfloat16)
            if not torch.equal(now.view(torch.int16), then.view(torch.int16)):
                raise Invalid(f"a pass must not change bfloat16 parameters, got `{self.names[i]}`. Use float32.")
            self.slopes[i].copy_(self.gradients[i])
        self._collect_gradient()
        if module_buffers is not None:
            self._check_buffers(tensors := self._own_buffers())
            for own, flat in zip(tensors, module_buffers, strict=True):
                if own:
                    with torch.no_grad():
                        torch.cat([buffer.ravel() for buffer in own], out=flat)
            self.mirrored = _versions(module_buffers)

    def _collect_gradient(self) -> None:
        """Copy gradients that are in other memory, and put the own ones in their places."""
        found = [p.grad for p in self.parameters]
        if all(map(is_, found, self.gradients)) and all(map(Tensor.is_set_to, *self.wide_gradients)):
            return
        for p, gradient, own, slope in zip(self.parameters, found, self.gradients, self.slopes, strict=True):
            if gradient is None:
                slope.zero_()
            elif not gradient.is_set_to(slope):
                slope.copy_(gradient.to_dense())
            if own.dtype == slope.dtype:
                own.data = slope
            p.grad = own

    def _check_buffers(self, now: list[list[Tensor]]) -> None:
        """Raise `Invalid` for buffers of another form, and for replaced ones that had another name too."""
        replaced = [old for new, old in zip(chain(*now), chain(*self.buffers), strict=True) if new is not old]
        held = {id(b) for part in self.modules for b in part._buffers.values()} if replaced else set()
        if any(id(old) in held for old in replaced) or _forms(now) != self.forms:
            raise Invalid("a pass must not remove, resize or untie persistent buffers. Change them in place.")

    def _take_over(self) -> None:
        """Copy parameters that got memory of their own to x, and make them views of it again."""
        named = zip(compress(self.names, self.is_wide), self.wide, self.wide_parts, strict=True)
        moved, others = [each for each in named if not each[1].is_set_to(each[2])], list(arrays(self.module))
        for name, p, part in moved:
            if (p.shape, p.dtype, p.is_contiguous()) != (part.shape, part.dtype, True):
                got = f"`{name}` as {p.dtype} {list(p.shape)} with the strides {p.stride()}"
                raise Invalid(f"a pass must leave parameters in their form, {part.dtype} and contiguous, got {got}.")
            if both := shared({name: p, "x": part}, others):
                rule = f"a pass gave `{name}` other memory, which must share none with others"
                got = f"`{both[0]}` and `{both[1]}`"
                raise Invalid(f"{rule}, got {got}. Change it in place: weight.data.copy_(values).")
        for part, values in [(part, p.detach().clone()) for _, p, part in moved]:
            part.copy_(values)
        for _, p, part in moved:
            p.data = part


def _as_parameters(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a vector in the shapes of the parameters."""
    shapes = [p.shape for p in parameters]
    return [part.view(shape) for part, shape in zip(torch.split(flat, [*map(math.prod, shapes)]), shapes, strict=True)]


def _versions(module_buffers: ModuleBuffers) -> tuple[Any, ...]:
    return tuple((id(flat), flat._version, flat.data_ptr()) for flat in module_buffers)


def _forms(groups: list[list[Tensor]]) -> list[Any]:
    return [None if b is None else (b.shape, b.dtype) for group in groups for b in group]


def _mark(p: Tensor) -> tuple[int, int]:
    return p._version, p.data_ptr() if p.layout == torch.strided else 0


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
    return copied_together([module], share_frozen=share_frozen)[0]


def copied_together(modules: Sequence[nn.Module], *, share_frozen: bool) -> list[nn.Module]:
    """Deep copies of modules that may refer to each other."""
    frozen = [p for module in modules for p in module.parameters() if not p.requires_grad] if share_frozen else []
    copies: dict[int, Any] = {id(p): p for p in frozen}
    try:
        clones = copy.deepcopy(list(modules), copies)
    except RuntimeError as error:
        fix = "Replace torch.nn.utils.weight_norm, for example, by torch.nn.utils.parametrizations.weight_norm."
        raise Invalid(f"a module must be one that can be copied: {type_and_first_line(error)}. {fix}") from error
    for part in (part for clone in clones for part in clone.modules()):
        own = vars(part)
        for table in (own, *(value for value in own.values() if isinstance(value, dict))):  # hooks are in dicts
            table.update({k: _rebound(value, copies) for k, value in table.items() if isinstance(value, FunctionType)})
    for module, clone in zip(modules, clones, strict=True):
        if _ties(clone) != _ties(module):
            raise Invalid(f"a deep copy must keep tied weights tied, got {type(module).__name__}, which unties them.")
    return clones


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


def compile_in_place(module: nn.Module) -> None:
    """Compile the module's calls, at the first one; where that fails, it runs uncompiled, and a warning says why."""
    module.compile()
    compiled: Any = module._compiled_call_impl
    failed = False

    def call(*inputs: Any, **named: Any) -> Any:
        nonlocal failed
        if not failed:
            from torch._dynamo.exc import TorchDynamoException  # slow to import, and only needed here

            try:
                return compiled(*inputs, **named)
            except TorchDynamoException as error:
                failed = True
                what = f"{type(module).__name__} cannot be compiled here and runs uncompiled"
                warnings.warn(f"{what} ({type_and_first_line(error)}).", stacklevel=2)
        return module._call_impl(*inputs, **named)  # type: ignore[no-untyped-call]

    module._compiled_call_impl = call


def trainable(module: nn.Module, *, ties: bool = False) -> dict[str, nn.Parameter]:
    """The parameters in the vector, in the module's order; tied ones once, under their first name, or under all."""
    return {name: p for name, p in module.named_parameters(remove_duplicate=not ties) if p.requires_grad}


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
    names, at, slices = trainable(module), 0, dict[int, slice]()
    for p in names.values():
        slices[id(p)], at = slice(at, at + p.numel()), at + p.numel()
    found = parameter_groups(module) if callable(parameter_groups) else None
    if not isinstance(found, Sequence) or not all(isinstance(each, Mapping) and "params" in each for each in found):
        rule = "`parameter_groups` must be a function of the module to a list of groups, each a dict with `params`"
        raise Invalid(f"{rule}, got {parameter_groups if found is None else found!r:.80}.")
    groups = []
    for given in found:
        options = {key: value for key, value in given.items() if key != "params"}
        if "lr" in options:
            got = f"lr={options['lr']!r} in one"
            raise Invalid(f"parameter groups have the method's `local_lr`, got {got}. Leave it out.")
        params = [given["params"]] if isinstance(given["params"], Tensor) else given["params"]
        own = [item[1] if isinstance(item, tuple) else item for item in params]  # pairs have names
        parts = [slices.pop(id(p), None) for p in own if not isinstance(p, Tensor) or p.requires_grad]
        if None in parts:
            raise Invalid("every parameter of a group must be one of the module's, and in one group only.")
        groups.append(ParameterGroup(tuple(part for part in parts if part), options))
    if slices:
        missing = next(name for name, p in names.items() if id(p) in slices)
        raise Invalid(f"every trainable parameter must be in a parameter group, and `{missing}` is in none.")
    return tuple(group for group in groups if group.slices)


def check(module: nn.Module, loss: Any = None) -> None:
    """Raise `Invalid` for a module that cannot be bound to flat vectors, or shares memory with what its loss holds."""
    name = type(module).__name__
    if lazy := [n for n, p in module.named_parameters() if is_lazy(p)]:
        raise Invalid(f"parameters must have a shape, got lazy `{lazy[0]}` in {name}. Run one forward pass first.")
    parameters, every = trainable(module), dict(module.named_parameters()) | dict(module.named_buffers())
    if bad := [n for n, t in every.items() if t.layout != torch.strided or t.is_meta]:
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
    if both := shared(parameters | floats | ints, [*arrays(module), *arrays_of(loss)]):
        fix = (
            "Tie weights as one Parameter under both names; give other tensors and arrays memory of their own: clone()."
        )
        raise Invalid(f"`{both[0]}` and `{both[1]}` share memory, which copies of a module lose. {fix}")


def _ties(module: nn.Module) -> list[tuple[str, str]]:
    """(name, first name of the same parameter) for every trainable parameter."""
    first = {id(p): name for name, p in module.named_parameters()}
    return [(n, first[id(p)]) for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
