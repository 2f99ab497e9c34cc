"""How a verb is declared: the options that several verbs share, and the import of the library when a verb is called."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tardygrad_command import quiet_interrupt

Source = Annotated[str, typer.Argument(metavar="SPEC")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[TABLE.KEY=VALUE]...", show_default=False)]
Folder = Annotated[str, typer.Argument(metavar="RUN")]
MaxMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Do not start if the run's vectors need more than this, e.g. 8GB.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Verb = Callable[..., None]


class Failure(Exception):
    """An error that the library raised on purpose, with the exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def verb(app: typer.Typer, module: str) -> Callable[[Verb], Verb]:
    """Add a verb to `app`: the decorated function declares its options; `tardygrad.cli.<module>` has its code."""

    def add(declared: Verb) -> Verb:
        @functools.wraps(declared)
        def call(**arguments: Any) -> None:
            with quiet_interrupt():
                body = getattr(importlib.import_module(f"tardygrad.cli.{module}"), declared.__name__)
                from tardygrad.errors import Invalid, TardygradError
            try:
                body(**arguments)
            except TardygradError as error:
                raise Failure(str(error), 2 if isinstance(error, Invalid) else 1) from error

        app.command()(call)
        return call

    return add
