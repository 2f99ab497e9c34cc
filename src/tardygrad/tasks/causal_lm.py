"""Fine-tuning or pretraining of a causal language model of transformers on texts of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Unpack

import torch

from tardygrad.constructors import constructor
from tardygrad.errors import Invalid, check_choice, check_integer, check_number
from tardygrad.tasks.data.cache import Key
from tardygrad.tasks.data.hub import WORDS, Attention, find_model, model_files
from tardygrad.tasks.data.sharding import SplitSettings, shard
from tardygrad.tasks.data.token_rows import Columns, Pad, split_rows, token_rows
from tardygrad.tasks.nets.causal_model import CausalModel, Lora, byte_tokenizer, configuration, tokenizer_of
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask


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
