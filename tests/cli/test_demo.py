"""The demo, cut short: its table, its files, and when the goal was reached; tests/report opens its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tardygrad.cli import demo
from tardygrad.runs.run import Run
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


@pytest.mark.parametrize("taken", ["here/spec.json", "here/clip2/metrics.jsonl"])
def test_a_demo_is_not_written_into_the_folder_of_a_run(taken: str, tardygrad: Command) -> None:
    Path(taken).parent.mkdir(parents=True)
    Path(taken).touch()
    code, _, err = tardygrad("demo", "--rounds", "1", "--out", "here")
    assert (code, err.count("\n")) == (2, 1)
    assert f"the directory '{Path(taken).parent}' already holds a run" in err


@pytest.mark.parametrize(("accuracies", "when"), [([0.5, 0.9, 0.8], 2.0), ([0.5, 0.89], None), ([], None)])
def test_the_time_to_the_goal_is_that_of_the_first_round_that_reached_it(accuracies: list[float], when: Any) -> None:
    class Done:
        metrics = [{"time": float(i), "test_accuracy": one} for i, one in enumerate(accuracies, 1)] + [{"time": 9.0}]

        def summary(self) -> Any:
            return type(
                "Summary",
                (),
                dict.fromkeys(("accuracy", "loss", "delay_mean", "delay_max", "seconds"), 0) | {"time": 3.0},
            )

    assert demo._row("Clip²", cast(Run, Done()), 6.0)["time_to_goal"] == when


def test_the_cast_plays_the_shipped_spec() -> None:
    lengths = {spec.load("digits", changes).run.rounds for changes in demo.METHODS.values()}
    assert lengths == {spec.load("digits").method.arguments["lr"].rounds} == {280}
