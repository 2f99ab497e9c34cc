"""What is slow to make is made once: tensors on disk, named by what they were made from.

A file's name is a hash of everything that went in (names, sizes and contents of files, tensors, words), so nothing is
ever out of date; what is no longer wanted can be deleted at any time. Files are replaced atomically and carry a
checksum: a broken one is made again. Of several processes that want the same, one makes it and the others wait.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tardygrad.errors import Invalid

VERSION = 1
"""Of the format; another one makes everything anew."""

Key = Path | Tensor | str
"""What a result depends on: a file's name and content, a tensor's values, or a word."""

Tensors = dict[str, Tensor]


def cached(name: str, make: Callable[[], Tensors], *key: Key, folder: str | Path | None = None) -> Tensors:
    """The tensors that `make` returns, from the disk if they were made before.

    Args:
        name: what they are, in a word; the beginning of the file's name.
        make: makes them; a function of the key and nothing else.
        key: all that they depend on.
        folder: where to keep them. None is ~/.cache/tardygrad, and if that cannot be written to, they are not kept.
    """
    path = _folder(folder) / f"{name}-{fingerprint(name, *key)}.safetensors"
    found = _read(path)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        _kept(folder, error)
        return make()
    with lock:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        found = _read(path)  # someone else may have made it meanwhile
        if found is not None:
            return found
        made = {label: tensor.detach().cpu().contiguous() for label, tensor in make().items()}
        try:
            _write(path, made)
        except (OSError, SafetensorError) as error:
            _kept(folder, error)
            return made
    return _read(path) or made  # from the disk, memory is shared by all processes that read it


def fingerprint(*key: Key) -> str:
    """32 hexadecimal digits, others for any other key.

    >>> fingerprint("a", "b") == fingerprint("ab")
    False
    """
    digest = blake2b(f"tardygrad cache {VERSION}".encode(), digest_size=16)
    for part in key:
        if isinstance(part, Path):
            with part.open("rb") as file:
                digest.update(f"\0file {part.name} {os.fstat(file.fileno()).st_size}\0".encode())
                while block := file.read(1 << 20):
                    digest.update(block)
        elif isinstance(part, Tensor):
            digest.update(f"\0tensor {part.dtype} {list(part.shape)}\0".encode())
            digest.update(_bytes(part))
        else:
            digest.update(f"\0word {len(part)}\0{part}".encode())
    return digest.hexdigest()


def _folder(given: str | Path | None) -> Path:
    if given is not None:
        return Path(given)
    try:
        return Path.home() / ".cache/tardygrad"
    except RuntimeError as error:
        raise Invalid("the cache needs a home directory, and there is none. Give cache=FOLDER.") from error


def _read(path: Path) -> Tensors | None:
    """The tensors of a file; None if there is none, or if it is broken."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {label: file.get_tensor(label) for label in file.keys()}  # noqa: SIM118
            known = (file.metadata() or {}).get("checksum")
    except (OSError, SafetensorError):
        return None
    return found if known == _checksum(found) else None


def _write(path: Path, made: Tensors) -> None:
    """Replace a file atomically, whoever else does."""
    handle, draft = tempfile.mkstemp(prefix=f"{path.stem}-", suffix=".draft", dir=path.parent)
    try:
        os.close(handle)
        save_file(made, draft, metadata={"checksum": _checksum(made)})
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _checksum(tensors: Tensors) -> str:
    value = 0
    for label, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{label} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        value = zlib.crc32(_bytes(tensor), value)
    return f"{value:08x}"


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _kept(folder: str | Path | None, error: Exception) -> None:
    """Complain of a folder that was asked for; a home directory that cannot be written to is no error."""
    if folder is not None:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"`cache` must be a folder that can be written to, got {str(folder)!r} ({reason}).") from error
