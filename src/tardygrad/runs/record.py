"""The record of a run: a directory with its spec, events, metrics, checkpoints and results.

    spec.json       the resolved spec, and the versions of the packages
    events.jsonl    what happened, in order (see events.py)
    metrics.jsonl   one line per round
    checkpoints/    the last two (see checkpoint.py)
    model.safetensors, summary.json     when the run has ended

Lines are only appended. Readers ignore a last line that a crash cut short; a resumed run truncates the files to the
lengths in its checkpoint. Other files are replaced atomically. Lines and JSON files carry checksums (see checks.py).
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, TextIO

from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.checks import (
    KEY,
    RESTORE,
    LineChecks,
    checked_line,
    checked_prefix,
    damaged_line,
    first_check,
    quoted,
    refuse_special,
    with_check,
    without_check,
)

Row = dict[str, Any]
"""One line of a record."""
LINES = ("events.jsonl", "metrics.jsonl")
LEVELS = 255  # most parts of a path: Python's functions for folders recurse, once for each


class End(NamedTuple):
    """Where a file of lines ended."""

    length: int  # in bytes
    check: int  # of its last line; 0: it has none


def to_json_value(value: Any) -> Any:
    """A value in strict JSON: numbers that are not finite become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return value


class Record:
    """The writer of a run's directory, which one process at a time may open.

    Args:
        path: the directory.
        spec: what spec.json of a new record holds.
        new: whether the directory must not hold a run yet.
    """

    def __init__(self, path: Path, spec: Row | None = None, *, new: bool = True) -> None:
        given, path = path, path.absolute()  # the user's code may change the current directory
        self.path = require_new(path) if new else path
        self._lock = lock_run(given)
        self._files: list[TextIO] = []
        try:
            if new:
                require_new(path)  # again: another process may have written there before it was locked
            with writing(path):
                if spec is not None:
                    write_json(path / "spec.json", spec)  # first: it makes the folder that of a run
                (path / "checkpoints").mkdir(exist_ok=True)
                for name in LINES:
                    _copy_hard_link(path / name)
                    self._files.append((path / name).open("a", encoding="utf-8"))
            self._checks = [first_check(path)] * len(LINES)  # of the last line of each file
        except BaseException:
            self.close()
            raise

    def write_event(self, row: Row, *, durable: bool = False) -> None:
        """Append a line to events.jsonl; a durable one is on the disk when this returns."""
        self._append(0, row)
        if durable:
            self.ends()
            self.sync()

    def write_metrics(self, row: Row) -> None:
        """Append a line to metrics.jsonl."""
        self.check_place()
        self._append(1, row)

    def _append(self, number: int, row: Row) -> None:
        line = json.dumps(to_json_value(row), allow_nan=False, separators=(",", ":"))
        line, self._checks[number] = checked_line(line, self._checks[number])
        try:
            self._files[number].write(line)
        except OSError as error:
            raise write_error(self.path, error) from error

    def ends(self) -> dict[str, End]:
        """Where each file ends now, for a checkpoint."""
        self.check_place()
        with writing(self.path):
            for file in self._files:
                file.flush()
            sizes = [os.fstat(file.fileno()).st_size for file in self._files]
        return {name: End(*end) for name, *end in zip(LINES, sizes, self._checks, strict=True)}

    def check_place(self) -> None:
        """Raise `RecordError` if the directory was moved or deleted: what is written by path would end up elsewhere."""
        for name, file in zip(LINES, self._files, strict=True):
            try:
                in_place = os.path.samestat(os.stat(self.path / name), os.fstat(file.fileno()))
            except OSError:
                in_place = False
            if not in_place:
                raise _moved(self.path)

    def sync(self) -> None:
        """Flush the files to the disk; any thread may call this."""
        with writing(self.path):
            for file in self._files:
                os.fsync(file.fileno())

    def rewind(self, ends: dict[str, End]) -> None:
        """Truncate the files to where they ended at a checkpoint. The run has not ended then: remove its summary."""
        with writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
            for number, file in enumerate(self._files):
                length, check = ends[LINES[number]]
                self._checks[number] = check if length else first_check(self.path)
                file.truncate(length)

    def close(self) -> None:
        """Flush and close the files, and unlock the directory."""
        with writing(self.path), ExitStack() as stack:  # closes every file, even if one fails
            for file in (self._lock, *self._files):
                stack.callback(file.close)


def lock_run(folder: Path) -> TextIO:
    """Lock the folder of a run for this process."""
    fix = f"Wait until that has ended, or watch it with: tardygrad watch {quoted(folder)}"
    return lock(folder, "the run in", tries=3, fix=fix)  # a reader may hold it for an instant


def lock(folder: Path, what: str, tries: int = 1, fix: str = "Wait until that has ended.") -> TextIO:
    """Create a folder if necessary, and lock it for this process; retries after a tenth of a second."""
    with writing(folder):
        make_directory(folder)
        refuse_links(folder)
        file = (folder / ".lock").open("a")
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError as error:
            tries -= 1
            if not tries:
                file.close()
                raise RecordError(f"{what} {str(folder)!r} is in use by another process. {fix}") from error
        time.sleep(0.1)


def refuse_links(folder: Path) -> None:
    """Raise `Invalid` if what is written into a folder could end up elsewhere."""
    patterns = ("*", "track/*", "checkpoints/*", "checkpoints/*/*")
    files = [path for pattern in patterns for path in folder.glob(pattern)]
    links = [path for path in files if path.is_symlink()]
    deeper = (path for path in folder.glob("track/*/**/*") if path.is_symlink())
    links += [path for path in deeper if not path.resolve().is_relative_to(folder.resolve())]  # wandb makes others
    for path in links:
        rule, fix = "must not contain symbolic links", "Replace the link by what it points to, or remove it."
        raise Invalid(f"the folder of a run or of results {rule}, got {str(path)!r}. {fix}")
    for path in files:
        refuse_special(path)


def exclusive(folder: Path, what: str = "the folder of results") -> TextIO:
    """Lock a folder until the file that it returns is closed, for a `with` statement.

    Waits up to two seconds, because the workers of a killed process may still hold the lock.
    """
    return lock(folder, what, tries=20)


@contextmanager
def reading_record(path: Path) -> Iterator[None]:
    """Turn errors that a damaged record causes into `RecordError`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RecordError(f"the record in {str(path)!r} is damaged ({type(error).__name__}: {error}).") from error
    except ValueError as error:
        if isinstance(error, Invalid):
            raise
        raise RecordError(f"the record in {str(path)!r} is damaged ({error}).") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a `RecordError` if a write fails."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def require_new(path: Path) -> Path:
    """Return the path if a new run may be written there, else raise `Invalid`."""
    _check_path(path)
    remains = (path / name for name in ("spec.json", "metrics.jsonl", "summary.json"))
    if any(file.exists() for file in remains) or any((path / "checkpoints").glob("*")):
        raise Invalid(f"the directory {str(path)!r} already holds a run. Resume it, or choose another one.")
    check_directory(path)
    return path


def new_run_dir(name: str, runs: Path = Path("runs")) -> Path:
    """Create runs/`name`-NUMBER with the next free number; safe when several runs start at once."""
    check_directory(runs)
    try:
        runs.mkdir(exist_ok=True)
        for number in count(1):
            path = runs / f"{name}-{number}"
            with suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise write_error(runs, error) from error
    raise AssertionError  # count never ends


def _copy_hard_link(path: Path) -> None:
    """Replace a hard link by a copy: it may be that of a backup (`cp -al`), which must not change with the run."""
    if path.exists() and path.stat().st_nlink > 1:
        draft = path.with_name(path.name + ".draft")
        draft.unlink(missing_ok=True)
        shutil.copy2(path, draft)
        draft.replace(path)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, unless it exists; raises `Invalid` if the path has too many levels."""
    _check_path(path)
    path.mkdir(parents=True, exist_ok=True)


def _check_path(path: Path) -> None:
    try:
        valid = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise Invalid(f"a path must have no NUL and no lone surrogate, got {str(path)!r}. Choose another one.")
    if len(path.parts) > LEVELS:
        raise Invalid(f"a path may have at most {LEVELS} levels, got {len(path.parts):,}. Choose a shorter one.")


def check_directory(path: Path) -> None:
    """Raise `Invalid` unless a directory can be written; if it does not exist, unless it can be created."""
    _check_path(path)
    found = next(place for place in (path, *path.parents) if place.exists() or place.is_symlink())
    if not found.is_dir():
        kind = "a file" if found.exists() else "a symbolic link to nothing"
        raise Invalid(f"a run needs a directory, and {str(found)!r} is {kind}. Choose another one.")
    try:
        with TemporaryFile(dir=found):
            pass
    except OSError as error:
        rule = f"a run needs a directory that can be written, got {str(path)!r}"
        raise Invalid(f"{rule} ({error.strerror or error}). Choose another one.") from error


def write_error(path: Path, error: OSError) -> RecordError | Invalid:
    """The error for a failed write; `Invalid` if there can be no such directory."""
    if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST):
        return Invalid(f"{str(path)!r} cannot be a directory: {error.strerror}. Choose another one.")
    if error.errno == errno.ENOENT:
        return _moved(path)
    fix = "Free some space, or choose another directory."
    if any((path / "checkpoints").glob("*")):
        fix = "The last complete checkpoint is untouched: free some space and resume."
    return RecordError(f"cannot write to {str(path)!r}: {error.strerror or error}. {fix}")


def _moved(path: Path) -> RecordError:
    fix = "Resume the run where it is now, or move it back."
    return RecordError(f"the folder {str(path)!r} was moved or deleted while it was written. {fix}")


def write_json(path: Path, value: Row) -> None:
    """Replace a JSON file atomically."""
    content = json.dumps(with_check(to_json_value(value)), allow_nan=False, indent=2, ensure_ascii=False)
    replace(path, content.encode() + b"\n")


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new, never a mixture."""
    draft = path.with_name(path.name + ".draft")
    require_file(path)
    try:
        draft.unlink(missing_ok=True)  # of a writer that was killed, or a link to elsewhere
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):  # of a name that is too long
            draft.unlink(missing_ok=True)
        raise write_error(path.parent, error) from error


def require_file(path: Path) -> None:
    """Raise `Invalid` if something that is not a file has a path."""
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "a pipe, a socket or a device"
        raise Invalid(f"{str(path)!r} must be a file, and is {kind}. Choose another name.")


def read_json(path: Path, fix: str = "") -> Row:
    """Read a JSON file of a record.

    Args:
        fix: what to do if it is damaged.
    """
    _check_path(path)
    refuse_special(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{str(path)!r} is damaged: {error}. {fix or RESTORE}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{str(path)!r} is damaged: it holds no JSON object. {fix or RESTORE}")
    return without_check(value, path, fix)


def read_lines(path: Path, length: int | None = None) -> Iterator[Row]:
    """Read events.jsonl or metrics.jsonl, up to a length in bytes, without a torn last line."""
    checks = LineChecks(path)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") or (length is not None and file.tell() > length):
                    return
                checks.verify(line, number)
                try:
                    row = json.loads(line.decode())
                except (ValueError, RecursionError) as error:
                    raise damaged_line(path, number, "it is no JSON") from error
                if not isinstance(row, dict):
                    raise damaged_line(path, number, "it holds no JSON object")
                row.pop(KEY, None)
                yield row
    except OSError as error:
        raise _unreadable(path, error) from error


def verified_ends(folder: Path, state: Row) -> dict[str, End]:
    """Where the files of lines ended at a checkpoint; raises `RecordError` if they are damaged up to there.

    Args:
        folder: of the record.
        state: of the checkpoint; those of older versions have only the lengths.
    """
    ends = {}
    for name in LINES:
        length, check = state["ends"][name] if "ends" in state else (state["lengths"][name], None)
        found = checked_prefix(folder / name, length)
        if check not in (None, found):
            raise RecordError(f"{str(folder / name)!r} is damaged: its lines are not those of the checkpoint.")
        ends[name] = End(length, found)
    return ends


def _unreadable(path: Path, error: OSError) -> Invalid:
    folder = path.parent
    if not folder.exists():
        return Invalid(f"there is no run directory {str(folder)!r}.")
    if path.name == "spec.json" and (folder / "sweep.json").exists():
        fix = f"Its report has the command that runs the best trial: tardygrad report {quoted(folder)}"
        return Invalid(f"{str(folder)!r} holds no run, but a sweep or a comparison. {fix}")
    return Invalid(f"{str(folder)!r} holds no run: {path.name} cannot be read ({error.strerror}).")
