"""Several runs at once, each in its own process, with the same bits as one after the other.

Each process has as many threads of torch as its run's spec says.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from tardygrad.engines.processes import Child, Children, Ended, process_count
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Diverged, Starved, TardygradError, WorkFailed
from tardygrad.runs import run as runs
from tardygrad.runs.checks import quoted
from tardygrad.runs.record import Row
from tardygrad.runs.settings import Settings
from tardygrad.runs.summary import Summary
from tardygrad.spec.spec import Spec


class ParallelRuns:
    """Runs in processes: iterate over `go()`, which yields each row of each run, and its summary when it ends.

    Args:
        specs: the spec of each run, by its label.
        folder: the directory that contains those of the runs; see `path`.
        jobs: processes at once; 0 is one for every core this process may use.
    """

    def __init__(self, specs: Mapping[str, Spec], folder: Path, jobs: int = 0) -> None:
        self.specs, self.folder = specs, folder
        self.jobs = process_count("jobs", jobs)
        self._waiting = deque(specs)
        self._labels: dict[Child, str] = {}  # of the runs under way
        self._stop = False

    def path(self, label: str) -> Path:
        """The directory of a run."""
        return self.folder / re.sub(r"[^\w.=-]+", "-", label.lower().replace("²", "2"))

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
