"""Settings of torch for the whole process, which a user's own code may change in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_default_device, lambda device: torch.set_default_device(device if device.type != "cpu" else None)),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (lambda: _MATMUL.fp32_precision, lambda name: setattr(_MATMUL, "fp32_precision", name)),
)
"""How each setting is read, and how it is set."""


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore torch's settings at the end: what a job or an evaluation changes must not reach the next one."""
    before = [read() for read, _ in _SETTINGS]
    try:
        yield
    finally:
        for (read, write), value in zip(_SETTINGS, before, strict=True):
            if read() != value:
                write(value)
