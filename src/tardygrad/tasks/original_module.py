"""Own functions that use the module which the task was given, in place of the copy that the task trains.

Whether a function refers to that module is seen in its closure and globals; whether it uses its parameters, and does
not only read a setting of it, is seen in its first call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tardygrad.errors import Invalid
from tardygrad.tasks.module_state import referred

_HARMLESS = {"__get__", "__deepcopy__", "__hash__", "__repr__", "numel", "size", "dim", "element_size"}
"""Functions of torch that read no values of a tensor, or copy it on purpose."""
_OVERWRITES = {Tensor.copy_, Tensor.data.__set__}  # type: ignore[attr-defined]


def checked_once(function: Any, name: str, module: nn.Module | None) -> Any:
    """The function; checked in its first call if it refers to a module or to a part of it."""
    if module is None or not callable(function) or isinstance(function, FirstCallChecked):
        return function
    parts = {id(part) for part in (*module.modules(), *module.parameters())}
    refers = any(id(value) in parts for value in islice(referred(function, into_globals=True), 10_000))
    return FirstCallChecked(function, name, module) if refers else function


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
        used = () if getattr(func, "__name__", "") in _HARMLESS else tree_leaves((args, kwargs))
        if own := next((self.parameters[id(value)] for value in used if id(value) in self.parameters), ""):
            rule = f"`{self.name}` must use the module that it is given, a copy of yours with the trained weights"
            fix = "Use its argument; copy.deepcopy(module) before the task keeps the first weights."
            raise Invalid(f"{rule}, got `{own}` of your own. {fix}")
        return func(*args, **(kwargs or {}))
