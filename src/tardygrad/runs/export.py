"""Export: the metrics, updates and events of records as flat tables, in CSV or Parquet.

Records are streamed line by line, so memory does not grow with their length. The files appear once all are complete.
"""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any, NamedTuple

from tardygrad.core.task import SCORE_NAMES_IN_USE
from tardygrad.errors import Invalid
from tardygrad.runs.events import Advance, Arrival, Dispatch, read_events, read_metrics
from tardygrad.runs.history import client_ids
from tardygrad.runs.record import EVENTS, Row, make_directory, read_lines, read_spec, reading_record, write_error
from tardygrad.runs.summary import read_summary_row

METRICS = {
    "round": "int",
    "time": "float",
    "loss": "float",
    "steps": "int",
    "delay_mean": "float",
    "delay_max": "int",
    "weight_mean": "float",
    "norm_mean": "float",
    "norm": "float",
    "move": "float",
    "clipped": "float",
    "local_clipped": "float",
    "snapshots": "int",
    "epsilon": "float",
}
UPDATES = {
    "round": "int",  # that used it; empty if the run ended first
    "client": "int",
    "class": "text",
    "serial": "int",
    "delay": "int",
    "weight": "float",
    "norm": "float",
    "start_time": "float",  # of its job
    "arrival_time": "float",
    "steps": "int",
    "loss": "float",
}
BATCH = 20_000  # rows per write of a Parquet file


class Sheet(NamedTuple):
    """A table to be written: its columns, each `int`, `float` or `text`, and a function that reads its rows."""

    name: str
    columns: dict[str, str]
    rows: Callable[[Path], Iterator[Row]]


class Written(NamedTuple):
    """A file and its number of rows."""

    path: Path
    rows: int


def export(runs: Sequence[Path], folder: Path, formats: Iterable[str], *, force: bool = False) -> list[Written]:
    """Write the tables of runs into a folder; with several runs, each table has a column `run`.

    Args:
        formats: of `FORMATS`.
        force: replace existing files.
    """
    for run in runs:
        if (run / "summary.json").exists():
            read_summary_row(run)  # raises an error if lines at the end of the record are missing
    sheets = _sheets(runs)
    files = [(sheet, kind, folder / f"{sheet.name}.{kind}") for kind in formats for sheet in sheets]
    for _, _, path in files:
        if path.exists() and not force:
            raise Invalid(f"{str(path)!r} already exists. Add --force, or choose another --out.")
    written = []
    try:
        make_directory(folder)
        with TemporaryDirectory(prefix=".export-", dir=folder) as drafts:
            for sheet, kind, path in files:
                columns = ({"run": "text"} if len(runs) > 1 else {}) | sheet.columns
                number = FORMATS[kind](Path(drafts, path.name), columns, _rows(runs, sheet))
                written.append(Written(path, number))
            for path, _ in written:
                Path(drafts, path.name).replace(path)
    except OSError as error:
        raise write_error(folder, error) from error
    return written


def _rows(runs: Sequence[Path], sheet: Sheet) -> Iterator[Row]:
    for path in runs:
        with reading_record(path):
            for row in sheet.rows(path):
                yield {"run": str(path)} | row


def _sheets(runs: Sequence[Path]) -> list[Sheet]:
    """The three tables; a first pass over the records finds the columns of scores and events."""
    scores: dict[str, str] = {}
    seen: dict[tuple[str, type], None] = {("event", str): None, ("time", float): None}  # a set that keeps its order
    named: dict[str, str] = {}
    for path in runs:
        with reading_record(path):
            named |= {"id": "text"} if _names(path)[1] else {}
            for row in read_lines(path / EVENTS):
                if row["event"] == "evaluation":
                    scores |= {f"test_{name}": "float" for name in row if name not in SCORE_NAMES_IN_USE}
                seen.update(dict.fromkeys(zip(row, map(type, row.values()), strict=True)))
    kinds: dict[str, set[type]] = {}
    for name, kind in seen:
        kinds.setdefault(name, set()).add(kind)
    where = {name: "text" for name in ("worker", "node") if name in kinds}
    return [
        Sheet("metrics", METRICS | scores, _metrics),
        Sheet("updates", UPDATES | named | where, _updates),
        Sheet("events", {name: _column(types) for name, types in kinds.items()} | named, _events),
    ]


def _events(path: Path) -> Iterator[Row]:
    _, ids = _names(path)
    for row in read_lines(path / EVENTS):
        yield row | {"id": ids[row["client"]]} if ids and "client" in row else row


def _column(types: set[type]) -> str:
    """The kind of a column with values of these types."""
    finite = types - {NoneType}
    return "int" if finite == {int} else "float" if finite <= {int, float} else "text"


def _metrics(path: Path) -> Iterator[Row]:
    for row in read_metrics(path / EVENTS):
        means = {f"{name}_mean": _mean(row.get(f"{name}s")) for name in ("delay", "weight", "norm")}
        yield row | means | {"delay_max": max(row["delays"])}


def _mean(values: list[float | None] | None) -> float | None:
    """The mean; None if the values are missing, or one is not finite."""
    return None if not values or None in values else sum(map(float, filter(None, values))) / len(values)


def _updates(path: Path) -> Iterator[Row]:
    """Accepted updates, with the start of their job and the round that used them; unused ones come last."""
    (classes, ids), jobs = _names(path), dict[int, Dispatch]()
    unused: dict[int, deque[tuple[int, Row]]] = {}  # by client: those of other regions come in between
    for number, event in enumerate(read_events(path / EVENTS)):
        match event:
            case Dispatch():
                jobs[event.client] = event
            case Arrival(client=client):
                job = jobs.get(client)
                start = job.time if job and job.serial == event.serial else None
                times = {"start_time": start, "arrival_time": event.time, "class": classes[client] if classes else None}
                times |= {"id": ids[client]} if ids else {}
                unused.setdefault(client, deque()).append((number, event._asdict() | times | {"round": None}))
            case Advance():
                facts = zip(event.clients, event.delays, event.weights, event.norms, strict=True)
                for client, delay, weight, norm in facts:
                    _, update = unused[client].popleft()
                    yield update | {"round": event.round, "delay": delay, "weight": weight, "norm": norm}
    yield from (update for _, update in sorted(chain(*unused.values())))


def _names(path: Path) -> tuple[list[str], tuple[str, ...]]:
    """The class of every client, and its id; empty if they have none."""
    recorded = read_spec(path)
    classes = [str(name) for name, clients in recorded.get("classes", []) for _ in range(clients)]
    return classes, client_ids(recorded)


def cell(value: Any) -> Any:
    """A value that is safe in a spreadsheet: lists as JSON, and text that looks like a formula with a quote before it.

    >>> cell("=1+1"), cell(-1.5), cell([1, 2])
    ("'=1+1", -1.5, '[1, 2]')
    """
    if isinstance(value, list | dict):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _csv(path: Path, columns: dict[str, str], rows: Iterable[Row]) -> int:
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(map(cell, columns))
        number = 0
        for row in rows:
            values = map(row.get, columns)
            writer.writerow([value if type(value) in (int, float, NoneType) else cell(value) for value in values])
            number += 1
    return number


def _parquet(path: Path, columns: dict[str, str], rows: Iterable[Row]) -> int:
    try:
        from pyarrow import Table, float64, int64, parquet, schema, string
    except ImportError as error:
        fix = "Use pip install -c constraints.txt -e '.[data]'."
        raise Invalid(f"parquet files need pyarrow, which is not installed. {fix}") from error
    types = {"int": int64(), "float": float64(), "text": string()}
    shape = schema([(name, types[kind]) for name, kind in columns.items()])
    number, remaining = 0, iter(rows)
    with parquet.ParquetWriter(path, shape) as writer:
        while rows_of_batch := list(islice(remaining, BATCH)):
            batch = [{name: _typed(row.get(name), kind) for name, kind in columns.items()} for row in rows_of_batch]
            writer.write_table(Table.from_pylist(batch, schema=shape))
            number += len(batch)
    return number


def _typed(value: Any, kind: str) -> Any:
    """A value, as text if its column is."""
    return json.dumps(value) if kind == "text" and not isinstance(value, str | None) else value


FORMATS: dict[str, Callable[[Path, dict[str, str], Iterable[Row]], int]] = {"csv": _csv, "parquet": _parquet}
