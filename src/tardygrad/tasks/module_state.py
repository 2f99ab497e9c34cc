"""What modules hold besides parameters and persistent buffers: attributes, lists, objects, hooks, constant tensors.

A job is a plain loop over a fresh copy of the module, so what passes leave there lasts until the job ends. A copy
serves the next job only if it is known to be as it was.
"""

from __future__ import annotations

import gc
import random  # noqa: TID251 (only its type is used)
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = {int, float, complex, bool, str, bytes, type(None), range, slice}
_CONSTANT = (
    Enum, type, ModuleType, FunctionType, BuiltinFunctionType, weakref.ref, nn.Parameter,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""Values that are the same as long as the object is; parameters are looked at by themselves."""


Array = Tensor | np.ndarray[Any, Any]


class PlainState:
    """What some modules hold now, to be compared with what they hold later.

    Args:
        modules: by the name that goes before those of their attributes.
        bound: tensors that are not part of it.
    """

    def __init__(self, modules: Mapping[str, nn.Module], bound: Iterable[Tensor] = ()) -> None:
        self.known = True  # whether every change of a value can be seen
        self._tables: list[tuple[str, Mapping[Any, Any], Any]] = []
        self._contents: list[tuple[str, Callable[[], Any], Any]] = []
        self._seen = {id(tensor) for tensor in bound}
        self._seen |= {id(part) for module in modules.values() for part in module.modules()}  # have tables of their own
        for prefix, module in modules.items():
            for path, part in module.named_modules(prefix=prefix):
                self._add(path, vars(part))

    def changed(self) -> str:
        """The name of something that has changed; empty if nothing has."""
        for path, now, then in self._tables:
            if not _equal(now, then):
                return f"{path}.{_difference(now, then)}".strip(".")
        return next((name for name, read, then in self._contents if read() != then), "")

    def _add(self, path: str, table: Mapping[Any, Any]) -> None:
        names = {key: f"{path}.{key}".strip(".") for key in table}
        self._tables.append((path, table, {key: self._value(names[key], value) for key, value in table.items()}))

    def _value(self, name: str, value: Any) -> Any:
        """The value with copies of the lists and tables in it, which can be compared with what they are later."""
        if type(value) in _PLAIN or isinstance(value, _CONSTANT) or id(value) in self._seen:
            return value
        if isinstance(value, MethodType):
            self._value(name, value.__self__)
            return value
        if isinstance(value, nn.Module):  # in a plain list, say: its parameters are nobody's
            self.known = False
            return value
        self._seen.add(id(value))
        if isinstance(value, dict):
            return {key: self._value(name, item) for key, item in value.items()}
        if isinstance(value, list | tuple | deque | set | frozenset):
            items = [self._value(name, item) for item in value]
            return items if isinstance(value, list) else tuple(items) if isinstance(value, tuple) else value.copy()
        if read := _content(value):
            self._contents.append((name, read, read()))
        elif _is_plain(value):
            self._add(name, vars(value))
        else:
            self.known = False
        return value


def _difference(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> str:
    """The name of something that differs, in tables of tables such as the buffers of a module."""
    for name in {**now, **then}:
        if name not in now or name not in then:
            return str(name)
        if not _equal(now[name], then[name]):
            inside = name in ("_buffers", "_parameters", "_modules")
            return _difference(now[name], then[name]) if inside else str(name)
    return ""


def _equal(now: Any, then: Any) -> bool:
    try:
        return bool(now == then)
    except (RuntimeError, TypeError, ValueError):  # of other tensors and arrays
        return False


def _is_plain(value: Any) -> bool:
    """Whether all that an object holds is in its `__dict__`."""
    kind = type(value)
    own = [
        name
        for base in kind.__mro__[:-1]
        for name in ("__reduce__", "__reduce_ex__", "__slots__")
        if vars(base).get(name)
    ]
    return hasattr(value, "__dict__") and not own


def _content(value: Any) -> Callable[[], Any] | None:
    """A function that reads the content of a value of a known kind."""
    if isinstance(value, Tensor):
        return lambda: fingerprint(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.tobytes
    if isinstance(value, torch.Generator):
        return lambda: value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return lambda: repr(value.bit_generator.state)
    return value.getstate if isinstance(value, random.Random) else None


def fingerprint(tensor: Tensor) -> tuple[Any, ...]:
    """What tells whether a tensor has changed, even through `.data`: one pass over its bits, if it is dense."""
    facts = tensor.shape, tensor.dtype, tensor.requires_grad
    if tensor.layout != torch.strided or tensor.is_meta:
        return *facts, None if tensor.is_inference() else tensor._version
    values = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().view(-1).view(torch.uint8)
    return *facts, crc32(values.numpy().data)


def referred(value: Any, *, into_globals: bool = False) -> Iterator[Any]:
    """All objects that a value refers to, but not what is in modules, classes and tensors.

    Args:
        into_globals: whether a function refers to the globals that it names, if these are its own module's.
    """
    seen, inside = set[int](), deque([value])  # the nearest first
    while inside:
        item = inside.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, FunctionType):
            inside += [item.__closure__, item.__defaults__, item.__kwdefaults__]
            named = [item.__globals__.get(name) for name in _names(item.__code__) if into_globals]
            home = item.__globals__
            inside += [each for each in named if not isinstance(each, FunctionType) or each.__globals__ is home]
        elif not isinstance(item, type | ModuleType | nn.Module | Tensor | np.ndarray):
            inside += gc.get_referents(item)


def _names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function and in those inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        yield from _names(inner) if isinstance(inner, CodeType) else ()


def arrays(module: nn.Module) -> Iterator[tuple[str, Array]]:
    """All tensors and arrays that a module refers to, also in lists, objects and closures of functions, with names."""
    for path, part in module.named_modules():
        tables = vars(part) | part._parameters | part._buffers
        for name in tables.keys() - {"_parameters", "_buffers", "_modules"}:
            for item in referred(tables[name]):
                if isinstance(item, Tensor | np.ndarray):
                    yield f"{path}.{name}".strip("."), item


def arrays_of(function: Any) -> Iterator[tuple[str, Array]]:
    """All tensors and arrays that a loss refers to, with names."""
    if isinstance(function, nn.Module):
        yield from ((f"{name} of the loss", array) for name, array in arrays(function))
        return
    for item in islice(referred(function), 10_000):
        if isinstance(item, Tensor | np.ndarray):
            yield "a tensor of the loss", item


def shared(bound: Mapping[str, Tensor], others: Iterable[tuple[str, Array]]) -> tuple[str, str] | None:
    """The names of a bound tensor and of another tensor or array that shares memory with it; None if there is none."""
    known = {id(tensor) for tensor in bound.values()}
    extents = [(*extent, name, True) for name, tensor in bound.items() if (extent := _extent(tensor))]
    rest = [(name, array) for name, array in others if id(array) not in known]
    extents += [(*extent, name, False) for name, array in rest if (extent := _extent(array))]
    end, last, last_bound = 0, "", False
    for first, reach, name, is_bound in sorted(extents, key=lambda item: item[:2]):
        if first < end and (is_bound or last_bound):
            return last, name
        if reach > end:
            end, last, last_bound = reach, name, is_bound
    return None


def _extent(array: Array) -> tuple[int, int] | None:
    """The first address of an array and the one after its last; None if it has no memory of its own."""
    if isinstance(array, np.ndarray):
        return np.lib.array_utils.byte_bounds(array) if array.size else None
    if array.layout != torch.strided or array.is_meta or not array.numel():
        return None
    reach = sum((size - 1) * stride for size, stride in zip(array.shape, array.stride(), strict=True))
    return array.data_ptr(), array.data_ptr() + (reach + 1) * array.element_size()
