"""A quadratic per client: the smallest task with delays, heterogeneity and heavy tails."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.constructors import constructor
from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.core.task import Task
from tardygrad.errors import check_integer, check_number
from tardygrad.tasks.noise import Noise


class Draw(NamedTuple):
    """A batch: the noise itself."""

    client: int  # i
    noise: Vector | None  # ξ_{i,k}; None is zero


class Quadratic(Task):
    """F_i(x) = ½ Σ_j h_j (x_j − c_ij)²; see `quadratic`."""

    def __init__(self, h: Vector, c: Tensor, noise: Noise | None) -> None:
        self.h, self.c, self.noise = h, c, noise
        self.clients, self.parameters = c.shape
        self.optimum = c.double().mean(0)  # x*: F is the mean of the F_i, and they share h

    def __repr__(self) -> str:
        return f"Quadratic(clients={self.clients}, dimension={self.parameters}, noise={self.noise})"

    def init(self, seed: int) -> Vector:
        """x_0, at distance √d from the optimum in a random direction."""
        away = torch.from_numpy(streams.generator(seed, "init").standard_normal(self.parameters))
        away *= math.sqrt(self.parameters) / torch.linalg.vector_norm(away)
        return (self.optimum + away).float()

    def batches(self, job: Job) -> Iterator[Draw]:
        rng = job.stream("noise") if self.noise else None
        for _ in range(job.steps or job.epochs or 0):
            yield Draw(job.client, self.noise.draw(rng, self.parameters) if self.noise and rng else None)

    def gradient(self, x: Vector, batch: Draw, module_buffers: ModuleBuffers | None) -> tuple[Tensor, Vector]:
        """F_i(x) without the noise, and the gradient h ⊙ (x − c_i) + ξ."""
        off = x - self.c[batch.client]
        g = self.h * off
        value = 0.5 * torch.dot(g, off)
        return value, g if batch.noise is None else g.add_(batch.noise)

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """F(x) − F* and ‖x − x*‖₂."""
        off = x.double() - self.optimum
        return {
            "loss": float(0.5 * (self.h * off * off).sum()),
            "distance": float(torch.linalg.vector_norm(off)),
        }

    def evaluates_on(self) -> str:
        return "training"

    def evaluate_client(self, client: int, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """F_i(x)."""
        off = x - self.c[client]
        return {"loss": float(0.5 * torch.dot(self.h * off, off))}


@constructor
def quadratic(
    *,
    clients: int,
    dimension: int = 100,
    condition: float = 10.0,
    heterogeneity: float = 0.0,
    noise: Noise | None = None,
    seed: int = 0,
) -> Quadratic:
    """F = (1/N) Σ_i F_i with F_i(x) = ½ Σ_j h_j (x_j − c_ij)², and gradients h ⊙ (x − c_i) + ξ.

    There are no data, so an epoch is one step.

    Args:
        clients: number of clients, N.
        dimension: number of coordinates, d.
        condition: ratio of the largest h_j to the smallest; they fall geometrically from 1.
        heterogeneity: standard deviation of the clients' optima c_i, in every coordinate.
        noise: ξ, added to every gradient; None is exact gradients.
        seed: draws the c_i.

    >>> quadratic(clients=4, dimension=10)
    Quadratic(clients=4, dimension=10, noise=None)
    """
    check_integer("clients", clients)
    check_integer("dimension", dimension)
    check_number("condition", condition, least=1.0)
    check_number("heterogeneity", heterogeneity)
    h = torch.logspace(0.0, -math.log10(condition), dimension)
    c = torch.from_numpy(streams.generator(seed, "optima").standard_normal((clients, dimension))) * heterogeneity
    return Quadratic(h, c.float(), noise)
