"""A small convolutional network without buffers, with group normalisation (Y. Wu, K. He. ECCV 2018)."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from tardygrad.errors import check_integer

GRID = 4
"""Side of the feature map before the logits; averaging over all positions learns much more slowly."""


class CNN(nn.Module):
    """Three 3 × 3 convolutions of stride 2, each with group normalisation and ReLU, a 4 × 4 feature map, and logits.

    Args:
        dim: channels of the first convolution; the next two have 2 · dim and 4 · dim.
        channels: of an image.
        classes: number of logits.
        normalize: applied to the images first; None is nothing.

    >>> import torch
    >>> CNN(dim=16, channels=3)(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """

    def __init__(self, *, dim: int, channels: int = 1, classes: int = 10, normalize: nn.Module | None = None) -> None:
        super().__init__()
        check_integer("dim", dim)
        self.normalize = normalize or nn.Identity()
        layers: list[nn.Module] = []
        for wide, wider in pairwise((channels, dim, 2 * dim, 4 * dim)):
            layers += [
                nn.Conv2d(wide, wider, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(math.gcd(wider, 8), wider),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(GRID), nn.Flatten())
        self.head = nn.Linear(4 * dim * GRID * GRID, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(self.normalize(images)))
