"""What the experiments share: pages, options, halving, stored runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tardygrad as tg
from experiments import lib
from experiments.tests.conftest import Script
from tardygrad.sweeps.store import PlannedRun, Store, StoredResult

BEGIN, END = lib.marks("regime tables")


def test_a_section_is_replaced_and_what_its_author_wrote_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "docs/page.md"
    lib.publish(str(page), {"regime verdicts": "one", "regime tables": "two"})
    assert page.read_text("utf-8").count("made by `python -m experiments.regime`") == 2
    page.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nAfter.\n", "utf-8")
    drawn = list[Path]()
    lib.publish(str(page), {"regime tables": "new\n"}, drawn.append)
    assert page.read_text("utf-8") == f"# Mine\n\n{BEGIN}\n\nnew\n\n{END}\n\nAfter.\n"
    assert drawn == [page.parent]


@pytest.mark.parametrize("content", [b"my thesis", f"{BEGIN} only".encode(), f"{END}{BEGIN}".encode(), b"\xff\xfe"])
def test_a_page_without_a_place_is_left_alone(content: bytes, tmp_path: Path) -> None:
    page = tmp_path / "mine.md"
    page.write_bytes(content)
    with pytest.raises(tg.Invalid, match="--page must be a"):
        lib.check_page(str(page), "regime tables")
    assert page.read_bytes() == content


@pytest.mark.parametrize("name", ["claims", "tables", "regime", "baselines"])
def test_a_page_is_checked_and_data_must_be_a_folder_before_anything_is_run(name: str, script: Script) -> None:
    Path("mine.md").write_text("my thesis")
    refused = script(name, "--page", "mine.md")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "error: --page must be a new file or one with a place for the " in refused.err
    if name != "claims":
        assert script(name, "--data", "nowhere").err == "error: --data must be a folder, got 'nowhere'.\n"
    assert not Path("runs").exists()


def test_halving_keeps_the_better_half_and_waits_for_every_result() -> None:
    scores = {1: 10.0, 2: 30.0, 3: 30.0, 4: None}

    def result_of(run: PlannedRun) -> StoredResult | None:
        point, rounds = run.spec["point"], run.spec["rounds"]
        score = scores[point]
        if rounds == 8 and point == 2:
            return None
        return StoredResult("finished" if score else "diverged", score, point, 1.0, [], 0.0, 0.0)

    rungs = [lambda point, n=n: PlannedRun("", {"point": point, "rounds": n}) for n in (2, 4)]
    runs, best = lib.halve([1, 2, 3, 4], rungs, result_of)
    assert [tuple(run.spec.values()) for run in runs] == [(1, 2), (2, 2), (3, 2), (4, 2), (2, 4), (3, 4)]
    assert best == 2, "the smaller loss"
    assert lib.halve([3, 2], rungs[:1], result_of, lib.score_alone)[1] == 3, "the first of equals"
    later = [*rungs, lambda point: PlannedRun("", {"point": point, "rounds": 8})]
    assert lib.halve([1, 2, 3, 4], later, result_of)[1] is None


@pytest.mark.parametrize("name", ["baselines", "regime"])
def test_stored_runs_name_no_folders_and_are_saved_as_they_are(name: str, tmp_path: Path) -> None:
    rows = lib.stored_runs(name)
    store = Store(tmp_path, known=rows)
    runs = [PlannedRun(row["name"], row["spec"]) for row in rows]
    assert len({store.path(run) for run in runs}) == len(rows)
    assert not any({"data", "cache", "pretrained"} & run.spec["task"].keys() for run in runs)
    lib.save_runs(tmp_path / "runs.jsonl", store, runs)
    lines = (tmp_path / "runs.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == rows
