"""The global random generators of torch, NumPy and Python, which datasets and modules draw from."""

from __future__ import annotations

import random  # noqa: TID251 (it is seeded and restored here)
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_GENERATOR = threading.RLock()  # all threads share torch's global generator; own functions may nest `keyed`


@contextmanager
def keyed(key: int) -> Iterator[None]:
    """Seed torch's global generator with a key and restore it at the end; one thread at a time."""
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        yield


def restore(state: Tensor) -> None:
    """Restore torch's global generator, when no thread is in `keyed`."""
    with _GENERATOR:
        torch.set_rng_state(state)


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python with a key, and restore them at the end."""
    with keyed(key), others_seeded(key):
        torch.default_generator.manual_seed(key % 2**63)
        yield


@contextmanager
def others_seeded(key: int) -> Iterator[None]:
    """Seed the global generators of NumPy and Python with a key, and restore them at the end. Call it in `keyed`."""
    python, numpy = random.getstate(), np.random.get_state()
    _seed_others(key)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def other_states() -> tuple[Any, bytes, int]:
    """The states of the global generators of Python and NumPy."""
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tobytes(), numpy[2]


def states() -> tuple[Any, ...]:
    """The states of the global generators."""
    return torch.get_rng_state().numpy().tobytes(), *other_states()


def _seed_others(key: int) -> None:
    random.seed(key)
    np.random.seed(key % 2**32)  # noqa: TID251


def seed(key: int) -> None:
    """Seed the global generators."""
    torch.default_generator.manual_seed(key % 2**63)
    _seed_others(key)
