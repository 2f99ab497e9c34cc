"""Text as tokens: bytes, or byte pairs learnt from the text itself.

P. Gage. A New Algorithm for Data Compression. 1994; on bytes as in GPT-2, so that every text has tokens.
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

_PIECE = 1 << 20  # bytes at a time in the tokenizer, whose own objects are large


def read(text: str) -> bytes:
    """A file, all the .txt files of a folder one after another, or "python": the language reference inside CPython."""
    if text == "python":
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise Invalid(
                "text='python' needs pydoc_data, which this Python lacks. Give a file of your own."
            ) from error
        return "\n\n".join(topics[name] for name in sorted(topics)).encode()
    path = Path(text)
    try:
        return _file(path, text)
    except OSError as error:
        raise Invalid(f"`text` must be files that can be read, got {text!r}: {error.strerror}.") from error


def _file(path: Path, text: str) -> bytes:
    if text and path.is_dir():
        files = sorted(path.rglob("*.txt"))
        if not files:
            raise Invalid(f"`text` must be a file, a folder with .txt files, or 'python', got {text!r} without any.")
        return b"\n".join(file.read_bytes() for file in files)
    if not text or not path.is_file():
        raise Invalid(
            f"`text` must be a file, a folder with .txt files, or 'python', got {text!r}, which is not there."
        )
    return path.read_bytes()


def split(text: bytes) -> tuple[bytes, bytes]:
    """The first nine tenths and the last, cut where a character of UTF-8 begins."""
    cut = len(text) * 9 // 10
    while 0 < cut < len(text) and text[cut] & 0xC0 == 0x80:
        cut -= 1
    return text[:cut], text[cut:]


@dataclass(frozen=True)
class Pairs:
    """Byte pairs: a tokenizer, as JSON."""

    json: str

    def encode(self, text: bytes) -> Tensor:
        """Tokens of a text, which is UTF-8; what is not becomes U+FFFD."""
        made = self._tokenizer()
        parts = [
            np.array(one.ids, np.int32) for one in made.encode_batch(list(_pieces(text)), add_special_tokens=False)
        ]
        return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, np.int32))

    def decode(self, tokens: Tensor) -> bytes:
        """The text of tokens."""
        said: str = self._tokenizer().decode(tokens.tolist(), skip_special_tokens=False)
        return said.encode()

    def _tokenizer(self) -> Any:
        return _tokenizers().Tokenizer.from_str(self.json)


def pairs(train: bytes, vocabulary: int, cache: str | None) -> Pairs:
    """The byte pairs of a text, learnt once and kept on disk."""
    _tokenizers()
    key = (blake2b(train, digest_size=16).hexdigest(), str(vocabulary), version("tokenizers"))
    held = cached("pairs", lambda: _learn(train, vocabulary), *key, folder=cache)
    return Pairs(bytes(held["json"].numpy()).decode())


def _learn(train: bytes, vocabulary: int) -> dict[str, Tensor]:
    tokenizers = _tokenizers()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_pieces(train), trainer)
    return {"json": torch.from_numpy(np.frombuffer(made.to_str().encode(), np.uint8).copy())}


def _pieces(text: bytes) -> Iterator[str]:
    """A text in pieces of whole lines."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE) + 1 or len(text)
        yield text[start:end].decode("utf-8", "replace")
        start = end


def _tokenizers() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise Invalid(
            "tokens='bpe' needs tokenizers, which is not installed. Use pip install -c constraints.txt -e '.[hf]', or "
            "tokens='byte'."
        ) from error
    return tokenizers
