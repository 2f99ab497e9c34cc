"""A cache on disk for tensors that are slow to compute, keyed by everything they are computed from.

A file's name is a hash of all inputs (names, sizes and contents of files, tensors, strings): an entry is never stale,
and any file can be deleted at any time. Files are written atomically and carry a checksum: a damaged one is
computed again. If several processes need the same entry, one computes it and the others wait.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tardygrad.errors import Invalid
from tardygrad.tasks.data.files import regular

VERSION = 1
"""Format of the files; changing it invalidates the cache."""

Key = Path | Tensor | str
"""An input of a result: a file's name and content, a tensor's values, or a string."""

Tensors = dict[str, Tensor]


def cached(name: str, make: Callable[[], Tensors], *key: Key, folder: str | Path | None = None) -> Tensors:
    """The tensors that `make` returns, from the disk if they were computed before.

    Args:
        name: begins the file's name.
        make: computes the tensors; must depend on nothing but the key.
        key: all inputs.
        folder: where to store them. None is ~/.cache/tardygrad; if that is not writable, they are not stored.
    """
    path = _folder(folder) / f"{name}-{fingerprint(name, *key)}.safetensors"
    if (stored := _read(path)) is not None:
        return stored
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        _check_writable(folder, error)
        return make()
    with lock:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (stored := _read(path)) is not None:  # another process has written it meanwhile
            return stored
        tensors = {label: tensor.detach().cpu().contiguous() for label, tensor in make().items()}
        try:
            _write(path, tensors)
        except (OSError, SafetensorError) as error:
            _check_writable(folder, error)
            return tensors
    return _read(path) or tensors  # read back, because all processes share the memory of a mapped file


def cached_file(
    name: str, suffix: str, write: Callable[[Path], None], *key: Key, folder: str | Path | None = None
) -> Path:
    """A file that `write` writes, unless it was written before; for results that need not fit in memory.

    Args:
        name: begins the file's name.
        suffix: ends it.
        write: writes the file; must depend on nothing but the key.
        key: all inputs.
        folder: as in `cached`, but it must be writable.
    """
    path = _folder(folder) / f"{name}-{fingerprint(name, *key)}{suffix}"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():  # else another process has written it meanwhile
                _replace(path, write)
    except OSError as error:
        _check_writable(path.parent, error)
    return path


def fingerprint(*key: Key) -> str:
    """32 hexadecimal digits that identify a key.

    >>> fingerprint("a", "b") == fingerprint("ab")
    False
    """
    digest = blake2b(f"tardygrad cache {VERSION}".encode(), digest_size=16)
    for part in key:
        if isinstance(part, Path):
            with regular(part).open("rb") as file:
                digest.update(f"\0file {part.name} {os.fstat(file.fileno()).st_size}\0".encode())
                while block := file.read(1 << 20):
                    digest.update(block)
        elif isinstance(part, Tensor):
            digest.update(f"\0tensor {part.dtype} {list(part.shape)}\0".encode())
            digest.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"\0word {len(part)}\0{part}".encode())
    return digest.hexdigest()


def _folder(given: str | Path | None) -> Path:
    if given is not None:
        return Path(given)
    try:
        return Path.home() / ".cache/tardygrad"
    except RuntimeError as error:
        raise Invalid("the cache needs a home directory, got none. Give cache=FOLDER.") from error


def _read(path: Path) -> Tensors | None:
    """The tensors of a file; None if it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {label: file.get_tensor(label) for label in file.keys()}  # noqa: SIM118
            checksum = (file.metadata() or {}).get("checksum")
    except (OSError, SafetensorError):
        return None
    return tensors if checksum == _checksum(tensors) else None


def _write(path: Path, tensors: Tensors) -> None:
    _replace(path, lambda draft: save_file(tensors, draft, metadata={"checksum": _checksum(tensors)}))


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file and replace the old one atomically, even if other processes do the same."""
    handle, draft = tempfile.mkstemp(prefix=f"{path.stem}-", suffix=".draft", dir=path.parent)
    try:
        os.close(handle)
        write(Path(draft))
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _checksum(tensors: Tensors) -> str:
    return fingerprint(*(part for label in sorted(tensors) for part in (label, tensors[label])))


def _check_writable(folder: str | Path | None, error: Exception) -> None:
    """Raise `Invalid` if the user named the folder; a home directory that is not writable is no error."""
    if folder is not None:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"`cache` must be a writable folder, got {str(folder)!r} ({reason}).") from error
