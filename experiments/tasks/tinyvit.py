"""TinyViT: K. Wu et al. TinyViT: Fast Pretraining Distillation for Small Vision Transformers. ECCV 2022.

The variant of MobileSAM's encoder (C. Zhang et al. Faster Segment Anything. 2023), whose last merge keeps the side.
A convolutional stem and stage, then three stages of attention within windows, with a learnt bias per offset.
Parameters have the names of the original code, so its weights load unchanged; the parts after the last stage (`neck`,
`norm_head`, `head`) are left out.

Differs from the original in: batch normalisations are frozen and folded into their convolutions after loading.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from tardygrad.tasks.data.files import reading

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Per channel, of the pixels it was trained on."""

_UNUSED = ("neck.", "norm_head.", "head.")


class ConvBN(nn.Sequential):
    """A convolution with batch normalisation; `fold` turns both into one convolution."""

    c: nn.Conv2d
    bn: nn.Module

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(OrderedDict(c=convolution, bn=nn.BatchNorm2d(channels_out)))

    @torch.no_grad()
    def fold(self) -> None:
        """γ (W x − μ) / σ + β = (γ/σ W) x + (β − γ μ / σ)."""
        if isinstance(self.bn, nn.BatchNorm2d):
            mean, variance = self.bn.get_buffer("running_mean"), self.bn.get_buffer("running_var")
            scale = self.bn.weight / torch.sqrt(variance + self.bn.eps)
            self.c.weight.copy_(self.c.weight * scale[:, None, None, None])
            self.c.bias = nn.Parameter(self.bn.bias - mean * scale)
            self.bn = nn.Identity()


class Convolutions(nn.Sequential):
    """To `inside` channels, a 3 × 3 convolution of each, and to `channels_out`; stride 2 halves the side."""

    def __init__(self, channels_in: int, inside: int, channels_out: int, stride: int = 1) -> None:
        middle = ConvBN(inside, inside, 3, stride, groups=inside)
        layers = {"conv1": ConvBN(channels_in, inside), "act1": nn.GELU(), "conv2": middle, "act2": nn.GELU()}
        super().__init__(OrderedDict(layers, conv3=ConvBN(inside, channels_out)))


class MBConv(Convolutions):
    """An inverted bottleneck with four times the width inside."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x + super().forward(x))  # type: ignore[no-untyped-call]


class WindowAttention(nn.Module):
    """Self-attention in a window, on the normalised x, with a bias per distance (rows, columns).

    A window that extends over the edge is padded with zeros, which take part in the attention. They all have the same
    key and value, so one represents them all, with the bias log Σ exp(bias): the same result, in a sixth of the time
    for images of 64 × 64 pixels.
    """

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.scale, self.window = heads, (dim // heads) ** -0.5, window
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))
        row, column = torch.arange(window * window) // window, torch.arange(window * window) % window
        apart = (row[:, None] - row).abs() * window + (column[:, None] - column).abs()
        self.row: Tensor
        self.column: Tensor
        self.apart: Tensor
        for name, value in (("row", row), ("column", column), ("apart", apart)):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x is (n, height, width, dim): a window, or its part inside the image."""
        n, height, width, dim = x.shape
        tokens = x.reshape(n, height * width, dim)
        inside = (self.row < height) & (self.column < width)
        bias = self.attention_biases[:, self.apart[inside]]
        if height * width < self.window**2:
            tokens = F.pad(tokens, (0, 0, 0, 1))
            bias = torch.cat([bias[..., inside], bias[..., ~inside].logsumexp(-1, keepdim=True)], -1)
        q, k, v = self.qkv(self.norm(tokens)).view(n, -1, self.heads, 3, dim // self.heads).permute(3, 0, 2, 1, 4)
        logits = q[:, :, : height * width] @ k.transpose(-2, -1) * self.scale + bias
        return self.proj((torch.softmax(logits, dim=-1) @ v).transpose(1, 2).reshape(x.shape))


class TinyBlock(nn.Module):
    """x + attention within windows, a convolution that connects neighbouring windows, x + perceptron."""

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attn, self.local_conv = WindowAttention(dim, heads, window), ConvBN(dim, dim, 3, groups=dim)
        norm, expand, contract = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.mlp = nn.Sequential(OrderedDict(norm=norm, fc1=expand, act=nn.GELU(), fc2=contract))

    def forward(self, x: Tensor) -> Tensor:
        x = self.local_conv(x + self._attend(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return x + self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _attend(self, x: Tensor) -> Tensor:
        """Attention in all full windows together, and in those at the right and lower edges."""
        rows, columns = (_cuts(side, self.window) for side in x.shape[1:3])
        bands = [[self._tiles(part) for part in torch.split(band, columns, 2)] for band in torch.split(x, rows, 1)]
        return torch.cat([torch.cat(band, 2) for band in bands], 1)

    def _tiles(self, x: Tensor) -> Tensor:
        n, height, width, dim = x.shape
        h, w = min(height, self.window), min(width, self.window)
        tiles = x.reshape(n, height // h, h, width // w, w, dim).transpose(2, 3)
        seen = self.attn(tiles.reshape(-1, h, w, dim)).view(tiles.shape)
        return seen.transpose(2, 3).reshape(x.shape)


def _cuts(side: int, window: int) -> list[int]:
    """Lengths of the part with full windows and of the rest.

    >>> _cuts(30, 7), _cuts(14, 7), _cuts(4, 7)
    ([28, 2], [14], [4])
    """
    return [part for part in (side - side % window, side % window) if part]


class Stage(nn.Module):
    """Blocks, then a merge if there is a next stage; appends its mean tokens to `means`."""

    def __init__(self, blocks: Sequence[nn.Module], downsample: nn.Module) -> None:
        super().__init__()
        self.blocks, self.downsample = nn.Sequential(*blocks), downsample

    def forward(self, x: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        x = self.downsample(self.blocks(x))
        return x, torch.cat([means, x.mean((2, 3))], 1)


class TinyViT(nn.Module):
    """Maps normalised images, whose side is a multiple of 16, to the mean tokens after each of the last three stages.

    Args:
        widths: of the four stages.
        depths: blocks of each stage.
        heads: attention heads of each stage; unused in the first.
        windows: sides of each stage's windows.
        strides: of the three merges.
    """

    def __init__(
        self,
        *,
        widths: Sequence[int] = (64, 128, 160, 320),
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (2, 4, 5, 10),
        windows: Sequence[int] = (7, 7, 14, 7),
        strides: Sequence[int] = (2, 2, 1),
    ) -> None:
        super().__init__()
        stem = nn.Sequential(ConvBN(3, widths[0] // 2, 3, 2), nn.GELU(), ConvBN(widths[0] // 2, widths[0], 3, 2))
        self.patch_embed = nn.Sequential(OrderedDict(seq=stem))  # a quarter of the side
        merges = [Convolutions(widths[i], widths[i + 1], widths[i + 1], strides[i]) for i in range(3)]
        stages = [Stage([MBConv(widths[0], 4 * widths[0], widths[0]) for _ in range(depths[0])], merges[0])]
        for i in (1, 2, 3):
            blocks = [TinyBlock(widths[i], heads[i], windows[i]) for _ in range(depths[i])]
            stages.append(Stage(blocks, merges[i] if i < 3 else nn.Identity()))
        self.layers = nn.ModuleList(stages)
        self.features = widths[2] + 2 * widths[3]

    def forward(self, x: Tensor, means: Tensor | None = None) -> Tensor:
        """x are images; or with the `means` of earlier stages, for a network that was cut, the map that enters it."""
        if means is None:
            x = self.patch_embed(x)
            means = x.new_empty(len(x), 0)
        for stage in self.layers:
            x, means = stage(x, means)
        return means[:, -self.features :]  # without those of the first stage

    def before(self, stage: int, images: Tensor) -> tuple[Tensor, Tensor]:
        """The map that enters a stage, and the mean tokens of the stages before it."""
        x = self.patch_embed(images)
        means = x.new_empty(len(x), 0)
        for each in self.layers[:stage]:
            x, means = each(x, means)
        return x, means


def load(folder: str | Path) -> TinyViT:
    """Load the network from config.json and model.safetensors, which must hold exactly its parameters."""
    folder = Path(folder)
    with reading(f"the TinyViT in {str(folder)!r}"):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
        model = TinyViT(
            widths=config["embed_dims"],
            depths=config["depths"],
            heads=config["num_heads"],
            windows=config["window_sizes"],
            strides=(2, 2, config["last_downsample_stride"]),
        )
        model.load_state_dict({name: t for name, t in weights.items() if not name.startswith(_UNUSED)})
    for layer in model.modules():
        if isinstance(layer, ConvBN):
            layer.fold()
    return model.eval()
