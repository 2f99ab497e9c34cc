"""A sweep's part of a report."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tardygrad.report.blocks import Table
from tardygrad.report.page import figures, html
from tardygrad.report.sweeps import sweep_parts
from tardygrad.sweep import Sweep, Trial
from tests.report.conftest import Open
from tests.report.records import EVIL

LABELS = ("SD-SGDClip, large", "Clip², large")


def swept(trials: list[Trial], **facts: Any) -> Sweep:
    known: dict[str, Any] = {"name": "digits", "space": {}, "goal": "test loss", "best": "loss", "asked": {}}
    return Sweep(**{**known, **facts}, total=len(trials), trials=trials)


def trial(number: int, group: str, lr: float, local_lr: float, clip: Any, **more: Any) -> Trial:
    params = {"method.lr": lr, "method.local_lr": local_lr, "method.clip": clip, "method.kind": group[:4]}
    diverged = lr > 1
    facts: dict[str, Any] = {
        "status": "diverged" if diverged else "finished",
        "value": None if diverged else lr + local_lr,
    }
    return Trial(number, "finished", params, group, workable=lr == 0.1, start={}, seeds=[], **{**facts, **more})


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    points = product(LABELS, (0.1, 1.0, 10.0), (0.01, 0.1), (0.5, "inf"))
    return swept([trial(number, *point) for number, point in enumerate(points)])


def test_a_sweep_has_its_table_and_figures(sweep: Sweep) -> None:
    best, where = sweep_parts(sweep, "mine", 2)
    assert [figure.key for figure in figures([best, where])] == ["workable-2", "settings-2", "parallel-2"]
    (table,) = [block for block in best.blocks if isinstance(block, Table)]
    assert [row[:4] for row in table.rows] == [(label, "12 of 12", "4", "4 of 12 (33%)") for label in LABELS]
    assert "method.lr=0.1, method.local_lr=0.01" in table.rows[0][-1]
    (timed,) = [
        block
        for block in sweep_parts(sweep._replace(goal="time to 0.9", best="time"), "mine", 1)[0].blocks
        if isinstance(block, Table)
    ]
    assert (timed.headings[4], timed.rows[0][4]) == ("time to 0.9", "0.11")


def test_no_two_trials_share_a_cell(sweep: Sweep) -> None:
    (heat,) = [figure for figure in figures(sweep_parts(sweep, "mine", 1)) if figure.key == "settings"]
    rows = heat.chart["datasets"]["rows"]
    assert len({(row["group"], row["others"], row["across"], row["up"]) for row in rows}) == len(sweep.trials)
    assert {row["others"] for row in rows} == {"clip 0.5", "clip inf"}
    assert [row["mark"] for row in rows if row["across"] == 10.0] == ["×"] * 8


def test_infinity_lies_beyond_the_other_values(sweep: Sweep) -> None:
    (lines,) = [figure for figure in figures(sweep_parts(sweep, "mine", 1)) if figure.key == "parallel"]
    rows = lines.chart["datasets"]["rows"]
    assert {(row["value"], row["at"]) for row in rows if row["key"] == "clip"} == {("0.5", 0.0), ("∞", 1.0)}


@pytest.mark.parametrize("best", ["accuracy", "loss", "time"])
def test_a_sweep_that_has_hardly_begun_has_a_page(best: str) -> None:
    waiting = Trial(0, "waiting", {"method.lr": 0.1}, "Clip²", start={}, seeds=[])
    for trials in ([], [waiting], [trial(0, "Clip²", 10.0, 0.1, 0.5)], [trial(0, "Clip²", 0.1, 0.1, math.nan)]):
        assert "<h2" in html("a sweep", sweep_parts(swept(trials, best=best), "mine", 1))


def test_a_sweep_draws_whatever_its_text(sweep: Sweep, tmp_path: Path, opened: Open) -> None:
    evil = swept([one._replace(group=EVIL + one.group, status=EVIL) for one in sweep.trials], goal=EVIL)
    path = tmp_path / "sweep.html"
    path.write_text(html(EVIL, [*sweep_parts(sweep, "mine", 1), *sweep_parts(evil, EVIL, 2)]), "utf-8")
    page = opened(path.as_uri())
    for key in ("workable", "settings", "parallel"):
        for mark in ("", "-2"):
            assert page.locator(f"#chart-{key}{mark} svg path").count() > 3
    crosses = page.locator("#chart-settings svg text", has_text="×").count()
    assert crosses == 8


def test_a_random_sweep_is_drawn_as_points() -> None:
    trials = [trial(i, "Clip²", 0.01 * (i + 1), 0.1 / (i + 1), 0.5) for i in range(40)]
    (heat,) = [figure for figure in figures(sweep_parts(swept(trials), "mine", 1)) if figure.key == "settings"]
    assert '"circle"' in json.dumps(heat.chart)
