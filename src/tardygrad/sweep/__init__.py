"""Sweeps: a spec with many settings, each run exactly once, whatever is killed on the way.

`sweep` makes the trials, `read` says what came of them, also of those of a sweep that is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tardygrad.sweep.table import Group as Group
from tardygrad.sweep.table import Sweep as Sweep
from tardygrad.sweep.table import Trial as Trial
from tardygrad.sweep.table import groups as groups
from tardygrad.sweep.table import read as read
from tardygrad.sweep.table import remark as remark


def sweep(source: str | Path, changes: Sequence[str] = (), *, out: str | Path, jobs: int = 1, **how: Any) -> Sweep:
    """Make every trial of a sweep that its folder `out` does not hold yet; the settings are those of `asked.ask`."""
    from tardygrad.sweep.config import ask  # Optuna is slow to import, and reading needs none of it
    from tardygrad.sweep.runner import Crew

    for _ in Crew(Path(out), *ask(source, changes, **how), jobs).go():
        pass
    return read(out)
