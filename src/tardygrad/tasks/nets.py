"""The small networks of the ready tasks: a vision transformer, a convolutional network and a GPT, without buffers.

A. Dosovitskiy et al. An Image is Worth 16x16 Words. ICLR 2021. Differs from the paper in: layer normalisation comes
first, a mean over patches replaces the class token, and the perceptron has twice the width instead of four times.
Y. Wu, K. He. Group Normalization. ECCV 2018.
A. Radford et al. Language Models are Unsupervised Multitask Learners. OpenAI, 2019.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from tardygrad.errors import Invalid, check_integer

Shape = tuple[int, int, int]
"""Channels, height, width of an image."""

GRID = 4
"""Side of the feature map before the logits; averaging over all positions learns much more slowly."""


class Attention(nn.Module):
    """Self-attention, to the past only if `causal`; plain matrix products, which torch.func can batch over clients."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.scale, self.causal = heads, (dim // heads) ** -0.5, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, length, dim = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-2, -1) * self.scale
        if self.causal:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            score = score.masked_fill(future, -torch.inf)
        seen = torch.softmax(score, dim=-1) @ v
        return self.out(seen.transpose(1, 2).reshape(n, length, dim))


class Block(nn.Module):
    """x + attention, then x + perceptron with `wide` times the width inside; both act on the normalised x."""

    def __init__(self, dim: int, heads: int, *, wide: int = 2, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads, causal=causal)
        self.norm2 = nn.LayerNorm(dim)
        self.perceptron = nn.Sequential(nn.Linear(dim, wide * dim), nn.GELU(), nn.Linear(wide * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


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


class CNN(nn.Module):
    """Three 3 × 3 convolutions of stride 2, each with group normalisation and ReLU, a 4 × 4 feature map, and logits.

    Args:
        dim: channels of the first convolution; the next two have 2 · dim and 4 · dim.
        channels: of an image.
        classes: number of logits.
        normalize: applied to the images first; None is nothing.

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


class GPT(nn.Module):
    """A small GPT with learnt positions and an output layer tied to the token embeddings.

    (rows, length) tokens, length ≤ context, to logits of the next token at each position.
    """

    def __init__(self, *, vocabulary: int, context: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, wide=4, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=dim**-0.5)  # so that the tied logits start at about 1

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens.long()) + self.positions(places))
        return nn.functional.linear(self.norm(x), self.tokens.weight)
