"""Own functions in specs: every command works with them, and a record's are imported only if trusted."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tardygrad.runs import own_code
from tardygrad.runs.record import read_json
from tests.cli.conftest import Command

CODE = """
import torch
import tardygrad as tg

with open("imported", "a") as file:
    file.write("x")


def task(clients: int, slope: float = 2.0):
    x = torch.linspace(-1, 1, 8 * clients).unsqueeze(1)
    data = x, slope * x
    loss = torch.nn.functional.mse_loss
    shards = tg.shard(data, clients=clients)
    return tg.TorchTask(lambda: torch.nn.Linear(1, 1), data=shards, loss=loss, test=data, batch_size=2)


def method(buffer: int = 2, rate=0.1):
    return tg.clip2(local_lr=rate, local_clip=1.0, lr=1.0, clip=0.5, buffer=buffer, local_steps=2, mode="client")


def fleet(clients: int, seconds: float = 1.0):
    return tg.Fleet((tg.Group("mine", clients, tg.Uniform(seconds, 2 * seconds)),))


def nothing():
    return 3


number = 3
"""

LOOP = """

def six():
    return task(6)


def loop():
    x = torch.ones(4, 1)
    loss = torch.nn.functional.mse_loss
    return tg.TrainerTask(torch.nn.Linear(1, 1), train=lambda module, job: 0.0, clients=6, loss=loss, test=(x, x))
"""

MISTAKES = """

def leaves(clients: int):
    raise SystemExit("bye")


async def later(clients: int):
    return task(clients)


def unnamed(a, /, clients: int = 6):
    return task(clients)


def untyped(a, clients: int = 6):
    return task(clients)


def leaves_at(where: str, clients: int):
    def leave(*args):
        raise SystemExit(0)

    made = task(clients)
    setattr(made, where, leave)
    return made
"""

SPEC = """
[task]
kind = "mine:task"
clients = 6
[fleet]
kind = "mine:fleet"
seconds = 2.0
[method]
kind = "mine:method"
rate = 0.2
[run]
rounds = 12
"""


@pytest.fixture
def here(tardygrad: Command) -> Iterator[Path]:
    """The present directory, with a module and a spec of one's own."""
    Path("mine.py").write_text(CODE)
    Path("own.toml").write_text(SPEC)
    before = list(sys.path)
    yield Path()
    sys.path[:] = before
    sys.modules.pop("mine", None)


def test_every_command_works_with_own_functions(here: Path, tardygrad: Command) -> None:
    assert tardygrad("run", "own.toml", "--out", "run").code == 0
    for argv in (
        ("replay", "run", "--trust"),
        ("resume", "run", "run.rounds=15", "--trust"),
        ("plan", "own.toml"),
        ("tail", "own.toml", "--clients", "2", "--batches", "2"),
        ("tail", "run", "--trust", "--clients", "2", "--batches", "2"),
        ("doctor", "run", "--trust"),
        ("report", "run"),
        ("export", "run"),
        ("export", "run", "--hf", "model", "--trust"),
        ("run", "own.toml", "task.slope=3.0", "method.buffer=3", "--out", "other"),
        ("sweep", "own.toml", "--over", "method.rate=[0.1, 0.2]", "--out", "sweep"),
    ):
        code, _, err = tardygrad(*argv)
        assert code == 0, (argv, err)


def test_a_sweeps_own_code_is_imported_only_if_it_is_trusted(here: Path, tardygrad: Command) -> None:
    settings = ("--over", "method.kind=['mine:method']", "run.rounds=2", "--out", "sweep")
    assert tardygrad("sweep", "own.toml", *settings).code == 0
    sys.modules.pop("mine")
    Path("imported").unlink()
    code, _, err = tardygrad("sweep", "sweep")
    assert (code, "is imported only if you trust it, got 'mine:task'" in err.replace("\n", " ")) == (2, True)
    assert tardygrad("report", "sweep").code == 0
    assert not Path("imported").exists()
    assert tardygrad("sweep", "sweep", "--trust").code == 0


def test_a_records_own_code_is_imported_only_if_it_is_trusted(here: Path, tardygrad: Command) -> None:
    tardygrad("run", "own.toml", "--out", "run")
    sys.modules.pop("mine")
    Path("imported").unlink()
    for verb, *options in (
        ["run"],
        ["resume"],
        ["replay"],
        ["doctor", "--probe"],
        ["tail"],
        ["plan"],
        ["export", "--hf", "model"],
    ):
        code, _, err = tardygrad(verb, "run", *options)
        assert (code, "is imported only if you trust it, got 'mine:task'" in err.replace("\n", " ")) == (2, True), verb
    assert tardygrad("doctor", "run").code == 0
    assert tardygrad("report", "run").code == 0
    assert "tardygrad run run --trust" in next(Path().rglob("*.html")).read_text("utf-8")
    assert tardygrad("export", "run").code == 0
    assert not Path("imported").exists()


def test_a_directory_is_a_record_whatever_its_spec_looks_like(here: Path, tardygrad: Command) -> None:
    Path("folder").mkdir()
    Path("folder/spec.json").write_text(json.dumps(tomllib.loads(SPEC)))
    Path("folder/checkpoints").mkdir()
    Path("folder/other.toml").write_text(SPEC)
    Path("link.json").symlink_to("folder/spec.json")
    named = {"plan": "folder", "tail": "folder/spec.json", "run": "folder/other.toml", "sweep": "link.json"}
    for verb, path in named.items():
        code, _, err = tardygrad(verb, path)
        rule = f"a function that '{path}' names is imported only if you trust it, got 'mine:task'"
        assert (code, rule in err.replace("\n", " ")) == (2, True), verb
    assert not Path("imported").exists()
    assert tardygrad("plan", "folder", "--trust").code == 0


def test_a_strangers_sweep_imports_no_code_by_any_way(here: Path, tardygrad: Command) -> None:
    settings = ("method.lr=1.0", "method.clip=0.1", "method.local_clip=1.0", "--over", "method.local_lr=[0.1, 0.2]")
    assert tardygrad("sweep", "quadratic", *settings, "run.rounds=2", "--out", "sweep").code == 0
    config = read_json(Path("sweep/sweep.json"))
    for name, space in {
        "blank": {"task.kind ": ["mine:task"]},
        "equals": {'task={kind="mine:task"} #': [1, 2]},
    }.items():
        shutil.copytree("sweep", name)
        (Path(name) / "study.db").unlink()
        Path(name, "sweep.json").write_text(json.dumps(config | {"space": space, "trials": len(*space.values())}))
        assert "only if you trust it" in tardygrad("sweep", name).err.replace("\n", " ")
    spec = config["spec"] | {"task": {"kind": "mine:task", "clients": 40}}
    Path("blank/sweep.json").write_text(json.dumps(config | {"spec": spec}))
    assert "has other settings" in tardygrad("sweep", "quadratic", *settings, "--out", "blank").err.replace("\n", " ")
    with sqlite3.connect("sweep/study.db") as study:
        params = json.dumps({"task.kind": "mine:task", "method.local_lr": 0.1})
        study.execute("update trial_user_attributes set value_json = ? where key = 'params'", (params,))
    study.close()
    tardygrad("report", "sweep")
    tardygrad("sweep", "sweep")
    assert not Path("imported").exists()


def test_a_sweep_works_for_own_tasks_without_clients_and_with_own_loops(here: Path, tardygrad: Command) -> None:
    with Path("mine.py").open("a") as file:
        file.write(LOOP)
    Path("own.toml").write_text(
        SPEC.replace("mine:task", "mine:six").replace("clients = 6\n[fleet]", "[fleet]\nclients = 6")
    )
    sweep = ("sweep", "own.toml", "--over", "method.rate=[0.1, 0.2]", "run.rounds=2")
    assert tardygrad(*sweep).code == 0
    loop = ["task.kind=mine:loop", "method={kind='sgdclip', lr=1.0, buffer=2, local_steps=2}"]
    code, _, err = tardygrad("sweep", "own.toml", *loop, "--over", "method.lr=[0.5, 1.0]", "run.rounds=2", "--json")
    assert (code, "2 trials" in err) == (0, True), err


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("task.kind=nowhere:task", "must name a function that can be imported"),
        ("task.kind=mine:tusk", "mine has no `tusk`. Did you mean 'task'?"),
        ("task.kind=mine:number", "which is of type int"),
        ("method.kind=mine:nothing", "must be a function that returns a Method, got a int from 'mine:nothing'"),
        ("task.kind=mine:", "got 'mine:'. Write a name on both sides of the colon."),
        ("task.kind=exits:task", "whose import failed: SystemExit: 0 (exits.py, line 1)."),
        ("task.kind=mine:leaves", "in [task]: SystemExit: bye (mine.py, line"),
        ("task.kind=mine:later", "got 'mine:later', which is asynchronous. Write def in place of async def."),
        ("task.kind=mine:unnamed", "whose argument `a` has no name. Remove the / from its signature."),
        ("task.kind=mine:untyped", "[task] needs the key `a`: any value."),
        ("method.clip=3.0", "has no key `clip` if its kind is 'mine:method'. Known keys: buffer, rate."),
        ("task.slop=3.0", "[task] has no key `slop`. Did you mean 'slope'?"),
        ("task.slope=steep", "`task.slope` must be a number, got 'steep'"),
        ("fleet.clients=5", "`clients` must agree in [task] and [fleet], got 6 and 5"),
    ],
)
def test_a_mistake_gets_a_sentence(override: str, text: str, here: Path, tardygrad: Command) -> None:
    extra = ["method.rate="] if override.startswith("method.kind") else []
    Path("exits.py").write_text("raise SystemExit(0)")
    with Path("mine.py").open("a") as file:
        file.write(MISTAKES)
    code, _, err = tardygrad("run", "own.toml", override, *extra)
    assert code == 2
    assert text in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("init", "code that the spec names ended the program: SystemExit: 0 (mine.py, line"),
        ("gradient", "failed: SystemExit: 0 (mine.py, line"),
        ("evaluate", "the evaluation failed: SystemExit: 0 (mine.py, line"),
    ],
)
def test_own_code_that_exits_is_an_error(where: str, text: str, here: Path, tardygrad: Command) -> None:
    with Path("mine.py").open("a") as file:
        file.write(MISTAKES)
    leaves = ("task.kind=mine:leaves_at", f"task.where={where}")
    code, _, err = tardygrad("run", "own.toml", *leaves, "run.rounds=2", "run.evaluate_every=1")
    assert (code, text in err) == (1, True), err


def test_own_code_that_changes_the_directory_does_not_move_the_record(here: Path, tardygrad: Command) -> None:
    with Path("mine.py").open("a") as file:
        file.write(
            "\nimport os\nos.chdir('/')\n\ndef moving(clients: int):\n    os.chdir('/')\n    return task(clients)\n"
        )
    code, _, err = tardygrad("run", "own.toml", "task.kind=mine:moving", "run.rounds=2")
    assert (code, "recording in runs/own-1\n" in err) == (0, True)
    assert Path("runs/own-1/model.safetensors").exists()


def test_own_code_is_found_at_any_depth() -> None:
    tables: Any = {"fleet": {"groups": [{"runtime": {"kind": "a:b"}}]}, "task": {"kind": "digits"}}
    assert list(own_code.names(tables)) == ["a:b"]
