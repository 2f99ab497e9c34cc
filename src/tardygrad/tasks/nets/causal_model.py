"""Causal language models of transformers: pretrained or fresh, whole or with LoRA adapters; and their tokenizers.

E. J. Hu et al. LoRA: Low-Rank Adaptation of Large Language Models. ICLR 2022.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tardygrad.errors import Invalid, check_integer, check_number, nearest
from tardygrad.tasks.data.files import optional
from tardygrad.tasks.data.hub import Attention, load, quiet
from tardygrad.tasks.views import copied

_RULE = "`model` must be a causal language model"


@dataclass(frozen=True)
class Lora:
    """Train low-rank adapters W + (alpha / r) B A instead of the whole network.

    Args:
        r: the rank.
        alpha: the scale is alpha / r.
        target: the names of the layers that get adapters, or "all-linear"; None is the choice of peft for the network.
        dropout: the share of an adapter's inputs that training sets to zero.

    >>> Lora(r=4, target=("q_proj", "v_proj"))
    Lora(r=4, alpha=32, target=('q_proj', 'v_proj'), dropout=0.0)
    """

    r: int = 8
    alpha: float = 32
    target: tuple[str, ...] | str | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_integer("r", self.r)
        check_number("alpha", self.alpha, above=True)
        check_number("dropout", self.dropout)
        if self.dropout >= 1:
            raise Invalid(f"`dropout` must be below 1, got {self.dropout:g}.")
        if self.target is not None and not self.target:
            raise Invalid("`target` must name at least one layer, got none. Leave it out for the usual ones.")


class CausalModel:
    """Creates the network. The base of adapters is loaded once; adapters are drawn anew in each call.

    Args:
        source: a folder, or the settings of a fresh network: its `model_type` and those of its configuration.
        lora: adapters to train; None trains everything.
        dtype: of the weights; adapters are float32.
        name: of a pretrained network: its folder, or its name on the hub; saved adapters refer to it.
        attention: how attention is computed; None is the network's default.
    """

    def __init__(
        self,
        source: Path | Mapping[str, Any],
        lora: Lora | None,
        dtype: torch.dtype,
        name: str | None = None,
        attention: Attention | None = None,
    ) -> None:
        self.source, self.lora, self.dtype, self.name, self.attention = source, lora, dtype, name, attention
        self._base: nn.Module | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_base": None}

    def __call__(self) -> nn.Module:
        if self.lora is None:
            return self._load()
        if self._base is None:
            self._base = self._load().requires_grad_(False)
        return _adapted(copied(self._base, share_frozen=True), self.lora)

    def _load(self) -> nn.Module:
        with quiet() as transformers:
            kind = transformers.AutoModelForCausalLM
            given = {"attn_implementation": self.attention} if self.attention else {}
            if isinstance(self.source, Path):
                model = load(kind, self.source, _RULE, dtype=self.dtype, use_safetensors=True, **given)
            else:
                settings = configuration(self.source)
                with _checked_settings():
                    model = kind.from_config(settings, trust_remote_code=False, **given).to(self.dtype)
        if model.loss_type is None:  # as for GPT-2; transformers then takes this loss too, with a warning
            model.loss_type = "ForCausalLM"
        model.name_or_path = self.name or ""
        network: nn.Module = model
        return network


def _adapted(base: nn.Module, lora: Lora) -> nn.Module:
    peft = optional("peft", "`lora` needs peft", "hf")
    target = list(lora.target) if isinstance(lora.target, tuple) else lora.target
    settings = peft.LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, target_modules=target, lora_dropout=lora.dropout, task_type="CAUSAL_LM"
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fan_in_fan_out")  # GPT-2 stores weights transposed
            adapted: nn.Module = peft.get_peft_model(base, settings)
    except ValueError as error:
        layers = sorted({n.rpartition(".")[2] for n, m in base.named_modules() if isinstance(m, nn.Linear)})
        known = f" Layers of this network: {', '.join(layers)}." if layers else ""
        raise Invalid(f"`lora.target` must name layers of the network, got {lora.target!r}.{known}") from error
    return adapted


def configuration(source: Path | Mapping[str, Any]) -> Any:
    """The configuration of a network."""
    with quiet() as transformers:
        if isinstance(source, Path):
            return load(transformers.AutoConfig, source, _RULE)
        settings = dict(source)
        kind, known = settings.pop("model_type", None), transformers.models.auto.modeling_auto
        if kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            fix = nearest(str(kind), known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
            rule = "`config` must have the model_type of a causal language model of transformers, such as 'llama'"
            raise Invalid(f"{rule}, got {kind!r}.{fix}")
        for key in ("attn_implementation", "_attn_implementation"):
            if key in settings:  # it may name code to download
                raise Invalid(f"`config` must have settings of the network, got {key!r}. Use the argument `attention`.")
        with _checked_settings():
            return transformers.AutoConfig.for_model(kind, **settings)


@contextmanager
def _checked_settings() -> Iterator[None]:
    """Turn any error into `Invalid`: configurations and networks check their settings in many ways."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise Invalid(f"`config` must have settings that fit the model_type: {reason}") from error


def tokenizer_of(folder: Path) -> Any:
    """The tokenizer in a folder; None if it has none."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    with quiet() as transformers:
        return load(transformers.AutoTokenizer, folder, "`tokenizer` must be a folder")


def byte_tokenizer() -> Any:
    """A tokenizer whose tokens are the 256 bytes, an end of text and a padding."""
    with quiet() as transformers:
        tokenizers = optional("tokenizers", "tokenizer='byte' needs tokenizers", "hf")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytes_only = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bytes_only.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<end>", pad_token="<pad>")
