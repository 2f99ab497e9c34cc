"""Texts as rows of tokens in a file that is mapped into memory, and their split over clients.

Texts are read once, file by file, and their tokens are written to an Arrow file in the cache. So neither the texts nor
the tokens have to fit in memory: a `datasets.Dataset` reads the rows that a batch needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.errors import Invalid
from tardygrad.tasks.data.cache import Key, cached_file
from tardygrad.tasks.data.files import arrow, optional, parquet, reading, short
from tardygrad.tasks.data.sharding import SplitSettings, shard
from tardygrad.tasks.data.text import read

FORMATS = (".arrow", ".jsonl", ".parquet", ".txt")
_NAME = "token-rows"  # begins the names of the files in the cache, which may be below the folder of the texts
_PIECE = 1 << 20  # characters of a .txt file that are encoded at once
_BATCH = 1000  # rows of a .jsonl file that are encoded at once


class Columns(NamedTuple):
    """The columns to read."""

    text: str  # with the text of a row, unless it has `input_ids`
    client: str | None = None  # with the client of a row; "file" is the file's name
    label: str | None = None  # with the label of a row

    def names(self) -> list[str]:
        """As `parquet` takes them."""
        client = None if self.client == "file" else self.client
        return [f"input_ids|{self.text}", *filter(None, (client, self.label))]


def token_rows(data: str, tokenizer: Any, columns: Columns, block: int, key: Sequence[Key], cache: str | None) -> Any:
    """A `datasets.Dataset` with the columns `input_ids`, `client` and `label`.

    Args:
        data: a file, a folder with files, or "python": the language reference inside CPython.
        tokenizer: one of transformers; None if rows have `input_ids`.
        columns: those to read.
        block: tokens per row; a longer text becomes several rows.
        key: identifies the tokenizer.
        cache: the folder for the tokens.
    """
    datasets = optional("datasets", "texts need datasets", "hf")
    files = _files(data)
    names = [path.relative_to(_home(data)).as_posix() for path in files]
    inputs: list[Key] = [json.dumps([*columns, block, names]), *files, *key]

    def write(path: Path) -> None:
        _write(path, _encoded(data, files, tokenizer, columns, block))

    if not files:
        inputs.append(read(data).decode())
    path = cached_file(_NAME, ".arrow", write, *inputs, folder=cache)
    rows = datasets.Dataset.from_file(str(path))
    if not len(rows):
        raise Invalid(f"`data` must have texts of two tokens or more, got none in {data!r}.")
    return rows


def split_rows(
    rows: Any,
    clients: int | None,
    columns: Columns,
    test: tuple[float, int | None],
    seed: int,
    **settings: Unpack[SplitSettings],
) -> tuple[Any, Any]:
    """The training rows by client, and a random test set; every client keeps a training row.

    Args:
        test: the share of rows in the test set, and the most of them.
    """
    share, most = test
    order = streams.generator(seed, "test rows").permutation(len(rows))
    if columns.client:
        of_row = np.array(rows["client"])[order]
        order = np.delete(order, np.unique(of_row, return_index=True)[1])
    chosen = np.sort(order[: round(share * len(rows))][:most])
    train, held_out = rows.select(np.setdiff1d(np.arange(len(rows)), chosen)), rows.select(chosen)
    if columns.client is None:
        labels = "label" if columns.label else None
        return shard(train, clients=clients, labels=labels, seed=seed, **settings), held_out
    data = shard(train, by="client", labels=columns.label, **settings)
    if clients not in (None, data.clients):
        raise Invalid(f"`clients` must be the number of clients in the data, {data.clients}, got {clients}.")
    return data, held_out


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


def _files(data: str) -> list[Path]:
    """The files to read, in order; none for the text inside CPython."""
    if data == "python":
        return []
    path, rule = Path(data), f"`data` must be a file or a folder of {', '.join(FORMATS)}, or 'python', got {data!r}"
    if not data or not path.exists():
        raise Invalid(f"{rule}, which does not exist.")
    below = [file for file in path.rglob("*") if file.suffix in FORMATS and not file.name.startswith(f"{_NAME}-")]
    found = [path] if path.is_file() else sorted(below)
    if wrong := [file for file in found if any("\ud800" <= letter <= "\udfff" for letter in str(file))]:
        raise Invalid(f"names of files must be UTF-8, got {str(wrong[0])!r}. Rename it.")
    if not found or found[0].suffix not in FORMATS:
        raise Invalid(f"{rule} without any." if path.is_dir() else f"{rule}.")
    return found


def _home(data: str) -> Path:
    return Path(data) if Path(data).is_dir() else Path(data).parent


def _encoded(
    data: str, files: list[Path], tokenizer: Any, columns: Columns, block: int
) -> Iterator[dict[str, list[Any]]]:
    """Rows of tokens, with the client and the label of each, in batches."""
    for texts, clients, labels in _documents(data, files, columns):
        found: dict[str, list[Any]] = {"input_ids": [], "client": [], "label": []}
        tokens = texts if isinstance(texts[0], list) else _encode(tokenizer, texts)
        for document, client, label in zip(tokens, clients, labels, strict=True):
            rows = [document[start : start + block] for start in range(0, len(document), block)]
            rows = [row for row in rows if len(row) > 1]  # one token predicts nothing
            found["input_ids"] += rows
            found["client"] += [client] * len(rows)
            found["label"] += [label] * len(rows)
        yield found


def _encode(tokenizer: Any, texts: list[Any]) -> list[list[int]]:
    """The tokens of texts; each ends with the tokenizer's end of text, if it has one."""
    if tokenizer is None:
        raise Invalid("texts need a tokenizer, got none. Give `tokenizer`, or rows with `input_ids`.")
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return [ids if ids[-1:] == end else ids + end for ids in tokenizer(texts, verbose=False)["input_ids"]]


def _documents(data: str, files: list[Path], columns: Columns) -> Iterator[tuple[list[Any], list[str], list[str]]]:
    """Texts or lists of tokens, with the client and the label of each, in batches."""
    if not files:
        if columns.client or columns.label:
            raise Invalid("data='python' has no columns to tell clients apart: leave out `by` and `labels`.")
        yield [read(data).decode()], [""], [""]
    for file in files:
        name = file.relative_to(_home(data)).as_posix()
        for texts, *others in _columns(file, columns):
            kinds = {type(text) for text in texts}
            if len(kinds) > 1 or not kinds <= {str, list}:
                got = ", ".join(sorted(kind.__name__ for kind in kinds))
                raise Invalid(f"`{columns.text}` of {short(file)} must be text, or `input_ids` lists, got {got}.")
            values = [list(map(str, column)) for column in others]
            clients = [name] * len(texts) if columns.client == "file" else values.pop(0) if columns.client else None
            nothing = [""] * len(texts)
            if texts:
                yield texts, clients or nothing, values[0] if values else nothing


def _columns(file: Path, columns: Columns) -> Iterator[list[list[Any]]]:
    """The columns of a file, some rows at a time."""
    if file.suffix == ".txt":
        if others := columns.names()[1:]:
            raise Invalid(f"a .txt file has no column {others[0]!r}, got {short(file)}. Use .jsonl or .parquet files.")
        with reading(short(file)), file.open(encoding="utf-8") as lines:
            while piece := lines.readlines(_PIECE):
                yield [["".join(piece)]]
    elif file.suffix == ".jsonl":
        with reading(short(file)), file.open(encoding="utf-8") as lines:
            rows = (
                _row(line, columns, f"line {number} of {short(file)}")
                for number, line in enumerate(lines, 1)
                if line.strip()
            )
            while batch := list(islice(rows, _BATCH)):
                yield [list(column) for column in zip(*batch, strict=True)]
    else:
        before = 0
        for batch in (parquet if file.suffix == ".parquet" else arrow)(file, *columns.names()):
            for number, tokens in enumerate(batch[0], before + 1):
                _check_tokens(tokens, f"row {number} of {short(file)}")
            before += len(batch[0])
            yield batch


def _row(line: str, columns: Columns, where: str) -> list[Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise Invalid(f"{where} must be JSON: {error}.") from error
    values = []
    for wanted in columns.names():
        found = [name for name in wanted.split("|") if isinstance(row, dict) and name in row]
        if not found:
            got = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise Invalid(f"{where} must have {wanted.replace('|', ' or ')}, got {got}.")
        values.append(row[found[0]])
    _check_tokens(values[0], where)
    try:
        "".join(value for value in values if isinstance(value, str)).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise Invalid(f"{where} must be Unicode text, got {half!r}, which is half of a surrogate pair.") from error
    return values


def _check_tokens(tokens: Any, where: str) -> None:
    """Raise `Invalid` if a list has anything but whole numbers, which Arrow might cut off or drop."""
    if isinstance(tokens, list) and not set(map(type, tokens)) <= {int}:
        wrong = next(token for token in tokens if type(token) is not int)
        raise Invalid(f"`input_ids` must be lists of whole numbers, got {wrong!r} in {where}.")


def _write(path: Path, batches: Iterator[dict[str, list[Any]]]) -> None:
    import pyarrow

    tokens = ("input_ids", pyarrow.list_(pyarrow.int32()))
    schema = pyarrow.schema([tokens, ("client", pyarrow.string()), ("label", pyarrow.string())])
    with pyarrow.ipc.new_stream(str(path), schema) as writer:
        for batch in batches:
            try:
                writer.write_batch(pyarrow.record_batch(batch, schema=schema))
            except (pyarrow.ArrowException, TypeError, OverflowError) as error:
                raise Invalid(f"`input_ids` must be lists of whole numbers: {error}.") from error
