"""Writes the golden trajectories anew, from the oracle: `python -m tests.golden.rewrite`.

Do this only on purpose, when the specification changes, and note it under "Numerics" in the changelog. The library is
asked one thing only: which clients it samples in the sync runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.cases import METHODS, Knobs, Seconds, library, modes, oracle, setting
from tests.golden.oracle import Law, Round, Setting
from tests.golden.problem import Problem

FOLDER = Path(__file__).parent
T, SEED = 12, 7


def stored(name: str, mode: str) -> tuple[Setting, Problem, Seconds]:
    """The one run of each method and mode that is stored: six clients from fast to slow, with ties."""
    knobs = Knobs(
        N=6, M=2, K=3, local_lr=Law(0.3, -0.25), local_clip=Law(0.8, 0.25), lr=Law(1.2, -0.125), clip=Law(0.3, 0.125),
        share=0.5,
    )  # fmt: skip
    return setting(name, mode, knobs), Problem(2026, 6, 4), [[1, 2], [1], [2, 1, 3], [3, 4], [5], [8, 6]]


STORED: dict[str, Callable[[str], tuple[Setting, Problem, Seconds]]] = {name: partial(stored, name) for name in METHODS}


def described(m: Setting) -> dict[str, Any]:
    """A setting as JSON reads it back; a relative where there is one."""
    facts = {key: str(value) for key, value in asdict(m).items() if key != "relative" or value is not None}
    return json.loads(json.dumps(facts))


def rounds_of(document: dict[str, Any]) -> list[Round]:
    """The stored rounds of one mode."""
    return [Round(one["time"], one["clients"], one["delays"], np.array(one["x"])) for one in document["rounds"]]


def main() -> None:
    for name, case in STORED.items():
        document = {}
        for mode in modes(name):
            m, problem, seconds = case(mode)
            sampled = library(m, problem, seconds, T, SEED)[1][:T] if mode == "sync" else []
            rounds = [one._asdict() | {"x": one.x.tolist()} for one in oracle(m, problem, seconds, T, sampled)]
            document[mode] = {"setting": described(m), "sampled": sampled, "rounds": rounds}
        (FOLDER / f"{name}.json").write_text(_by_lines(document))


def _by_lines(document: dict[str, Any]) -> str:
    """JSON with one round per line, so that a change can be read in a diff."""
    parts = []
    for mode, run in document.items():
        rounds = ",\n".join(f"   {json.dumps(one)}" for one in run["rounds"])
        head = "".join(f'  "{key}": {json.dumps(run[key])},\n' for key in ("setting", "sampled"))
        parts.append(f' "{mode}": {{\n{head}  "rounds": [\n{rounds}\n  ]\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
