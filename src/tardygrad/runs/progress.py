"""Progress on stderr: a bar on a terminal, a line in a notebook; elsewhere, as in a log, a line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from tardygrad.errors import Invalid

if TYPE_CHECKING:  # it needs PyTorch, which is slow to import
    from tardygrad.runs.record import Row
    from tardygrad.runs.run import Run

Item = TypeVar("Item")

CENTURY = 100 * 365.25 * 86_400  # seconds; that much time left is not shown
PAUSE = 20.0  # seconds until the first line of a log and between two, or a tenth of the time so far if that is more


def progress(run: Run, rows: Iterable[Row] | None = None) -> Iterator[Row]:
    """Run to the end and yield the metrics of each round, like `run.go()`, with a progress bar.

    The bar has the rounds, the clock, the losses, the rate and the time left.

    Args:
        rows: what to iterate over instead of `run.go()`, such as `tracked(run, ["tensorboard"])`.
    """
    from tardygrad.runs.run import Run

    if not isinstance(run, Run):
        raise Invalid(f"progress needs a run, as from tg.begin(...), got {type(run).__name__}.")
    settings, rows = run.settings, run.go() if rows is None else rows
    return round_progress(rows, done=run.server.round, rounds=settings["rounds"], until=settings["until"])


def progress_bar(
    items: Iterable[Item],
    describe: Callable[[Item], str],
    *,
    what: str,
    total: float,
    done: float = 0,
    count: Callable[[Item], float] | None = None,
) -> Iterator[Item]:
    """Pass the items on, and show how many there were, with a description of the last one.

    On a terminal it is a bar, in a notebook a line that is written again and again, elsewhere a new line now and then.

    Args:
        done: items completed before.
        count: how much of the total is complete after an item; None: one more for each item.
    """
    from rich.console import Console

    if not sys.stderr.isatty():
        yield from _lines(items, describe, what, total, done, count, one_line=Console().is_jupyter)
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


def _lines(
    items: Iterable[Item],
    describe: Callable[[Item], str],
    what: str,
    total: float,
    done: float,
    count: Callable[[Item], float] | None,
    one_line: bool,
) -> Iterator[Item]:
    """Pass the items on, and write how many are done, how fast, and how long the rest will take.

    Args:
        one_line: write one line again after each item, and not a new one now and then.
    """
    before, began = done, time.monotonic()
    pause, start, end = (0.0, "\r", "   ") if one_line else (PAUSE, "", "\n")
    due = began + pause
    for item in items:
        done, now = count(item) if count else done + 1, time.monotonic()
        if now >= due:
            speed = (done - before) / max(now - began, 1e-9)
            seconds = max(total - done, 0) / speed if speed > 0 else math.inf
            left = f"{timedelta(seconds=round(seconds))} left" if seconds < CENTURY else ""
            words = (f"{what} {done:.6g}/{total:.6g}", describe(item).strip(), rate(speed), left)
            sys.stderr.write(f"{start}{'  '.join(filter(None, words))}{end}")
            sys.stderr.flush()
            due = now if one_line else now + max(pause, (now - began) / 10)
        yield item
    sys.stderr.write("\n" if one_line else "")


def round_progress(rows: Iterable[Row], *, done: int, rounds: int | None, until: float | None = None) -> Iterator[Row]:
    """Pass the rows of a run on, with a progress bar: of its rounds, or else of its time."""
    score = ""

    def with_score() -> Iterator[Row]:
        """The rows; notes the score of each that has one, since `describe` does not see every row."""
        nonlocal score
        for row in rows:
            if row.get("test_accuracy") is not None:
                score = f"test accuracy {row['test_accuracy']:.1%}"
            elif row.get("test_loss") is not None:
                score = f"test loss {row['test_loss']:.4g}"
            yield row

    def describe(row: Row) -> str:
        spent = f"  ε {row['epsilon']:.3g}" if "epsilon" in row else ""
        return f"{row['time']:.4g} s  loss {row['loss']:.4g}  {score}{spent}"

    if rounds is None:
        total = until or 0.0
        return progress_bar(with_score(), describe, what="second", total=total, count=lambda row: float(row["time"]))
    return progress_bar(with_score(), describe, what="round", total=rounds, done=done)
