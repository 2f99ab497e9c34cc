"""Checksums of a record, and what to do where one is wrong.

Each line of events.jsonl ends with the key `check`, a CRC-32 of the run's id, of all lines before it and of this line;
JSON files have the key `check` over their content. So whatever was changed, lost, repeated or moved is found, and so is
a file of another run. Checksums are no signatures: whoever edits a file can compute them anew, or remove them.
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
RESTORE = "Restore it from a copy."


def checksum(content: bytes) -> str:
    """The checksum of a file's content."""
    return blake2b(content, digest_size=16).hexdigest()


def first_check(run_id: str) -> int:
    """The checksum of a run before its first line."""
    return crc32(run_id.encode())


def checked_line(line: str, before: int) -> tuple[str, int]:
    """A JSON object with its checksum as the last key, as one line of a file, and the checksum.

    Args:
        line: a JSON object that is not empty, in ASCII.
        before: the checksum of the line before, or `first_check`.
    """
    content = line[:-1]
    check = crc32(content.encode(), before)
    return f'{content},"{KEY}":"{check:08x}"}}\n', check


def read_check(line: bytes, before: int) -> tuple[int | None, bool]:
    """The checksum that a line carries, None if it has none, and whether it is the right one after the line before."""
    content, found, check = line.rpartition(f',"{KEY}":"'.encode())
    right = crc32(content, before)
    if not found or len(check) != len('01234567"}\n'):
        return None, False
    return right, check == b'%08x"}\n' % right


def with_check(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the checksum of its content."""
    return value | {KEY: checksum(_canonical(value))}


def without_check(value: dict[str, Any], path: Path, fix: str = "") -> dict[str, Any]:
    """The content of a JSON object; raises `RecordError` if it has a checksum that is wrong, and says what to do."""
    stored = value.pop(KEY, None)
    if stored is not None and stored != checksum(_canonical(value)):
        fix = fix or f"{RESTORE} The run was made with the old values: for other settings, start a new one."
        raise RecordError(
            f"{str(path)!r} is damaged: its checksum is wrong, so it was changed after it was written. {fix}"
        )
    return value


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


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
