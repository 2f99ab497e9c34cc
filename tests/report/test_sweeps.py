"""A sweep's part of a report."""

from __future__ import annotations

import fcntl
import math
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tardygrad.report.page import figures, html
from tardygrad.report.sweeps import sweep_sections
from tardygrad.results.blocks import Code, Table
from tardygrad.spec import spec
from tardygrad.sweeps import Sweep, Trial, groups
from tardygrad.sweeps import sweep as sweep_of
from tardygrad.sweeps.config import configure
from tests.report.conftest import Open
from tests.report.records import EVIL, ODD, check_charts

LABELS = ("SD-SGDClip, large", "Clip², large")


def swept(trials: list[Trial], **facts: Any) -> Sweep:
    known: dict[str, Any] = {"name": "digits", "space": {}, "goal": "test loss", "best": "loss", "config": {}}
    return Sweep(**{**known, **facts}, total=len(trials), trials=trials)


def trial(number: int, group: str, lr: float, local_lr: float, clip: Any, **more: Any) -> Trial:
    params = {"method.lr": lr, "method.local_lr": local_lr, "method.clip": clip, "method.kind": group[:4]}
    diverged = lr > 1
    facts: dict[str, Any] = {
        "status": "diverged" if diverged else "finished",
        "value": None if diverged else lr + local_lr,
    }
    return Trial(number, params, group, workable=lr == 0.1, start={}, seeds=[], **{**facts, **more})


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    points = product(LABELS, (0.1, 1.0, 10.0), (0.01, 0.1), (0.5, "inf"))
    return swept([trial(number, *point) for number, point in enumerate(points)])


def tables(sweep: Sweep) -> list[Table]:
    return [block for block in sweep_sections(sweep, "mine", 1)[0].blocks if isinstance(block, Table)]


def drawn(sweep: Sweep) -> dict[str, Any]:
    sections = sweep_sections(sweep, "mine", 1)
    check_charts(sections)
    return {figure.key: figure.chart for figure in figures(sections)}


def test_a_sweep_has_its_tables_and_figures(sweep: Sweep) -> None:
    parts = sweep_sections(sweep, "mine", 2)
    assert [figure.key for figure in figures(parts)] == ["workable-2", "history-2", "slices-2"]
    table, top = tables(sweep)
    assert list(table.headings[:5]) == ["group", "test loss", "workable", "trials", "diverged"]
    assert [(row[0], *row[2:5]) for row in table.rows] == [(label, "4 of 12 (33%)", "12", "4") for label in LABELS]
    assert "method.lr=0.1, method.local_lr=0.01" in table.rows[0][-1]
    assert len(top.rows) == 10
    assert top.rows[0][:3] == ("0", LABELS[0], "0.11")
    assert top.rows[0][-1] == 'method.lr=0.1 method.local_lr=0.01 method.clip=0.5 method.kind="SD-S"'
    timed, _ = tables(sweep._replace(goal="time to 0.9", best="time"))
    assert (timed.headings[1], timed.rows[0][1]) == ("time to 0.9", "0.11")


@pytest.mark.parametrize(
    ("best", "score", "has", "columns"),
    [
        ("loss", "loss", {"loss": 1.0}, {"test loss": "0.11"}),
        ("loss", "loss", {"loss": 1.0, "accuracy": 0.5}, {"test loss": "0.11", "test accuracy": "50.0%"}),
        ("accuracy", "accuracy", {"loss": 1.0, "accuracy": 0.11}, {"test accuracy": "11.0%", "test loss": "1"}),
        ("own_score", "own_score", {"accuracy": 0.11}, {"test own score": "0.11"}),
        ("time", "own_score", {"accuracy": 2.0}, {"seconds to 1": "0.11", "test own score": "2"}),
    ],
)
def test_tables_have_the_scores_that_trials_have_and_no_empty_columns(
    best: str, score: str, has: dict[str, float], columns: dict[str, str]
) -> None:
    goal = "seconds to 1" if best == "time" else f"test {best.replace('_', ' ')}"
    found = swept([trial(0, "one", 0.1, 0.01, 0.5, **has)], goal=goal, best=best, config={"score": score})
    for table, first in zip(tables(found), ("group", "trial"), strict=True):
        names = [first, *columns, "workable" if first == "group" else "seconds"]
        assert list(table.headings[: len(names)]) == names
        assert table.rows[0][1 : 1 + len(columns)] == tuple(columns.values())


def test_pruned_trials_are_told_apart_and_leave_no_workable_share(sweep: Sweep) -> None:
    pruned = [one._replace(status="pruned", value=None, workable=None) for one in sweep.trials[:3]]
    cut = swept([*pruned, *sweep.trials[3:]], config={"prune": True})
    said, table, *_ = sweep_sections(cut, "mine", 1)[0].blocks
    assert isinstance(said, str)
    assert said.startswith("24 of 24 trials are done, 3 of them pruned.")
    assert isinstance(table, Table)
    assert table.headings[2:6] == ("workable", "trials", "diverged", "pruned")
    assert [(row[2], row[5]) for row in table.rows] == [("–", "3"), ("–", "0")]
    assert "workable" not in drawn(cut)


def test_a_target_that_nobody_reached_is_named(sweep: Sweep) -> None:
    nobody = [one._replace(value=None, workable=False) for one in sweep.trials]
    found = swept(nobody, goal="time to 0.9", best="time", config={"target": 0.9})
    assert [row[-1] for row in tables(found)[0].rows] == ["none reached 0.9"] * 2


def test_the_best_trial_comes_with_the_command_that_runs_it(tmp_path: Path) -> None:
    changes = ["run.rounds=3", "method.buffer=2", "method.clip=inf", "method.local_clip=1"]
    over = ["method.local_lr=[0.1, 0.2]", "method.lr=[1.0]", "fleet.stragglers=['mild']"]
    found = sweep_of("quadratic", changes, over=over, out=tmp_path / "here")
    (code,) = [block for block in sweep_sections(found, "mine", 1)[0].blocks if isinstance(block, Code)]
    program, verb, name, *given = shlex.split(code.text)
    assert (program, verb, name) == ("tardygrad", "run", "quadratic")
    best = groups(found)[0].best
    assert best is not None
    asked, _ = configure("quadratic", changes, over=over)
    assert spec.load(name, given) == asked.at(best.params)


def test_a_sweep_that_was_interrupted_comes_with_the_command_that_continues_it(sweep: Sweep, tmp_path: Path) -> None:
    def continued(found: Sweep) -> list[str]:
        blocks = sweep_sections(found, "mine", 1, folder)[0].blocks
        return [block.text for block in blocks if isinstance(block, Code) and block.text.startswith("tardygrad sweep")]

    folder = tmp_path / "a sweep"
    folder.mkdir()
    cut = sweep._replace(total=30)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert continued(cut) == []  # it is running
    assert continued(cut) == [f"tardygrad sweep '{folder}'"]
    assert continued(sweep) == continued(cut._replace(config={**cut.config, "factory": "f"})) == []


@pytest.mark.parametrize("best", ["accuracy", "loss", "time"])
def test_a_sweep_that_has_hardly_begun_has_a_page(best: str) -> None:
    for trials in ([], [trial(0, "Clip²", 10.0, 0.1, 0.5)], [trial(0, "Clip²", 0.1, 0.1, math.nan)]):
        assert "<h2" in html("a sweep", sweep_sections(swept(trials, best=best), "mine", 1))


def test_a_sweep_draws_whatever_its_text(sweep: Sweep, tmp_path: Path, opened: Open) -> None:
    odd = [one._replace(params={f"{ODD}{key}\\": value for key, value in one.params.items()}) for one in sweep.trials]
    evil = swept([one._replace(group=EVIL + one.group, reason=EVIL) for one in odd], goal=EVIL + ODD)
    path = tmp_path / "sweep.html"
    path.write_text(html(EVIL, [*sweep_sections(sweep, "mine", 1), *sweep_sections(evil, EVIL, 2)]), "utf-8")
    page = opened(path.as_uri())
    for key in ("workable", "history", "slices"):
        for mark in ("", "-2"):
            assert page.locator(f"#chart-{key}{mark} svg path").count() > 3


def test_trials_are_drawn_in_their_order_and_by_setting(tmp_path: Path, opened: Open) -> None:
    trials = [trial(i, "Clip²", 0.03 * (i + 1), 0.1 / (i + 1), 0.5) for i in range(40)]
    trials[0] = trials[0]._replace(status="pruned", value=None)
    space = {
        "method.lr": {"low": 0.01, "high": 2.0, "log": True},
        "method.local_lr": {"low": 0.0, "high": 1.0, "log": False},
    }
    charts = drawn(swept(trials, space=space))
    assert list(charts) == ["history", "importance", "slices"]  # workable: a bar alone says nothing
    history, shares = charts["history"]["datasets"], charts["importance"]["datasets"]["rows"]
    assert [row["trial"] for row in history["best"]] == [1, 39]
    assert [row["trial"] for row in history["lost"]] == [0, *range(33, 40)]
    assert [row["key"] for row in shares] == ["lr", "local_lr"]
    assert sum(row["share"] for row in shares) == pytest.approx(1)
    chart = charts["slices"]
    assert [one["layer"][0]["encoding"]["x"]["scale"]["type"] for one in chart["concat"]] == ["log", "linear"]
    lost = [row["end"] for row in chart["datasets"]["lost"]]
    assert lost == ["pruned"] + ["diverged"] * 7
    assert len(chart["datasets"]["rows"]) == 40 - len(lost)
    path = tmp_path / "sweep.html"
    path.write_text(html("slices", sweep_sections(swept(trials, space=space), "mine", 1)), "utf-8")
    assert opened(path.as_uri()).locator("#chart-slices svg path").count() > 80
