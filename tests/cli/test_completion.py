"""Completion in a real bash, and the JSON schema of specs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tardygrad.spec import spec
from tardygrad.spec.schema import schema
from tests.cli.conftest import Command

SPECS = sorted((Path(spec.__file__).parents[1] / "specs").glob("*.toml"))
BIN = Path(sys.executable).parent


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    script = f"""
        eval "$(tardygrad --show-completion)"
        COMP_WORDS=({" ".join(map(repr, words))}) COMP_CWORD={len(words) - 1}
        _tardygrad_completion tardygrad
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not (BIN / "tardygrad").exists(), reason="the command is not installed beside Python")
def test_bash_completes_commands_options_specs_and_keys() -> None:
    assert completed("tardygrad", "re") == ["resume", "replay", "report"]
    assert completed("tardygrad", "run", "c") == ["causal_lm", "cifar10"]
    assert completed("tardygrad", "demo", "--o") == ["--out", "--open"]
    assert completed("tardygrad", "run", "digits", "method.local_s") == ["method.local_steps="]


def test_the_schema_accepts_every_shipped_spec_and_what_a_record_has_of_it() -> None:
    check = jsonschema.Draft202012Validator(schema())
    check.check_schema(schema())
    assert len(SPECS) > 5
    for path in SPECS:
        for tables in (tomllib.loads(path.read_text("utf-8")), spec.load(path.stem).resolved()):
            assert not [error.message for error in check.iter_errors(tables)], path


@pytest.mark.parametrize(
    ("override", "fine"),
    [
        ("method.bufer=4", False),
        ("method.mode=centric", False),
        ("run.rounds=many", False),
        ("task.noise={kind = 'student', tails = 1.2}", False),
        ("engine.workers=2", True),  # of the simulator, the default
        ("engine.kind=ray", True),
        ("method.kind=my_methods:make", True),
        ("method.lr={peak = 1.0, rounds = 10}", True),
    ],
)
def test_the_schema_refuses_what_a_spec_refuses(override: str, fine: bool) -> None:
    tables: dict[str, Any] = tomllib.loads(SPECS[[path.stem for path in SPECS].index("digits")].read_text("utf-8"))
    spec.override(tables, override)
    assert jsonschema.Draft202012Validator(schema()).is_valid(tables) == fine


def test_specs_prints_the_schema(tardygrad: Command) -> None:
    code, out, _ = tardygrad("specs", "--schema")
    assert (code, json.loads(out)["title"]) == (0, "A spec of tardygrad")
