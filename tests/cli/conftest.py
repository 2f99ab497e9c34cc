"""The command line, called in this process: quick, and exactly what the console script calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tardygrad.cli.main import main

SMALL = """
[task]
kind = "quadratic"
clients = 8
dimension = 20
noise = { kind = "student", tail = 1.5, scale = 0.1 }

[fleet]
kind = "paper"

[method]
kind = "clip2"
local_lr = 0.1
local_clip = 1.0
lr = 1.0
clip = 0.5
buffer = 2
local_steps = 3
mode = "client"

[run]
rounds = 12
checkpoint_every = 5
"""


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not strict JSON")

        return json.loads(self.out, parse_constant=refuse)


Command = Callable[..., Result]


@pytest.fixture
def tardygrad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command in an empty directory that holds small.toml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)

    def call(*argv: str) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(list(argv))
        return Result(exit.value.code if isinstance(exit.value.code, int) else 0, *capfd.readouterr())

    return call
