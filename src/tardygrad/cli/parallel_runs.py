"""Several runs at once, each in its own process, with the same bits as one after the other.

Each process has as many threads of torch as its run's spec says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tardygrad.engines.child_process import ChildProcess, process_count
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import TardygradError, WorkFailed
from tardygrad.runs import run as runs
from tardygrad.runs.checks import quoted
from tardygrad.runs.record import Row
from tardygrad.runs.settings import Settings
from tardygrad.runs.summary import Summary
from tardygrad.spec.spec import Spec


class RunProcess(ChildProcess):
    """A run and its process."""

    def __init__(self, label: str, spec: Spec, out: Path) -> None:
        super().__init__(_run_in_child, spec, out)
        self.label = label


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
        self._running: list[RunProcess] = []
        self._stop = False

    def path(self, label: str) -> Path:
        """The directory of a run."""
        return self.folder / label.lower().replace("²", "2")

    def stop(self) -> None:
        """End every run after its current round, with a checkpoint; start no others."""
        self._stop = True

    def go(self) -> Generator[tuple[str, Row | Summary], None, None]:
        try:
            while self._start():
                if self._stop:
                    for run in self._running:
                        with suppress(OSError):  # the run has just ended
                            run.pipe.send(None)
                yield from self._collect()
        finally:
            for run in self._running:
                run.process.kill()
                run.join()
            self._running = []

    def _start(self) -> bool:
        """Start runs while fewer than `jobs` are running; return whether any is running."""
        while self._waiting and len(self._running) < self.jobs and not self._stop:
            label = self._waiting.popleft()
            self._running.append(RunProcess(label, self.specs[label], self.path(label)))
        return bool(self._running)

    def _collect(self) -> Generator[tuple[str, Row | Summary], None, None]:
        """The messages that arrive within half a second."""
        running = {run.pipe: run for run in self._running}
        for pipe in wait(list(running), 0.5):
            run = running[pipe]  # type: ignore[index]
            try:
                message = run.pipe.recv()
            except (EOFError, OSError) as error:
                code, path = run.join(), quoted(self.path(run.label))
                reason = f"the process of {run.label} died (exit code {code}). Is there enough memory? Try fewer jobs"
                raise WorkFailed(f"{reason}, or continue with: tardygrad resume {path}") from error
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Summary):
                self._running.remove(run)
                run.join()
            yield run.label, message


def _run_in_child(pipe: Connection, spec: Spec, out: Path) -> None:
    """Run in a child process: send every row, then the summary or an error; stop the run if anything is received."""
    try:
        with torch_threads(spec.run.threads):
            built = spec.build()
            with built.pool() as pool:
                settings: Settings = {**spec.run.settings(), "out": out}
                run = runs.begin(built.method, built.task, pool, spec=spec.resolved(), **settings)
                for row in run.go():
                    pipe.send(row)
                    if pipe.poll():
                        run.stop()
        pipe.send(run.summary())
    except (TardygradError, OSError) as error:
        error.__cause__ = None  # which may not be picklable
        pipe.send(error)
