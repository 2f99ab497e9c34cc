"""Handwritten digits and a small vision transformer: real images in seconds, with nothing to download.

scikit-learn's digits, 1,797 images of 8 × 8 pixels (E. Alpaydin, C. Kaynak. UCI, 1998); the transformer after
A. Dosovitskiy et al. An Image is Worth 16x16 Words. ICLR 2021, with layer normalisation first and a mean at the end.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor, nn

from tardygrad import streams
from tardygrad.errors import Invalid
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.rules import whole
from tardygrad.tasks.sharding import How, shard
from tardygrad.tasks.torch_task import TorchTask

_TEST = 360


class Attention(nn.Module):
    """Self-attention with plain matrix products, which torch.func can batch over clients."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, length, dim = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        seen = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1) @ v
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(n, length, dim))
        return mixed


class Block(nn.Module):
    """x + attention, then x + perceptron, each on the normalised x."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.perceptron = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.perceptron(self.norm2(x))
        return out


class ViT(nn.Module):
    """A vision transformer for images of 8 × 8 pixels in ten classes."""

    def __init__(self, *, dim: int, depth: int, heads: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, dim)
        self.positions = nn.Parameter(0.5 * torch.randn((8 // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):  # torch's own start is too small: plain SGD then needs twice the epochs
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        n, p = images.shape[0], self.patch
        patches = images.view(n, 8 // p, p, 8 // p, p).transpose(2, 3).reshape(n, -1, p * p)
        x = self.blocks(self.embed(patches) + self.positions)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


def digits(
    *,
    clients: int,
    dim: int = 32,
    depth: int = 2,
    heads: int = 4,
    patch: int = 2,
    batch_size: int = 16,
    how: How | None = None,
    concentration: float | None = None,
    labels_per_client: int = 2,
    balanced: bool = True,
    noise: Noise | None = None,
    seed: int = 0,
) -> TorchTask:
    """Digits: 1,437 images to train on, always the same 360 to test on, and a vision transformer for them.

    Args:
        clients: N.
        dim: width of the transformer.
        depth: its blocks.
        heads: its attention heads; must divide `dim`.
        patch: side of a patch in pixels; must divide 8.
        batch_size: rows per local step.
        how: the split over clients, with `concentration`, `labels_per_client` and `balanced`; see `shard`.
        noise: added to every gradient.
        seed: of the split; x_0 depends on the seed of the run.

    >>> digits(clients=40)
    TorchTask(ViT, parameters=18154, clients=40)
    """
    for name, value in (("clients", clients), ("dim", dim), ("depth", depth), ("heads", heads), ("patch", patch)):
        whole(name, value)
    if dim % heads:
        raise Invalid(f"`heads` must divide `dim` ({dim}), got {heads}.")
    if 8 % patch:
        raise Invalid(f"`patch` must divide the images' side (8 pixels), got {patch}. Use 2 or 4.")
    images, labels = _images()
    return TorchTask(
        partial(ViT, dim=dim, depth=depth, heads=heads, patch=patch),
        loss=nn.functional.cross_entropy,
        shards=shard(
            (images[_TEST:], labels[_TEST:]),
            clients=clients,
            how=how,
            concentration=concentration,
            labels_per_client=labels_per_client,
            balanced=balanced,
            seed=seed,
        ),
        test=(images[:_TEST], labels[:_TEST]),
        batch_size=batch_size,
        noise=noise,
    )


@cache
def _images() -> tuple[Tensor, Tensor]:
    """All images, in one shuffled order for every seed, so that every run is tested on the same."""
    from sklearn.datasets import load_digits  # takes a second to import

    raw = load_digits()
    order = torch.from_numpy(streams.generator(0, "digits").permutation(len(raw.target)))
    return torch.from_numpy(raw.images / 16.0).float()[order], torch.from_numpy(raw.target).long()[order]
