"""How a command is declared: as a class with its options; its code gets an instance.

Also what the shell completes, and the hint where a setting of a spec is written as an option, or the reverse. Nothing
here imports torch.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer

from tardygrad.cli.main import quiet_interrupt

Options = TypeVar("Options", bound=tuple[Any, ...])


def shipped_specs() -> dict[str, str]:
    """The specs that come with tardygrad and their descriptions, the first line of each."""
    files = sorted((Path(__file__).parents[1] / "specs").glob("*.toml"))
    return {file.stem: file.read_text("utf-8").partition("\n")[0].removeprefix("#").strip() for file in files}


def spec_keys() -> dict[str, list[str]]:
    """The keys of every table of a spec."""
    found: dict[str, list[str]] = json.loads(Path(__file__).with_name("spec_keys.json").read_text("utf-8"))
    return found  # written by `make tables`


def complete_spec(incomplete: str) -> list[str]:
    """The shipped specs that begin so; if there are none, the shell completes files."""
    return [name for name in shipped_specs() if name.startswith(incomplete)]


def complete_override(incomplete: str) -> list[str]:
    """The overrides that begin so."""
    keys = [f"{table}.{key}=" for table, known in spec_keys().items() for key in ("kind", *known)]
    return [key for key in dict.fromkeys(keys) if key.startswith(incomplete) and key != "run.kind="]


def option(default: Any, help: str, metavar: str | None = None, *names: str, **rules: Any) -> Any:
    """An option with a value; a default of `...` makes it required."""
    return typer.Option(default, *names, metavar=metavar, help=help, **rules)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(False, name, help=help)


def argument(metavar: str, autocompletion: Callable[[str], list[str]] | None = None) -> Any:
    """A required argument; without an autocompletion, the shell completes files."""
    return typer.Argument(..., metavar=metavar, autocompletion=autocompletion)


SPEC, RUN, RUNS = argument("SPEC", complete_spec), argument("RUN"), argument("RUN...")
MAX_MEMORY = option(None, "Do not start if the run's vectors need more than this, e.g. 8GB.", "SIZE")
MOST = 10_000  # of seeds and of trials
JOBS = option(0, "Runs at once; 0 is one per core.", min=0)
TRUST = flag("--trust", "Import the functions that the record names, and join its cluster; read them first.")
JSON = flag("--json", "Print the result as JSON.")


class Failure(Exception):
    """An error that the library raised on purpose, with the exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def _without_spaces(overrides: list[str]) -> list[str]:
    """Raise `Failure` for `method.buffer = 3`, which the shell splits into several words."""
    if found := re.search("([^\0=]+)(?:\0=\0?|=\0)([^\0=]+)(?:\0|$)", "\0".join(overrides)):
        key, value = found.groups()
        written = found[0].strip("\0").replace("\0", " ")
        raise Failure(f"an override must be one word, got {written!r}. Write {key}={value}, without spaces.", 2)
    return overrides


OVERRIDES = typer.Argument(
    [],
    metavar="[TABLE.KEY=VALUE]...",
    show_default=False,
    callback=_without_spaces,
    autocompletion=complete_override,
)


def command(app: typer.Typer, module: str) -> Callable[[type[Options]], type[Options]]:
    """Add a command to `app`, with the decorated class's name in lower case, its docstring as help, and its fields.

    The function of that name in `tardygrad.cli.<module>` has the command's code; it takes an instance of the class.
    """

    def add(options: type[Options]) -> type[Options]:
        name = options.__name__.lower()

        def call(**given: Any) -> None:
            if given.get("out") == "":
                raise Failure("--out must be a path, got ''. Leave it out for the default.", 2)
            with quiet_interrupt():
                code = getattr(importlib.import_module(f"tardygrad.cli.{module}"), name)
                from tardygrad import errors
            try:
                code(options(**given))
            except errors.TardygradError as error:
                raise Failure(str(error), 2 if isinstance(error, errors.Invalid) else 1) from error
            except (KeyboardInterrupt, BrokenPipeError):
                raise
            except BaseException as error:
                if errors.is_out_of_memory(error):
                    fix = "Use a smaller model, or less of it at once; `tardygrad plan` forecasts the memory."
                    raise Failure(f"not enough memory ({errors.type_and_first_line(error)}). {fix}", 1) from error
                exits = isinstance(error, SystemExit)  # of the user's own code: the command itself raises typer.Exit
                if not exits and not errors.is_of_own_code(error):
                    raise
                what = "ended the program" if exits else "failed"
                raise Failure(f"code that the spec names {what}: {errors.described_error(error)}.", 1) from error

        call.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]  # typer reads both
        call.__annotations__ = get_type_hints(options)
        app.command(name, help=options.__doc__)(call)
        return options

    return add


WITH_OVERRIDES = ("run", "resume", "plan", "compare", "sweep", "tail")  # those that take overrides


def as_override(option: str, argv: list[str], command: str) -> str:
    """The override that an unknown option stands for, or an empty string.

    >>> as_override("--rounds", ["run", "digits", "--rounds", "100"], "run")
    '`run.rounds=100`'
    """
    if command not in WITH_OVERRIDES:
        return ""
    table, _, name = option.lstrip("-").replace("-", "_").rpartition(".")
    after = [value for word, value in pairwise([*argv, "VALUE"]) if word == option]
    joined = [word.partition("=")[2] for word in argv if word.startswith(f"{option}=")]
    value = (after + joined + ["VALUE"])[0]  # -inf is read as -i -n -f
    tables = [home for home, keys in spec_keys().items() if name in keys and table in ("", home)]
    return " or ".join(f"`{home}.{name}={value}`" for home in tables)
