"""Small data sets as GLUE's files, and a small BERT with a tokenizer of its own."""

import json

import numpy as np

from experiments.tasks.glue import FORMS

WORDS = ["the", "cat", "dog", "bird", "sits", "runs", "on", "mat", "house", '"', "it's", "10,000", "not", "who"]


def sentence(rng):
    return " ".join(rng.choice(WORDS, rng.integers(3, 9)))


def examples(name, rows, seed=0):
    """((sentence, ...), label) of every row; every class occurs."""
    rng, form = np.random.default_rng(seed), FORMS[name]
    labels = [i % form.classes if form.classes else round(float(rng.uniform(0, 5)), 2) for i in range(rows)]
    return [(tuple(sentence(rng) for _ in form.columns), label) for label in labels]


def write_parquet(path, name, rows):
    import pyarrow
    from pyarrow import parquet

    form = FORMS[name]
    columns = map(list, zip(*(texts for texts, _ in rows), strict=True))
    labels = pyarrow.array([label for _, label in rows], pyarrow.int64() if form.classes else pyarrow.float32())
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(dict(zip(form.columns, columns, strict=True)) | {"label": labels}), path)


def write_task(folder, name, train, validation):
    write_parquet(folder / name / "train.parquet", name, train)
    write_parquet(folder / name / f"{FORMS[name].validation}.parquet", name, validation)


def write_bert(folder, *, layers=2, dropout=0.1):
    """A BERT of width 16 with random weights, as transformers saves it."""
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({w for word in WORDS for w in word.split("'")})]
    vocabulary += list("'\",.0123456789")
    words = {word: i for i, word in enumerate(dict.fromkeys(vocabulary))}
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder
