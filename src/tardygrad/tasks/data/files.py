"""Data files, which can be broken; packages, which can be missing; and a cache of tensors that are slow to compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b, file_digest
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tardygrad.errors import Invalid, TardygradError

Key = Path | Tensor | str
"""An input of a result: a file's name and content, a tensor's values, or a string."""

Tensors = dict[str, Tensor]


def cached(name: str, make: Callable[[], Tensors], *key: Key, folder: str | Path | None = None) -> Tensors:
    """The tensors that `make` returns, from the disk if they were computed before.

    A file's name is a hash of all inputs: an entry is never stale, and any file can be deleted at any time. If several
    processes need the same entry, one computes it and the others wait.

    Args:
        name: begins the file's name.
        make: computes the tensors; must depend on nothing but the key.
        key: all inputs.
        folder: where to store them; None is ~/.cache/tardygrad.
    """
    path = cache_folder(folder) / f"{name}-{fingerprint(name, *key)}.safetensors"
    with FileLock(path.with_suffix(".lock")):
        with suppress(FileNotFoundError, SafetensorError):  # missing or damaged
            return load_file(path)
        tensors = {label: tensor.detach().cpu().contiguous() for label, tensor in make().items()}
        try:
            save_file(tensors, path.with_suffix(".draft"))
            os.replace(path.with_suffix(".draft"), path)
        except (OSError, SafetensorError) as error:
            raise _not_writable(path.parent, error) from error
    return load_file(path)  # read back, because all processes share the memory of a mapped file


def cache_folder(given: str | Path | None) -> Path:
    """The folder of the cache; raises `Invalid` if it is not writable."""
    try:
        folder = Path.home() / ".cache/tardygrad" if given is None else Path(given)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # or no home directory is known
        raise _not_writable(given, error) from error
    if not os.access(folder, os.W_OK):
        raise _not_writable(folder, PermissionError("Permission denied"))
    return folder


def _not_writable(folder: object, error: Exception) -> Invalid:
    reason = getattr(error, "strerror", None) or error
    return Invalid(f"`cache` must be a writable folder, got {str(folder)!r} ({reason}). Give cache=FOLDER.")


def fingerprint(*key: Key) -> str:
    """32 hexadecimal digits that identify a key.

    >>> fingerprint("a", "b") == fingerprint("ab")
    False
    """
    digest = blake2b(digest_size=16)
    for part in key:
        if isinstance(part, Path):
            with part.open("rb") as file:
                found = ("file", part.name, file_digest(file, blake2b).hexdigest())
        elif isinstance(part, Tensor):
            content = part.detach().cpu().contiguous().numpy().data
            found = ("tensor", f"{part.dtype} {list(part.shape)}", blake2b(content).hexdigest())
        else:
            found = ("text", part, "")
        digest.update(repr(found).encode())
    return digest.hexdigest()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any error that is not our own into `Invalid` in one line: files can be broken in many ways."""
    try:
        yield
    except TardygradError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise Invalid(f"{what} cannot be read ({reason}). Download it again.") from error


def optional(module: str, rule: str, extra: str) -> Any:
    """Import a module of an optional package; `rule` begins the error text, `extra` is the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        fix = f"Use pip install -c constraints.txt -e '.[{extra}]'."
        raise Invalid(f"{rule}, which is not installed. {fix}") from error
