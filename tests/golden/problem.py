"""The problem that oracle and library both solve: a quadratic per client, with noise that is a table and not a draw.

Every number is a float32, so both sides start from the same values; the noise is a formula in whole numbers, so it is
the same on every machine and with every version of NumPy. Only `Task`, the library's side, is of tardygrad.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import tardygrad as tg


@lru_cache(maxsize=4096)
def table(*key: int, size: int) -> NDArray[np.float32]:
    """Numbers for a key, symmetric about 0, most of them below 1 and a few up to 20: tails for the clips to cut."""
    state, out = 1, []
    for number in (*key, *range(size)):
        state = (state + number + 1) * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        state ^= state >> 29
        out.append((state >> 32) / 2**31 - 1)
    u = np.array(out[len(key) :])
    return (u / (1.05 - abs(u))).astype(np.float32)


class Problem(NamedTuple):
    """g = h ⊙ (x − c_i) + noise(i, serial, k)."""

    seed: int
    clients: int
    dimension: int

    @property
    def x0(self) -> NDArray[np.float32]:
        return table(self.seed, 0, size=self.dimension)

    @property
    def h(self) -> NDArray[np.float32]:
        return (0.2 + abs(np.tanh(table(self.seed, 1, size=self.dimension)))).astype(np.float32)

    def c(self, client: int) -> NDArray[np.float32]:
        return table(self.seed, 2, client, size=self.dimension)

    def noise(self, client: int, serial: int, k: int) -> NDArray[np.float32]:
        return table(self.seed, 3, client, serial, k, size=self.dimension)

    def gradient(self, client: int, serial: int, k: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The oracle's, in float64."""
        h, c, noise = (v.astype(np.float64) for v in (self.h, self.c(client), self.noise(client, serial, k)))
        return h * (x - c) + noise


class Task(tg.Task):
    """The library's side, in float32."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.clients, self.parameters = problem, problem.clients, problem.dimension
        self.h = torch.from_numpy(problem.h)

    def init(self, seed: int) -> Tensor:
        return torch.from_numpy(self.problem.x0)

    def batches(self, job: Any) -> Iterator[tuple[int, int, int]]:
        for k in range(job.steps):
            yield job.client, job.serial, k

    def gradient(self, x: Tensor, batch: tuple[int, int, int], module_buffers: None) -> tuple[Tensor, Tensor]:
        off = x - torch.from_numpy(self.problem.c(batch[0]))
        g = self.h * off + torch.from_numpy(self.problem.noise(*batch))
        return 0.5 * torch.dot(self.h * off, off), g

    def evaluate(self, x: Tensor, module_buffers: None) -> dict[str, float]:
        return {"loss": float(torch.linalg.vector_norm(x))}
