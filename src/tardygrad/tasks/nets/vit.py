"""A vision transformer for images of any size: A. Dosovitskiy et al. An Image is Worth 16x16 Words. ICLR 2021.

Differs from the paper in: layer normalisation comes first, a mean over patches replaces the class token, and the
perceptron has twice the width instead of four times.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tardygrad.errors import Invalid, check_integer
from tardygrad.tasks.nets.transformer_block import Block

Shape = tuple[int, int, int]
"""Channels, height, width of an image."""


class ViT(nn.Module):
    """Embedded patches plus positions, transformer blocks, the mean over patches, logits.

    Args:
        dim: width.
        depth: number of blocks.
        heads: attention heads; must divide `dim`.
        patch: side of a patch in pixels; must divide height and width.
        shape: of an image, as (channels, height, width).
        classes: number of logits.
        normalize: applied to the images first; None is nothing.

    >>> ViT(dim=32, depth=2, heads=4, patch=7, shape=(1, 28, 28))(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        heads: int,
        patch: int,
        shape: Shape = (1, 8, 8),
        classes: int = 10,
        normalize: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, depth=depth, heads=heads, patch=patch, shape=shape)
        channels, height, width = shape
        self.patch, self.shape = patch, shape
        self.normalize = normalize or nn.Identity()
        self.embed = nn.Linear(channels * patch * patch, dim)
        self.positions = nn.Parameter(0.5 * torch.randn((height // patch) * (width // patch), dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):  # torch's default is too small: plain SGD then needs twice the epochs
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        n, p, (channels, height, width) = len(images), self.patch, self.shape
        grid = self.normalize(images).view(n, channels, height // p, p, width // p, p)
        patches = grid.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * p * p)
        x = self.blocks(self.embed(patches) + self.positions)
        return self.head(self.norm(x).mean(1))


def check_sizes(*, dim: int, depth: int, heads: int, patch: int, shape: Shape) -> None:
    """Raise `Invalid` unless `heads` divides `dim` and `patch` divides the sides of the images."""
    for name, value in (("dim", dim), ("depth", depth), ("heads", heads), ("patch", patch)):
        check_integer(name, value)
    _, height, width = shape
    if dim % heads:
        raise Invalid(f"`heads` must divide `dim` ({dim}), got {heads}.")
    if height % patch or width % patch:
        sides = f"{height} pixels" if height == width else f"{height} and {width} pixels"
        sizes = [str(p) for p in range(2, min(height, width)) if not (height % p or width % p)]
        fix = f" Use {' or '.join(sizes)}." if sizes else " Use 1."
        raise Invalid(f"`patch` must divide the images' side ({sides}), got {patch}.{fix}")
