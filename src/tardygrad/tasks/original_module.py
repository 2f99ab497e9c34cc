"""Own functions that use the module which the task was given, in place of the copy that the task trains.

Whether a function refers to that module is seen in its closure and globals; whether it uses its parameters, and does
not only read a setting of it, is seen in its first call.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tardygrad.errors import Invalid

MOST_ITEMS = 100  # of a list or dict, in which a module is looked for
_HARMLESS = {"__get__", "__deepcopy__", "__hash__", "__repr__", "numel", "size", "dim", "element_size"}
"""Functions of torch that read no values of a tensor, or copy it on purpose."""
_OVERWRITES = {Tensor.copy_, Tensor.data.__set__}  # type: ignore[attr-defined]


class FirstCallChecked:
    """A function of the user's whose first call must not use some parameters."""

    def __init__(self, function: Callable[..., Any], name: str, module: nn.Module) -> None:
        self.function, self.name, self.module, self.checked = function, name, module, False
        self.__signature__ = inspect.signature(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.checked:
            return self.function(*args, **kwargs)
        with _Refused(self.name, self.module):
            result = self.function(*args, **kwargs)
        self.checked = True
        return result


class _Refused(TorchFunctionMode):
    """Raises `Invalid` if a function of torch gets a parameter of a module."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name, self.parameters = name, {id(p): n for n, p in module.named_parameters() if p.requires_grad}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OVERWRITES:  # as `load_state_dict` does: then the values are those that the function chose
            self.parameters.pop(id(args[0]), None)
        if getattr(func, "__name__", "") not in _HARMLESS:
            for value in tree_leaves((args, kwargs)):
                if id(value) in self.parameters:
                    rule = (
                        f"`{self.name}` must use the module that it is given, a copy of yours with the trained weights"
                    )
                    fix = "Use its argument; copy.deepcopy(module) before the task keeps the first weights."
                    raise Invalid(f"{rule}, got `{self.parameters[id(value)]}` of your own. {fix}")
        return func(*args, **(kwargs or {}))


def checked_once(function: Any, name: str, module: nn.Module | None) -> Any:
    """The function; checked in its first call if it refers to a module or to a part of it."""
    if module is None or isinstance(function, FirstCallChecked):
        return function
    parts = {id(part) for part in module.modules()} | {id(p) for p in module.parameters()}
    if callable(function) and any(id(value) in parts for value in _referred(function)):
        return FirstCallChecked(function, name, module)
    return function


def _referred(value: Any, depth: int = 4) -> Iterator[Any]:
    """What a function refers to: its closure, defaults and globals, and those of functions among them."""
    yield value
    if not depth or isinstance(value, nn.Module | type):
        return
    inside: list[Any] = []
    if isinstance(value, partial):
        inside = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, MethodType):
        inside = [value.__self__, value.__func__]
    elif isinstance(value, FunctionType):
        inside = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        for cell in value.__closure__ or ():
            try:
                inside.append(cell.cell_contents)
            except ValueError:  # not set yet
                continue
        known = [value.__globals__[name] for name in set(_globals(value.__code__)) if name in value.__globals__]
        inside += [
            referent
            for referent in known
            if not isinstance(referent, FunctionType) or referent.__globals__ is value.__globals__
        ]
    elif isinstance(value, list | tuple | dict):
        inside = list(islice(value.values() if isinstance(value, dict) else value, MOST_ITEMS))
    elif callable(value):
        inside = list(getattr(value, "__dict__", {}).values())
    for each in inside:
        yield from _referred(each, depth - 1)


def _globals(code: CodeType) -> Iterator[str]:
    """The names of the globals that a function and those inside it load."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
