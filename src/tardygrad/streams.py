"""Random streams, keyed by their purpose and never by the order of execution.

A key is (seed, purpose, numbers...), for example (0, "batches", client, serial). The same key gives the same numbers in
every engine, in every process and after every crash; different keys give independent numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from tardygrad.errors import check_integer

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio: SplitMix64's increment


@lru_cache(maxsize=1024)
def _root(seed: int, purpose: str) -> int:
    check_integer("seed", seed, 0, math.inf)
    return int.from_bytes(blake2b(f"{seed}:{purpose}".encode(), digest_size=8).digest(), "big")


def key(seed: int, purpose: str, *numbers: int) -> int:
    """A 64-bit key for the stream (seed, purpose, numbers...): SplitMix64's finaliser, applied once per number."""
    z = _root(seed, purpose)
    for number in numbers:
        z = (z + _GOLDEN * (number + 1)) & _MASK
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        z ^= z >> 31
    return z


def uniform(seed: int, purpose: str, *numbers: int) -> float:
    """One number in [0, 1), the only draw of its stream; fast enough for a simulated clock (a million per second)."""
    return (key(seed, purpose, *numbers) >> 11) * 2.0**-53


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A NumPy generator for streams of more than one number."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *numbers)))
