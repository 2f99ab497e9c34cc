"""Language modelling: a small GPT trained on any text."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tardygrad.constructors import constructor
from tardygrad.core.messages import ModuleBuffers, Vector
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.sharding import Shards, shard
from tardygrad.tasks.data.texts import Pairs, pairs, read, split
from tardygrad.tasks.nets import GPT
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.scores import perplexity
from tardygrad.tasks.torch_task import TorchTask


class LM(TorchTask):
    """A `TorchTask` whose target is the next token; see `lm`."""

    def __init__(
        self, tokenizer: Pairs | None, tokens_per_byte: float, tokens: int, module: Any, **settings: Any
    ) -> None:
        super().__init__(module, **settings)
        self.tokenizer, self.tokens_per_byte = tokenizer, tokens_per_byte
        self._tokens = tokens

    def __repr__(self) -> str:
        return f"LM(parameters={self.parameters}, clients={self.clients}, tokens={self._tokens})"

    def encode(self, text: bytes) -> Tensor:
        """Encode a text."""
        return self.tokenizer.encode(text) if self.tokenizer else _bytes(text)

    def decode(self, tokens: Tensor) -> bytes:
        """Decode tokens to text."""
        return self.tokenizer.decode(tokens) if self.tokenizer else bytes(tokens.tolist())

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        """The mean loss in nats per token, the perplexity exp(loss), and bits per byte of text."""
        scores = super().evaluate(x, module_buffers)
        loss = scores["loss"]
        return scores | {"perplexity": perplexity(loss), "bits_per_byte": loss * self.tokens_per_byte / math.log(2)}


@constructor(passes_to=(TorchTask, shard))
def lm(
    *,
    clients: int,
    text: str = "python",
    tokens: Literal["byte", "bpe"] = "byte",
    vocabulary: int = 512,
    context: int = 64,
    dim: int = 64,
    depth: int = 2,
    heads: int = 4,
    batch_size: int = 16,
    how: Literal["spans", "iid"] = "spans",
    test_rows: int | None = None,
    validation_rows: int = 0,
    score_on: ScoreOn = "test",
    noise: Noise | None = None,
    device: str = "cpu",
    autocast: bool = False,
    compile: bool = False,
    cache: str | None = None,
    seed: int = 0,
) -> LM:
    """Language modelling: predict the next token of a text with a small GPT. The text's last tenth is the test set.

    Args:
        text: a file, a folder of .txt files, or "python": the language reference inside CPython, 0.5 MB of English
            that differs a little between versions of Python.
        tokens: "byte", or "bpe": byte pairs learnt from the first nine tenths of the text.
        vocabulary: size of the "bpe" vocabulary, the 256 bytes included.
        context: tokens per row; rows do not overlap.
        dim: width of the transformer.
        depth: blocks of the transformer.
        heads: attention heads of the transformer; must divide `dim`.
        how: "spans" gives each client a contiguous span of the text, so that clients differ; "iid" random rows.
        test_rows: how many rows of the test set to use, from its start; None is all.
        validation_rows: how many training rows to set apart, the last ones before the test set.
        score_on: evaluate on the "test" rows, or on the "validation" rows, to choose settings by.
        cache: the folder for byte pairs; None is ~/.cache/tardygrad.
        seed: draws the "iid" split; x_0 depends on the seed of the run.

    >>> lm(clients=10, depth=1).clients
    10
    """
    for name, value in (("clients", clients), ("context", context), ("dim", dim), ("depth", depth), ("heads", heads)):
        check_integer(name, value)
    if test_rows is not None:
        check_integer("test_rows", test_rows)
    check_integer("validation_rows", validation_rows, 0)
    if dim % heads:
        raise Invalid(f"`heads` must divide `dim` ({dim}), got {heads}.")
    check_choice("tokens", tokens, Literal["byte", "bpe"])
    check_choice("how", how, Literal["spans", "iid"])
    if tokens == "bpe":
        check_integer("vocabulary", vocabulary, least=257)
    train, test = split(read(text))
    tokenizer = pairs(train, vocabulary, cache) if tokens == "bpe" and train else None
    encode = tokenizer.encode if tokenizer else _bytes
    encoded = encode(train), encode(test)
    all_train_rows, all_test_rows = (_windows(sequence, context) for sequence in encoded)
    if len(all_train_rows[0]) < clients + validation_rows or not len(all_test_rows[0]):
        need = math.ceil(max((clients + validation_rows) * context + 1, 9 * (context + 1)) / 0.9)
        apart = f", {validation_rows} validation rows" if validation_rows else ""
        raise Invalid(
            f"a text must have about {need} tokens for {clients} clients{apart} and a context of {context}, "
            f"got {sum(map(len, encoded))}. Use a longer text, a smaller context or fewer clients."
        )
    test_part = tuple(tensor[:test_rows] for tensor in all_test_rows)
    train_rows, scored = set_apart(all_train_rows, test_part, validation_rows, score_on, shuffle=False)
    spans = tuple(torch.from_numpy(part) for part in np.array_split(np.arange(len(train_rows[0])), clients))
    return LM(
        tokenizer,
        len(encoded[1]) / len(test),
        train_rows[0].numel(),
        partial(GPT, vocabulary=vocabulary if tokenizer else 256, context=context, dim=dim, depth=depth, heads=heads),
        loss=_token_loss,
        data=Shards(train_rows, spans) if how == "spans" else shard(train_rows, clients=clients, seed=seed),
        test=scored,
        batch_size=batch_size,
        noise=noise,
        evaluate_batch=64,
        device=device,
        autocast=autocast,
        compile=compile,
    )


def _bytes(text: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(text, np.uint8).copy())


def _windows(tokens: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Rows of `context` tokens, and the next token of each position; both are views."""
    rows = max(len(tokens) - 1, 0) // context
    return tokens[: rows * context].view(rows, context), tokens[1 : rows * context + 1].view(rows, context)


def _token_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten().long())
