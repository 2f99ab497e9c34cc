"""`sweep` on the command line, and in processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tardygrad.sweeps import read
from tardygrad.sweeps.study import ended_trials
from tests.cli.conftest import Command
from tests.forkserver import Program

POINTS = ["method.lr=1", "method.clip=0.5", "method.local_clip=1", "--over", "method.local_lr=[0.01, 0.1, 0.3]"]
MANY = [
    "method.local_clip=1",
    *("--over", "method.local_lr=[0.01, 0.1, 0.3]"),
    *("--over", "method.lr=[0.5, 1.0]"),
    *("--over", "method.clip=[0.1, 0.5]"),
]
LONG = ["small.toml", *MANY, "run.rounds=20", "task.dimension=500", "--jobs", "2", "--out"]


FEW = """
import multiprocessing, time
from tardygrad.sweeps import runner
left, trial = multiprocessing.Value("i", {few}), runner.run_trial
def held(*given):
    with left:
        left.value -= 1
    if left.value < 0:
        time.sleep(600)
    return trial(*given)
runner.run_trial = held
"""


def _start(*argv: str, few: int | None = None, stderr: int = subprocess.PIPE) -> Program:
    """A command in a process of its own; a sweep that makes only a few trials, and then holds the next ones."""
    code = (FEW.format(few=few) if few else "") + "from tardygrad.cli.main import main; main()"
    return Program(code, *argv, stderr=stderr)


def _finished() -> list[tuple[int, str]]:
    """The trials that have ended, and when they did."""
    return [(trial.user_attrs["number"], str(trial.datetime_complete)) for trial in ended_trials(Path("parts"))]


def _wait(process: Program, number: int) -> None:
    while len(_finished()) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(status.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs to see processes")
def test_a_sweep_that_is_killed_twice_makes_every_trial_exactly_once(tardygrad: Command) -> None:
    before: list[tuple[int, str]] = []
    for number in (3, 7):
        process = _start("sweep", *LONG, "parts", few=number - len(before))
        _wait(process, number)
        workers = _children(process.pid)
        assert len(workers) == 2
        process.kill()
        process.communicate()
        patience = time.monotonic() + 60
        while any(map(_alive, workers)):
            assert time.monotonic() < patience, "orphans"
            time.sleep(0.01)
        after = _finished()
        assert set(before) <= set(after)
        assert len(after) == number
        before = after
    assert tardygrad("sweep", "parts", "--jobs", "2").code == 0
    assert set(before) <= set(_finished())
    trials = read("parts").trials
    assert [trial.number for trial in trials] == list(range(12))
    assert len({str(trial.params) for trial in trials}) == 12
    assert {trial.status for trial in trials} == {"finished"}
    assert tardygrad("sweep", *LONG, "whole").code == 0
    assert [trial.loss for trial in read("whole").trials] == [trial.loss for trial in trials]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_sweep_says_how_to_go_on_and_does(number: int, code: int, tardygrad: Command) -> None:
    process = _start("sweep", *LONG, "parts", few=2)
    _wait(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=150)
    assert process.returncode == code, err
    assert out.startswith("group ")
    assert len(_finished()) == 2
    assert err.splitlines()[-1] == "stopped after 2 trials; continue with: tardygrad sweep parts"
    assert tardygrad("sweep", *LONG, "parts").code == 0
    assert len(_finished()) == 12


def test_a_sweep_prints_a_row_for_each_group(tardygrad: Command) -> None:
    code, out, err = tardygrad("sweep", "small.toml", *POINTS, "--over", "fleet.stragglers=['mild', 'large']")
    assert code == 0
    assert err == "6 trials of small, in runs/small-sweep-1\n"
    heading, *rows, edge, last = out.splitlines()
    assert " ".join(heading.split()) == "group trials finished diverged workable best with"
    assert [row.split()[:5] for row in rows] == [
        ["Clip²,", "mild", "3", "3", "0"],
        ["Clip²,", "large", "3", "3", "0"],
    ]
    assert edge == "best at the edge of local_lr: better settings may lie beyond"
    assert all("local_lr=0." in row for row in rows)
    assert last == "best by test loss; report with: tardygrad report runs/small-sweep-1"


def test_a_sweep_as_json(tardygrad: Command) -> None:
    command = ("sweep", "small.toml", *POINTS, "--seeds", "2", "--workable", "0.5", "--json")
    found = tardygrad(*command).json
    assert found["out"] == "runs/small-sweep-1"
    assert (found["best"], found["goal"], found["total"]) == ("loss", "test loss", 3)
    assert found["config"]["seeds"] == 2
    assert [len(trial["seeds"]) for trial in found["trials"]] == [2, 2, 2]
    (group,) = found["groups"]
    assert group["best"]["params"] == found["trials"][group["best"]["number"]]["params"]
    assert tardygrad("sweep", "runs/small-sweep-1", "--json").json == found
    assert tardygrad(*command).json["out"] == "runs/small-sweep-2"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--over", "method.lr=[]"], "`method.lr` needs one or more different values, got []."),
        (
            ["method.lr=[0.1,0.2]"],
            "`method.lr` must be a number or a schedule such as {value = 0.1, exponent = -0.5}, got [0.1, 0.2]. "
            "To sweep it: --over 'method.lr=[0.1,0.2]'\n",
        ),
        (
            ["--over", "lr=[0.1]"],
            "--over must be TABLE.KEY=[VALUES] or, with random or tpe, TABLE.KEY={low=A, high=B, log=true}; "
            "got 'lr=[0.1]'. Write method.lr=[0.1].\n",
        ),
        (["--target", "0.9"], "--best time and --target must be used together, got best=None and target=0.9."),
        (["--best", "time", "--target", "1000"], "x_0 already has a test loss of "),
    ],
)
def test_a_broken_rule_is_one_line_and_exit_code_2(tardygrad: Command, more: list[str], words: str) -> None:
    code, out, err = tardygrad("sweep", "small.toml", *more)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {words}")
    assert len(err.splitlines()) == 1
    assert not Path("runs").exists()


def test_a_sweep_goes_on_as_it_was_asked(tardygrad: Command) -> None:
    tardygrad("sweep", "small.toml", *POINTS, "--out", "here")
    for more in (["run.rounds=3"], ["--seeds", "2"], ["--out", "there"], ["--prune"]):
        code, _, err = tardygrad("sweep", "here", *more)
        assert code == 2
        assert err.startswith(f"error: a sweep continues with the settings it was started with, got {more[0]!r} too.")
    code, _, err = tardygrad("sweep", "small.toml", *POINTS, "--seeds", "2", "--out", "here")
    assert code == 2
    assert "`seeds` is 1 there, got 2." in err


def test_a_damaged_sweep_is_one_line_and_exit_code_1(tardygrad: Command) -> None:
    tardygrad("sweep", "small.toml", *POINTS, "--out", "here")
    journal = Path("here/study.jsonl")
    journal.write_text("{\n" + journal.read_text("utf-8"), "utf-8")
    for command in ("sweep", "report"):
        code, out, err = tardygrad(command, "here")
        assert (code, out) == (1, "")
        assert err.startswith("error: the study in 'here/study.jsonl' is damaged (")
        assert err.endswith(". Restore it from a copy, or start the sweep again in another folder.\n")
