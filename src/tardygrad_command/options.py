"""How a command is declared: as a class with its options; the code in `tardygrad.cli` gets an instance."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import typer

from tardygrad_command import quiet_interrupt

Options = TypeVar("Options", bound=tuple[Any, ...])


def option(default: Any, help: str, metavar: str | None = None, *names: str, **rules: Any) -> Any:
    """An option with a value; a default of `...` makes it required."""
    return typer.Option(default, *names, metavar=metavar, help=help, **rules)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(False, name, help=help)


def argument(metavar: str) -> Any:
    """A required argument."""
    return typer.Argument(..., metavar=metavar)


SPEC, RUN, RUNS = argument("SPEC"), argument("RUN"), argument("RUN...")
OVERRIDES = typer.Argument([], metavar="[TABLE.KEY=VALUE]...", show_default=False)
MAX_MEMORY = option(None, "Do not start if the run's vectors need more than this, e.g. 8GB.", "SIZE")
JSON = flag("--json", "Print the result as JSON.")


class Failure(Exception):
    """An error that the library raised on purpose, with the exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def command(app: typer.Typer, module: str) -> Callable[[type[Options]], type[Options]]:
    """Add a command to `app`, with the decorated class's name in lower case, its docstring as help, and its fields.

    The function of that name in `tardygrad.cli.<module>` has the command's code; it takes an instance of the class.
    """

    def add(options: type[Options]) -> type[Options]:
        name = options.__name__.lower()

        def call(**given: Any) -> None:
            with quiet_interrupt():
                code = getattr(importlib.import_module(f"tardygrad.cli.{module}"), name)
                from tardygrad.errors import Invalid, TardygradError
            try:
                code(options(**given))
            except TardygradError as error:
                raise Failure(str(error), 2 if isinstance(error, Invalid) else 1) from error

        call.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]  # typer reads both
        call.__annotations__ = get_type_hints(options)
        app.command(name, help=options.__doc__)(call)
        return options

    return add
