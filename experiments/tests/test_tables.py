"""The paper's tables, on an experiment that takes milliseconds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import tables
from experiments.lib import marks
from experiments.tables import Experiment, Table, TableCell
from experiments.tests.conftest import Script

BEGIN, END = marks("tables")
TINY = Experiment(
    title="Logistic regression",
    published="rte",
    task="logistic",
    settings={"samples": 200, "dimension": 4},
    clients=10,
    rounds=3,
    lrs=(0.0, 1.0),
    local_lrs=(0.1,),
    clips=((0.5, 0.1), (1e-9, 0.1)),
    cells=(
        TableCell("mild", "sync", "clip2"),
        TableCell("mild", "client", "dc-clip2"),
        TableCell("large", "sync", "clip2"),
        TableCell("large", "client", "sd-sgdclip"),
    ),
)
RUNS = 2 * 2 + 4 * 2 - 2  # the sweep, and the grid of every cell; the best thresholds' two are in both


@pytest.fixture
def tiny(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setattr(tables, "experiments", lambda: {"tiny": TINY})
    return lambda *argv: script("tables", "--jobs", "1", *argv)


def results() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("runs/tables/tiny").glob("*.json")}


def test_a_cell_is_tuned_with_the_thresholds_of_synchronous_clip2_and_its_best_setting_run_with_more_seeds(
    tiny: Script,
) -> None:
    assert tiny().code == 0
    assert len(results()) == RUNS
    before, lines = results(), Table("tiny", TINY, Path("runs/tables"), 1).lines()
    for line in lines:
        assert line.best[1:4] == (1.0, 0.1, 0.5), "standing still cannot win"
        assert line.best.clip == (0.1 if line.cell.method.endswith("clip2") else None)
        assert (line.score or 0.0) > 50
    page = tiny("--seeds", "3").out
    assert len(results()) == RUNS + 4 * 2
    assert before.items() <= results().items()
    assert "mean ± standard deviation of 3 seeds" in page
    assert len(re.findall(r"\d ± \d", page)) == 4


def test_a_changed_experiment_takes_no_old_results(tiny: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny()
    monkeypatch.setattr(tables, "experiments", lambda: {"tiny": replace(TINY, rounds=4)})
    tiny()
    assert len(results()) == 2 * RUNS


def test_a_page_gets_the_tables_and_pictures_and_keeps_those_of_another_machine(tiny: Script) -> None:
    page = Path("page.md")
    page.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nAfter.\n", "utf-8")
    tiny("--page", "page.md")
    text = page.read_text("utf-8")
    assert text.startswith(f"# Mine\n\n{BEGIN}\n\n## `tiny`\n")
    assert text.endswith(f"{END}\n\nAfter.\n")
    assert "![Test accuracy against simulated time](images/tables-tiny.svg)" in text
    assert Path("images/tables-tiny.svg").read_bytes().startswith(b"<svg")
    assert text.count("| mild |") == text.count("| large |") == 2
    assert tiny("--page", "page.md", "--read", "--out", "empty").code == 0
    assert page.read_text("utf-8") == text


def test_an_experiment_without_data_is_skipped(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    needy = Experiment(title="Needy", published="rte", task="cifar10", settings={}, folders={"data": "pictures"})
    monkeypatch.setattr(tables, "experiments", lambda: {"needy": needy, "tiny": TINY})
    shown = script("tables", "--jobs", "1")
    assert shown.code == 0
    assert "needy is skipped: it needs a folder with pictures/, got none. Use --data FOLDER.\n" in shown.err
    assert len(results()) == RUNS
    assert re.findall("## `(.*)`", shown.out) == ["needy", "tiny"], "a page has all experiments, whatever was run"
    Path("pictures").mkdir()
    again = script("tables", "--only", "needy", "--data", ".")
    assert "which has none of them" in again.err
    assert "tiny is" not in again.err
