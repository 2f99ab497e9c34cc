"""What the paper published on CIFAR-10, for the tables that stand beside ours."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from tardygrad.reproduce.trials import Arm

_NAMES = {
    "SGDClip": "sgdclip",
    "SD-SGDClip": "sd-sgdclip",
    "Clip²": "clip2",
    "SD-Clip²": "sd-clip2",
    "DC-Clip²": "dc-clip2",
    "FADAS": "fadas",
    "DN+DyLU": "dn-dylu",
}


def accuracy(arm: Arm) -> float | None:
    """The paper's accuracy in per cent with the same method, mode, fleet and M; None if it has none."""
    name = _NAMES.get(arm.method, arm.method)
    if name in ("fadas", "dn-dylu"):
        return _baselines().get((name, arm.stragglers))
    return _accuracies().get((name, arm.mode, arm.stragglers, arm.buffer))


@cache
def _accuracies() -> dict[tuple[str, str, str, int], float]:
    found = {
        (row["method"], row["mode"], row["stragglers"], int(row["M"])): float(row["accuracy"])
        for row in _rows("buffers.csv")
    }
    for row in _rows("tables.csv"):
        if row["data"] == "cifar10":
            found[row["method"], row["mode"], row["stragglers"], 4] = float(row["score"])
    return found


@cache
def _baselines() -> dict[tuple[str, str], float]:
    return {(row["method"], row["stragglers"]): float(row["accuracy"]) for row in _rows("baselines.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    text = files("tardygrad.reproduce").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
