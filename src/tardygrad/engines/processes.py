"""Child processes with pipes: the workers of the simulator and of sweeps, parallel runs, and groups on Ray.

A child that dies is noticed by the end of its pipe; all children are killed at the end, and end if this process does.
Tensors travel as arrays: torch would open them in the child that sent them, which may have ended.

    def main(pipe, task):  # in the child
        while True:
            pipe.send(work(task, pipe.recv()))

    with Children() as children:
        busy = {children.start(main, task): job for job in jobs}  # forked: it shares this process's memory
        for child, job in busy.items():
            child.send(job)
        for child, answer in children.answers():
            if isinstance(answer, Ended):  # start another in its place, and send it the job again
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self

from tardygrad.errors import Invalid, check_integer

PROCESSES_PER_CORE = 16  # more would only take memory and time from each other

POLL = 0.1
"""Seconds between two looks whether a process has ended, where nothing else tells."""

PROGRAM = """
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from tardygrad.engines.processes import run_fresh
run_fresh(pipe)
"""


class Ended(NamedTuple):
    """In place of an answer: the child has ended."""

    code: int | None  # its exit code; negative: the signal that killed it


class Child:
    """A child process, and this end of its pipe."""

    def __init__(self, process: BaseProcess | subprocess.Popen[bytes], pipe: Any) -> None:
        self.process, self.pipe = process, pipe

    def send(self, message: Any) -> None:
        """Send a message. If the child has ended, `answers` notices."""
        with suppress(OSError):
            self.pipe.send(message)

    @property
    def code(self) -> int | None:
        """The exit code; None: it is alive."""
        return self.process.poll() if isinstance(self.process, subprocess.Popen) else self.process.exitcode

    def join(self) -> int | None:
        """Close the pipe, and wait for the end; returns the exit code."""
        self.pipe.close()
        if isinstance(self.process, subprocess.Popen):
            self.process.wait()
        else:
            self.process.join()
        return self.code


class Children:
    """Child processes; in a `with` statement, or with `close` at the end."""

    def __init__(self) -> None:
        self.alive: list[Child] = []

    def start(self, main: Callable[..., None], *args: Any) -> Child:
        """Fork a process that calls `main(pipe, *args)`; nothing is pickled."""
        context = mp.get_context("fork")
        ours, theirs = context.Pipe()
        parents = [ours, *(child.pipe for child in self.alive)]  # which the child must close, or no pipe would end
        process = context.Process(target=_forked_main, args=(parents, theirs, main, args), daemon=True)
        process.start()
        theirs.close()
        self.alive.append(child := Child(process, ours))
        return child

    def start_fresh(self, main: Callable[[Any], None], environment: dict[str, str]) -> Child:
        """Start an interpreter that calls `main(pipe)`, with these environment variables; where this process cannot be
        forked, because it has threads or a GPU."""
        ours, theirs = Pipe()
        command, handle = [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno())], theirs.fileno()
        process = subprocess.Popen(command, pass_fds=[handle], env=dict(os.environ) | environment)
        theirs.close()
        self.alive.append(child := Child(process, ours))
        child.send(sys.path)
        child.send((main.__module__, main.__qualname__))
        return child

    def answers(
        self, seconds: float | None = None, of: Collection[Child] | None = None
    ) -> Sequence[tuple[Child, Any | Ended]]:
        """What children have sent: one message each; a child that has ended is removed.

        Args:
            seconds: how long to wait for a message; None: until there is one.
            of: the children to wait for; None: all.
        """
        pipes = {child.pipe: child for child in (self.alive if of is None else of)}
        found: list[tuple[Child, Any]] = []
        while pipes and not found:
            ready = wait(list(pipes), 10 * POLL if seconds is None else seconds)
            for pipe in ready or [pipe for pipe, child in pipes.items() if child.code is not None and not pipe.poll()]:
                child = pipes[pipe]
                try:
                    found.append((child, child.pipe.recv() if ready else self.end(child)))
                except (EOFError, OSError):
                    found.append((child, self.end(child)))
            if seconds is not None:
                break
        return found

    def end(self, child: Child) -> Ended:
        """Kill a child, if it is alive."""
        self.alive.remove(child)
        child.process.kill()
        return Ended(child.join())

    def close(self) -> None:
        """Kill all children."""
        for child in self.alive:
            child.process.kill()
        for child in self.alive:
            child.join()
        self.alive = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _forked_main(
    parents: Sequence[Connection], pipe: Connection, main: Callable[..., None], args: tuple[Any, ...]
) -> None:
    set_up_child_process()
    for each in parents:
        each.close()
    main(pipe, *args)


def set_up_child_process() -> None:
    """Set up a forked process: ignore Ctrl-C, which the parent handles, and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def end_with_parent() -> None:
        parent = mp.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def run_fresh(pipe: Connection) -> None:
    """What a fresh interpreter does: find the function, and call it. It ends with its parent."""
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(POLL)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    module, name = pipe.recv()
    getattr(import_module(module), name)(pipe)


def usable_cores() -> int:
    """The number of cores that this process may use; on systems that do not tell, such as macOS, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_count(name: str, wanted: int) -> int:
    """A number of processes, or one for every core if it is 0; raises `Invalid` for more than a machine can run.

    Args:
        name: of the argument.
    """
    check_integer(name, wanted, 0)
    cores = usable_cores()
    if wanted > (most := PROCESSES_PER_CORE * cores):
        rule = (
            f"`{name}` must be at most {most:,}, {PROCESSES_PER_CORE} for each core that this process may use ({cores})"
        )
        raise Invalid(f"{rule}, got {wanted:,}. Use {cores}.")
    return wanted or cores
