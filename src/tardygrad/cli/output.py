"""Output: results go to stdout, messages and progress to stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tardygrad.errors import Invalid
from tardygrad.runs.record import Row, to_json_value

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
    with Console(stderr=True).status(what):
        yield


def progress(
    items: Iterable[Item],
    describe: Callable[[Item], str],
    *,
    what: str,
    total: float,
    done: float = 0,
    count: Callable[[Item], float] | None = None,
) -> Iterator[Item]:
    """Pass the items on, with a progress bar and a description of the last item if stderr is a terminal.

    In a notebook it is a line that is written again and again.

    Args:
        done: items completed before.
        count: how much of the total is complete after an item; None: one more for each item.
    """
    if not sys.stderr.isatty():
        yield from items if not Console().is_jupyter else _notebook_progress(items, describe, what, total, done)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}  {task.fields[rate]}", markup=False)
    columns = (TextColumn(what), BarColumn(bar_width=24), MofNCompleteColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, rate="")
        bar.update(task, completed=done)
        for item in items:
            speed = rate(bar.tasks[0].speed or 0.0)
            bar.update(task, completed=count(item) if count else None, advance=None if count else 1)
            bar.update(task, description=describe(item), rate=speed)
            yield item


def rate(speed: float) -> str:
    """Items per second or per minute."""
    return f"{speed:.3g}/s" if speed >= 1 else f"{60 * speed:.3g}/min" if speed else ""


def _notebook_progress(
    items: Iterable[Item], describe: Callable[[Item], str], what: str, total: float, done: float
) -> Iterator[Item]:
    """Pass the items on, and say on one line how many are done, how fast, and how long the rest will take."""
    began = time.monotonic()
    for number, item in enumerate(items, 1):
        speed = number / max(time.monotonic() - began, 1e-9)
        left = timedelta(seconds=round(max(total - done - number, 0) / speed))
        sys.stderr.write(f"\r{what} {done + number:g}/{total:g}  {describe(item)}  {rate(speed)}  {left} left   ")
        sys.stderr.flush()
        yield item
    sys.stderr.write("\n")


def round_progress(rows: Iterable[Row], *, done: int, rounds: int | None, until: float | None = None) -> Iterator[Row]:
    """Pass the rows of a run on, with a progress bar if stderr is a terminal: of its rounds, or else of its time."""
    score = ""

    def describe(row: Row) -> str:
        nonlocal score
        if row.get("test_accuracy") is not None:
            score = f"test accuracy {row['test_accuracy']:.1%}"
        elif row.get("test_loss") is not None:
            score = f"test loss {row['test_loss']:.4g}"
        spent = f"  ε {row['epsilon']:.3g}" if "epsilon" in row else ""
        return f"{row['time']:.4g} s  loss {row['loss']:.4g}  {score}{spent}"

    if rounds is None:
        return progress(rows, describe, what="second", total=until or 0.0, count=lambda row: float(row["time"]))
    return progress(rows, describe, what="round", total=rounds, done=done)


def counted(items: Iterable[Item], *, total: int, what: str) -> Iterator[Item]:
    """Pass the items on, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.progress import track

    yield from track(items, description=what, total=total, console=Console(stderr=True), transient=True)
