"""Output: results go to stdout, messages and progress to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tardygrad.errors import Invalid
from tardygrad.runs.record import to_json_value

Item = TypeVar("Item")


class Output(Console):
    """Stdout, which may be a pipe that its reader has closed: rich would end the program, as own code might do."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def say(text: str) -> None:
    """Print a message."""
    typer.echo(text, err=True)


def show(text: str) -> None:
    """Print a result."""
    typer.echo(text)


def show_json(value: Any) -> None:
    """Print a result as strict JSON."""
    typer.echo(json.dumps(to_json_value(value), allow_nan=False, ensure_ascii=False, indent=2))


def as_objects(value: Any) -> Any:
    """The value with named tuples as dictionaries, at any depth."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, dict):
        return {name: as_objects(item) for name, item in value.items()}
    return [as_objects(item) for item in value] if isinstance(value, list | tuple) else value


def show_table(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str = "", *, header: bool = True) -> None:
    """Print a table; a column whose name ends in > is aligned right."""
    heads = (Column(name.removesuffix(">"), justify="right" if name.endswith(">") else "left") for name in columns)
    table = Table(*heads, box=None, pad_edge=False, show_header=header, title=escape(title), title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*map(escape, row))
    console = Output(highlight=False, width=None if sys.stdout.isatty() else 120)
    with console.capture() as lines:
        console.print(table)
    show("\n".join(line.rstrip() for line in lines.get().splitlines()))  # rich fills the last column with spaces


def cell(value: float | None, form: str, missing: str = "–") -> str:
    """A number as the text of a table's cell."""
    return missing if value is None else format(value, form)


def writable(option: str, given: str, *ends: str) -> Path:
    """The file that an option names; raise `Invalid` early if it cannot be written.

    Args:
        ends: that its name may have; none: any.
    """
    path, rule = Path(given), f" that ends in {' or '.join(ends)}" if ends else ""
    if (ends and path.suffix not in ends) or (path.exists() and not path.is_file()):
        raise Invalid(f"{option} must be a file{rule}, got {given!r}.")
    try:
        with TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        reason = error.strerror or error
        raise Invalid(f"{option} must be a writable file, got {given!r} ({reason}).") from error


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show a spinner on the terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


def counted(items: Iterable[Item], *, total: int, what: str) -> Iterator[Item]:
    """Pass the items on, and show how many of them are done."""
    from tardygrad.runs.progress import progress_bar

    return progress_bar(items, lambda item: "", what=what, total=total)
