"""Text as tokens: bytes, or byte pairs (BPE) learnt from the text itself.

P. Gage. A New Algorithm for Data Compression. 1994; applied to bytes as in GPT-2, so that any text can be encoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tardygrad.errors import Invalid
from tardygrad.tasks.data.cache import cached
from tardygrad.tasks.data.files import optional, regular

_PIECE = 1 << 20  # bytes per call of the tokenizer, whose objects are large


def read(text: str) -> bytes:
    """Read a file, all .txt files of a folder in order, or "python": the language reference inside CPython."""
    if text == "python":
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise Invalid("text='python' needs pydoc_data, which this Python lacks. Give another file.") from error
        return "\n\n".join(topics[name] for name in sorted(topics)).encode()
    path = Path(text)
    rule = f"`text` must be a file, a folder with .txt files, or 'python', got {text!r}"
    try:
        if text and path.is_dir():
            files = sorted(path.rglob("*.txt"))
            if not files:
                raise Invalid(f"{rule} without any.")
            return b"\n".join(regular(file).read_bytes() for file in files)
        if not text or not path.is_file():
            raise Invalid(f"{rule}, which does not exist.")
        return path.read_bytes()
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
    _tokenizers()
    key = (blake2b(train, digest_size=16).hexdigest(), str(vocabulary), version("tokenizers"))
    tensors = cached("pairs", lambda: _learn(train, vocabulary), *key, folder=cache)
    return Pairs(bytes(tensors["json"].numpy()).decode())


def _learn(train: bytes, vocabulary: int) -> dict[str, Tensor]:
    tokenizers = _tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pieces(train), trainer)
    return {"json": torch.from_numpy(np.frombuffer(tokenizer.to_str().encode(), np.uint8).copy())}


def _pieces(text: bytes) -> Iterator[str]:
    """Split a text into pieces of whole lines."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE) + 1 or len(text)
        yield text[start:end].decode("utf-8", "replace")
        start = end


def _tokenizers() -> Any:
    return optional("tokenizers", "tokens='bpe', unlike tokens='byte', needs tokenizers", "hf")
