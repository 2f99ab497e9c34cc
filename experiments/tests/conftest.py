"""The experiments' scripts, called in this process, in an empty directory; and stores with made-up results."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from experiments.lib import run_script
from tardygrad.sweeps.store import PlannedRun, Store, StoredResult
from tests.cli.conftest import Result
from tests.conftest import pytest_configure as pytest_configure

Script = Callable[..., Result]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Script:
    """Run `python -m experiments.NAME`."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *argv: str) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            run_script(import_module(f"experiments.{name}").main, list(argv))
        return Result(exit.value.code if isinstance(exit.value.code, int) else 0, *capfd.readouterr())

    return call


class Scripted(Store):
    """A store whose results follow a rule, and which notes what has been done."""

    def __init__(self, result_of: Callable[[PlannedRun], StoredResult]) -> None:
        super().__init__("nowhere")
        self.rule, self.done = result_of, set[Path]()

    def result(self, run: Any) -> StoredResult | None:
        return self.rule(run) if self.path(run) in self.done else None

    def path(self, run: Any) -> Path:
        return Path(json.dumps((run.spec, run.tails)))

    def finish(self, runs: list[PlannedRun]) -> int:
        """Do runs, and return how many of them are new."""
        fresh = {self.path(run) for run in runs} - self.done
        self.done |= fresh
        return len(fresh)

    def finish_all(self, wanted: Callable[[], list[PlannedRun]]) -> list[int]:
        """Do all runs, and return the numbers of those that became known together."""
        counts = []
        while new := self.finish(wanted()):
            counts.append(new)
        return counts
