"""What a forward pass changes of a module besides parameters and persistent buffers: attributes, constants, hooks.

They are in no message and no checkpoint, so a step that depended on them would differ in a replay.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_HOOKS = {name for name in vars(nn.Module()) if name.startswith(("_forward_hooks", "_forward_pre_hooks"))}
_OF_ALL_MODULES = vars(nn.Module()).keys() - _HOOKS
_CONTAINERS = (list, dict, OrderedDict, set, deque)
_LARGEST_ARRAY = 2**20  # bytes; the content of a larger NumPy array is not compared


class PlainAttributes:
    """The plain attributes of modules, as they are now.

    Args:
        modules: by the name that goes before those of their attributes.
    """

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._parts = [
            (f"{name}.{path}".strip("."), part)
            for name, module in modules.items()
            for path, part in module.named_modules()
        ]
        self._persistent = {  # those that a pass registers later are in no message
            (id(part), name)
            for _, part in self._parts
            for name in part._buffers.keys() - part._non_persistent_buffers_set
        }
        self._values = [
            (table, name, value, copy.copy(value) if type(value) in _CONTAINERS else None)
            for _, part in self._parts
            for table, name, value in self._attributes(part)
        ]
        self._names = {(id(table), name) for table, name, *_ in self._values}
        self._marks = self._marked()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors among them, also those in lists and dicts."""
        for path, part in self._parts:
            for _, name, value in self._attributes(part):
                inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
                yield from ((f"{path}.{name}".strip("."), t) for t in (value, *inside) if isinstance(t, Tensor))

    def changed(self) -> str | None:
        """The name of one that has changed; None if none has."""
        now = self._marked()
        return next((name for name in {**now, **self._marks} if now.get(name, ()) != self._marks.get(name, ())), None)

    def restore(self) -> None:
        """Set those back that were set to something else; lists, dicts and sets get their items back."""
        for _, part in self._parts:
            for table, name, _ in list(self._attributes(part)):
                if (id(table), name) not in self._names:
                    del table[name]
        for table, name, value, items in self._values:
            if table.get(name, table) is not value:
                table[name] = value
            if items is not None and (items or value):
                value.clear()
                value.extend(items) if isinstance(value, list | deque) else value.update(items)

    def hooks(self) -> int:
        """The number of hooks on forward passes."""
        return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for _, part in self._parts)

    def _marked(self) -> dict[str, Any]:
        """What tells whether an attribute has changed, by name."""
        return {
            f"{path}.{name}".strip("."): _mark(value)
            for path, part in self._parts
            for _, name, value in self._attributes(part)
        }

    def _attributes(self, part: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """(table, name, value) of what a module has besides trainable parameters and its first persistent buffers."""
        own = vars(part)
        yield from ((own, name, value) for name, value in own.items() if name not in _OF_ALL_MODULES)
        others = ((name, value) for name, value in part._buffers.items() if (id(part), name) not in self._persistent)
        yield from ((part._buffers, name, value) for name, value in others)
        yield from ((part._modules, name, value) for name, value in part._modules.items())
        frozen = ((name, p) for name, p in part._parameters.items() if p is not None and not p.requires_grad)
        yield from ((part._parameters, name, p) for name, p in frozen)


def _mark(value: Any, depth: int = 2) -> Any:
    """What differs after a change of a value: its identity, and its content where that can be compared."""
    if value is None or isinstance(value, int | float | str | bytes):
        return repr(value)  # in which nan is like nan
    if isinstance(value, nn.Parameter) and value.requires_grad:
        return id(value)  # its values are those of x
    if isinstance(value, Tensor):
        try:
            return id(value), value._version, value.data_ptr()
        except RuntimeError:  # sparse, made in inference mode, or of torch.func
            return id(value)
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes() if value.nbytes <= _LARGEST_ARRAY and value.dtype != object else None
    if isinstance(value, torch.Generator):
        return id(value), bytes(value.get_state().numpy())
    if isinstance(value, np.random.Generator):
        return id(value), repr(value.bit_generator.state)
    if callable(state := getattr(value, "getstate", None)):  # of a random.Random
        return id(value), state()
    if isinstance(value, dict) and depth:
        return id(value), [(id(key), _mark(item, depth - 1)) for key, item in value.items()]
    if isinstance(value, list | tuple | set | deque) and depth:
        return id(value), [_mark(item, depth - 1) for item in value]
    if depth and not callable(value) and not isinstance(value, nn.Module):
        return id(value), [(name, _mark(item, depth - 1)) for name, item in getattr(value, "__dict__", {}).items()]
    return id(value)
