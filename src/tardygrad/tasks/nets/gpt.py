"""A small GPT with learnt positions and an output layer tied to the token embeddings.

After A. Radford et al. Language Models are Unsupervised Multitask Learners. OpenAI, 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tardygrad.tasks.nets.transformer_block import Block


class GPT(nn.Module):
    """(rows, length) tokens, length ≤ context, to logits of the next token at each position."""

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
