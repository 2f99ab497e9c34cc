"""The files of GLUE: eight tasks, as parquet with Hugging Face's columns or as the tab-separated files of GLUE itself.

    rte/train.parquet, rte/validation.parquet        or train-*.parquet, as `hf download nyu-mll/glue` gives them
    RTE/train.tsv, RTE/dev.tsv                       from gluebenchmark.com: no quoting, columns of each task's own

Where the whole training set is absent, `train_5k.parquet` (a sample of the paper's size) or `train_pool.parquet` (a
larger one) does; where the validation set is, `validation_heldout.parquet`: the rows of the pool outside `train_5k`, so
that the pool is then never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tardygrad import streams
from tardygrad.errors import Invalid, TardygradError, nearest
from tardygrad.tasks.data.hub import fetched

Name = Literal["mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"]
"""The tasks of GLUE that the paper trains on."""

LARGE = 5000
"""Training rows of the four large tasks in the paper."""


class Form(NamedTuple):
    """How a task is written down."""

    folder: str  # GLUE's own name
    columns: tuple[str, ...]  # in parquet
    headings: tuple[str, ...]  # in tsv, the label last; none for CoLA, which has no heading
    labels: tuple[str, ...]  # their ids are their places; none for STS-B, a number from 0 to 5
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
        """`rows` of them, drawn uniformly and in their old order."""
        if rows >= len(self):
            return self
        chosen = np.sort(streams.generator(seed, purpose).permutation(len(self))[:rows])
        texts = tuple([column[i] for i in chosen] for column in self.texts)
        return replace(self, texts=texts, labels=[self.labels[i] for i in chosen])


def load(name: Name, data: str | None, rows: int | Literal["all"] | None, seed: int) -> tuple[Rows, Rows]:
    """The rows to train on, drawn from the training set where fewer are asked for, and the validation set."""
    if name not in FORMS:
        raise Invalid(f"`name` must be one of {', '.join(FORMS)}, got {name!r}.{nearest(str(name), FORMS)}")
    form = FORMS[name]
    if rows is None:
        rows = LARGE if form.large else "all"
        at_most = False  # a training set that is smaller still is taken whole
    elif rows != "all" and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise Invalid(f"`rows` must be a whole number, 1 or more, or 'all', got {rows!r}.")
    else:
        at_most = rows != "all"
    if data == "hub":
        rule, fix = "data='hub' needs nyu-mll/glue", "Fetch it elsewhere and give data=FOLDER."
        folder = fetched("nyu-mll/glue", [f"{name}/*.parquet"], rule, fix, dataset=True)
    else:
        folder = Path(data or _absent(name, data))
    try:
        train, test = _parquet(name, folder, rows) or _tsv(name, folder) or _absent(name, data)
    except TardygradError:
        raise
    except Exception as error:  # files have many ways to be broken
        reason = f"{type(error).__name__}: {error}"
        raise Invalid(f"{name} in {str(folder)!r} cannot be read ({reason}). Fetch it again.") from error
    if rows == "all":
        return train, test
    if at_most and rows > len(train):
        raise Invalid(f"`rows` must be at most the {len(train)} of {train.source}, got {rows}. Use rows='all'.")
    return train.sample(rows, seed, "glue rows"), test


def _absent(name: str, data: str | None) -> Any:
    form, got = FORMS[name], f"{data!r} with neither" if data else "none"
    raise Invalid(
        f"`data` must be a folder with {name}/train.parquet and {name}/{form.validation}.parquet, or with "
        f"{form.folder}/train.tsv and {form.folder}/{form.dev}.tsv, got {got}. Use data='hub', or "
        f"hf download nyu-mll/glue --type dataset --include '{name}/*' --local-dir {data or 'FOLDER'}"
    )


def _parquet(name: str, data: Path, rows: int | str) -> tuple[Rows, Rows] | None:
    form, folder = FORMS[name], data / name
    test = _parts(folder, form.validation)
    held = not test and _parts(folder, "validation_heldout")
    train = _parts(folder, "train")
    if not train:
        sample, pool = _parts(folder, "train_5k"), _parts(folder, "train_pool")
        more = rows == "all" or int(rows) > LARGE
        train = pool if pool and not held and (more or not sample) else sample
    if not train or not (test or held):
        return None
    return _read_parquet(name, train), _read_parquet(name, test or held or [])


def _parts(folder: Path, split: str) -> list[Path]:
    """A split's file, or its numbered ones."""
    whole = folder / f"{split}.parquet"
    return [whole] if whole.exists() else sorted(folder.glob(f"{split}-*-of-*.parquet"))


def _read_parquet(name: str, files: list[Path]) -> Rows:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        fix = "Use pip install -c constraints.txt -e '.[hf]', or GLUE's own tsv files."
        raise Invalid(f"reading parquet needs pyarrow, which is not installed. {fix}") from error
    columns = FORMS[name].columns
    held: dict[str, list[Any]] = {column: [] for column in (*columns, "label")}
    for file in files:
        try:
            table = parquet.read_table(file)
        except (ArrowException, OSError) as error:
            raise Invalid(
                f"{_short(file)} must be a parquet file, and cannot be read as one. Fetch it again."
            ) from error
        for column, values in held.items():
            if column not in table.column_names:
                raise Invalid(
                    f"{_short(file)} must have the columns {', '.join(held)}, got {', '.join(table.column_names)}."
                )
            values += table[column].to_pylist()
    labels = held.pop("label")
    source = _short(files[0]) if len(files) == 1 else f"{_short(files[0])} and {len(files) - 1} more"
    if not labels:
        raise Invalid(f"{source} must have rows, got none.")
    count = len(FORMS[name].labels)
    for row, label in enumerate(labels):
        if not _fine(label, count):
            rule = f"0 to {count - 1}" if count else "between 0 and 5"
            raise Invalid(
                f"labels of {name} must be {rule}, got {label} in row {row} of {source}. Test splits have none."
            )
    for column in columns:
        for row, text in enumerate(held[column]):
            if not isinstance(text, str):
                raise Invalid(f"`{column}` must be text, got {text!r} in row {row} of {source}. Fetch it again.")
    return Rows(tuple(held[column] for column in columns), labels, source)


def _tsv(name: str, data: Path) -> tuple[Rows, Rows] | None:
    form = FORMS[name]
    train, dev = data / form.folder / "train.tsv", data / form.folder / f"{form.dev}.tsv"
    return (_read_tsv(name, train), _read_tsv(name, dev)) if train.exists() and dev.exists() else None


def _read_tsv(name: str, file: Path) -> Rows:
    """Split at tabs and line feeds only: quotes are text, and so is what else Unicode calls the end of a line."""
    form = FORMS[name]
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise Invalid(f"{_short(file)} must be UTF-8 text, and byte {error.start} is not. Fetch it again.") from error
    cells = [line.removesuffix("\r").split("\t") for line in lines if line.strip()]
    places = [3, 1]  # CoLA: source, label, the linguists' mark, sentence
    if form.headings:
        heading = cells.pop(0) if cells else []
        if missing := [word for word in form.headings if word not in heading]:
            raise Invalid(
                f"{_short(file)} must have the column {missing[0]!r}, got {', '.join(heading) or 'no heading'}."
            )
        places = [heading.index(word) for word in form.headings]
    whole = [row for row in cells if len(row) > max(places)]  # QQP has a few broken rows, which GLUE leaves out too
    texts = tuple([row[place] for row in whole] for place in places[:-1])
    if not whole:
        raise Invalid(f"{_short(file)} must have rows, got none.")
    return Rows(texts, [_label(name, row[places[-1]], file) for row in whole], _short(file))


def _label(name: str, word: str, file: Path) -> float:
    words = FORMS[name].labels
    if word in words:
        return words.index(word)
    try:
        if not words and _fine(float(word), 0):
            return float(word)
    except ValueError:
        pass
    rule = f"one of {', '.join(words)}" if words else "a number between 0 and 5"
    raise Invalid(f"labels of {name} must be {rule}, got {word!r} in {_short(file)}. Test splits have none.")


def _fine(label: Any, count: int) -> bool:
    """One of `count` classes, or without classes a score of STS-B."""
    if count:
        return isinstance(label, int) and 0 <= label < count
    return isinstance(label, float | int) and 0 <= label <= 5


def _short(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"
