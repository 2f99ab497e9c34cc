"""Progress bars on stderr, on a terminal or in a notebook; elsewhere nothing is shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

from tardygrad.runs.record import Row
from tardygrad.runs.run import Run

Item = TypeVar("Item")


def progress(run: Run, rows: Iterable[Row] | None = None) -> Iterator[Row]:
    """Run to the end and yield the metrics of each round, like `run.go()`, with a progress bar.

    The bar has the rounds, the clock, the losses, the rate and the time left.

    Args:
        rows: what to iterate over instead of `run.go()`, such as `tracked(run, ["tensorboard"])`.
    """
    settings, rows = run.settings, run.go() if rows is None else rows
    yield from round_progress(rows, done=run.server.round, rounds=settings["rounds"], until=settings["until"])


def progress_bar(
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
    from rich.console import Console

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
    """Pass the rows of a run on, with a progress bar: of its rounds, or else of its time."""
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
        return progress_bar(rows, describe, what="second", total=until or 0.0, count=lambda row: float(row["time"]))
    return progress_bar(rows, describe, what="round", total=rounds, done=done)
