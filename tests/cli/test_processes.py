"""True processes: kills, signals, pipes and terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tardygrad.runs import progress
from tardygrad.runs.signals import Signals
from tests.cli.conftest import Command
from tests.forkserver import Program

LONG = ["small.toml", "task.dimension=3000", "run.checkpoint_every=7", "run.evaluate_every=50"]


@pytest.fixture
def begun(tardygrad: Command) -> Iterator[Program]:
    """A run in a process of its own, past its first checkpoints."""
    process = _start("run", *LONG, "run.rounds=1000000", "--out", "parts")
    while not any(int(path.name) >= 3 for path in Path("parts/checkpoints").glob("0*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    yield process
    process.kill()
    process.communicate()


def _start(*argv: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> Program:
    return Program("from tardygrad.cli.main import main; main()", *argv, stdout=stdout, stderr=stderr)


def _goes_on(tardygrad: Command) -> None:
    """For some rounds more, to the model of a run that was never disturbed."""
    rounds = Path("parts/events.jsonl").read_text().count('"advance"') + 20
    assert tardygrad("resume", "parts", f"run.rounds={rounds}").code == 0
    assert tardygrad("replay", "parts").out == f"the same bits after {rounds} rounds\n"
    assert tardygrad("run", *LONG, f"run.rounds={rounds}", "--out", "whole").code == 0
    assert Path("parts/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_a_killed_run_resumes_to_the_same_bits(begun: Program, tardygrad: Command) -> None:
    begun.kill()
    begun.wait()
    assert not Path("parts/model.safetensors").exists()
    _goes_on(tardygrad)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on_and_does(number: int, code: int, begun: Program, tardygrad: Command) -> None:
    begun.send_signal(number)
    out, err = begun.communicate(timeout=150)
    assert begun.returncode == code
    assert "stopped after" in out
    last = err.splitlines()[-1]
    assert last.startswith("stopped at round ")
    assert last.endswith("; continue with: tardygrad resume parts")
    assert "Traceback" not in err
    assert tardygrad("replay", "parts").code == 0
    _goes_on(tardygrad)


def test_the_second_signal_kills() -> None:
    stopped: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Signals(lambda: stopped.append("running")) as signals:
        signal.raise_signal(signal.SIGINT)
        assert (signals.received, stopped) == (signal.SIGINT, ["running"])
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == before


def test_a_run_in_use_is_not_touched(begun: Program, tardygrad: Command) -> None:
    code, _, err = tardygrad("resume", "parts")
    fix = "Wait until that has ended, or watch it with: tardygrad watch parts"
    assert (code, err) == (1, f"error: the run in 'parts' is in use by another process. {fix}\n")


LONG_IMPORT = """
import sys, time
class Torch:
    def find_spec(name, *where):
        if name == "torch":
            print("importing", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Torch)
from tardygrad.cli.main import main
main()
"""


def test_ctrl_c_while_torch_is_imported_is_quiet() -> None:
    process = subprocess.Popen([sys.executable, "-c", LONG_IMPORT, "plan", "digits"], stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=150) == ("", "")
    assert process.returncode == -signal.SIGINT


def test_the_command_line_imports_no_more_than_it_needs() -> None:
    heavy = "{'altair', 'sklearn', 'scipy', 'pandas', 'optuna', 'rich.progress'}"
    code = f"import sys, tardygrad.cli.run, tardygrad.cli.report; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_closed_pipe_is_quiet(tardygrad: Command) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = _start("specs", stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=150)
    assert err == ""


def test_a_log_gets_a_line_of_progress_now_and_then(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {
        "run small.toml run.rounds=3": r"round {}/3  \S+ s  loss \S+(  test loss \S+)?",
        "run small.toml run.rounds= run.until=9": r"second {}/9  \S+ s  loss \S+(  test loss \S+)?",
        "plan small.toml --search": r"settings {}/\d+",
    }
    for command, line in commands.items():
        assert "left" not in tardygrad(*command.split()).err
        with monkeypatch.context() as patch:
            patch.setattr(progress, "PAUSE", 0.0)
            code, out, err = tardygrad(*command.split(), *["--json"] * command.startswith("plan"))
        lines = [text for text in err.splitlines() if text.endswith(" left")]
        assert (code, bool(lines), "left" in out) == (0, True, False)
        for text in lines:
            assert re.fullmatch(line.format(r"[\d.]+") + r"  \S+/\w+  \d+:\d\d:\d\d left", text)


CLOSED = """
import os, sys
from tardygrad.cli.main import _prepare_streams
_prepare_streams()
print("lost", file=sys.stderr)
with open(sys.argv[1], "w") as file:
    os.write(2, b"what a library prints")
    os.write(file.fileno(), b"a line")
"""


def test_closed_streams_are_not_replaced_by_files(tmp_path: Path) -> None:
    close = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    command = ["/bin/sh", "-c", close, sys.executable, CLOSED, str(tmp_path / "file")]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "file").read_text() == "a line"
