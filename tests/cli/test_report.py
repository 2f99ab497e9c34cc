"""`report` and `watch`, as the console script calls them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tardygrad.results.figure import WIDTHS
from tests.cli.conftest import Command
from tests.forkserver import Program
from tests.report.records import record


def test_a_report_is_written_where_it_is_asked_for(tardygrad: Command) -> None:
    record(Path("runs/a"), rounds=2)
    code, out, _ = tardygrad("report", "runs/a", "-o", "pages/one.html", "--title", "Mine")
    result = (
        "Clip² ends without a test score after 2 rounds, 2 simulated seconds; a single run, so there is nothing to "
    )
    assert (code, out) == (0, f"{result}compare it with.\nreport  pages/one.html\n")
    assert "<title>Mine</title>" in Path("pages/one.html").read_text("utf-8")


def test_figures_and_a_table_for_papers_are_written_on_demand(tardygrad: Command) -> None:
    record(Path("runs/a"), rounds=3)
    said = tardygrad("report", "runs/a", "--figures", "pictures", "--latex", "tables/a.tex", "--json").json
    assert (said["report"], said["runs"], said["latex"]) == ("report.html", 1, "tables/a.tex")
    assert "ends with a test accuracy of 75.0%" in said["result"][0]
    names = [f"{key}-{width}" for key in ("test-accuracy", "test-loss", "training-loss") for width in WIDTHS]
    files = sorted(f"pictures/{name}.{suffix}" for name in names for suffix in ("pdf", "svg", "png"))
    assert files == sorted(said["figures"]) == sorted(map(str, Path("pictures").iterdir()))
    assert r"Clip$^2$ & 75 & 3 \\" in Path("tables/a.tex").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("nowhere",), "'nowhere' is not a directory"),
        (("runs/a", "-o", "runs/a/spec.json"), "--out must be a file that ends in .html, got 'runs/a/spec.json'."),
        (("runs/a", "--baseline", "x"), "--baseline must be one of 'Clip²', got 'x'."),
        (("runs", "--target", "90"), "got 90. Did you mean 0.9?"),
    ],
)
def test_a_broken_rule_is_answered_and_nothing_is_written(
    tardygrad: Command, options: tuple[str, ...], rule: str
) -> None:
    before = (record(Path("runs/a"), rounds=3) / "spec.json").read_text()
    code, _, err = tardygrad("report", *options)
    assert code == 2
    assert rule in err
    assert not list(Path().rglob("*.html"))
    assert Path("runs/a/spec.json").read_text() == before


def test_the_sweeps_in_a_folder_are_told_of_too(tardygrad: Command) -> None:
    record(Path("runs/a"), rounds=1)
    few = ("--sampler", "random", "--trials", "1")
    for name in ("one", "two"):
        assert tardygrad("sweep", "quadratic", "run.rounds=1", *few, "--out", f"runs/{name}").code == 0
    assert tardygrad("report", "runs").code == 0
    page = Path("report.html").read_text("utf-8")
    assert "<title>1 run and sweep one and sweep two</title>" in page
    assert "Sweep one: best settings" in page
    assert "Sweep two: best settings" in page
    assert tardygrad("report", "runs/one", "--out", "one.html").code == 0
    alone = Path("one.html").read_text("utf-8")
    headings = re.findall(r"<h[12][^>]*>(.*?)</h", alone.partition("</main>")[0])
    assert headings == ["Sweep one", "Best settings", "All trials"]
    for option in ("--target", "--baseline"):
        code, _, err = tardygrad("report", "runs/one", option, "0.5")
        assert (code, f"{option} applies to runs, got" in err, "Leave it out." in err) == (2, True, True)
    assert tardygrad("report", "runs", "--latex", "a.tex").code == 0
    assert [line for line in Path("a.tex").read_text("utf-8").splitlines() if "label" in line] == [
        r"  \label{tab:comparison}", r"  \label{tab:sweep-1}", r"  \label{tab:sweep-2}"
    ]  # fmt: skip


def test_watching_prints_the_address_and_ends_quietly(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=1, torn=True)
    with Program("from tardygrad.cli.main import main; main()", "watch", str(path)) as process:
        assert process.stdout
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", process.stdout.readline())
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
