"""Several runs at once, each in its own process, with the same bits as one after the other; and their live table.

Each process has as many threads of torch as its run's spec says.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from tardygrad.cli.output import cell, say
from tardygrad.engines.processes import Child, Children, Ended, process_count
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Diverged, Starved, TardygradError, WorkFailed
from tardygrad.runs import run as runs
from tardygrad.runs.checks import quoted
from tardygrad.runs.progress import rate
from tardygrad.runs.record import Row, require_new
from tardygrad.runs.settings import Settings
from tardygrad.runs.signals import Signals
from tardygrad.runs.summary import Summary
from tardygrad.spec.spec import Spec

WIDE = 80  # columns of a terminal that has room for everything


class ParallelRuns:
    """Runs in processes: iterate over `go()`, which yields each row of each run, and its summary when it ends.

    Args:
        specs: the spec of each run, by its label.
        folder: the directory that contains those of the runs; see `path`.
        jobs: processes at once; 0 is one for every core this process may use.

    Raises:
        Invalid: one of the directories holds a run.
    """

    def __init__(self, specs: Mapping[str, Spec], folder: Path, jobs: int = 0) -> None:
        self.specs, self.folder = specs, folder
        self.jobs = process_count("jobs", jobs)
        for label in specs:
            require_new(self.path(label))
        self._waiting = deque(specs)
        self._labels: dict[Child, str] = {}  # of the runs under way
        self._stop = False

    def path(self, label: str) -> Path:
        """The directory of a run."""
        return self.folder / re.sub(r"[^\w.=-]+", "-", label.lower().replace("²", "2"))

    @property
    def paths(self) -> list[str]:
        """The directories of all runs."""
        return [str(self.path(label)) for label in self.specs]

    def stop(self) -> None:
        """End every run after its current round, with a checkpoint; start no others."""
        self._stop = True

    def go(self) -> Generator[tuple[str, Row | Summary], None, None]:
        with Children() as children:
            while self._start(children):
                if self._stop:
                    for child in self._labels:
                        child.send(None)
                for child, message in children.answers(0.5):
                    label = self._labels[child]
                    if isinstance(message, Ended):
                        rule = f"the process of {label} died (exit code {message.code}). Is there enough memory?"
                        path = quoted(self.path(label))
                        raise WorkFailed(f"{rule} Try fewer jobs, or continue with: tardygrad resume {path}")
                    if isinstance(message, Exception):
                        raise message
                    if isinstance(message, Summary):
                        del self._labels[child]
                        children.end(child)
                    yield label, message

    def _start(self, children: Children) -> bool:
        """Start runs while fewer than `jobs` are running; return whether any is running."""
        while self._waiting and len(self._labels) < self.jobs and not self._stop:
            label = self._waiting.popleft()
            self._labels[children.start(_run_in_child, self.specs[label], self.path(label))] = label
        return bool(self._labels)


def _run_in_child(pipe: Connection, spec: Spec, out: Path) -> None:
    """Run in a child process: send every row, then the summary or an error; stop the run if anything is received."""
    try:
        with torch_threads(spec.run.threads):
            built = spec.build()
            with built.pool() as pool:
                settings: Settings = {**spec.run.settings(), "out": out}
                run = runs.begin(built.method, built.task, pool, spec=spec.resolved(), **settings)
                with suppress(Diverged, Starved):  # results too: the summary says so
                    for row in run.go():
                        pipe.send(row)
                        if pipe.poll():
                            run.stop()
        pipe.send(run.summary())
    except (TardygradError, OSError) as error:
        error.__cause__ = None  # which may not be picklable
        pipe.send(error)


def run_all(runs: ParallelRuns, rounds: int, title: str) -> None:
    """Run all, and show a live table on a terminal, elsewhere a line for each run that has ended."""
    say(title)
    table, stopped = RunsTable(runs.specs, rounds, console=Console(stderr=True)), list[str]()
    live = sys.stderr.isatty()
    with Signals(runs.stop) as signals, table if live else nullcontext():
        for label, message in runs.go():
            if live:
                table.add(label, message)
            elif isinstance(message, Summary):
                say(f"{label}: {_described(message)}")
            if isinstance(message, Summary) and message.status == "stopped":
                path = quoted(runs.path(label))
                stopped.append(f"{label} stopped at round {message.rounds}; continue with: tardygrad resume {path}")
    if signals.received is not None:
        for line in stopped:
            say(line)
        raise typer.Exit(128 + signals.received)


def _described(summary: Summary) -> str:
    text = f"{summary.status} after {summary.rounds} rounds in {summary.seconds:.0f} s"
    accuracy = summary.accuracy is not None or summary.loss is None
    score = f"accuracy {cell(summary.accuracy, '.1%')}" if accuracy else f"loss {summary.loss:.4g}"
    return f"{text}, test {score}, {summary.time:,.0f} simulated seconds"


class RunsTable(Progress):
    """A live table with a line for each run: its progress, accuracy, simulated time, rate and time left."""

    def __init__(self, labels: Iterable[str], rounds: int, *, console: Console) -> None:
        def column(head: str, justify: Any = "right") -> Column:
            return Column(head, justify=justify, no_wrap=True)

        def fields(head: str, text: str, style: str = "", justify: Any = "right") -> TextColumn:
            return TextColumn(text, markup=False, style=style, justify=justify, table_column=column(head, justify))

        details = (fields("simulated s", "{task.fields[time]}", "magenta"), fields("rate", "{task.fields[rate]}"))
        bar: dict[str, Any] = {"complete_style": "magenta", "finished_style": "green", "pulse_style": "bar.back"}
        super().__init__(
            fields("method", "{task.description}", "bold", "left"),
            BarColumn(18, **bar, table_column=column("progress", "left")),
            fields("round", "{task.completed:.0f}/{task.total:.0f}"),
            fields("accuracy", "{task.fields[accuracy]}", "cyan"),
            *(details if console.width >= WIDE else ()),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=column("time left")),
            console=console,
            transient=True,
        )
        begin: dict[str, Any] = {"total": rounds, "start": False, "accuracy": "", "time": "", "rate": ""}
        self.rows = {label: self.add_task(label, **begin) for label in labels}

    def add(self, label: str, message: Row | Summary) -> None:
        """Show a row of a run, or that it has ended."""
        number = self.rows[label]
        if isinstance(message, Summary):
            self.update(number, rate="")
            return
        task = self.tasks[number]
        if not task.started:
            self.start_task(number)
        changed: dict[str, Any] = {"time": f"{message['time']:,.0f}", "rate": rate(task.speed or 0.0)}
        if message.get("test_accuracy") is not None:
            changed["accuracy"] = f"{message['test_accuracy']:.1%}"
        self.update(number, completed=message["round"], **changed)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        table = super().make_tasks_table(tasks)
        table.show_header, table.header_style, table.padding = True, "dim", (0, 2, 0, 0)
        return table
