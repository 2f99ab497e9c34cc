"""Finished runs as files of the package: others can check results without running, and a plan continues elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

from experiments.tasks import runnable
from tardygrad.runs.record import Row
from tardygrad.runs.record import replace as write_bytes


def shipped_runs(name: str) -> list[Row]:
    """The finished runs in a file of the package, as `Store.summary` has them.

    An infinite setting is "inf"; files of earlier versions have `Infinity`, which is also read.
    """
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    rows: list[Row] = [json.loads(line) for line in text.splitlines()]
    return [{**row, "spec": {**row["spec"], "task": runnable(row["spec"]["task"])}} for row in rows]


def write_summaries(path: Path, rows: Iterable[Row]) -> None:
    """Write finished runs to a file, one strict JSON object per line."""
    lines = (json.dumps(_with_inf_as_text(row), ensure_ascii=False, allow_nan=False) for row in rows)
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _with_inf_as_text(value: Any) -> Any:
    """A value with "inf" for an infinite number, as specs have it in JSON."""
    if isinstance(value, dict):
        return {key: _with_inf_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_inf_as_text(item) for item in value]
    return "inf" if value == inf else value
