"""Commands that need no library answer without importing it; the code of every command takes its options."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from tardygrad.cli.commands import app

LIGHT = """
import atexit, sys
from tardygrad.cli.main import main
heavy = {"torch", "numpy", "altair", "pydantic", "scipy"}
own = lambda name: name.startswith("tardygrad.") and not name.startswith("tardygrad.cli")
found = lambda: [name for name in sys.modules if name in heavy or own(name)]
atexit.register(lambda: print("imported", found(), file=sys.stderr))
main()
"""


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ("--help", 0),
        ("run --help", 0),
        ("--version", 0),
        ("specs", 0),
        ("", 2),
        ("rum", 2),
        ("run digits --ouch", 2),
    ],
)
def test_help_and_usage_errors_do_not_import_the_library(argv: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT, *argv.split()], capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, "imported []")


def test_importing_the_library_imports_no_torch() -> None:
    code = "import sys, tardygrad; assert not {'torch', 'numpy'} & sys.modules.keys(); tardygrad.Uniform"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        ("specs", 1, "error: the output: No space left on device."),
        ("theory --tail 1.5 --rounds 9 --json", 1, "error: the output: No space left on device."),
        ("run digits run.rounds=0 --json", 2, "error: in [run]: `rounds`"),
    ],
)
def test_a_full_disk_under_the_output_is_one_line(argv: str, code: int, says: str) -> None:
    command = [sys.executable, "-c", "from tardygrad.cli.main import main; main()", *argv.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(says)


def test_the_code_of_a_command_takes_its_options() -> None:
    commands = app.registered_commands
    for command in commands:
        if command.callback and command.callback.__name__ != "specs":
            declared = inspect.getclosurevars(command.callback).nonlocals
            code = getattr(importlib.import_module(f"tardygrad.cli.{declared['module']}"), declared["name"])
            assert get_type_hints(code) == {"options": declared["options"], "return": type(None)}


def test_generated_files_are_up_to_date() -> None:
    tables = importlib.import_module("tools.tables")
    for path, text in tables.files().items():
        assert Path(path).read_text("utf-8") == text, f"{path.name} is out of date: run `make tables`"
