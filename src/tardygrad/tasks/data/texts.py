"""Texts as tokens: one text in memory, as bytes or byte pairs, or many texts as rows of tokens in a mapped file.

P. Gage. A New Algorithm for Data Compression. 1994; applied to bytes as in GPT-2, so that any text can be encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.errors import Invalid, shortened
from tardygrad.tasks.data.files import Key, cache_folder, cached, fingerprint, optional, reading
from tardygrad.tasks.data.sharding import SplitSettings, shard

FORMATS = (".arrow", ".jsonl", ".parquet", ".txt")
_CACHED = "generator-"  # begins the names of the cache's files, which may be below the folder of the texts
_PIECE = 1 << 20  # characters of a text that are encoded at once: the tokenizer's objects are large
_BATCH = 1000  # rows of a file that are encoded at once


def read(text: str) -> bytes:
    """Read a file, all .txt files of a folder in order, or "python": the language reference inside CPython."""
    if text == "python":
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise Invalid("text='python' needs pydoc_data, which this Python lacks. Give another file.") from error
        return "\n\n".join(topics[name] for name in sorted(topics)).encode()
    path = Path(text)
    files = sorted(path.rglob("*.txt")) if text and path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise Invalid(f"`text` must be a file, a folder with .txt files, or 'python', got {text!r}, which is neither.")
    try:
        return b"\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise Invalid(f"`text` must be readable files, got {text!r}: {error.strerror}.") from error


def split(text: bytes) -> tuple[bytes, bytes]:
    """The first nine tenths and the rest, cut at the start of a UTF-8 character."""
    cut = len(text) * 9 // 10
    while 0 < cut < len(text) and text[cut] & 0xC0 == 0x80:
        cut -= 1
    return text[:cut], text[cut:]


@dataclass(frozen=True)
class Pairs:
    """A byte-pair tokenizer, as JSON."""

    json: str

    def encode(self, text: bytes) -> Tensor:
        """Encode a UTF-8 text; invalid bytes become U+FFFD."""
        encodings = self._tokenizer().encode_batch(list(_pieces(text)), add_special_tokens=False)
        parts = [np.array(encoding.ids, np.int32) for encoding in encodings]
        return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, np.int32))

    def decode(self, tokens: Tensor) -> bytes:
        """Decode tokens to text."""
        text: str = self._tokenizer().decode(tokens.tolist(), skip_special_tokens=False)
        return text.encode()

    def save_pretrained(self, folder: str) -> None:
        """Write tokenizer.json."""
        Path(folder, "tokenizer.json").write_text(self.json, "utf-8")

    def _tokenizer(self) -> Any:
        return _tokenizers().Tokenizer.from_str(self.json)


def pairs(train: bytes, vocabulary: int, cache: str | None) -> Pairs:
    """Learn the byte pairs of a text, or read them from the cache."""
    tokenizers = _tokenizers()

    def learn() -> dict[str, Tensor]:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=letters, show_progress=False)
        tokenizer.train_from_iterator(_pieces(train), trainer)
        return {"json": torch.frombuffer(bytearray(tokenizer.to_str().encode()), dtype=torch.uint8)}

    key = (torch.frombuffer(bytearray(train), dtype=torch.uint8), str(vocabulary), version("tokenizers"))
    return Pairs(bytes(cached("pairs", learn, *key, folder=cache)["json"].numpy()).decode())


def _pieces(text: bytes) -> Iterator[str]:
    """Split a text into pieces of whole lines."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE) + 1 or len(text)
        yield text[start:end].decode("utf-8", "replace")
        start = end


def _tokenizers() -> Any:
    return optional("tokenizers", "tokens='bpe', unlike tokens='byte', needs tokenizers", "hf")


class Columns(NamedTuple):
    """The columns to read."""

    text: str  # with the text of a row, unless it has `input_ids`
    client: str | None = None  # with the client of a row; "file" is the file's name
    label: str | None = None  # with the label of a row


def token_rows(data: str, tokenizer: Any, columns: Columns, block: int, key: Sequence[Key], cache: str | None) -> Any:
    """A `datasets.Dataset` with the columns `input_ids`, `client` and `label`.

    Texts are read once, file by file, and their tokens are written to a file of the cache. So neither the texts nor the
    tokens have to fit in memory: rows are read when a batch needs them.

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
    home = Path(data) if Path(data).is_dir() else Path(data).parent
    names = [file.relative_to(home).as_posix() for file in files]
    if not files and (columns.client or columns.label):
        raise Invalid("data='python' has no columns to tell clients apart: leave out `by` and `labels`.")

    def batches() -> Iterator[tuple[list[Any], str, int]]:
        if not files:
            yield [{columns.text: read(data).decode()}], "python", 1
        for file, name in zip(files, names, strict=True):
            first = 1
            with reading(name):
                for batch in _batches(file, columns):
                    yield batch, name, first
                    first += len(batch)

    def rows() -> Iterator[dict[str, Any]]:
        empty = True
        for batch, name, first in batches():
            with reading(name):
                for row in _encoded(batch, name, first, tokenizer, columns, block):
                    empty = False
                    yield row
        if empty:
            raise Invalid(f"`data` must have texts of two tokens or more, got none in {data!r}.")

    inputs = [*files, *key] if files else [read(data).decode(), *key]
    text, tokens = datasets.Value("string"), datasets.List(datasets.Value("int32"))
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        found = datasets.Dataset.from_generator(
            rows,
            features=datasets.Features({"input_ids": tokens, "client": text, "label": text}),
            cache_dir=str(cache_folder(cache)),
            fingerprint=fingerprint(json.dumps([*columns, block, names]), *inputs),
        )
    except datasets.exceptions.DatasetGenerationError as error:
        cause = error.__cause__
        raise cause if isinstance(cause, Invalid) else Invalid(f"{data!r} cannot be read ({cause}).") from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    return found


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


def _files(data: str) -> list[Path]:
    """The files to read, in order; none for the text inside CPython."""
    if data == "python":
        return []
    path = Path(data)
    found = [path] if path.is_file() else sorted(path.rglob("*")) if data else []
    found = [file for file in found if file.suffix in FORMATS and not file.name.startswith(_CACHED)]
    if not found:
        rule = f"`data` must be a file or a folder of {', '.join(FORMATS)}, or 'python'"
        got = "has none" if path.exists() else "does not exist"
        raise Invalid(f"{rule}, got {data!r}, which {got}.")
    return found


def _batches(file: Path, columns: Columns) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file, some at a time; those of a text are its pieces."""
    if file.suffix == ".txt":
        with file.open(encoding="utf-8") as lines:
            while piece := lines.readlines(_PIECE):
                yield [{columns.text: "".join(piece)}]
    elif file.suffix == ".jsonl":
        with file.open(encoding="utf-8") as lines:
            rows = (json.loads(line) for line in lines if line.strip())
            while batch := list(islice(rows, _BATCH)):
                yield batch
    elif file.suffix == ".parquet":
        from pyarrow.parquet import ParquetFile

        yield from (batch.to_pylist() for batch in ParquetFile(file).iter_batches(_BATCH))
    else:
        datasets = optional("datasets", "Arrow files need datasets", "hf")
        rows = datasets.Dataset.from_file(str(file)).with_format("arrow")
        yield from (batch.to_pylist() for batch in rows.iter(_BATCH))


def _encoded(
    batch: list[Any], file: str, first: int, tokenizer: Any, columns: Columns, block: int
) -> Iterator[dict[str, Any]]:
    """Rows of at most `block` tokens, with the client and the label of each."""
    encoded = isinstance(batch[0], dict) and "input_ids" in batch[0]
    column = "input_ids" if encoded else columns.text
    wanted = [column, *(name for name in (columns.client, columns.label) if name not in (None, "file"))]
    for number, row in enumerate(batch, first):
        where = f"row {number} of {file}"
        if missing := [name for name in wanted if not isinstance(row, dict) or name not in row]:
            raise Invalid(f"{where} must have `{missing[0]}`, got {shortened(repr(row), 80)}.")
        if encoded and not (isinstance(row[column], list) and set(map(type, row[column])) <= {int}):
            raise Invalid(f"`input_ids` must be lists of whole numbers, got {row[column]!r} in {where}.")
        if not encoded and not isinstance(row[column], str):
            raise Invalid(f"`{column}` must be text, got {row[column]!r} in {where}.")
    documents = [row[column] for row in batch]
    if not encoded:
        if tokenizer is None:
            raise Invalid("texts need a tokenizer, got none. Give `tokenizer`, or rows with `input_ids`.")
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        tokens = tokenizer(documents, verbose=False)["input_ids"]
        documents = [ids if ids[-1:] == end else ids + end for ids in tokens]
    for row, document in zip(batch, documents, strict=True):
        client = file if columns.client == "file" else "" if columns.client is None else str(row[columns.client])
        label = "" if columns.label is None else str(row[columns.label])
        for start in range(0, len(document), block):
            if len(cut := document[start : start + block]) > 1:  # one token predicts nothing
                yield {"input_ids": cut, "client": client, "label": label}
