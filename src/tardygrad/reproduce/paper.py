"""The paper's published numbers, to compare with ours."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from tardygrad.reproduce.trials import Trial

_NAMES = {
    "SGDClip": "sgdclip",
    "SD-SGDClip": "sd-sgdclip",
    "Clip²": "clip2",
    "SD-Clip²": "sd-clip2",
    "DC-Clip²": "dc-clip2",
    "FADAS": "fadas",
    "DN+DyLU": "dn-dylu",
}


def accuracy(trial: Trial) -> float | None:
    """The paper's accuracy in per cent with the same method, mode, fleet and M; None if it has none."""
    name = _NAMES.get(trial.method, trial.method)
    if name in ("fadas", "dn-dylu"):
        return _baselines().get((name, trial.stragglers))
    return _accuracies().get((name, trial.mode, trial.stragglers, trial.buffer))


@cache
def _accuracies() -> dict[tuple[str, str, str, int], float]:
    found = {
        (row["method"], row["mode"], row["stragglers"], int(row["M"])): float(row["accuracy"])
        for row in published_rows("buffers.csv")
    }
    for row in published_rows("tables.csv"):
        if row["data"] == "cifar10":
            found[row["method"], row["mode"], row["stragglers"], 4] = float(row["score"])
    return found


@cache
def _baselines() -> dict[tuple[str, str], float]:
    return {(row["method"], row["stragglers"]): float(row["accuracy"]) for row in published_rows("baselines.csv")}


def published_rows(name: str) -> list[dict[str, str]]:
    """The rows of one of the shipped files with the paper's numbers."""
    text = files("tardygrad.reproduce").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
