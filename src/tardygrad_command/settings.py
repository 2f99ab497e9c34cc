"""Settings of a spec that were written as options, `--rounds 100` instead of `run.rounds=100`, or the reverse."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from tardygrad_command.completion import spec_keys

COMMANDS = ("run", "resume", "plan", "sweep", "tail")  # those that take overrides


def as_override(option: str, argv: list[str], command: str) -> str:
    """The override that an unknown option stands for, or an empty string.

    >>> as_override("--rounds", ["run", "digits", "--rounds", "100"], "run")
    '`run.rounds=100`'
    """
    if command not in COMMANDS:
        return ""
    table, _, name = option.lstrip("-").replace("-", "_").rpartition(".")
    after = [value for word, value in pairwise([*argv, "VALUE"]) if word == option]
    joined = [word.partition("=")[2] for word in argv if word.startswith(f"{option}=")]
    value = (after + joined + ["VALUE"])[0]  # -inf is read as -i -n -f
    tables = [home for home, keys in spec_keys().items() if name in keys and table in ("", home)]
    return " or ".join(f"`{home}.{name}={value}`" for home in tables)


def as_option(argv: list[str], options: Collection[str]) -> str:
    """The option that an override stands for in a command that takes no overrides, or an empty string.

    >>> as_option(["demo", "run.rounds=20"], ["--out", "--rounds"])
    '--rounds 20'
    """
    for word in argv:
        key, _, value = word.partition("=")
        option = f"--{key.rpartition('.')[2].replace('_', '-')}"
        if value and not key.startswith("-") and option in options:
            return f"{option} {value}"
    return ""
