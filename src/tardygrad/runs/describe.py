"""What a record says about a run besides its settings: the label of its method, versions, and the clients' ids."""

from __future__ import annotations

import platform
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from tardygrad.core.algorithm import downplay
from tardygrad.core.method import Method
from tardygrad.errors import Invalid


def label(method: Method) -> str:
    """The name of a method in tables and figures.

    >>> from tardygrad.methods.clip2 import clip2
    >>> label(clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.1, buffer=4, local_steps=5, downplay=True))
    'SD-Clip²'
    """
    compensated = method.compensate and not method.curvature  # otherwise the name says so already
    prefixes = {"sync-": method.mode == "sync", "SD-": method.weight is downplay, "DC-": compensated}
    return "".join(prefix for prefix, holds in prefixes.items() if holds) + method.name


def versions() -> dict[str, str]:
    """The versions of packages, and the number of torch threads, that a run's bits may depend on."""
    return {
        "tardygrad": version("tardygrad"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": str(torch.get_num_threads()),
    }


def check_ids(recorded: list[str] | None, ids: tuple[str, ...] | None, path: Path) -> None:
    """Raise `Invalid` if a task's clients are not those of a record."""
    for client, (was, now) in enumerate(zip_longest(recorded or (), ids or ())):
        if recorded and was != now:
            rule = f"the task's clients must be those of the run in {str(path)!r}, in the same order"
            raise Invalid(f"{rule}, got {now!r} as client {client} in place of {was!r}.")
