"""What came of an attack: the right result, a refusal in one sentence, or a fault."""

from __future__ import annotations

import io
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

from tardygrad.cli.main import main

FAULTS = ("wrong", "hung", "traceback")
COLUMNS = ("tries", "right", "refused", *FAULTS)
CPU_SECONDS = 60.0  # of this process, after which an attack counts as hung


class Hung(BaseException):
    """An attack took too long."""


class Tally:
    """The verdicts of one kind of attack, and what happened in those that found a fault."""

    def __init__(self, name: str) -> None:
        self.name, self.counts = name, Counter[str]()
        self.faults: list[str] = []

    def add(self, verdict: str, attack: object, detail: str = "") -> None:
        self.counts[verdict] += 1
        if verdict in FAULTS:
            self.faults.append(f"{verdict}: {attack}: {detail.strip()}")

    @property
    def numbers(self) -> list[int]:
        """Of all tries, and of each verdict."""
        return [self.counts.total(), *(self.counts[name] for name in COLUMNS[1:])]

    def __str__(self) -> str:
        return f"{self.name:<16}" + "".join(f"{number:>11,}" for number in self.numbers)


HEAD = f"{'':<16}" + "".join(f"{name:>11}" for name in COLUMNS)


@contextmanager
def limited(seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Raise `Hung` after so many seconds of CPU time, whatever else the machine does."""

    def stop(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Ended(NamedTuple):
    """How a command ended."""

    code: int | None  # None: it did not exit by itself
    out: str
    err: str
    fault: str = ""  # hung or traceback

    @property
    def refused(self) -> bool:
        """Whether it refused in one line, the last that it printed; with --json, in an object."""
        line = (self.err.splitlines() or self.out.splitlines() or [""])[-1]
        return self.code in (1, 2) and line.startswith(("error: ", '{"error": '))

    @property
    def verdict(self) -> str:
        """Its fault, or else what its exit code and its last line say."""
        return self.fault or ("right" if self.code == 0 else "refused" if self.refused else "wrong")

    @property
    def detail(self) -> str:
        """What to print if the verdict is a fault."""
        return f"exit code {self.code}, {self.err[-900:]}"


def command(*argv: str) -> Ended:
    """Call the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    fault = ""
    with redirect_stdout(out), redirect_stderr(err):
        try:
            with limited():
                main(list(argv))
        except SystemExit as end:
            code = end.code
        except Hung:
            fault = "hung"
        except BaseException:
            fault = "traceback"
            err.write(traceback.format_exc())
    if "Traceback" in err.getvalue():
        fault = fault or "traceback"
    return Ended(code, out.getvalue(), err.getvalue(), fault)
