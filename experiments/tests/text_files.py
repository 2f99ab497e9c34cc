"""Small data sets in both layouts of GLUE, and a small BERT with a tokenizer of its own."""

import json

import numpy as np

from experiments.tasks.glue_files import FORMS

WORDS = [
    "the",
    "cat",
    "dog",
    "bird",
    "sits",
    "runs",
    "sings",
    "on",
    "mat",
    "house",
    '"',
    "it's",
    "10,000",
    "not",
    "who",
]


def sentence(rng):
    return " ".join(rng.choice(WORDS, rng.integers(3, 9)))


def examples(name, rows, seed=0):
    """((sentence, ...), label) of every row; every class occurs."""
    rng, form = np.random.default_rng(seed), FORMS[name]
    labels = [i % len(form.labels) if form.labels else round(float(rng.uniform(0, 5)), 2) for i in range(rows)]
    return [(tuple(sentence(rng) for _ in form.columns), label) for label in labels]


def write_parquet(path, name, held):
    import pyarrow
    from pyarrow import parquet

    columns = dict(zip(FORMS[name].columns, zip(*(texts for texts, _ in held), strict=True), strict=True))
    kind = pyarrow.int64() if FORMS[name].labels else pyarrow.float32()
    labels = pyarrow.array([label for _, label in held], kind)
    table = {column: list(texts) for column, texts in columns.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({**table, "label": labels, "idx": range(len(held))}), path)


HEADINGS = {
    "mnli": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2 label1 gold_label",
    "mnli dev": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2 label1 label2 label3 label4 label5 gold_label",
    "qnli": "index question sentence label",
    "qqp": "id qid1 qid2 question1 question2 is_duplicate",
    "rte": "index sentence1 sentence2 label",
    "sst2": "sentence label",
    "mrpc": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "stsb": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
}
"""Of GLUE's own files, column by column."""

PLACES = {
    "mnli": (8, 9, 11), "mnli dev": (8, 9, 15), "qnli": (1, 2, 3), "qqp": (3, 4, 5), "rte": (1, 2, 3),
    "sst2": (0, 1), "mrpc": (3, 4, 0), "stsb": (7, 8, 9), "cola": (3, 1),
}  # fmt: skip
"""Where sentences and label stand."""


def tsv(name, held, *, dev=False):
    """The text of a file of GLUE."""
    key = f"{name} dev" if f"{name} dev" in PLACES and dev else name
    heading = HEADINGS.get(key, "")
    split = heading.split("|") if "|" in heading else heading.split()
    lines = ["\t".join(split)] if heading else []
    words = FORMS[name].labels
    for texts, label in held:
        cells = ["x"] * (len(split) or 4)
        for place, cell in zip(PLACES[key], (*texts, words[label] if words else f"{label:.3f}"), strict=True):
            cells[place] = cell
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


def write_tsv(folder, name, train, dev):
    form = FORMS[name]
    (folder / form.folder).mkdir(parents=True, exist_ok=True)
    (folder / form.folder / "train.tsv").write_text(tsv(name, train), "utf-8")
    (folder / form.folder / f"{form.dev}.tsv").write_text(tsv(name, dev, dev=True), "utf-8")


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
