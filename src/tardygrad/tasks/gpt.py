"""A small GPT: layer normalisation first, attention with plain matrix products, learnt positions, a tied head.

After A. Radford et al. Language Models are Unsupervised Multitask Learners. OpenAI, 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CausalAttention(nn.Module):
    """Self-attention to the past, with plain matrix products, which torch.func can batch over clients."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, length, dim = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        score = (q @ k.transpose(-2, -1) * self.scale).masked_fill(future, -torch.inf)
        seen = torch.softmax(score, dim=-1) @ v
        mixed: Tensor = self.out(seen.transpose(1, 2).reshape(n, length, dim))
        return mixed


class CausalBlock(nn.Module):
    """x + attention, then x + perceptron, each on the normalised x."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), CausalAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.perceptron = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.perceptron(self.norm2(x))
        return out


class GPT(nn.Module):
    """Logits of the next token at every place of (rows, length) tokens, length ≤ context."""

    def __init__(self, *, vocabulary: int, context: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(CausalBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=dim**-0.5)  # the head, tied to it, then starts with logits of about 1

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens.long()) + self.positions(places))
        logits: Tensor = nn.functional.linear(self.norm(x), self.tokens.weight)
        return logits
