"""Find recorded runs and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tardygrad.errors import Invalid


class Found(NamedTuple):
    """The directories of runs and of sweeps."""

    runs: list[Path]
    sweeps: list[Path]


def find(paths: Sequence[str]) -> Found:
    """The runs and sweeps at the paths: each is a run, a sweep, or a folder that contains some at any depth."""
    runs: dict[Path, Path] = {}
    sweeps: dict[Path, Path] = {}
    for path in map(Path, paths):
        own_runs, own_sweeps = _below(path, "spec.json"), _below(path, "sweep.json")
        if not own_runs and not own_sweeps:
            what = "contains no runs or sweeps" if path.is_dir() else "is not a directory"
            raise Invalid(f"{str(path)!r} {what}. Pass a run or sweep directory, such as runs/digits-1.")
        runs |= {found.resolve(): found for found in own_runs}
        sweeps |= {found.resolve(): found for found in own_sweeps}
    return Found(list(runs.values()), list(sweeps.values()))


def _below(folder: Path, name: str) -> list[Path]:
    """The directories that contain a file with this name, without those inside a run or a sweep."""
    if any((folder / file).exists() for file in ("spec.json", "sweep.json")):
        return [folder] if (folder / name).exists() else []
    return sorted(path.parent for path in folder.rglob(name))
