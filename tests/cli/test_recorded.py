"""Runs that the first version recorded are still resumed, replayed and read: `tests/recorded` holds three.

`sim` and `regions` were killed after round 13, with a checkpoint of round 8; what they came to undisturbed is beside
them (`*-whole`). `ray` finished, with two slices of the server and an int8 wire.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tardygrad.runs.record import read_lines
from tests.cli.conftest import Command

RECORDED = Path(__file__).parents[1] / "recorded"


def lines(path: Path) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_lines(path)]


@pytest.mark.parametrize("name", ["sim", "regions"])
def test_a_killed_run_is_resumed_to_the_same_bits(name: str, tmp_path: Path, tardygrad: Command) -> None:
    run, whole = tmp_path / name, RECORDED / f"{name}-whole"
    shutil.copytree(RECORDED / name, run)
    assert tardygrad("resume", str(run)).code == 0
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    for file in ("events.jsonl", "metrics.jsonl"):
        assert lines(run / file) == lines(whole / file)


@pytest.mark.parametrize("name", ["sim-whole", "regions-whole", "ray"])
def test_a_recorded_run_is_replayed_to_the_same_bits(name: str, tardygrad: Command) -> None:
    assert "the same bits" in tardygrad("replay", str(RECORDED / name)).out


@pytest.mark.usefixtures("forked_ray_workers")
def test_a_run_on_ray_goes_on_from_its_checkpoint(tmp_path: Path, tardygrad: Command) -> None:
    pytest.importorskip("ray")
    run = tmp_path / "ray"
    shutil.copytree(RECORDED / "ray", run)
    before = (run / "metrics.jsonl").read_text("utf-8")
    assert tardygrad("resume", str(run), "run.rounds=10").code == 0
    assert (run / "metrics.jsonl").read_text("utf-8").startswith(before)
    assert "the same bits after 10 rounds" in tardygrad("replay", str(run)).out


def test_a_recorded_run_can_be_looked_at(tmp_path: Path, tardygrad: Command) -> None:
    names = [str(RECORDED / name) for name in ("sim-whole", "regions-whole", "ray")]
    assert tardygrad("export", *names, "--out", str(tmp_path / "tables")).code == 0
    assert tardygrad("report", *names, "--out", str(tmp_path / "report.html")).code == 0
    assert [tardygrad("doctor", name).code for name in names] == [0, 0, 0]
