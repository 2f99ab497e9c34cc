"""The record of a run: a directory with its settings, events, checkpoints and results.

    spec.json       the run's id and format, the resolved spec, and the versions of the packages
    events.jsonl    what happened, in order (see events.py); the metrics are its rounds and their scores
    checkpoints/    the last two (see checkpoint.py)
    model.safetensors, summary.json     when the run has ended

Lines are only appended. Readers ignore a last line that a crash cut short; a resumed run truncates the file to the
length in its checkpoint. Other files are replaced atomically. Every part carries the run's id (see checks.py), and
is refused if that is not the id in spec.json.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import Any, NamedTuple, TextIO

from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.checks import KEY as CHECK
from tardygrad.runs.checks import (
    RESTORE,
    checked_line,
    damaged_line,
    first_check,
    go_back,
    quoted,
    read_check,
    with_check,
    without_check,
)

Row = dict[str, Any]
"""One line of a record."""
FORMAT = 6  # of all files of a record; others are refused
EVENTS = "events.jsonl"
LEVELS = 255  # most parts of a path: Python's functions for folders recurse, once for each


class End(NamedTuple):
    """Where events.jsonl ended."""

    length: int  # in bytes
    check: int  # of its last line


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
        with ExitStack() as stack:
            self._lock = stack.enter_context(lock_run(given))
            if new:
                require_new(path)  # again: another process may have written there before it was locked
            with writing(path):
                if spec is not None:
                    own = {"format": FORMAT, "id": token_hex(8)}  # which a resumed run has already
                    write_json(path / "spec.json", own | spec)  # first: it makes the folder that of a run
                (path / "checkpoints").mkdir(exist_ok=True)
                self._file = stack.enter_context(open(path / EVENTS, "a", encoding="utf-8", opener=_no_link))
            self.id = read_id(path)
            self._check = first_check(self.id)  # of the last line
            self._open = stack.pop_all()

    def write_event(self, row: Row, *, durable: bool = False) -> None:
        """Append a line to events.jsonl; a durable one is on the disk when this returns."""
        if row["event"] == "advance":
            self.check_place()
        line = json.dumps(to_json_value(row), allow_nan=False, separators=(",", ":"))
        line, self._check = checked_line(line, self._check)
        with writing(self.path):
            self._file.write(line)
        if durable:
            self.end()
            self.sync()

    def end(self) -> End:
        """Where events.jsonl ends now, for a checkpoint."""
        self.check_place()
        with writing(self.path):
            self._file.flush()
            return End(os.fstat(self._file.fileno()).st_size, self._check)

    def check_place(self) -> None:
        """Raise `RecordError` if the directory was moved or deleted: what is written by path would end up elsewhere."""
        try:
            in_place = os.path.samestat(os.stat(self.path / EVENTS), os.fstat(self._file.fileno()))
        except OSError:
            in_place = False
        if not in_place:
            raise _moved(self.path)

    def sync(self) -> None:
        """Flush events.jsonl to the disk; any thread may call this."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def rewind(self, end: End | None) -> None:
        """Truncate events.jsonl to where it ended at a checkpoint, None: to nothing. The run has not ended then."""
        length, self._check = end or (0, first_check(self.id))
        with writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
            self._file.truncate(length)

    def close(self) -> None:
        """Flush and close the file, and unlock the directory."""
        with writing(self.path):
            self._open.close()


def _no_link(path: str, flags: int) -> int:
    """Open a file, but no link, through which a stranger's record could let other files be written."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def lock_run(folder: Path) -> TextIO:
    """Lock the folder of a run for this process."""
    fix = f"Wait until that has ended, or watch it with: tardygrad watch {quoted(folder)}"
    return lock(folder, "the run in", tries=3, fix=fix)  # a reader may hold it for an instant


def lock(folder: Path, what: str, tries: int = 1, fix: str = "Wait until that has ended.") -> TextIO:
    """Create a folder if necessary, and lock it for this process; retries after a tenth of a second."""
    with writing(folder):
        make_directory(folder)
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


def exclusive(folder: Path, what: str = "the folder of results") -> TextIO:
    """Lock a folder until the file that it returns is closed, for a `with` statement.

    Waits up to two seconds, because the workers of a killed process may still hold the lock.
    """
    return lock(folder, what, tries=20)


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock of a run; None if the record has no lock file, or it cannot be read.

    Readers share the lock for an instant, and a run that starts just then tries again (`lock`).
    """
    try:
        with (path / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return None


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
    check_directory(path)
    if any((path / name).exists() for name in ("spec.json", "summary.json")) or any((path / "checkpoints").glob("*")):
        raise Invalid(f"the directory {str(path)!r} already holds a run. Resume it, or choose another one.")
    return path


def new_run_dir(name: str, runs: Path = Path("runs")) -> Path:
    """Create runs/`name`-NUMBER with the next free number; safe when several runs start at once."""
    check_directory(runs)
    with writing(runs):
        runs.mkdir(exist_ok=True)
        for number in count(1):
            path = runs / f"{name}-{number}"
            with suppress(FileExistsError):
                path.mkdir()
                return path
    raise AssertionError  # count never ends


def make_directory(path: Path) -> None:
    """Create a directory and its parents, unless it exists; raises `Invalid` if there can be no such path."""
    _check_path(path)
    path.mkdir(parents=True, exist_ok=True)


def _check_path(path: Path) -> None:
    """Raise `Invalid` if there can be no such path."""
    try:
        valid = b"\0" not in os.fsencode(path) and len(path.parts) <= LEVELS
    except UnicodeEncodeError:
        valid = False
    if not valid:
        rule = f"a path must have no NUL, no lone surrogate and at most {LEVELS} levels"
        raise Invalid(f"{rule}, got {str(path)[:300]!r}. Choose another one.")


def check_directory(path: Path) -> None:
    """Raise `Invalid` unless a directory can be written; if it does not exist, unless it can be created."""
    _check_path(path)
    rule = f"a run needs a directory that can be written, got {str(path)!r}"
    try:
        with TemporaryFile(dir=next(place for place in (path, *path.parents) if os.path.lexists(place))):
            pass
    except OSError as error:
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
        draft.unlink(missing_ok=True)  # of a writer that was killed
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


def read_json(path: Path, fix: str = RESTORE) -> Row:
    """Read a JSON file of a record.

    Args:
        fix: what to do if it is damaged.
    """
    _check_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{str(path)!r} is damaged: {error}. {fix}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{str(path)!r} is damaged: it holds no JSON object. {fix}")
    return without_check(value, path, "" if fix == RESTORE else fix)


def read_spec(folder: Path) -> Row:
    """The content of a run's spec.json; raises `RecordError` if the record has another format."""
    recorded = read_json(folder / "spec.json")
    if recorded.get("format") != FORMAT:
        got = f"the record in {str(folder)!r} has format {recorded.get('format', 'none')}"
        fix = f"Use the version that wrote it, or make the run again: tardygrad run {quoted(folder)} --out NEW"
        raise RecordError(f"{got}, and this version of tardygrad reads format {FORMAT}. {fix}")
    return recorded


def read_id(folder: Path) -> str:
    """The id of a run, which every part of its record carries."""
    return str(read_spec(folder).get("id"))


def check_id(stored: object, path: Path, folder: Path, fix: str = RESTORE) -> None:
    """Raise `RecordError` unless a part of a record has the id of the run in whose folder it is."""
    if stored != read_id(folder):
        raise RecordError(f"{str(path)!r} belongs to another run than the spec.json of its folder. {fix}")


def read_lines(path: Path, length: int | None = None) -> Iterator[Row]:
    """Read events.jsonl, up to a length in bytes, without a torn last line."""
    for number, (line, _) in enumerate(_checked_lines(path, length), 1):
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise damaged_line(path, number, "it is no JSON") from error
        if not isinstance(row, dict):
            raise damaged_line(path, number, "it holds no JSON object")
        row.pop(CHECK, None)
        yield row


def verify_lines(path: Path, end: End | None = None) -> None:
    """Raise `RecordError` if events.jsonl is damaged up to an end; None: as a whole."""
    last = deque(_checked_lines(path, end.length if end else None), maxlen=1)
    if end not in (None, last[0][1] if last else (0, first_check(read_id(path.parent)))):
        raise RecordError(f"{str(path)!r} is damaged: its lines are not those of the checkpoint. {RESTORE}")


def verify_last_line(path: Path, check: int) -> None:
    """Raise `RecordError` unless events.jsonl ends with a checksum."""
    expected = b'"%08x"}\n' % check
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - len(expected), 0))
        ending = file.read()
    if ending != expected and (ending or check != first_check(read_id(path.parent))):
        why = "lines at its end were changed or are missing"
        raise RecordError(f"{str(path)!r} is damaged: {why}. {go_back(path.parent)}")


def _checked_lines(path: Path, length: int | None) -> Iterator[tuple[bytes, End]]:
    """The whole lines of a file, and where each ends; if the first one has no checksum, the file was made by hand."""
    check, end, is_checked = first_check(read_id(path.parent)), 0, True
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                end += len(line)
                if not line.endswith(b"\n") or (length is not None and end > length):
                    return
                found, right = read_check(line, check)
                is_checked = is_checked and not (number == 1 and found is None)
                if is_checked and not right:
                    before = "lines before it were changed, lost, repeated or moved"
                    other = "the file belongs to another run than the spec.json of its folder"
                    why = f"its checksum is wrong (it was changed, or {other if number == 1 else before})"
                    raise damaged_line(path, number, why)
                check = found or check
                yield line, End(end, check)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> Invalid:
    folder = path.parent
    if not folder.exists():
        return Invalid(f"there is no run directory {str(folder)!r}.")
    if path.name == "spec.json" and (folder / "sweep.json").exists():
        fix = f"Its report has the command that runs the best trial: tardygrad report {quoted(folder)}"
        return Invalid(f"{str(folder)!r} holds no run, but a sweep or a comparison. {fix}")
    return Invalid(f"{str(folder)!r} holds no run: {path.name} cannot be read ({error.strerror}).")
