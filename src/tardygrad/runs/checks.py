"""Checksums of a record: they detect damage and edits, wherever a record is read.

Each line of events.jsonl and metrics.jsonl ends with the key `check`, a CRC-32 of the run's id in spec.json, of all
lines before it and of this line. So a line that was changed, lost, repeated or moved is found, and named by its number,
and so is a file of another run. JSON files have the key `check` too, over their content. Checksums are no signatures:
whoever edits a file can compute them anew.

Files of older versions have none; a file that such a version began has them from the line where it was resumed.
"""

from __future__ import annotations

import json
import shlex
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

from tardygrad.errors import RecordError

KEY = "check"
START, END = f',"{KEY}":"'.encode(), b'"}\n'  # around the checksum of a line
RESTORE = "Restore it from a copy."
LENGTH = len(START) + 8 + len(END)


def checksum(content: bytes) -> str:
    """The checksum of a file's content."""
    return blake2b(content, digest_size=16).hexdigest()


def checked_line(line: str, before: int) -> tuple[str, int]:
    """A JSON object with its checksum as the last key, as one line of a file, and the checksum.

    Args:
        line: a JSON object that is not empty, in ASCII.
        before: the checksum of the line before, or `first_check`.
    """
    content = line[:-1]
    check = crc32(content.encode(), before)
    return f'{content},"{KEY}":"{check:08x}"}}\n', check


def check_of(line: bytes) -> int | None:
    """The checksum that a line carries; None if it has none."""
    end = line[-LENGTH:]
    return int(end[len(START) : -len(END)], 16) if end.startswith(START) and end.endswith(END) else None


def run_id(folder: Path) -> str:
    """The id of a run, which every part of its record carries; empty if the record is older and has none."""
    try:
        content = json.loads((folder / "spec.json").read_bytes())
    except (OSError, ValueError, RecursionError):  # whoever reads the settings says what is wrong
        return ""
    return str(content.get("id", "")) if isinstance(content, dict) else ""


def check_id(stored: object, path: Path, folder: Path, fix: str = RESTORE) -> None:
    """Raise `RecordError` unless a part of a record has the id of the run in whose folder it is."""
    if (stored or "") != run_id(folder):
        raise RecordError(f"{str(path)!r} belongs to another run than the spec.json of its folder. {fix}")


def first_check(folder: Path) -> int:
    """The checksum before the first line of a file."""
    return crc32(run_id(folder).encode())


class LineChecks:
    """Verifies the lines of a file one after the other."""

    def __init__(self, path: Path) -> None:
        refuse_special(path)
        self.path, self.start = path, first_check(path.parent)
        self.last: int | None = None  # None: no line so far has a checksum

    def verify(self, line: bytes, number: int) -> None:
        """Raise `RecordError` if a line is not the one that was written after those before it."""
        try:
            stored = check_of(line)
        except ValueError:
            stored = -1
        if stored is None and self.last is None:
            return
        self.last = crc32(line[:-LENGTH], self.start if self.last is None else self.last)
        if stored != self.last:
            before = "lines before it were changed, lost, repeated or moved"
            other = "the file belongs to another run than the spec.json of its folder"
            why = f"its checksum is wrong (it was changed, or {other if number == 1 else before})"
            raise damaged_line(self.path, number, why)


def refuse_special(path: Path) -> None:
    """Raise `RecordError` if a path is a pipe or a device, whose reading would never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RecordError(f"{str(path)!r} must be a file, and is a pipe, a socket or a device. {RESTORE}")


def damaged_line(path: Path, number: int, why: str) -> RecordError:
    """The error for a line of a record, with what to do about it."""
    return RecordError(f"line {number} of {str(path)!r} is damaged: {why}. {go_back(path.parent)}")


def go_back(folder: Path) -> str:
    """What to do about a record whose lines are damaged."""
    return f"Restore it from a copy, or let the run go back before the damage: tardygrad resume {quoted(folder)}"


def start_again(folder: Path, what: str = "it") -> str:
    """What to do about a record that cannot be continued."""
    return f"Restore {what} from a copy, or start again: tardygrad run {quoted(folder)} --out NEW"


def quoted(folder: str | Path) -> str:
    """A folder as a command takes it."""
    return shlex.quote(str(folder))


def check_lines(path: Path) -> None:
    """Verify a file of lines, without a torn last line; one that is not there has none."""
    if not path.exists():
        return
    checks = LineChecks(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                checks.verify(line, number)


def checked_prefix(path: Path, length: int) -> int:
    """Verify the first `length` bytes of a file of lines; returns the last checksum."""
    checks, end = LineChecks(path), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if end == length:
                break
            end += len(line)
            if end > length or not line.endswith(b"\n"):
                raise damaged_line(path, number, "it does not end where it was written")
            checks.verify(line, number)
    if end < length:
        raise RecordError(f"{str(path)!r} is shorter than its checkpoint says: the record is damaged.")
    return checks.start if checks.last is None else checks.last


def last_check(path: Path) -> str | None:
    """The checksum of the last line of a file, as text; None if it has none."""
    refuse_special(path)
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - LENGTH, 0))
        check = check_of(file.read())
    return None if check is None else f"{check:08x}"


def with_check(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the checksum of its content."""
    return value | {KEY: checksum(_canonical(value))}


def without_check(value: dict[str, Any], path: Path, fix: str = "") -> dict[str, Any]:
    """The content of a JSON object; raises `RecordError` if its checksum is wrong, and says what to do."""
    stored = value.pop(KEY, None)
    if stored is not None and stored != checksum(_canonical(value)):
        edit = f"Restore it; if the change is meant, remove its key `{KEY}`"
        fix = fix or f"{edit}. The record was made with the old values: for other settings, start a new run."
        raise RecordError(
            f"{str(path)!r} is damaged: its checksum is wrong, so it was changed after it was written. {fix}"
        )
    return value


def unchecked_spec(folder: Path) -> str | None:
    """A sentence about a spec.json whose checksum was removed; None if it has one, or if no line of its record has."""
    path, lines = folder / "spec.json", folder / "events.jsonl"
    if KEY in json.loads(path.read_bytes()) or not lines.exists():
        return None
    with lines.open("rb") as file:
        first = file.readline()
    return None if check_of(first) is None else f"{str(path)!r} has no checksum: it may have been edited since the run."


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
