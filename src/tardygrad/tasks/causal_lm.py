"""Fine-tuning or pretraining of a causal language model of transformers on texts of your own, whole or with LoRA.

E. J. Hu et al. LoRA: Low-Rank Adaptation of Large Language Models. ICLR 2022.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from tardygrad.constructors import constructor
from tardygrad.errors import Invalid, check_choice, check_integer, check_number, nearest
from tardygrad.tasks.data.files import Key, optional
from tardygrad.tasks.data.hub import WORDS, Attention, find_model, load, model_files, quiet
from tardygrad.tasks.data.sharding import SplitSettings, shard
from tardygrad.tasks.data.texts import Columns, split_rows, token_rows
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask
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


class CausalLM(TorchTask):
    """A `TorchTask` that knows its tokenizer; see `causal_lm`."""

    def __init__(self, tokenizer: Any, module: Any, **settings: Any) -> None:
        super().__init__(module, **settings)
        self.tokenizer = tokenizer


@constructor(passes_to=(TorchTask, shard))
def causal_lm(
    *,
    clients: int | None = None,
    data: str,
    model: str | None = None,
    config: dict[str, Any] | None = None,
    tokenizer: str | None = None,
    lora: Lora | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    attention: Attention | None = None,
    column: str = "text",
    by: str | None = None,
    labels: str | None = None,
    block: int = 128,
    test_share: float = 0.1,
    test_rows: int | None = None,
    batch_size: int = 8,
    accumulate: int = 1,
    noise: Noise | None = None,
    device: str = "cpu",
    autocast: bool = False,
    compile: bool = False,
    cache: str | None = None,
    seed: int = 0,
    **split: Unpack[SplitSettings],
) -> CausalLM:
    """Language modelling with a causal model of transformers, pretrained or fresh, whole or with LoRA adapters.

    The scores are the mean loss per token in nats and the perplexity. Texts are encoded once; rows of tokens are read
    from the disk when they are needed.

    Args:
        clients: number of clients, N; None is that of the data if `by` is given.
        data: a file or a folder of .txt, .jsonl, .parquet or .arrow files, with texts, or with tokens in the column
            `input_ids`; or "python": the language reference inside CPython.
        model: a model's folder or name on the hub; give this or `config`.
        config: a fresh model: its model_type and other settings of its configuration, such as {model_type = "llama",
            hidden_size = 64}.
        tokenizer: a tokenizer's folder, or "byte"; None is the model's own, and "byte" for a fresh model.
        lora: train adapters: {r = 8, alpha = 32, target = ["q_proj", "v_proj"], dropout = 0}; None trains everything.
        dtype: number format of the weights; adapters are always float32.
        attention: how attention is computed: "sdpa" by torch's fused function, or "eager" by matrix products, which is
            faster with `autocast` on a CPU; None is the model's default.
        column: the column with the text.
        by: what tells clients apart: "file", or a column such as "user"; None splits the rows.
        labels: the column with the labels of how="dirichlet" and how="label".
        block: tokens per row; a longer text becomes several rows.
        test_share: the share of rows in the test set, drawn at random; 0 is no test set.
        test_rows: the most rows of the test set; None is no limit.
        cache: the folder for tokens; None is ~/.cache/tardygrad.
        seed: draws the test rows and the split; x_0 depends on the seed of the run.
    """
    check_integer("block", block, least=2)
    check_choice("dtype", dtype, Literal["float32", "bfloat16"])
    check_number("test_share", test_share)
    if test_share >= 1:
        raise Invalid(f"`test_share` must be below 1, got {test_share:g}.")
    if test_rows is not None:
        check_integer("test_rows", test_rows)
    if (model is None) == (config is None):
        got = "both" if model else "neither"
        raise Invalid(f"a language model needs `model`, or `config` for a fresh one, got {got}.")
    folder = find_model("model", model) if model else None
    encoder, key = _tokenizer(tokenizer, folder)
    source = folder or _with_tokens(config or {}, encoder)
    sizes = configuration(source).get_text_config()
    longest = getattr(sizes, "max_position_embeddings", None)
    if longest is not None and block > longest:
        raise Invalid(f"`block` must be at most the model's limit ({longest} tokens), got {block}.")
    columns = Columns(column, by, labels)
    rows = token_rows(data, encoder, columns, block, key, cache)
    _check_tokens(rows, sizes.vocab_size)
    train, test = split_rows(rows, clients, columns, (test_share, test_rows), seed, **split)
    name = str(folder.resolve()) if folder and Path(str(model)).is_dir() else model
    network = CausalModel(source, lora, getattr(torch, dtype), name, attention)
    padding = None if encoder is None else encoder.pad_token_id
    return CausalLM(
        encoder,
        network() if folder and lora is None else network,  # nothing of it is random
        data=train,
        test=test if len(test) else None,
        collate=Pad(padding or 0),
        batch_size=batch_size,
        accumulate=accumulate,
        evaluate_batch=batch_size,
        noise=noise,
        device=device,
        autocast=autocast,
        compile=compile,
    )


def _tokenizer(name: str | None, folder: Path | None) -> tuple[Any, list[Key]]:
    """The tokenizer, and what identifies it."""
    if name == "byte" or (name is None and folder is None):
        return byte_tokenizer(), ["byte"]
    home = Path(name) if name else folder or Path()
    if name and not home.is_dir():
        raise Invalid(f"`tokenizer` must be a folder, or 'byte', got {name!r}, which is not a folder.")
    found = tokenizer_of(home)
    if name and found is None:
        raise Invalid(f"`tokenizer` must be a folder with tokenizer.json, got {name!r} without it.")
    return found, model_files(home, WORDS)


def _with_tokens(config: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A configuration with the vocabulary of the tokenizer, unless it has its own."""
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id} | ends | config


def _check_tokens(rows: Any, vocabulary: int) -> None:
    """Raise `Invalid` if a row has a token that the model does not know."""
    import pyarrow.compute

    ends = pyarrow.compute.min_max(pyarrow.compute.list_flatten(rows.data.column("input_ids"))).as_py()
    if ends["min"] < 0 or ends["max"] >= vocabulary:
        got = ends["min"] if ends["min"] < 0 else ends["max"]
        raise Invalid(f"tokens must be from 0 to {vocabulary - 1}, the model's vocabulary, got {got} in the data.")


class Pad:
    """Makes a batch of rows of different lengths; attention and loss ignore the padding.

    Args:
        token: the padding.
    """

    def __init__(self, token: int = 0) -> None:
        self.token = token

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        tokens = [torch.tensor(row["input_ids"], dtype=torch.int64) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=self.token)
        mask = torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in tokens])
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}


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
