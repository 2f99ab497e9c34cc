"""Whether two processes have the same task: its sizes, and what is not in the vector that the server sends."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from tardygrad.core.task import HasFrozen, Task
from tardygrad.errors import Invalid


def facts(task: Task) -> dict[str, int]:
    """Numbers that agree if two processes have the same task: its sizes, and checksums of what is not in the vector."""
    frozen = task.frozen() if isinstance(task, HasFrozen) else {}
    sizes = {"clients": task.clients, "parameters": task.parameters}
    return sizes | {name: _checksum(tensor) for name, tensor in frozen.items()}


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
