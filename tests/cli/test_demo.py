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
from tardygrad.cli.demo_screen import RunsTable, show_results
from tardygrad.runs.record import Row
from tardygrad.runs.summary import Summary, read_summary
from tardygrad.spec import spec
from tests.cli.conftest import Command


def test_the_demo_prints_a_table_and_writes_figures_and_records(tardygrad: Command) -> None:
    code, out, _ = tardygrad("demo", "--rounds", "1", "--out", "here")
    assert code == 0
    heading, *rows = out.splitlines()[:6]
    assert "time to 90% (s)" in heading
    assert "speed-up of the rounds" in heading
    assert [row.split()[0] for row in rows] == list(demo.METHODS)
    assert all(row.split()[2] == "–" for row in rows)  # after one round nobody is there
    assert f"Accuracy is measured every {demo.EVERY} rounds." in out
    made = {path.name for path in Path("here").iterdir()}
    assert made >= {"test-loss.png", "report.html", "sync-clip2", "sgdclip"}


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


@pytest.mark.parametrize(("accuracies", "when"), [([0.5, 0.9, 0.8], 2.0), ([0.5, 0.89], None), ([], None)])
def test_the_time_to_the_goal_is_that_of_the_first_round_that_reached_it(accuracies: list[float], when: Any) -> None:
    metrics: list[Row] = [{"time": float(i), "test_accuracy": one} for i, one in enumerate(accuracies, 1)]
    values: dict[str, Any] = dict.fromkeys(Summary._fields, 0) | {"time": 3.0}
    assert demo._row("Clip²", [*metrics, {"time": 9.0}], Summary(**values), 6.0)["time_to_goal"] == when


@pytest.mark.parametrize(
    ("ours", "sync", "said"),
    [
        (31.0, 1230.0, "Clip²) reached 90% 40 times sooner than synchronous training with the same settings: after 31"),
        (31.0, None, "Clip²) reached 90% after 31 simulated seconds; synchronous training with the same settings did"),
        (None, None, "did not reach 90% in so few rounds"),
    ],
)
def test_the_demo_says_in_one_sentence_what_waiting_costs(ours: Any, sync: Any, said: str) -> None:
    rows = [{"method": "Clip²", "time_to_goal": ours}, {"method": "sync-Clip²", "time_to_goal": sync}]
    assert said in demo.sentence(rows)


def test_runs_side_by_side_have_the_bits_of_runs_one_after_the_other(tardygrad: Command) -> None:
    for folder, jobs in (("one", 1), ("two", 2)):
        code, out, err = tardygrad("demo", "--rounds", "2", "--jobs", str(jobs), "--out", folder, "--json")
        assert code == 0, err
        assert {row["method"] for row in json.loads(out)["methods"]} == set(demo.METHODS)
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


def test_open_opens_the_report(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(demo.typer, "launch", opened.append)
    code, *_ = tardygrad("demo", "--rounds", "1", "--out", "here", "--open")
    assert (code, opened) == (0, [str(Path("here/report.html"))])


def test_the_live_table_shows_every_run() -> None:
    console = Console(record=True, width=80, force_terminal=True, file=io.StringIO())
    table = RunsTable(["a", "b"], 4, "title", console=console)
    for round in (1, 2):
        table.add("a", {"round": round, "time": 1000.0 * round, "test_accuracy": 0.5})
    console.print(*table.get_renderables())
    title, _, heads, first, second, *_ = console.export_text().splitlines()
    assert (title.strip(), heads.split()[:2]) == ("title", ["method", "progress"])
    assert first.split()[2:5] == ["2/4", "50.0%", "2,000"]
    assert (second.split()[0], second.split()[-1]) == ("b", "waiting")


def test_a_narrow_terminal_shows_whole_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    console = Console(record=True, width=60, force_terminal=True, file=io.StringIO())
    console.print(*RunsTable(["sync-Clip²"], 280, "title", console=console).get_renderables())
    assert console.export_text().splitlines()[2].split() == ["method", "progress", "round", "accuracy", "time", "left"]
    row = {"method": "sync-Clip²", "accuracy": 0.972, "time_to_goal": 1230.0, "time": 7048.0, "speed_up": 1.0}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_results([row | {"delay_mean": 1.0, "delay_max": 1}], 0.9)
    printed = capsys.readouterr().out
    assert ("…" in printed, "97.2%" in printed, "speed-up" in printed) == (False, True, True)


def test_the_cast_plays_the_shipped_spec() -> None:
    lengths = {spec.load("digits", changes).run.rounds for changes in demo.METHODS.values()}
    assert lengths == {spec.load("digits").method.arguments["lr"].rounds} == {280}
