"""`report` and `watch`, as the console script calls them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.report.records import record


def test_a_report_is_written_where_it_is_asked_for(tardygrad: Command) -> None:
    record(Path("runs/a"), rounds=2)
    code, out, _ = tardygrad("report", "runs/a", "-o", "pages/one.html", "--title", "Mine")
    assert (code, out) == (0, "report  pages/one.html\n")
    assert "<title>Mine</title>" in Path("pages/one.html").read_text("utf-8")


def test_figures_are_written_on_demand(tardygrad: Command) -> None:
    record(Path("runs/a"), rounds=1)
    said = tardygrad("report", "runs/a", "--figures", "pictures", "--json").json
    assert (said["report"], said["runs"]) == ("report.html", 1)
    assert sorted(said["figures"]) == sorted(f"pictures/{path.name}" for path in Path("pictures").iterdir())
    assert {Path(name).suffix for name in said["figures"]} == {".png", ".svg"}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("nowhere",), "'nowhere' is no directory"),
        (("runs/a", "-o", "runs/a/spec.json"), "--out must be a file that ends in .html, got 'runs/a/spec.json'."),
        (("runs/a", "--baseline", "x"), "--baseline must be one of 'Clip²', got 'x'."),
        (("runs/a", "--target", "high"), "Invalid value for '--target'"),
        ((), "Missing argument 'RUN...'"),
    ],
)
def test_a_broken_rule_is_answered_and_nothing_is_written(
    tardygrad: Command, options: tuple[str, ...], rule: str
) -> None:
    before = (record(Path("runs/a"), rounds=1) / "spec.json").read_text()
    code, _, err = tardygrad("report", *options)
    assert code == 2
    assert rule in err
    assert not list(Path().rglob("*.html"))
    assert Path("runs/a/spec.json").read_text() == before


def test_a_damaged_record_is_no_report(tardygrad: Command) -> None:
    (record(Path("runs/a"), rounds=1) / "events.jsonl").write_text("[1]\n")
    code, _, err = tardygrad("report", "runs/a")
    assert code == 1
    assert "damaged" in err
    assert not Path("report.html").exists()


def test_watching_what_is_no_run_is_refused(tardygrad: Command) -> None:
    assert tardygrad("watch", "nowhere").code == 2


def test_watching_prints_the_address_and_ends_quietly(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=1, torn=True)
    command = [sys.executable, "-c", "from tardygrad.cli import main; main()", "watch", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", process.stdout.readline())
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
