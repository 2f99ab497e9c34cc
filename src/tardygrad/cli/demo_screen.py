"""What the demo shows: a live table of its runs on a terminal, plain lines elsewhere, and the results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import Progress, ProgressColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from tardygrad.cli.output import Output, cell, say
from tardygrad.runs.progress import rate
from tardygrad.runs.record import Row
from tardygrad.runs.summary import Summary

BAR, RESULT_BAR = 18, 10  # characters
WIDE = 80  # columns of a terminal that has room for everything
Messages = Iterable[tuple[str, Row | Summary]]


def follow(messages: Messages, labels: Iterable[str], rounds: int, title: str) -> Iterator[tuple[str, Row | Summary]]:
    """Pass the messages of the runs on and show their progress."""
    if not sys.stderr.isatty():
        say(title)
        for label, message in messages:
            if isinstance(message, Summary):
                say(f"{label}: {_described(message)}")
            yield label, message
        return
    with RunsTable(labels, rounds, title, console=Console(stderr=True)) as table:
        for label, message in messages:
            table.add(label, message)
            yield label, message


def _described(summary: Summary) -> str:
    text = f"{summary.status} after {summary.rounds} rounds in {summary.seconds:.0f} s"
    accuracy = summary.accuracy is not None or summary.loss is None
    score = f"accuracy {cell(summary.accuracy, '.1%')}" if accuracy else f"loss {summary.loss:.4g}"
    return f"{text}, test {score}, {summary.time:,.0f} simulated seconds"


class Bar(ProgressColumn):
    """A bar that does not move while a run waits."""

    def render(self, task: Task) -> ProgressBar:
        return ProgressBar(task.total, task.completed, BAR, complete_style="magenta", finished_style="green")


class Left(ProgressColumn):
    """The time that a run will still take; of one that has ended, the time it took."""

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f"in {_short(task.finished_time)}", style="green")
        return Text(_short(task.time_remaining) if task.started else "waiting", style="dim")


class RunsTable(Progress):
    """A live table with a line for each run: its progress, accuracy, simulated time, rate and time left."""

    def __init__(self, labels: Iterable[str], rounds: int, title: str, *, console: Console) -> None:
        def fields(head: str, text: str, justify: Any = "right", style: str = "") -> TextColumn:
            column = Column(head, justify=justify, no_wrap=True)
            return TextColumn(text, markup=False, style=style, justify=justify, table_column=column)

        self.title = title
        details = [
            fields("simulated s", "{task.fields[time]}", style="magenta"),
            fields("rate", "{task.fields[rate]}"),
        ]
        super().__init__(
            fields("method", "{task.description}", "left", "bold"),
            Bar(table_column=Column("progress")),
            fields("round", "{task.completed:.0f}/{task.total:.0f}"),
            fields("accuracy", "{task.fields[accuracy]}", style="cyan"),
            *(details if console.width >= WIDE else []),
            Left(table_column=Column("time left", justify="right", no_wrap=True)),
            console=console,
            transient=True,
        )
        begin: dict[str, Any] = {"total": rounds, "start": False, "accuracy": "", "time": "", "rate": ""}
        self.rows = {label: self.add_task(label, **begin) for label in labels}

    def add(self, label: str, message: Row | Summary) -> None:
        """Show a row of a run, or that it has ended."""
        task = self.tasks[list(self.rows).index(label)]
        if isinstance(message, Summary):
            self.update(task.id, rate="")
            return
        if not task.started:
            self.start_task(task.id)
        changed: dict[str, Any] = {"time": f"{message['time']:,.0f}", "rate": rate(task.speed or 0.0)}
        if message.get("test_accuracy") is not None:
            changed["accuracy"] = f"{message['test_accuracy']:.1%}"
        self.update(task.id, completed=message["round"], **changed)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        table = super().make_tasks_table(tasks)
        table.show_header, table.header_style, table.padding = True, "dim", (0, 2, 0, 0)
        return table

    def get_renderables(self) -> Iterable[RenderableType]:
        yield Group(Text(self.title), Text(), *super().get_renderables(), Text())


def _short(seconds: float | None) -> str:
    """A duration as minutes and seconds.

    >>> _short(83.2), _short(None)
    ('1:23', '')
    """
    return "" if seconds is None else str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


def show_results(rows: list[dict[str, Any]], goal: float) -> None:
    """Print the results; on a terminal with bars of the times to the goal, on a narrow one without bars and delays."""
    heads = [
        Column("method", no_wrap=True),
        Column("test accuracy", justify="right"),
        Column(f"time to {goal:.0%} (s)", justify="right"),
        Column("simulated time (s)", justify="right"),
        Column("speed-up of the rounds", justify="right"),
        Column("mean delay", justify="right"),
        Column("max delay", justify="right"),
    ]
    terminal = sys.stdout.isatty()
    output = Output(highlight=False, width=None if terminal else 120)
    wide = output.width >= WIDE
    shown = len(heads) if wide else 5
    table = Table(*heads[:shown], box=None, pad_edge=False, header_style="dim" if terminal else "")
    longest = max((row["time_to_goal"] or 0.0 for row in rows), default=0.0)
    if terminal:
        table.columns[0].style = "bold"
    if terminal and wide:
        table.add_column("", style="magenta", no_wrap=True)
    for row in rows:
        time = row["time_to_goal"]
        bar = "━" * max(1, round(RESULT_BAR * time / longest)) if time else ""
        cells = [
            row["method"],
            cell(row["accuracy"], ".1%"),
            cell(time, ",.0f"),
            f"{row['time']:,.0f}",
            f"{row['speed_up']:.0f}x",
            f"{row['delay_mean']:.1f}",
            str(row["delay_max"]),
        ]
        table.add_row(*cells[:shown], *([bar] if terminal and wide else []))
    output.print(table)
