"""Checkpoints and specs that a stranger wrote, with right checksums: a run goes on from them, or refuses in time."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tardygrad.runs.checks import checksum, with_check
from tests.hostile.damage import make_records
from tests.hostile.kills import METHODS
from tests.hostile.verdicts import Tally, command

MEMORY = 4 * 2**30  # bytes that a command may ask for in addition
HUGE = 10**12
COLUMN: Any = {"$repeat": [10**6, 0]}
STRANGE: list[Any] = [
    None, True, -1, 0.5, HUGE, 2**63, 10**30, 10**400, 1e308, "", "x" * 10**5, [], {}, [[]], {"$tensor": "0"},
    {"$tensor": "none"}, {"$array": "0"}, {"$array": "empty"}, {"$repeat": [HUGE, 0]}, {"$repeat": [-1, 0]},
    {"$repeat": [True, 0]}, {"$repeat": [1e9, 0]}, {"$rows": ["$tuple", [COLUMN] * 1000]},
    {"$rows": ["$tuple", {"$repeat": [1000, COLUMN]}]},
    {"$repeat": [10**6, {"$repeat": [10**6, {"$repeat": [10**6, 0]}]}]}, {"$choice": [COLUMN, []]}, {"$choice": 1},
    {"$rows": ["$Job", {"client": COLUMN}]}, {"$rows": ["$none", []]}, {"$float": "x"}, {"$items": [[1]]},
    {"$Job": {}}, {"$none": 1}, {"$tuple": COLUMN},
]  # fmt: skip
SHAPES = [(0,), (1,), (3, 0), (HUGE, 0), (20, 1), (21,), ()]


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Replace one value of a checkpoint or a spec by a strange one, compute the checksums anew, and resume the run."""
    random, tally = Random(seed), Tally("forgeries")
    records: dict[str, Path] = {}
    for number in range(tries):
        work, method = folder / f"try-{number}", random.choice(list(METHODS))
        if method not in records:
            records[method] = make_records(folder / "records" / method, *METHODS[method])["killed"]
        shutil.copytree(records[method], work)
        what = random.choice([_forge_state, _forge_state, _forge_tensor, _forge_spec])(random, work / "run")
        what = f"{method}: {what}"
        with chdir(work), _limited_memory():
            ended = command(random.choice(["resume", "resume", "replay"]), "run")
        shutil.rmtree(work)
        tally.add(ended.verdict, what, ended.detail)
    return tally


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Limit the memory that this process may ask for in addition, whatever the machine has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _places(value: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every container in JSON with a key of it, and where that is."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield value, key, f"{path}.{key}"
        yield from _places(item, f"{path}.{key}")


def _replace(random: Random, value: Any) -> str:
    places: dict[str, list[tuple[Any, Any, str]]] = {}
    for place in _places(value):  # as many tries for the fields of one server as for those of many jobs
        places.setdefault(re.sub(r"\d+", "", place[2]), []).append(place)
    container, key, path = random.choice(random.choice(list(places.values())))
    strange = random.choice(STRANGE)
    container[key] = strange
    return f"{path} = {strange!r:.100}"


def _forge_state(random: Random, run: Path) -> str:
    (path,) = run.glob("checkpoints/*/state.json")
    state = json.loads(path.read_text())["state"]
    if random.random() < 0.1:
        state, what = "[" * 10**5 + "]" * 10**5, "nested lists"
        _write(path.parent, state)
    else:
        what = _replace(random, state)
        _write(path.parent, json.dumps(state))
    return f"state{what}"


def _forge_tensor(random: Random, run: Path) -> str:
    (path,) = run.glob("checkpoints/*/tensors.safetensors")
    tensors = load_file(path)
    name = random.choice(sorted(tensors))
    shape = random.choice([*SHAPES, tuple(tensors[name].shape)])
    dtype = random.choice([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
    value = random.choice([0, 1, -1, float("nan"), 1e38])
    tensors[name] = torch.zeros(shape).add(value).to(dtype)
    if random.random() < 0.1:
        del tensors[name]
    save_file(tensors | {"empty": torch.empty(HUGE, 0)}, path)
    _write(path.parent, json.dumps(json.loads((path.parent / "state.json").read_text())["state"]))
    return f"tensor {name} = {value} of {dtype}, {shape}"


def _forge_spec(random: Random, run: Path) -> str:
    path = run / "spec.json"
    spec = json.loads(path.read_text())
    del spec["check"]
    what = _replace(random, spec)
    path.write_text(json.dumps(with_check(spec)))
    return f"spec{what}"


def _write(folder: Path, state: str) -> None:
    """Write the state of a checkpoint with its checksums."""
    content = (folder / "tensors.safetensors").read_bytes()
    sums = {"state": checksum(state.encode()), "tensors": checksum(content)}
    head = json.dumps({"format": 5, "checksums": sums})
    (folder / "state.json").write_text(f'{head[:-1]}, "state": {state}}}')
