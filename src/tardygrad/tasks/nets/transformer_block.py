"""A transformer block with layer normalisation first: attention by plain matrix products, then a perceptron."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
