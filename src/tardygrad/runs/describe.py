"""What a record says about a run besides its settings: the label of its method, and versions."""

from __future__ import annotations

import platform
from importlib.metadata import version

import numpy as np
import torch

from tardygrad.core.algorithm import downplay
from tardygrad.core.method import Method


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
