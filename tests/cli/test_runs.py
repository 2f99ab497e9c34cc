"""run, resume and replay: what they print, what they write, what they return."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tardygrad.record import read_lines
from tests.cli.conftest import Command

STARVING = ["fleet.crashes=[{client=0, at=3}, {client=1, at=3}]", "task.clients=2", "run.rounds=100"]


def test_run_prints_a_summary_and_leaves_a_record(tardygrad: Command) -> None:
    code, out, err = tardygrad("run", "small.toml")
    assert code == 0
    assert out.splitlines()[:2] == ["Clip² (client-centric, M=2, K=3)", "finished after 12 rounds, 8 s on the clock"]
    assert err == "Clip² (client-centric, M=2, K=3) on quadratic, recording in runs/small-1\n"
    assert {path.name for path in Path("runs/small-1").iterdir()} >= {"spec.json", "events.jsonl", "model.safetensors"}


def test_runs_are_numbered_and_never_overwritten(tardygrad: Command) -> None:
    for number in (1, 2, 3):
        assert tardygrad("run", "small.toml", "--json").json["out"] == f"runs/small-{number}"
    before = Path("runs/small-1/events.jsonl").read_bytes()
    code, out, err = tardygrad("run", "small.toml", "--out", "runs/small-1")
    assert (code, out) == (2, "")
    assert err.startswith("error: the directory 'runs/small-1' already holds a run.")
    assert Path("runs/small-1/events.jsonl").read_bytes() == before


def test_run_prints_json_and_nothing_else_on_stdout(tardygrad: Command) -> None:
    result = tardygrad("run", "small.toml", "run.evaluate_every=0", "--json", "--out", "here")
    assert result.code == 0
    assert result.json["out"] == "here"
    assert (result.json["status"], result.json["rounds"], result.json["loss"]) == ("finished", 12, None)


def test_the_record_holds_the_resolved_spec_and_the_threads_of_torch(tardygrad: Command) -> None:
    before = torch.get_num_threads()
    tardygrad("run", "small.toml", "method.clip=inf", "run.threads=2", "--out", "here")
    recorded = json.loads(Path("here/spec.json").read_text())
    assert recorded["spec"]["method"]["clip"] == "inf"
    assert recorded["spec"]["run"]["threads"] == 2
    assert recorded["versions"]["threads"] == "2"
    assert torch.get_num_threads() == before


def test_a_run_that_starves_is_one_line_and_exit_code_1(tardygrad: Command) -> None:
    code, out, err = tardygrad("run", "small.toml", *STARVING, "--out", "here")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("error: the buffer cannot fill in round")
    result = tardygrad("run", "small.toml", *STARVING, "--json")
    assert (result.code, list(result.json)) == (1, ["error"])


def test_an_unwritable_directory_is_one_line_and_exit_code_1(tardygrad: Command) -> None:
    Path("runs").write_text("a file")
    code, out, err = tardygrad("run", "small.toml", "--out", "runs/x")
    assert (code, out) == (1, "")
    assert "error: cannot write to 'runs/x': Not a directory." in err


def test_a_longer_run_is_a_resumed_one(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "run.rounds=30", "--out", "whole")
    tardygrad("run", "small.toml", "--out", "parts")
    result = tardygrad("resume", "parts", "run.rounds=30", "--json")
    assert (result.code, result.json["rounds"], result.json["updates"]) == (0, 30, 60)
    assert Path("parts/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    recorded = json.loads(Path("parts/spec.json").read_text())
    assert recorded["run"]["rounds"] == recorded["spec"]["run"]["rounds"] == 30


def test_resuming_a_finished_run_changes_nothing(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    before = Path("here/model.safetensors").read_bytes(), list(read_lines(Path("here/events.jsonl")))
    code, out, _ = tardygrad("resume", "here")
    assert code == 0
    assert "finished after 12 rounds" in out
    assert before == (Path("here/model.safetensors").read_bytes(), list(read_lines(Path("here/events.jsonl"))))


@pytest.mark.parametrize(
    ("argv", "fragment"),
    [
        (["here", "run.rounds=5"], "must be at least the rounds already made (12), got 5."),
        (["here", "run.rounds=x"], "`run.rounds` must be a whole number, got 'x'."),
        (["here", "method.lr=5"], "a run may only be resumed with another run.rounds, got 'method.lr=5'."),
        (["nowhere"], "'nowhere' holds no run: spec.json cannot be read (No such file or directory)."),
        (["small.toml"], "holds no run"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(argv: list[str], fragment: str, tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    code, out, err = tardygrad("resume", *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert fragment in err


def test_a_run_begun_in_python_is_not_resumed_here(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    recorded = json.loads(Path("here/spec.json").read_text())
    Path("here/spec.json").write_text(json.dumps(recorded | {"spec": None}))
    assert "was begun in Python, without a spec" in tardygrad("resume", "here").err


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"spec": {}, "run": 3}'])
def test_a_damaged_record_is_one_line_and_exit_code_1(text: str, tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    Path("here/spec.json").write_text(text)
    for verb in ("resume", "replay"):
        code, out, err = tardygrad(verb, "here")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "damaged" in err


@pytest.mark.parametrize("method", [[], ["method.compensate=true", "method.mode=server", "method.concurrency=6"]])
def test_a_replay_of_a_simulated_run_has_the_same_bits(method: list[str], tardygrad: Command) -> None:
    crash = "fleet.crashes=[{client=0, at=3, back=5}]"
    tardygrad("run", "small.toml", *method, crash, "run.rounds=30", "--out", "here")
    assert tardygrad("replay", "here") == (0, "the same bits after 30 rounds\n", "")
    result = tardygrad("replay", "here", "--json")
    assert result.json == {"run": "here", "rounds": 30, "same": True, "difference": 0.0, "changed": {}}


def test_a_replay_of_a_run_on_threads_has_the_same_bits(tardygrad: Command) -> None:
    threads = "engine={kind='threads', workers=3}"
    tardygrad("run", "small.toml", threads, "run.rounds=40", "task.dimension=2000", "--out", "here")
    assert tardygrad("replay", "here").out == "the same bits after 40 rounds\n"
    tardygrad("resume", "here", "run.rounds=60")
    assert tardygrad("replay", "here").out == "the same bits after 60 rounds\n"


def test_a_replay_that_differs_says_by_how_much(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    model = load_file("here/model.safetensors")
    model["x"][3] += 0.5
    save_file(model, "here/model.safetensors")
    code, out, _ = tardygrad("replay", "here")
    assert (code, out) == (1, "not the same bits after 12 rounds: the models differ by up to 0.5\n")
    result = tardygrad("replay", "here", "--json")
    assert (result.code, result.json["same"]) == (1, False)
    assert math.isclose(result.json["difference"], 0.5, rel_tol=1e-6)


def test_what_cannot_be_replayed_is_one_line(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    Path("here/model.safetensors").write_bytes(b"nothing")
    assert tardygrad("replay", "here").code == 1
    Path("here/model.safetensors").unlink()
    code, out, err = tardygrad("replay", "here")
    assert (code, out) == (2, "")
    assert err == "error: a replay needs a run that has ended, got 'here'. Go on with it: tardygrad resume here\n"
