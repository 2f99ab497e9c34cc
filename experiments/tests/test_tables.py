"""reproduce: the paper's tables, on an experiment that takes milliseconds."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import table_experiments as experiments
from experiments import tables
from experiments.page import marks
from experiments.table_experiments import CELLS, Experiment, TableCell
from experiments.tests.conftest import Command
from tardygrad.errors import Diverged, RecordError
from tardygrad.runs.record import exclusive
from tardygrad.sweeps import store, trial
from tests.cli.conftest import Result
from tests.forkserver import Program

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
def tiny(experiment: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": TINY})
    return lambda *argv: experiment("tables", *argv)


def results(folder: str = "runs/tables/tiny") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.json")}


def test_the_clock_stands_beside_the_papers(experiment: Command) -> None:
    cells = experiment("clock", "--seeds", "1", "--json").json["cells"]
    assert len(cells) == 22
    assert all(0.8 < cell["ratio"] < 1.2 for cell in cells)


def test_every_cell_of_the_papers_tables_is_published_for_every_experiment() -> None:
    assert len(CELLS) == len(set(CELLS)) == 24
    for one in experiments.EXPERIMENTS.values():
        assert tables.published(one.published).keys() == set(CELLS)
    assert tables.published("cifar10")[TableCell("large", "client", "dc-clip2")] == (98.3, 39.0)
    assert tables.published("stsb")[TableCell("mild", "sync", "sgdclip")] == (87.32, 103.0)


def test_a_cell_is_tuned_with_the_thresholds_of_synchronous_clip2(tiny: Command) -> None:
    lines = tiny("--json").json["experiments"]["tiny"]
    assert len(results()) == RUNS
    assert [line["status"] for line in lines] == ["finished"] * 4
    for line in lines:
        *_, method = line["cell"]
        cell, lr, local_lr, local_clip, clip, seed = line["best"]
        assert (cell, lr, local_lr, local_clip, seed) == (line["cell"], 1.0, 0.1, 0.5, 0), "standing still cannot win"
        assert clip == (0.1 if method.endswith("clip2") else None)
        assert line["score"] > 50
        assert line["trials"] == 2


def test_finished_runs_are_never_repeated(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tiny("--json").out
    before = results()
    monkeypatch.setattr(store, "_run", lambda *_: pytest.fail("ran again"))
    assert tiny("--json").out == first
    assert results() == before


def test_more_seeds_run_the_best_setting_only(tiny: Command) -> None:
    tiny()
    lines = tiny("--seeds", "3", "--json").json["experiments"]["tiny"]
    assert len(results()) == RUNS + 4 * 2
    assert {line["seeds"] for line in lines} == {3}
    assert all(line["spread"] >= 0 for line in lines)
    page = Path("runs/tables/results.md").read_text("utf-8")
    assert "mean ± standard deviation of 3 seeds" in page
    assert len(re.findall(r"\d ± \d", page)) == 4


def test_a_broken_file_is_made_again_with_the_same_content(tiny: Command) -> None:
    tiny()
    before = results()
    torn, other = sorted(before)[:2]
    Path("runs/tables/tiny", torn).write_bytes(before[torn][:40])
    Path("runs/tables/tiny", other).write_text("[]")
    sound = json.loads(before[sorted(before)[2]])
    for change in ({"accuracy": "good"}, {"curve": "x"}, {"time": None}, {"status": 3}):
        Path("runs/tables/tiny", sorted(before)[2]).write_text(json.dumps(sound | {"result": sound["result"] | change}))
        assert tiny("--read").code == 0
    tiny()
    assert not list(Path("runs/tables/tiny").glob("*.draft"))
    assert results() == before


def test_a_changed_experiment_takes_no_old_results(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny()
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": replace(TINY, rounds=4)})
    tiny()
    assert len(results()) == 2 * RUNS


def test_reading_runs_nothing_and_marks_what_is_missing(tiny: Command) -> None:
    tiny("--read")
    assert "Not run." in Path("runs/tables/results.md").read_text("utf-8")
    tiny()
    for path in Path("runs/tables/tiny").glob("mild-client-*"):
        path.unlink()
    next(Path("runs/tables/tiny").glob("mild-sync-*")).unlink()
    shown = tiny("--read").out
    page = Path("runs/tables/results.md").read_text("utf-8")
    assert "| mild | client | DC-Clip² | not run | 70.4 |  | 33 |  |  |  |" in page
    assert "| mild | sync | Clip² | 1 of 2 trials |" in page
    assert "1 of 2 trials" in shown
    assert "- large: best asynchronous − best synchronous = " in page
    assert "- mild:" not in page, "no verdict on half a table"


def test_what_diverged_comes_last_and_says_so(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = trial.begin

    def fragile(method: Any, *rest: Any, **settings: Any) -> Any:
        run = begin(method, *rest, **settings)
        if method.mode == "client":
            run.go = lambda: _diverge(run)
        return run

    monkeypatch.setattr(trial, "begin", fragile)
    lines = tiny("--json").json["experiments"]["tiny"]
    gone = [line for line in lines if line["cell"][1] == "client"]
    assert {(line["status"], line["score"], line["loss"]) for line in gone} == {("diverged", None, None)}
    assert all(line["score"] > 50 for line in lines if line["cell"][1] == "sync")
    assert "| large | client | SD-SGDClip | diverged |" in Path("runs/tables/results.md").read_text("utf-8")


def _diverge(run: Any) -> Any:
    run.status = "diverged"
    raise Diverged("it is gone")
    yield


def test_the_page_keeps_what_its_author_wrote(tiny: Command) -> None:
    page = Path("page.md")
    page.write_text(f"# Mine\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n", "utf-8")
    tiny("--page", "page.md")
    text = page.read_text("utf-8")
    assert text.startswith(f"# Mine\n\nBefore.\n\n{BEGIN}\n\n## `tiny`\n")
    assert text.endswith(f"{END}\n\nAfter.\n")
    assert "old" not in text
    assert "![Test accuracy against simulated time](images/tables-tiny.svg)" in text
    assert Path("images/tables-tiny.svg").read_bytes().startswith(b"<svg")
    assert text.count("| mild |") == text.count("| large |") == 2
    tiny("--page", "page.md")
    assert page.read_text("utf-8") == text
    assert tiny("--page", "page.md", "--read", "--out", "empty").code == 0
    assert page.read_text("utf-8") == text  # of which nothing is there, stays


def test_a_page_without_a_place_for_the_tables_is_left_alone(tiny: Command) -> None:
    for content in (b"my thesis", f"{BEGIN} only".encode(), f"{END}{BEGIN}".encode(), b"\xff\xfe"):
        Path("mine.md").write_bytes(content)
        code, _, err = tiny("--page", "mine.md")
        assert (code, err.count("\n")) == (2, 1)
        assert "--page must be a" in err
        assert Path("mine.md").read_bytes() == content
    assert not Path("runs").exists(), "nothing is run before"


def test_an_experiment_without_data_is_skipped_or_refused_by_name(experiment: Command, tmp_path: Path) -> None:
    needy = Experiment(title="Needy", published="rte", task="cifar10", settings={}, folders={"data": "pictures"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "EXPERIMENTS", {"needy": needy, "tiny": TINY})
        missing = "it needs a folder with pictures/, got none. Use --data FOLDER."
        shown = experiment("tables", "--json")
        assert (shown.code, shown.json["skipped"]) == (0, {"needy": missing})
        assert shown.err == f"needy is skipped: {missing}\n"
        assert len(results()) == RUNS
        refused = experiment("tables", "--only", "needy")
        assert refused == Result(2, "", f"error: needy cannot be run: {missing}\n")
        assert experiment("tables", "--only", "tiny").code == 0
        page = Path("runs/tables/results.md").read_text("utf-8")
        assert re.findall("## `(.*)`", page) == ["needy", "tiny"], "a page has all experiments, whatever was run"
        (tmp_path / "pictures").mkdir()
        assert "which has none of them" in experiment("tables", "--only", "needy", "--data", ".").err
        wrong = experiment("tables", "--only", "tinny")
        assert wrong == Result(2, "", "error: --only must be one of needy, tiny, got 'tinny'. Did you mean 'tiny'?\n")


@pytest.mark.parametrize("command", ["tables", "regime", "baselines"])
@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_data_that_is_no_folder_is_refused(command: str, folder: str, experiment: Command) -> None:
    refused = experiment(command, "--data", folder)
    assert refused == Result(2, "", f"error: --data must be a folder, got {folder!r}.\n")


def test_two_processes_do_not_write_to_one_experiment(tiny: Command) -> None:
    table = tables.Table("tiny", TINY, Path("runs/tables"), 1)
    with exclusive(table.store.folder), pytest.raises(RecordError, match="in use by another process"):
        next(table.store.run(lambda: table.wanted({}), 1))


SLOW = """
import time
from experiments.options import main
from experiments import table_experiments as experiments
from tardygrad.sweeps import store
from experiments.tests.test_tables import TINY, results
experiments.EXPERIMENTS = {"tiny": TINY}
run_seed = store.run_seed
store.run_seed = lambda *given, **how: run_seed(*given, **how) if len(results()) < 3 else time.sleep(600)
main("tables", [])
"""


def test_what_was_finished_survives_a_kill(tiny: Command) -> None:
    root = Path(__file__).parents[2]
    process = Program(SLOW, env={**os.environ, "PYTHONPATH": str(root)})
    while len(results()) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    before = results()
    assert len(before) == 3 < RUNS
    assert tiny().code == 0
    assert before.items() <= results().items()
    assert len(results()) == RUNS


def test_a_stop_says_how_to_go_on(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        run_seed = store.run_seed
        patch.setattr(
            store, "run_seed", lambda *given, **how: run_seed(*given, **how) if len(results()) < 3 else _ctrl_c()
        )
        message = "stopped; finished runs are stored in runs/tables/tiny: continue with the same command\n"
        assert tiny() == Result(130, "", message)
    assert len(results()) == 3
    assert tiny().code == 0
    assert len(results()) == RUNS


def _ctrl_c() -> None:
    raise KeyboardInterrupt
