"""The paper's published numbers, to compare with ours."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from experiments.trials import ClaimTrial

LABELS = {
    "sgdclip": "SGDClip",
    "clip2": "Clip²",
    "sd-sgdclip": "SD-SGDClip",
    "sd-clip2": "SD-Clip²",
    "dc-clip2": "DC-Clip²",
}
"""The methods of the paper's tables: names in the files, and labels in ours."""


class PaperLine(NamedTuple):
    """A line of a table: a method on some data and a fleet, with its score in per cent and its simulated seconds."""

    data: str
    stragglers: str
    mode: str
    method: str
    score: float
    time: float


class NotWaiting(NamedTuple):
    """What asynchronous training costs and gains on some data and a fleet."""

    points: float  # best asynchronous score − best synchronous one
    speedup: float  # mean synchronous time / mean asynchronous time


def not_waiting(lines: Sequence[PaperLine]) -> NotWaiting:
    """Compare the asynchronous lines with the synchronous ones."""
    sync, fast = ([line for line in lines if (line.mode == "sync") is waits] for waits in (True, False))
    points = max(line.score for line in fast) - max(line.score for line in sync)
    return NotWaiting(points, mean(line.time for line in sync) / mean(line.time for line in fast))


@cache
def published_cells() -> tuple[PaperLine, ...]:
    """The lines of the paper's tables with M = 4."""
    return tuple(
        PaperLine(
            *(row["data"], row["stragglers"], row["mode"], LABELS[row["method"]]),
            float(row["score"]),
            float(row["runtime"]),
        )
        for row in published_rows("paper/tables.csv")
    )


@cache
def published_baselines() -> dict[tuple[str, str, str], float]:
    """The paper's scores of FADAS and DN+DyLU in per cent, by data, method and stragglers."""
    rows = published_rows("paper/baselines.csv")
    return {(row["data"], row["method"], row["stragglers"]): float(row["accuracy"]) for row in rows}


def accuracy(trial: ClaimTrial) -> float | None:
    """The paper's accuracy in per cent with the same method, mode, fleet and M; None if it has none."""
    return _accuracies().get((trial.method, trial.mode, trial.stragglers, trial.buffer))


@cache
def _accuracies() -> dict[tuple[str, str, str, int], float]:
    found = {}
    for row in published_rows("paper/buffers.csv"):
        found[LABELS[row["method"]], row["mode"], row["stragglers"], int(row["M"])] = float(row["accuracy"])
    for cell in published_cells():
        if cell.data == "cifar10":
            found[cell.method, cell.mode, cell.stragglers, 4] = cell.score
    for (data, method, stragglers), score in published_baselines().items():
        if data == "cifar10":
            found[method, "client", stragglers, 4] = score
    return found


def published_rows(name: str) -> list[dict[str, str]]:
    """The rows of one of the shipped files with the paper's numbers."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
