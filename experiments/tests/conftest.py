"""The experiments' commands, called in this process, in an empty directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.options import main
from tests.cli.conftest import Result
from tests.conftest import pytest_configure as pytest_configure

Command = Callable[..., Result]


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `python -m experiments.NAME`."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *argv: str) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(name, list(argv))
        return Result(exit.value.code if isinstance(exit.value.code, int) else 0, *capfd.readouterr())

    return call
