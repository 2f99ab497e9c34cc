"""Sweeps: a spec with many settings; every trial runs exactly once, even if processes are killed.

`sweep` runs the trials, `read` returns the results, also of a sweep that is still running.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tardygrad.sweeps.trials import GroupSummary as GroupSummary
from tardygrad.sweeps.trials import Sweep as Sweep
from tardygrad.sweeps.trials import Trial as Trial
from tardygrad.sweeps.trials import groups as groups
from tardygrad.sweeps.trials import read as read
from tardygrad.sweeps.trials import remark as remark


def sweep(source: str | Path, changes: Sequence[str] = (), *, out: str | Path, jobs: int = 1, **settings: Any) -> Sweep:
    """Run every trial that the folder `out` has no result of; the settings are those of `config.configure`."""
    from tardygrad.sweeps.config import configure  # Optuna is slow to import, and reading does not need it
    from tardygrad.sweeps.runner import run_sweep

    return run_sweep(*configure(source, changes, **settings), Path(out), jobs=jobs)[0]
