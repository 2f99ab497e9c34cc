"""Logistic regression on synthetic data: convex, a few parameters, and with noise as heavy as you like."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from tardygrad import streams
from tardygrad.constructors import constructor
from tardygrad.errors import check_integer
from tardygrad.tasks.data.sharding import shard
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask


@constructor(passes_to=(TorchTask, shard))
def logistic(
    *,
    clients: int,
    samples: int = 2000,
    dimension: int = 20,
    batch_size: int = 16,
    concentration: float | None = None,
    noise: Noise | None = None,
    seed: int = 0,
) -> TorchTask:
    """Two classes, P(class 1 | a) = σ(4 ⟨a, w⟩) with Gaussian a and a random unit w; a linear layer with two logits.

    The best possible accuracy is about 0.87. The test set has `samples` rows of its own.

    Args:
        samples: rows of training data, over all clients.
        dimension: number of features, the length of a.
        concentration: of the clients' Dirichlet mix of labels, see `shard`; None is iid.
        seed: draws the data and their split.

    >>> logistic(clients=10)
    TorchTask(Linear, parameters=42, clients=10)
    """
    check_integer("clients", clients)
    check_integer("samples", samples)
    check_integer("dimension", dimension)
    rng = streams.generator(seed, "logistic")
    w = rng.standard_normal(dimension)
    a = rng.standard_normal((2 * samples, dimension))
    odds = 4.0 * a @ w / math.sqrt(w @ w)
    inputs = torch.from_numpy(a).float()
    target = torch.from_numpy(rng.logistic(size=2 * samples) < odds).long()
    train, test = (inputs[:samples], target[:samples]), (inputs[samples:], target[samples:])
    return TorchTask(
        partial(nn.Linear, dimension, 2),
        loss=nn.functional.cross_entropy,
        data=shard(train, clients=clients, concentration=concentration, seed=seed),
        test=test,
        batch_size=batch_size,
        noise=noise,
    )
