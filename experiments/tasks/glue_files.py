"""The files of GLUE's eight tasks: parquet with Hugging Face's columns, or GLUE's own tab-separated files.

    rte/train.parquet, rte/validation.parquet        or train-*.parquet, as from `hf download nyu-mll/glue`
    RTE/train.tsv, RTE/dev.tsv                       from gluebenchmark.com: no quoting, different columns for each task

If the training set is missing, `train_5k.parquet` (a sample of the paper's size) or `train_pool.parquet` (a larger one)
replaces it. If the validation set is missing, `validation_heldout.parquet` does: the rows of the pool outside
`train_5k`, so in that case the pool is never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tardygrad import streams
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.tasks.data.files import parquet, reading, regular, short
from tardygrad.tasks.data.hub import download

Name = Literal["mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"]
"""The tasks of GLUE that the paper trains on."""

LARGE = 5000
"""Training rows of the four large tasks in the paper."""


class Form(NamedTuple):
    """The file layout of a task."""

    folder: str  # GLUE's own name
    columns: tuple[str, ...]  # in parquet
    headings: tuple[str, ...]  # in tsv, the label last; empty for CoLA, which has no heading
    labels: tuple[str, ...]  # in the order of their ids; empty for STS-B, whose label is a number from 0 to 5
    large: bool = False
    validation: str = "validation"
    dev: str = "dev"


_PAIR = ("sentence1", "sentence2")
_NLI = ("entailment", "not_entailment")
_BINARY = ("0", "1")
FORMS: dict[str, Form] = {
    "mnli": Form(
        "MNLI", ("premise", "hypothesis"), (*_PAIR, "gold_label"), ("entailment", "neutral", "contradiction"), True,
        "validation_matched", "dev_matched",
    ),
    "qnli": Form("QNLI", ("question", "sentence"), ("question", "sentence", "label"), _NLI, True),
    "qqp": Form("QQP", ("question1", "question2"), ("question1", "question2", "is_duplicate"), _BINARY, True),
    "rte": Form("RTE", _PAIR, (*_PAIR, "label"), _NLI),
    "sst2": Form("SST-2", ("sentence",), ("sentence", "label"), _BINARY, True),
    "mrpc": Form("MRPC", _PAIR, ("#1 String", "#2 String", "Quality"), _BINARY),
    "cola": Form("CoLA", ("sentence",), (), _BINARY),
    "stsb": Form("STS-B", _PAIR, (*_PAIR, "score"), ()),
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Sentences, or pairs of them, with their labels."""

    texts: tuple[list[str], ...]  # one list, or two of the same length
    labels: list[float]
    source: str  # the files they came from

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, rows: int, seed: int, purpose: str) -> Rows:
        """A uniform sample of at most `rows` rows, in their original order."""
        if rows >= len(self):
            return self
        chosen = np.sort(streams.generator(seed, purpose).permutation(len(self))[:rows])
        texts = tuple([column[i] for i in chosen] for column in self.texts)
        return replace(self, texts=texts, labels=[self.labels[i] for i in chosen])


def load(name: Name, data: str | None, rows: int | Literal["all"] | None, seed: int) -> tuple[Rows, Rows]:
    """The rows to train on, a sample of the training set if `rows` is smaller, and the validation set."""
    check_choice("name", name, Name)
    if rows not in (None, "all"):
        check_integer("rows", rows)
    wanted = rows or (LARGE if FORMS[name].large else "all")
    if data == "hub":
        folder = download("nyu-mll/glue", [f"{name}/*.parquet"], "data='hub' needs nyu-mll/glue", dataset=True)
    else:
        folder = Path(data or _absent(name, data))
    with reading(f"{name} in {str(folder)!r}"):
        train, test = _parquet(name, folder, wanted) or _tsv(name, folder) or _absent(name, data)
    if isinstance(rows, int) and rows > len(train):
        raise Invalid(f"`rows` must be at most the {len(train)} of {train.source}, got {rows}. Use rows='all'.")
    return train if wanted == "all" else train.sample(wanted, seed, "glue rows"), test


def _absent(name: str, data: str | None) -> Any:
    form, got = FORMS[name], f"{data!r} with neither" if data else "none"
    raise Invalid(
        f"`data` must be a folder with {name}/train.parquet and {name}/{form.validation}.parquet, or with "
        f"{form.folder}/train.tsv and {form.folder}/{form.dev}.tsv, got {got}. Use data='hub', or "
        f"hf download nyu-mll/glue --type dataset --include '{name}/*' --local-dir {data or 'FOLDER'}"
    )


def _parquet(name: str, data: Path, rows: int | str) -> tuple[Rows, Rows] | None:
    form, folder = FORMS[name], data / name
    test = _files(folder, form.validation)
    heldout = not test and _files(folder, "validation_heldout")
    train = _files(folder, "train")
    if not train:
        sample, pool = _files(folder, "train_5k"), _files(folder, "train_pool")
        more = rows == "all" or int(rows) > LARGE
        train = pool if pool and not heldout and (more or not sample) else sample
    if not train or not (test or heldout):
        return None
    return _read_parquet(name, train), _read_parquet(name, test or heldout or [])


def _files(folder: Path, split: str) -> list[Path]:
    """A split's file, or its numbered parts."""
    whole = folder / f"{split}.parquet"
    return [whole] if whole.exists() else sorted(folder.glob(f"{split}-*-of-*.parquet"))


def _read_parquet(name: str, files: list[Path]) -> Rows:
    columns = (*FORMS[name].columns, "label")
    values: list[list[Any]] = [[] for _ in columns]
    for file in files:
        for batch in parquet(file, *columns):
            for cells, more in zip(values, batch, strict=True):
                cells += more
    *texts, labels = values
    source = short(files[0]) if len(files) == 1 else f"{short(files[0])} and {len(files) - 1} more"
    return _checked(name, texts, labels, source)


def _tsv(name: str, data: Path) -> tuple[Rows, Rows] | None:
    form = FORMS[name]
    train, dev = data / form.folder / "train.tsv", data / form.folder / f"{form.dev}.tsv"
    return (_read_tsv(name, train), _read_tsv(name, dev)) if train.exists() and dev.exists() else None


def _read_tsv(name: str, file: Path) -> Rows:
    """Split at tabs and line feeds only: quotes and Unicode's other line ends are part of the text."""
    form = FORMS[name]
    with reading(short(file)):
        lines = regular(file).read_bytes().decode("utf-8-sig").split("\n")
    cells = [line.removesuffix("\r").split("\t") for line in lines if line.strip()]
    places = [3, 1]  # CoLA's columns: source, label, the linguists' mark, sentence
    if form.headings:
        heading = cells.pop(0) if cells else []
        if missing := [word for word in form.headings if word not in heading]:
            got = ", ".join(heading) or "no heading"
            raise Invalid(f"{short(file)} must have the column {missing[0]!r}, got {got}.")
        places = [heading.index(word) for word in form.headings]
    rows = [row for row in cells if len(row) > max(places)]  # QQP has a few broken rows, which GLUE skips too
    texts = [[row[place] for row in rows] for place in places[:-1]]
    return _checked(name, texts, [_label(row[places[-1]], form.labels) for row in rows], short(file))


def _label(word: str, words: tuple[str, ...]) -> float | str:
    """The number of a label; a word that is not one is returned unchanged, for `_checked` to refuse."""
    if words:
        return words.index(word) if word in words else word
    try:
        return float(word)
    except ValueError:
        return word


def _checked(name: str, texts: list[list[Any]], labels: list[Any], source: str) -> Rows:
    """Texts and labels as rows; raises `Invalid` if they do not fit the task."""
    words = FORMS[name].labels
    if not labels:
        raise Invalid(f"{source} must have rows, got none.")
    for row, label in enumerate(labels):
        if not isinstance(label, int if words else float | int) or not 0 <= label <= (len(words) - 1 if words else 5):
            rule = f"0 to {len(words) - 1} ({', '.join(words)})" if words else "between 0 and 5"
            got = f"{label!r} in row {row} of {source}"
            raise Invalid(f"labels of {name} must be {rule}, got {got}. Test splits have no labels.")
    for column, cells in zip(FORMS[name].columns, texts, strict=True):
        for row, text in enumerate(cells):
            if not isinstance(text, str):
                raise Invalid(f"`{column}` must be text, got {text!r} in row {row} of {source}. Download it again.")
    return Rows(tuple(texts), labels, source)
