"""Run at the terminal: set torch's threads, start the engine, show progress, handle signals, print the summary."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import typer

from tardygrad.cli.output import say, show, show_json, waiting
from tardygrad.engines.contract import Pool
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import WorkFailed
from tardygrad.own_code import trust_option
from tardygrad.runs.kinds import resume_command
from tardygrad.runs.memory import read_size
from tardygrad.runs.progress import progress
from tardygrad.runs.run import Run, Summary, check_run, plural
from tardygrad.runs.signals import Signals
from tardygrad.runs.track import tracked
from tardygrad.spec.spec import Built, Spec

FORECAST_MESSAGES = 4_000  # messages to simulate for the memory forecast (about a second) if there is no --max-memory


def build(loaded: Spec) -> Built:
    """Build the objects of a spec, with a spinner: its task may have to prepare data."""
    with waiting(f"preparing {loaded.task.kind}; the first time may take minutes"):
        return loaded.build()


def _check_memory(built: Built, max_memory: str | None) -> str:
    """A line about the memory that a run's vectors need; raise `Invalid` if it is more than allowed."""
    limit = None if max_memory is None else read_size(max_memory)
    with waiting("forecasting the memory"):
        memory = built.memory(messages=None if limit else FORECAST_MESSAGES)
    if limit:
        memory.check(limit)
    seen = "" if memory.rounds in (0, built.run.rounds) else f" in the first {plural(memory.rounds, 'round')}"
    return f"memory: {memory}{seen}"


@contextmanager
def started_engine(loaded: Spec, max_memory: str | None) -> Iterator[tuple[Built, Pool, str]]:
    """Build a spec, check its memory and start its engine, with a spinner; the text is about the memory."""
    with ExitStack() as stack:
        stack.enter_context(torch_threads(loaded.run.threads))
        built = build(loaded)
        memory = _check_memory(built, max_memory)
        engine_pool = built.pool()
        check_run(built.method, built.task, engine_pool, loaded.run.settings())
        if (startup := engine_pool.startup) and not sys.stderr.isatty():
            say(startup)
        with Signals(_abort) as signals, waiting(f"starting the engine {built.engine.kind}"):
            try:
                pool = stack.enter_context(engine_pool)
            finally:
                if signals.received:
                    raise typer.Abort(signals.received)
        if status := pool.status():
            say(status)
        yield built, pool, memory


def worker_shortage(run: Run, spec: Spec) -> str:
    """A hint if more clients work at once than there are workers, else nothing."""
    method, slots = run.server.method, run.server.roster.slots
    workers = run.pool.parallel
    if run.pool.virtual_clock or workers is None or slots <= workers or method.mode == "sync":
        return ""
    room = workers if method.mode == "client" else max(workers, method.buffer)
    own = not spec.method.arguments.keys() >= {"concurrency", "dispatch"}  # a function that does not take them
    how = f"concurrency={room}, dispatch='random'" if own else f"method.concurrency={room} method.dispatch=random"
    fix = f"To dispatch only to free workers: {how}"
    return f"\n{slots} clients share {plural(workers, 'worker')}: jobs wait, and updates get stale. {fix}"


def _abort() -> None:
    """What a signal does before the run exists."""
    raise KeyboardInterrupt


def run_to_end(run: Run, loaded: Spec, out: str, *, json: bool) -> None:
    """Run until the end or a signal, with progress and the spec's trackers, and print the summary."""
    track, tables = loaded.run.track, loaded.resolved()
    resume = resume_command(out, tables, trust_option(tables))
    try:
        with Signals(run.stop) as signals:
            for _ in progress(run, tracked(run, track) if track else None):
                pass
    except WorkFailed as error:
        raise WorkFailed(f"{str(error).rstrip('.')}. Continue with: {resume}") from error
    print_summary(run.summary(), out, json=json)
    if run.status == "stopped":
        say(f"stopped at round {run.server.round}; continue with: {resume}")
        raise typer.Exit(128 + (signals.received or signal.SIGINT))


def print_summary(summary: Summary, out: str, *, json: bool) -> None:
    """Print the summary of a run."""
    if json:
        show_json({"out": out, **summary._asdict()})
    else:
        show(str(summary))
