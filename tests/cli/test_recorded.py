"""Recorded runs are still resumed, replayed and read: `tests/recorded` holds three.

`sim` and `regions` were killed after round 13, with a checkpoint of round 8; what they came to undisturbed is beside
them (`*-whole`). `ray` finished, with two slices of the server and an int8 wire. Of three runs with the same settings,
`first-version` holds the models that the first version came to.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tardygrad as tg
from tardygrad.runs.events import read_metrics
from tardygrad.runs.record import read_lines
from tardygrad.spec import spec
from tests.cli.conftest import Command

RECORDED = Path(__file__).parents[1] / "recorded"


def lines(path: Path) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_lines(path)]


@pytest.mark.parametrize("name", ["sim", "regions"])
def test_a_spec_gives_the_model_that_the_first_version_came_to(name: str, tmp_path: Path, tardygrad: Command) -> None:
    first = RECORDED / "first-version" / name
    assert tardygrad("run", str(first / "spec.json"), "--out", str(tmp_path / "run")).code == 0
    assert (tmp_path / "run/model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()


def test_the_arrivals_of_a_run_on_ray_give_the_model_that_the_first_version_came_to() -> None:
    first = RECORDED / "first-version/ray"
    loaded = spec.load(first / "spec.json", ["engine={kind='threads'}"])  # Ray's keys have other names now
    built = loaded.build()
    script = [tuple(line) for line in json.loads((first / "script.json").read_text())]
    pool = tg.ScriptedPool(script, built.task, built.method, wire="int8")
    run = tg.train(built.method, built.task, pool, rounds=8, evaluate_every=0)
    assert torch.equal(run.x, load_file(first / "model.safetensors")["x"])


@pytest.mark.parametrize("name", ["sim", "regions"])
def test_a_killed_run_is_resumed_to_the_same_bits(name: str, tmp_path: Path, tardygrad: Command) -> None:
    run, whole = tmp_path / name, RECORDED / f"{name}-whole"
    shutil.copytree(RECORDED / name, run)
    assert tardygrad("resume", str(run)).code == 0
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert lines(run / "events.jsonl") == lines(whole / "events.jsonl")


@pytest.mark.parametrize("name", ["sim-whole", "regions-whole", "ray"])
def test_a_recorded_run_is_replayed_to_the_same_bits(name: str, tardygrad: Command) -> None:
    assert "the same bits" in tardygrad("replay", str(RECORDED / name)).out


@pytest.mark.usefixtures("forked_ray_workers")
def test_a_run_on_ray_goes_on_from_its_checkpoint(tmp_path: Path, tardygrad: Command) -> None:
    pytest.importorskip("ray")
    run = tmp_path / "ray"
    shutil.copytree(RECORDED / "ray", run)
    before = read_metrics(run / "events.jsonl")
    assert tardygrad("resume", str(run), "run.rounds=10").code == 0
    assert read_metrics(run / "events.jsonl")[:8] == before
    assert "the same bits after 10 rounds" in tardygrad("replay", str(run)).out


def test_a_recorded_run_can_be_looked_at(tmp_path: Path, tardygrad: Command) -> None:
    names = [str(RECORDED / name) for name in ("sim-whole", "regions-whole", "ray")]
    assert tardygrad("export", *names, "--out", str(tmp_path / "tables")).code == 0
    assert tardygrad("report", *names, "--out", str(tmp_path / "report.html")).code == 0
    assert [tardygrad("doctor", name).code for name in names] == [0, 0, 0]
