"""The record: one directory per run, which holds everything that happened.

    spec.json       what was asked for, resolved; and the versions it ran with
    events.jsonl    dispatch, arrival, refusal, loss, join, advance, tail, evaluation, resume, in order, with the time
    metrics.jsonl   one line per round
    checkpoints/    the latest two (see checkpoint.py)
    model.safetensors, summary.json     when the run has ended

Lines are only ever appended. A line cut short by a crash is ignored by readers and cut off by a resumed run, which
goes back to where its checkpoint was written. Whole files are replaced atomically.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from tardygrad.errors import Invalid, RecordError

Row = dict[str, Any]
"""One line of a record."""


def plain(value: Any) -> Any:
    """The same value in strict JSON: what is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


class Record:
    """The writer of a run's directory; one process at a time.

    Args:
        path: the directory.
        spec: what was asked for, for a new record.
        new: whether the directory must not hold a run yet.
    """

    def __init__(self, path: Path, spec: Row | None = None, *, new: bool = True) -> None:
        self.path = unused(path) if new else path
        self._files: list[TextIO] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise RecordError(f"the run in {str(path)!r} is in use by another process.") from error
        try:
            if new:
                unused(path)  # once more, now that nobody else can write there
            (path / "checkpoints").mkdir(exist_ok=True)
            if spec is not None:
                write_json(path / "spec.json", spec)
            self.events = self._open("events.jsonl")
            self.metrics = self._open("metrics.jsonl")
        except OSError as error:
            self.close()
            raise unwritable(path, error) from error
        except BaseException:
            self.close()
            raise

    def _open(self, name: str) -> TextIO:
        self._files.append((self.path / name).open("a", encoding="utf-8"))
        return self._files[-1]

    def event(self, row: Row) -> None:
        """Append one line to the events."""
        self._append(self.events, row)

    def row(self, row: Row) -> None:
        """Append one line to the metrics."""
        self._append(self.metrics, row)

    def _append(self, file: TextIO, row: Row) -> None:
        try:
            file.write(json.dumps(plain(row), allow_nan=False, separators=(",", ":")) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def lengths(self) -> dict[str, int]:
        """The length of each file, for a checkpoint."""
        try:
            for file in self._files:
                file.flush()
            return {Path(file.name).name: os.fstat(file.fileno()).st_size for file in self._files}
        except OSError as error:
            raise unwritable(self.path, error) from error

    def sync(self) -> None:
        """Bring what was written to the disk; from any thread."""
        try:
            for file in self._files:
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from error

    def rewind(self, lengths: dict[str, int]) -> None:
        """Cut the files off where a checkpoint says."""
        for file in self._files:
            wanted = lengths[Path(file.name).name]
            if os.fstat(file.fileno()).st_size < wanted:
                raise RecordError(f"{file.name!r} is shorter than its checkpoint says: the record is damaged.")
            file.truncate(wanted)

    def close(self) -> None:
        """Bring everything to the disk and let go of the directory."""
        try:
            with ExitStack() as stack:  # closes every file, even if one fails
                for file in (self._lock, *self._files):
                    stack.callback(file.close)
        except OSError as error:
            raise unwritable(self.path, error) from error


@contextmanager
def exclusive(folder: Path, what: str = "the folder of results") -> Iterator[None]:
    """A folder, made if need be, for one process at a time; those of one that was killed need a moment to let go."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise unwritable(folder, error) from error
    with lock:
        for left in reversed(range(20)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if not left:
                    raise RecordError(f"{what} {str(folder)!r} is in use by another process.") from error
                time.sleep(0.1)
        yield


@contextmanager
def reading_record(path: Path) -> Iterator[None]:
    """Reading a record whose content cannot be right says so."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RecordError(f"the record in {str(path)!r} is damaged ({type(error).__name__}: {error}).") from error
    except ValueError as error:
        if isinstance(error, Invalid):
            raise
        raise RecordError(f"the record in {str(path)!r} is damaged ({error}).") from error


def unused(path: Path) -> Path:
    """The same path, if a new run may go there."""
    if any((path / name).exists() for name in ("spec.json", "metrics.jsonl", "checkpoints", "summary.json")):
        raise Invalid(f"the directory {str(path)!r} already holds a run. Resume it, or choose another one.")
    if path.exists() and not path.is_dir():
        raise Invalid(f"a run needs a directory, and {str(path)!r} is a file. Choose another one.")
    return path


def unwritable(path: Path, error: OSError) -> RecordError:
    """One sentence for a failed write."""
    return RecordError(
        f"cannot write to {str(path)!r}: {error.strerror or error}. "
        "The last complete checkpoint is untouched; make room and resume."
    )


def write_json(path: Path, value: Row) -> None:
    """Replace a JSON file atomically."""
    replace(path, json.dumps(plain(value), allow_nan=False, indent=2, ensure_ascii=False).encode() + b"\n")


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new, whatever happens on the way."""
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise unwritable(path.parent, error) from error


def read_json(path: Path) -> Row:
    """A JSON file of a record."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{str(path.parent)!r} holds no run: {path.name} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{str(path)!r} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise RecordError(f"{str(path)!r} is damaged: it holds no JSON object.")
    return value


def read_lines(path: Path, length: int | None = None) -> Iterator[Row]:
    """The lines of events.jsonl or metrics.jsonl, up to a length in bytes; a torn last line is left out."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") or (length is not None and file.tell() > length):
                    return
                try:
                    row = json.loads(line.decode())
                except (ValueError, RecursionError) as error:
                    raise RecordError(f"line {number} of {str(path)!r} is damaged: {error}.") from error
                if not isinstance(row, dict):
                    raise RecordError(f"line {number} of {str(path)!r} is damaged: it holds no JSON object.")
                yield row
    except OSError as error:
        raise Invalid(f"{str(path.parent)!r} holds no run: {path.name} cannot be read ({error.strerror}).") from error
