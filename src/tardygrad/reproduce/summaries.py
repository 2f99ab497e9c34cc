"""Finished runs as files of the package: others can check results without running, and a plan continues elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from tardygrad.runs.record import Row
from tardygrad.runs.record import replace as write_bytes


def shipped_runs(name: str) -> list[Row]:
    """The finished runs in a file of the package, as `Store.summary` has them."""
    text = files("tardygrad.reproduce").joinpath(name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def write_summaries(path: Path, rows: Iterable[Row]) -> None:
    """Write finished runs to a file, one JSON object per line."""
    write_bytes(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
