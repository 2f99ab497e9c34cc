"""Forked child processes, each with a pipe, and how many of them a machine can run."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tardygrad.errors import Invalid, check_integer

PROCESSES_PER_CORE = 16  # more would only take memory and time from each other


class ChildProcess:
    """A forked process that calls `main(pipe, *args)`, and this end of its pipe; it shares the memory of this one."""

    def __init__(self, main: Callable[..., None], *args: Any) -> None:
        context = mp.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_child_main, args=(self.pipe, theirs, main, args), daemon=True)
        self.process.start()
        theirs.close()

    def join(self) -> int | None:
        """Close the pipe, and wait until the process has ended; returns its exit code."""
        self.pipe.close()
        self.process.join()
        return self.process.exitcode


def _child_main(parents: Connection, pipe: Connection, main: Callable[..., None], args: tuple[Any, ...]) -> None:
    set_up_child_process()
    parents.close()
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
