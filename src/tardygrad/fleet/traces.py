"""Files about devices: measured times of jobs, capacities, and hours of availability, as CSV or JSON.

Both kinds of FedScale's traces can be read, once they are exported from pickle, which is never loaded here: capacities
(`computation`, `communication`) and hours (`active` and `inactive`, two lists, and `finish_time`).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tardygrad.constructors import checked
from tardygrad.errors import Invalid, check_integer

TRAINING = 3.0  # times the seconds of a forward pass, as FedScale has it
KILOBIT = 125.0  # bytes
SHORTEST = 1e-3  # seconds of a window; shorter ones are left out

Windows = tuple[tuple[float, float], ...]


class Columns(NamedTuple):
    """The names of a file's columns."""

    client: str
    seconds: str
    group: str
    computation: str
    communication: str


@dataclass
class Device:
    """A client of a file."""

    group: str
    seconds: list[float] = field(default_factory=list)
    speed: float = math.inf  # bytes per second


@checked
@dataclass(frozen=True)
class AvailabilityFile:
    """A file with windows of availability: rows of a client, a start and an end, in seconds."""

    path: str
    client: str = "client"
    start: str = "start"
    end: str = "end"
    period: float | None = None


def read_devices(path: Path, columns: Columns, samples: int | None) -> dict[str, Device]:
    """The clients of a file by name: in the order of numbers if the names are 0 to N − 1, else as the file has them."""
    devices: dict[str, Device] = {}
    with _reading(path, columns.client, columns.seconds):
        for row in _rows(path, columns.client):
            name = str(_cell(row, columns.client))
            device = devices.setdefault(name, Device(str(row.get(columns.group) or "traced")))
            if columns.seconds not in row and columns.computation in row:
                device.seconds.append(_computation(row[columns.computation], samples))
            else:
                device.seconds.append(float(_cell(row, columns.seconds)))
            if not 0 <= device.seconds[-1] < math.inf:
                raise ValueError(f"a time must be finite and not negative, got {device.seconds[-1]} of client {name!r}")
            if row.get(columns.communication) not in (None, ""):
                device.speed = float(row[columns.communication]) * KILOBIT
    return {name: devices[name] for name in _ordered(list(devices))}


def read_windows(file: AvailabilityFile) -> dict[str, tuple[Windows, float | None]]:
    """The windows of each client of a file, and their period if the file has one."""
    path = Path(file.path)
    found: dict[str, tuple[list[tuple[float, float]], float | None]] = {}
    with _reading(path, file.client, file.start, file.end):
        for row in _rows(path, file.client):
            name = str(_cell(row, file.client))
            windows, period = found.get(name, ([], None))
            if "active" in row:  # FedScale's
                windows += [(float(a), float(b)) for a, b in zip(row["active"], row["inactive"], strict=True)]
                period = float(row["finish_time"])
            else:
                windows.append((float(_cell(row, file.start)), float(_cell(row, file.end))))
            found[name] = windows, period
        merged = {name: (_merged(name, windows), period) for name, (windows, period) in found.items()}
    if empty := [name for name, (windows, _) in merged.items() if not windows]:
        raise Invalid(f"every client of {file.path!r} needs a window of a millisecond, got none for {empty[0]!r}.")
    return {name: merged[name] for name in _ordered(list(merged))}


@contextmanager
def _reading(path: Path, *columns: str) -> Iterator[None]:
    """Raise `Invalid` with the columns that a file needs, if it cannot be read."""
    try:
        yield
    except Invalid:
        raise
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        fix = f"Give it the columns {', '.join(columns)} (in seconds), or name the columns that it has."
        raise Invalid(f"{str(path)!r} cannot be read ({reason}). {fix}") from error


def listed(names: Sequence[str]) -> str:
    """Some names, for an error message."""
    return ", ".join(map(repr, names[:5])) + f" and {len(names) - 5} more" * (len(names) > 5)


def _rows(path: Path, client: str) -> list[dict[str, Any]]:
    """The rows of a file, at least one; those of a JSON table get their names in the column `client`."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise Invalid(f"a trace must be a readable CSV or JSON file, got {str(path)!r}: it is a pipe or a device.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            content = json.load(file) if path.suffix == ".json" else list(csv.DictReader(file))
    except OSError as error:
        raise Invalid(f"a trace must be a readable CSV or JSON file, got {str(path)!r}: {error.strerror}.") from error
    rows = [{client: name} | row for name, row in content.items()] if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it must be a list of tables, or a table of tables by client")
    if not rows:
        raise ValueError("it has no rows")
    return rows


def _cell(row: dict[str, Any], column: str) -> Any:
    if column not in row:
        raise ValueError(f"it has no column {column!r}, only {listed([str(name) for name in row])}")
    if row[column] in (None, ""):
        raise ValueError(f"a row has no {column!r}")
    return row[column]


def _computation(milliseconds: Any, samples: int | None) -> float:
    if samples is None:
        raise Invalid("a trace with milliseconds per sample needs `samples`: how many samples a job has.")
    check_integer("samples", samples)
    return TRAINING * samples * float(milliseconds) / 1000


def _ordered(names: list[str]) -> list[str]:
    numbers = {name: int(name) for name in names if name.isdecimal()}
    return sorted(names, key=numbers.__getitem__) if {*numbers.values()} == {*range(len(names))} else names


def _merged(client: str, windows: list[tuple[float, float]]) -> Windows:
    """A client's windows in order, overlapping ones as one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(windows):
        if not 0 <= start < end < math.inf:
            rule = "a window must have 0 <= start < end < inf"
            raise ValueError(f"{rule}, got {start:g} to {end:g} of client {client!r}")
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end - start >= SHORTEST:
            merged.append((start, end))
    return tuple(merged)
