"""The demo, cut short: its table, its files, and when the goal was reached; tests/report opens its report."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tardygrad.cli import demo, parallel_runs
from tardygrad.cli.parallel_runs import RunsTable
from tardygrad.runs.summary import read_summary
from tests.cli.conftest import Command


def test_the_demo_prints_a_table_and_writes_figures_and_records(tardygrad: Command) -> None:
    code, out, _ = tardygrad("demo", "--rounds", "1", "--out", "here")
    assert code == 0
    heading, *rows = out.splitlines()[:6]
    assert heading.split("  ")[-4:] == ["accuracy (%)", "difference", "time to target (s)", "difference (s)"]
    assert [row.split()[0] for row in rows] == list(demo.METHODS)
    assert all("0 of 1 reached" in row for row in rows)  # after one round nobody is there
    assert "the first evaluation that reaches a test accuracy of 90.0%" in out
    assert f"Accuracy is measured every {demo.EVERY} rounds." in out
    written = {path.name for path in Path("here").iterdir()}
    assert written >= {"test-loss.png", "report.html", "sync-clip2", "sgdclip"}


@pytest.mark.parametrize("taken", ["here/spec.json", "here/clip2/summary.json"])
def test_a_demo_is_not_written_into_the_folder_of_a_run(taken: str, tardygrad: Command) -> None:
    Path(taken).parent.mkdir(parents=True)
    Path(taken).touch()
    code, _, err = tardygrad("demo", "--rounds", "1", "--out", "here")
    assert (code, err.count("\n")) == (2, 1)
    assert f"the directory '{Path(taken).parent}' already holds a run" in err


def test_a_demo_overwrites_no_report(tardygrad: Command) -> None:
    report = Path("here/report.html")
    report.parent.mkdir()
    report.write_text("mine", "utf-8")
    code, _, err = tardygrad("demo", "--rounds", "1", "--out", "here")
    assert (code, err) == (2, f"error: the demo would overwrite '{report}'. Choose another directory for --out.\n")
    assert (report.read_text("utf-8"), list(report.parent.iterdir())) == ("mine", [report])


@pytest.mark.parametrize(
    ("ours", "sync", "said"),
    [
        (31.0, 1230.0, "Clip²) reached 90% 40 times sooner than synchronous training with the same settings: after 31"),
        (31.0, None, "Clip²) reached 90% after 31 simulated seconds; synchronous training with the same settings did"),
        (None, None, "did not reach 90% in so few rounds"),
    ],
)
def test_the_demo_says_in_one_sentence_what_waiting_costs(ours: Any, sync: Any, said: str) -> None:
    assert said in demo.sentence(ours, sync)


def test_runs_side_by_side_have_the_bits_of_runs_one_after_the_other(tardygrad: Command) -> None:
    for folder, jobs in (("one", 1), ("two", 2)):
        code, out, err = tardygrad("demo", "--rounds", "2", "--jobs", str(jobs), "--out", folder, "--json")
        assert code == 0, err
        found = json.loads(out)
        assert [row["method"] for row in found["methods"]] == list(demo.METHODS)
        assert (found["target"], found["result"]) == (demo.GOAL, demo.sentence(None, None))
        assert all(f"{label}: finished after 2 rounds" in err for label in demo.METHODS)
    for path in Path("one").glob("*/model.safetensors"):
        assert path.read_bytes() == Path("two", *path.parts[1:]).read_bytes(), path
    assert len(list(Path("one").glob("*/model.safetensors"))) == len(demo.METHODS)


def test_ctrl_c_leaves_runs_that_can_be_resumed(tardygrad: Command) -> None:
    start = "from tardygrad.cli.main import main; main()"
    command = [sys.executable, "-c", start, "demo", "--jobs", "2", "--out", "over here"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        runs = [Path("over here", name) for name in ("sync-clip2", "clip2")]
        while not all((run / "events.jsonl").exists() for run in runs):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.count("continue with: tardygrad resume 'over here/") == 2
    assert {path.name for path in Path("over here").iterdir()} == {"sync-clip2", "clip2"}
    rounds = read_summary(runs[1]).rounds + 1
    code, out, _ = tardygrad("resume", str(runs[1]), f"run.rounds={rounds}")
    assert (code, f"finished after {rounds} rounds" in out) == (0, True)


def test_a_process_that_dies_or_fails_is_named(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_runs.runs, "begin", lambda *_, **__: os._exit(7))
    code, _, err = tardygrad("demo", "--rounds", "1", "--out", "here", "--jobs", "1")
    assert (code, "the process of sync-Clip² died (exit code 7)" in err) == (1, True)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "here/clip2")

    monkeypatch.setattr(parallel_runs.runs, "begin", fail)
    code, _, err = tardygrad("demo", "--rounds", "1", "--out", "there")
    assert (code, err.splitlines()[-1]) == (1, "error: here/clip2: No space left on device.")


@pytest.mark.parametrize(("width", "details"), [(80, ["simulated", "s", "rate"]), (60, [])])
def test_the_live_table_shows_every_run_in_whole_words(width: int, details: list[str]) -> None:
    console = Console(record=True, width=width, force_terminal=True, file=io.StringIO())
    table = RunsTable(["sync-Clip²", "b"], 280, console=console)
    for round in (1, 2):
        table.add("sync-Clip²", {"round": round, "time": 1000.0 * round, "test_accuracy": 0.5})
    console.print(*table.get_renderables())
    heads, first, second, *_ = console.export_text().splitlines()
    assert heads.split() == ["method", "progress", "round", "accuracy", *details, "time", "left"]
    assert first.split()[2:5] == ["2/280", "50.0%", "2,000" if details else first.split()[-1]]
    assert (second.split()[0], second.split()[-1]) == ("b", "--:--")
