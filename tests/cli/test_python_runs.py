"""Runs begun in Python: commands make their objects again from the record, or say which one they cannot make."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.report.build import build
from tardygrad.report.groups import grouped
from tardygrad.report.loader import read
from tardygrad.runs.history import read_history
from tardygrad.runs.record import read_json
from tardygrad.spec import spec
from tests.cli.conftest import Command
from tests.cli.test_own_code import CODE
from tests.forkserver import Program

KILLED = """
import os, signal
import tardygrad as tg

method = tg.clip2(local_lr=0.05, local_clip=1.0, lr=1.0, clip=0.5, buffer=3, local_steps=2, mode="client")
fleet = tg.Fleet.paper(clients=6).crash(client=2, at=9.0, back=12.0)
task = tg.tasks.digits(clients=6, model="mlp", dim=8, noise=tg.Noise("student", tail=1.5, scale=0.01))
with tg.SimPool(task, method, fleet) as pool:
    run = tg.begin(method, task, pool, rounds=12, checkpoint_every=4, out="run")
    for row in run.go():
        if row["round"] == 6:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def method(**changes: Any) -> tg.Method:
    given = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 2, "local_steps": 2} | changes
    return tg.clip2(**given)


def own_task() -> tg.TorchTask:
    data = torch.linspace(-1, 1, 12).unsqueeze(1), torch.linspace(-2, 2, 12).unsqueeze(1)
    shards = tg.shard(data, clients=4)
    return tg.TorchTask(torch.nn.Linear(1, 1), data=shards, loss=torch.nn.functional.mse_loss, test=data)


@pytest.fixture
def mine(tardygrad: Command) -> Iterator[Any]:
    """A module of one's own in the present directory."""
    Path("mine.py").write_text(CODE)
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    yield importlib.import_module("mine")
    sys.path[:] = before
    sys.modules.pop("mine", None)


def test_a_killed_run_is_resumed_replayed_and_examined_by_the_commands(tardygrad: Command) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = Program(KILLED, env=environment)
    killed.communicate(120)
    assert killed.returncode == -signal.SIGKILL
    recorded = read_json(Path("run/spec.json"))["spec"]
    assert spec.parse(recorded).resolved() == recorded  # exactly what `tardygrad run` writes
    assert recorded["fleet"]["crashes"] == [{"client": 2, "at": 9.0, "back": 12.0}]
    examined = tardygrad("doctor", "run").out
    assert "): killed after 4 rounds, " in examined.splitlines()[0]
    assert examined.endswith("continue the run: tardygrad resume run\n")
    assert "killed; continue with: tardygrad resume run" in build(["run"]).html()
    for argv in (
        ("resume", "run"),
        ("replay", "run"),
        ("doctor", "run", "--probe"),
        ("tail", "run", "--clients", "2", "--batches", "2"),
        ("plan", "run"),
        ("report", "run"),
    ):
        code, _, err = tardygrad(*argv)
        assert code == 0, (argv, err)
    assert read_json(Path("run/summary.json"))["rounds"] == 12


def test_own_functions_given_to_make_are_named_in_the_record(mine: Any, tardygrad: Command) -> None:
    task, fleet = tg.make(mine.task, clients=6, slope=3.0), tg.make(mine.fleet, clients=6)
    tg.simulate(tg.make(mine.method, buffer=3), task, fleet, rounds=8, out="run")
    recorded = read_json(Path("run/spec.json"))["spec"]
    assert recorded["task"] == {"kind": "mine:task", "clients": 6, "slope": 3.0}
    assert recorded["method"] == {"kind": "mine:method", "buffer": 3, "rate": 0.1}
    assert recorded["fleet"]["kind"] == "mine:fleet"
    code, _, err = tardygrad("replay", "run")
    assert (code, "imported only if you trust it, got 'mine:task'" in err.replace("\n", " ")) == (2, True)
    for argv in (("replay", "run"), ("resume", "run", "run.rounds=9"), ("doctor", "run")):
        code, _, err = tardygrad(*argv, "--trust")
        assert code == 0, (argv, err)


def test_a_failed_run_says_why_in_its_record(tardygrad: Command) -> None:
    def loss(output: Any, target: Any) -> Any:
        raise OSError("the disk of this site is gone")

    data = {"Bethesda": [(torch.ones(1), torch.ones(1))], "Ulm": [(torch.ones(1), torch.ones(1))]}
    task = tg.TorchTask(torch.nn.Linear(1, 1), data=data, loss=loss)
    with pytest.raises(tg.WorkFailed, match="the work of 'Bethesda', client 0, job 0, from round 0 failed: OSError"):
        tg.simulate(method(), task, tg.Fleet.paper(clients=2), rounds=3, evaluate_every=0, out="run")
    history = read_history(Path("run"))
    assert history.status == "failed"
    assert "the disk of this site is gone" in (history.reason or "")
    assert "the disk of this site is gone" in tardygrad("doctor", "run").out


def test_reports_group_seeds_and_name_settings(tmp_path: Path) -> None:
    quadratic, fleet = tg.tasks.quadratic(clients=4), tg.Fleet.paper(clients=4)
    for seed in (0, 1):
        tg.simulate(method(), quadratic, fleet, rounds=3, seed=seed, out=tmp_path / f"seed-{seed}")
    tg.simulate(method(lr=0.5), quadratic, fleet, rounds=3, out=tmp_path / "lr")
    groups = grouped([read(tmp_path / name) for name in ("seed-0", "seed-1", "lr")])
    assert [(group.name, len(group.runs)) for group in groups] == [("Clip², lr=1.0", 2), ("Clip², lr=0.5", 1)]
    for seed in (0, 1):  # two tasks that look the same may have different data
        tg.simulate(method(lr=0.5 + seed), own_task(), fleet, rounds=3, seed=seed, out=tmp_path / f"own-{seed}")
    groups = grouped([read(tmp_path / name) for name in ("own-0", "own-1")])
    assert [(group.name, len(group.runs)) for group in groups] == [("Clip², lr=0.5", 1), ("Clip², lr=1.5", 1)]


def test_commands_say_what_cannot_be_made_again(tardygrad: Command) -> None:
    tg.simulate(method(), own_task(), tg.Fleet.paper(clients=4), rounds=4, out="run")
    for argv in (("resume", "run"), ("replay", "run"), ("tail", "run"), ("plan", "run"), ("doctor", "run", "--probe")):
        code, _, err = tardygrad(*argv)
        text = err.replace("\n", " ")
        assert code == 2, argv
        assert "its task (TorchTask(Linear, parameters=2, clients=4)) cannot be made again: nothing says how" in text
        assert "tardygrad.make(FUNCTION, KEY=VALUE, ...), with a function of a module" in text
    code, out, _ = tardygrad("doctor", "run")
    assert code == 0
    assert "local clip" in out  # the settings of the method are known


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (lambda: tg.make(lambda: own_task()), "its function `"),
        (lambda: tg.make(tg.TorchTask, **_pieces()), "its argument `module` is of type Linear, which JSON cannot hold"),
        (lambda: tg.make(task_with, kind="a"), "its function has an argument `kind`, and in a table that names"),
        (lambda: tg.make(task_of, a="text"), "its arguments cannot be read back: `task.a` must be a whole number, got"),
        (lambda: tg.make(task_of, names=["a\ud800"]), "its argument `names` has text that is not Unicode"),
    ],
)
def test_the_reason_names_the_function_or_the_argument(task: Any, reason: str) -> None:
    fleet, chosen = tg.Fleet.paper(clients=4), method()
    with tg.SimPool(made := task(), chosen, fleet) as pool:
        recorded = tg.begin(chosen, made, pool, rounds=2).spec_json
    assert recorded is not None
    assert recorded["spec"] is None
    (missing,) = recorded["missing"]
    assert reason in missing
    assert recorded["described"]["method"]["kind"] == "clip2"


def task_with(kind: str) -> tg.TorchTask:
    return own_task()


def task_of(
    a: int = 1, text: str = "", names: Any = None, optimizer: torch.optim.Optimizer | None = None
) -> tg.TorchTask:
    return own_task()


def _pieces() -> dict[str, Any]:
    data = torch.zeros(4, 1), torch.zeros(4, 1)
    loss = torch.nn.functional.mse_loss
    return {"module": torch.nn.Linear(1, 1), "data": tg.shard(data, clients=4), "loss": loss, "test": data}
