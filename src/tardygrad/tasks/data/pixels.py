"""From stored bytes to a network's input: normalisation, and random crops and flips.

Images are stored as uint8, a quarter of the memory of float32, and converted batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAD = 4
"""The most pixels a crop shifts an image in each direction."""


class Normalize(nn.Module):
    """(pixels / 255 − mean) / std per channel, as float32; the constants are not trained.

    Args:
        mean: per channel, of pixels in [0, 1].
        std: per channel, of pixels in [0, 1].
        channels_last: whether the output's memory has the channels innermost, in which some convolutions are faster.

    >>> Normalize([0.5], [0.25])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, channels_last: bool = False) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", 255.0 * torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("scale", 1.0 / (255.0 * torch.tensor(std).view(-1, 1, 1)), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        images = (pixels - self.mean) * self.scale
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images


def crop_and_flip(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Shift each image by up to 4 random pixels in each direction, padded with black, and flip it with probability ½.

    Args:
        images: (n, channels, height, width).
        rng: the generator of this step.
    """
    n, channels, height, width = images.shape
    down, right = rng.integers(0, 2 * PAD + 1, (2, n, 1))
    rows, columns = down + np.arange(height), right + np.arange(width)
    columns = np.where(rng.random((n, 1)) < 0.5, columns[:, ::-1], columns)
    return F.pad(images, (PAD, PAD, PAD, PAD))[
        torch.arange(n)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        torch.from_numpy(rows)[:, None, :, None],
        torch.from_numpy(columns)[:, None, None, :],
    ]
