"""Handwritten digits and a small network: real images, trained in seconds, with nothing to download.

scikit-learn's digits, 1,797 images of 8 × 8 pixels (E. Alpaydin, C. Kaynak. UCI, 1998).
"""

from __future__ import annotations

from functools import cache, partial
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from tardygrad import streams
from tardygrad.constructors import constructor
from tardygrad.errors import check_choice, check_integer
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.sharding import SplitSettings, shard
from tardygrad.tasks.nets import ViT, check_sizes
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask

Model = Literal["vit", "mlp"]
"""A vision transformer, or a perceptron."""

_TEST = 360


@constructor(passes_to=(TorchTask, shard))
def digits(
    *,
    clients: int,
    model: Model = "vit",
    dim: int = 32,
    depth: int = 2,
    heads: int = 4,
    patch: int = 2,
    batch_size: int = 16,
    noise: Noise | None = None,
    validation_rows: int = 0,
    score_on: ScoreOn = "test",
    seed: int = 0,
    **split: Unpack[SplitSettings],
) -> TorchTask:
    """Handwritten digits: 1,437 training images split over clients, a fixed test set of 360, and a small network.

    Args:
        model: "vit", a vision transformer, or "mlp", a perceptron, which is about ten times faster.
        dim: width of the network.
        depth: blocks of the transformer, or hidden layers of the perceptron.
        heads: attention heads of the transformer; must divide `dim`.
        patch: side of the transformer's patches in pixels; must divide 8.
        validation_rows: how many training images to set apart.
        score_on: evaluate on the "test" images, or on the "validation" images, to choose settings by.
        seed: draws the split; x_0 depends on the seed of the run.

    >>> digits(clients=40)
    TorchTask(ViT, parameters=18154, clients=40)
    """
    check_integer("clients", clients)
    check_choice("model", model, Model)
    if model == "vit":
        check_sizes(dim=dim, depth=depth, heads=heads, patch=patch, shape=(1, 8, 8))
    images, labels = _images()
    train, test = set_apart(
        (images[_TEST:], labels[_TEST:]), (images[:_TEST], labels[:_TEST]), validation_rows, score_on
    )
    return TorchTask(
        partial(ViT, dim=dim, depth=depth, heads=heads, patch=patch) if model == "vit" else partial(mlp, dim, depth),
        loss=nn.functional.cross_entropy,
        data=shard(train, clients=clients, seed=seed, **split),
        test=test,
        batch_size=batch_size,
        noise=noise,
    )


def mlp(dim: int, depth: int) -> nn.Module:
    """A perceptron with `depth` hidden layers of width `dim`.

    >>> mlp(64, 2)(torch.zeros(5, 8, 8)).shape
    torch.Size([5, 10])
    """
    check_integer("dim", dim)
    check_integer("depth", depth)
    layers: list[nn.Module] = [nn.Flatten()]
    for wide in (64, *[dim] * (depth - 1)):
        layers += [nn.Linear(wide, dim), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(dim, 10))


@cache
def _images() -> tuple[Tensor, Tensor]:
    """All images in a fixed random order, so that every run has the same test set."""
    from sklearn.datasets import load_digits  # takes a second to import

    raw = load_digits()
    order = torch.from_numpy(streams.generator(0, "digits").permutation(len(raw.target)))
    return torch.from_numpy(raw.images / 16.0).float()[order], torch.from_numpy(raw.target).long()[order]
