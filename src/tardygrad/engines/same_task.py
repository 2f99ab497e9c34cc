"""Whether two tasks are the same: in one process by how they were made, in two by their sizes and frozen tensors."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tardygrad.constructors import call_of
from tardygrad.core.task import Task
from tardygrad.errors import Invalid


def is_same(ours: object, theirs: object) -> bool:
    """Whether two objects are one, or were made by the same call with the same arguments."""
    if ours is theirs:
        return True
    first, second = call_of(ours), call_of(theirs)
    if first is not None and second is not None:
        return first.function == second.function and _equal(first.arguments, second.arguments)
    return False


def _equal(ours: Any, theirs: Any) -> bool:
    if is_same(ours, theirs):
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(_equal(value, theirs[key]) for key, value in ours.items())
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    if isinstance(ours, Tensor):
        return torch.equal(ours, theirs)
    if isinstance(ours, np.ndarray):
        return np.array_equal(ours, theirs)
    try:
        return bool(ours == theirs)
    except (RuntimeError, TypeError, ValueError):  # own objects that hold tensors or arrays
        return False


def facts(task: Task) -> dict[str, int]:
    """Numbers that agree if two processes have the same task: its sizes, and checksums of what is not in the vector."""
    sizes = {"clients": task.clients, "parameters": task.parameters}
    return sizes | {name: _checksum(tensor) for name, tensor in task.frozen().items()}


def check_same(task: Task, expected: dict[str, int]) -> None:
    """Raise `Invalid` unless a worker's task has the facts of the driver's."""
    found = facts(task)
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            rule = f"a worker must make the same task as the driver, and its `{name}` differs"
            fix = "Read the same files, and pass the module as a function, which is then seeded."
            raise Invalid(f"{rule}. {fix}")


def _checksum(tensor: Tensor) -> int:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0
