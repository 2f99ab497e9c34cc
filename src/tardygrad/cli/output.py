"""Output: results go to stdout, messages and progress to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from tardygrad.errors import Invalid
from tardygrad.runs.record import Row, plain

if TYPE_CHECKING:
    from rich.table import Table

Item = TypeVar("Item")


def say(text: str) -> None:
    """Print a message."""
    typer.echo(text, err=True)


def show(text: str) -> None:
    """Print a result."""
    typer.echo(text)


def show_json(value: Any) -> None:
    """Print a result as strict JSON."""
    typer.echo(json.dumps(plain(value), allow_nan=False, ensure_ascii=False, indent=2))


def show_table(table: Table) -> None:
    """Print a table; text from files must be escaped for rich."""
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


def writable(option: str, given: str, *ends: str) -> Path:
    """The file that an option names; raise `Invalid` early if it cannot be written."""
    path = Path(given)
    if path.suffix not in ends or path.is_dir():
        raise Invalid(f"{option} must be a file that ends in {' or '.join(ends)}, got {given!r}.")
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
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def progress(rows: Iterable[Row], *, done: int, rounds: int) -> Iterator[Row]:
    """Pass the rows on, with a progress bar if stderr is a terminal.

    Args:
        done: rounds completed before.
        rounds: rounds in total.
    """
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("round"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[clock]}  {task.fields[loss]}  {task.fields[score]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=rounds, completed=done, clock="", loss="", score="", rate="")
        for row in rows:
            speed = bar.tasks[0].speed
            bar.update(
                task,
                completed=row["round"],
                clock=f"{row['time']:.4g} s",
                loss=f"loss {row['loss']:.4g}",
                rate=f"{speed:.3g}/s" if speed else "",
            )
            if scored := _score(row):
                bar.update(task, score=scored)
            yield row


def counted(items: Iterable[Item], *, total: int, what: str) -> Iterator[Item]:
    """Pass the items on, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=what, total=total, console=Console(stderr=True), transient=True)


def _score(row: Row) -> str:
    if row.get("test_accuracy") is not None:
        return f"test accuracy {row['test_accuracy']:.1%}"
    return f"test loss {row['test_loss']:.4g}" if row.get("test_loss") is not None else ""
