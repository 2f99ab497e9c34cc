"""Nested data as JSON and tensors: what a checkpoint stores.

Each tensor is stored once, however often the data refers to it. Long lists of numbers or of rows are stored as one
array for each column, because a fleet of a million clients has as many jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tardygrad.core.hierarchy import RegionMessage
from tardygrad.core.messages import Job, ModuleBuffers, StateReference, Taken, Update
from tardygrad.engines.contract import Pending

LONG = 1000  # a list with this many items is stored as arrays, if their types allow it
TYPES: dict[str, Any] = {
    f"${kind.__name__}": kind for kind in (Job, ModuleBuffers, Pending, RegionMessage, StateReference, Taken, Update)
}
DTYPES: dict[type, Any] = {int: np.int64, float: np.float64}


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Turn nested data into JSON; its tensors are added to `tensors`, each once, and referred to by name.

    >>> pack({"jobs": {3: (0, math.nan)}}, {})
    {'jobs': {'$items': [[3, {'$tuple': [0, {'$float': 'nan'}]}]]}}
    >>> pack([1] * LONG, {}), pack(list(range(LONG)), {}), pack([(1.5, client) for client in range(LONG)], {})
    ({'$repeat': [1000, 1]}, {'$array': '0'}, {'$rows': ['$tuple', [{'$repeat': [1000, 1.5]}, {'$array': '0'}]]})
    """
    names: dict[int, str] = {id(tensor): name for name, tensor in tensors.items()}

    def name_of(tensor: Tensor) -> str:
        name = names.setdefault(id(tensor), str(len(names)))
        tensors[name] = tensor
        return name

    def packed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return {"$tensor": name_of(value)}
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": repr(value)}
        if (kind := f"${type(value).__name__}") in TYPES:
            return {kind: {name: packed(item) for name, item in value._asdict().items()}}
        if isinstance(value, tuple):
            return {"$tuple": as_list(value)}
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {name: packed(item) for name, item in value.items()}
        if isinstance(value, dict):
            pairs = list(value.items())
            return {"$items": as_arrays(pairs) or [[packed(name), packed(item)] for name, item in pairs]}
        return as_list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value

    def as_list(items: Sequence[Any]) -> Any:
        return as_arrays(items) or [packed(item) for item in items]

    def as_arrays(items: Sequence[Any]) -> dict[str, Any] | None:
        """The arrays of a long list whose items have one type; None for any other list."""
        if len(items) < LONG or len(kinds := set(map(type, items))) > 1:
            return None
        first: Any = items[0]
        (kind,) = kinds
        if all(item is first for item in items):
            return {"$repeat": [len(items), packed(first)]}
        if kind in DTYPES:
            try:
                return {"$array": name_of(torch.from_numpy(np.array(items, DTYPES[kind])))}
            except OverflowError:  # an integer of more than 64 bits
                return None
        if kind is Tensor:
            numbers: dict[int, int] = {}
            chosen = [numbers.setdefault(id(item), len(numbers)) for item in items]
            distinct = dict(zip(chosen, items, strict=True)).values()
            return {"$choice": [packed(chosen), [packed(item) for item in distinct]]}
        if f"${kind.__name__}" in TYPES or (kind is tuple and first and len(set(map(len, items))) == 1):
            name = "$tuple" if kind is tuple else f"${kind.__name__}"
            columns = [packed(list(map(itemgetter(index), items))) for index in range(len(first))]
            return {"$rows": [name, columns if kind is tuple else dict(zip(first._fields, columns, strict=True))]}
        return None

    return packed(value)


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `pack`."""

    def unpacked(value: Any) -> Any:
        if isinstance(value, list):
            return [unpacked(item) for item in value]
        if not isinstance(value, dict):
            return value
        content: Any
        kind, content = next(iter(value.items()), ("", None))
        if not kind.startswith("$"):
            return {name: unpacked(item) for name, item in value.items()}
        if kind in TYPES:
            return TYPES[kind](**unpacked(content))
        match kind:
            case "$tensor":
                return tensors[str(content)]
            case "$float":
                return float(str(content))
            case "$array":
                return tensors[str(content)].tolist()
            case "$repeat":
                return [unpacked(content[1])] * int(content[0])
            case "$choice":
                chosen, items = unpacked(content)
                return [items[number] for number in chosen]
            case "$rows":
                name, columns = content[0], unpacked(content[1])
                lists = columns if name == "$tuple" else list(columns.values())
                rows = zip(*lists, strict=True)
                return list(rows) if name == "$tuple" else list(starmap(TYPES[name], rows))
        items = unpacked(content)
        return tuple(items) if kind == "$tuple" else dict(items)

    return unpacked(value)
