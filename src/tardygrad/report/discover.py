"""Find recorded runs and sweeps."""

from __future__ import annotations

import os
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
        own = _below(path)
        if not own.runs and not own.sweeps:
            what = "contains no runs or sweeps" if path.is_dir() else "is not a directory"
            raise Invalid(f"{str(path)!r} {what}. Pass a run or sweep directory, such as runs/digits-1.")
        runs |= {found.resolve(): found for found in own.runs}
        sweeps |= {found.resolve(): found for found in own.sweeps}
    return Found(list(runs.values()), list(sweeps.values()))


def _below(folder: Path) -> Found:
    """The runs and sweeps in a folder, sorted, without those inside a run or a sweep."""
    runs, sweeps = list[Path](), list[Path]()
    for place, folders, files in os.walk(folder, onerror=_refuse):
        runs += [Path(place)] * ("spec.json" in files)
        sweeps += [Path(place)] * ("sweep.json" in files)
        if "spec.json" in files or "sweep.json" in files:
            folders.clear()
    return Found(sorted(runs), sorted(sweeps))


def _refuse(error: OSError) -> None:
    """Raise `Invalid` for a folder that nobody may list: a report without its runs would be wrong."""
    if isinstance(error, PermissionError):
        fix = "Make it readable, or pass only runs that are."
        raise Invalid(f"a folder of runs must be readable, got {error.filename!r} ({error.strerror}). {fix}") from error
