"""Own functions in specs: every command works with them, and a record's are imported only if trusted."""

from __future__ import annotations

import importlib
import json
import shutil
import socket
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad import own_code
from tardygrad.constructors import call_of
from tardygrad.doctor.try_change import try_change
from tardygrad.engines.ray.payload import RemoteTask
from tardygrad.runs.history import read_history
from tardygrad.runs.kinds import resume_command
from tardygrad.runs.record import read_json
from tardygrad.spec import spec
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


def leaves_at(where: str, clients: int):
    def leave(*args):
        raise SystemExit(0)

    made = task(clients)
    setattr(made, where, leave)
    return made
"""

BREAKS = """
from dataclasses import dataclass


def fail(*args):
    raise {"text": ValueError("bad \\udcff name"), "long": ValueError("x" * 3_000_000)}[HOW]


HOW = "text"


@dataclass(frozen=True)
class Slow:
    def draw(self, u, serial):
        fail()

    def mean(self):
        return 1.0


def breaks(where: str, clients: int, how: str = "text", returns_nothing: bool = False):
    global HOW
    HOW = how
    made = task(clients)
    setattr(made, where, (lambda *args: None) if returns_nothing else fail)
    return made


def late_rate(buffer: int = 2, weight_by: str | None = None):
    rate = lambda round: fail() if round > 2 else 1.0
    return tg.clip2(local_lr=0.1, local_clip=1.0, lr=rate, clip=0.5, buffer=buffer, local_steps=2, weight_by=weight_by)


def slow(clients: int):
    return tg.Fleet((tg.Group("mine", clients, Slow()),))


def engine():
    return None
"""

DRAWN = """
import numpy as np


def drawn(clients: int, scales: list = [1.0]):
    scales.append(0.5)  # which must not reach another call
    x = torch.from_numpy(np.random.randn(8 * clients, 1)).float() * sum(scales)
    loss = torch.nn.functional.mse_loss
    return tg.TorchTask(torch.nn.Linear(1, 1), data=tg.shard((x, x), clients=clients), loss=loss, test=(x, x))
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
    rule = "a function that 'sweep' names is imported only if you trust it, got 'mine:task'"
    assert (code, rule in err.replace("\n", " ")) == (2, True)
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
        assert "mine.py. Read its code" in " ".join(err.split()), err  # where it would be imported from
    with pytest.raises(tg.Invalid, match="a function that 'run' names is imported only if you trust it"):
        try_change(read_history(Path("run")), ["method.lr=1"])
    with pytest.raises(tg.Invalid, match=r"trust it, got 'mine:task'.* then write server_app\(..., trust=True\)"):
        tg.flower._Source("server_app", "run", False, {}).spec(SimpleNamespace(run_config={}))
    assert tardygrad("doctor", "run").code == 0
    assert tardygrad("report", "run").code == 0
    page = next(Path().rglob("*.html")).read_text("utf-8")
    assert "tardygrad run run" in page
    assert "--trust" not in page
    assert tardygrad("export", "run").code == 0
    assert not Path("imported").exists()


def test_the_refusal_of_code_says_where_it_is_and_imports_none_of_it(here: Path) -> None:
    Path("parent").mkdir()
    Path("parent/__init__.py").write_text("raise SystemExit('imported')")
    for name, place in {
        "parent.part:task": f" in {Path('parent').absolute()}",
        "tardygrad.tasks:vision": f" in {Path(own_code.__file__).parent}",
        "nowhere:task": "",
        ":": "",
        "\0/..:x": "",
        "sys:exit": " in built-in",
    }.items():
        with pytest.raises(tg.Invalid) as refused:
            own_code.check_trust({"kind": name}, "run")
        assert str(refused.value).endswith(f", got {name!r}{place}. Read its code, then add --trust.")
    assert str(Path.cwd()) not in sys.path
    assert "parent" not in sys.modules


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


def test_files_in_records_and_sweeps_are_not_the_users_own(here: Path, tardygrad: Command) -> None:
    for mark, *files in (("run/events.jsonl", "track/a.toml", "checkpoints/7/a.json"), ("sweep/sweep.json", "a.toml")):
        for file in files:
            path = Path(mark).parent / file
            path.parent.mkdir(parents=True, exist_ok=True)
            Path(mark).write_text(json.dumps(tomllib.loads(SPEC)))
            path.write_text(SPEC if path.suffix == ".toml" else json.dumps(tomllib.loads(SPEC)))
            assert "only if you trust it" in tardygrad("plan", str(path)).err.replace("\n", " "), path
    assert "only if you trust it" in tardygrad("plan", "sweep/sweep.json").err.replace("\n", " ")
    assert not Path("imported").exists()


def test_a_records_cluster_is_joined_only_if_it_is_trusted(tardygrad: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert tardygrad("run", "small.toml", "run.rounds=1", "--out", "run").code == 0
        record = read_json(Path("run/spec.json"))
        record["spec"]["engine"] = {"kind": "ray", "address": address}
        Path("run/spec.json").write_text(json.dumps({key: value for key, value in record.items() if key != "check"}))
        for verb in (("resume", "run", "run.rounds=2"), ("run", "run"), ("sweep", "run", "--over", "method.lr=[0.1]")):
            code, _, err = tardygrad(*verb)
            rule = f"a cluster that 'run' names is joined only if you trust it, got '{address}'. Add --trust, or give"
            assert (code, rule in err.replace("\n", " ")) == (2, True), err
        with pytest.raises(BlockingIOError):
            server.accept()
    assert tardygrad("plan", "run").code == 0  # joins nothing
    assert resume_command("run", record["spec"]) == "tardygrad resume run"
    for odd in (None, [], {"engine": 3}, {"engine": {"kind": {}}}):
        assert resume_command("run", odd) == "tardygrad resume run"
    assert own_code.trust_option(record["spec"]) == " --trust"
    assert own_code.cluster({"engine": {"address": "auto"}}) is None


def test_a_strangers_sweep_imports_no_code_by_any_way(here: Path, tardygrad: Command) -> None:
    settings = ("method.lr=1.0", "method.clip=0.1", "method.local_clip=1.0", "--over", "method.local_lr=[0.1, 0.2]")
    assert tardygrad("sweep", "quadratic", *settings, "run.rounds=2", "--out", "sweep").code == 0
    config = read_json(Path("sweep/sweep.json"))
    for name, space in {
        "blank": {"task.kind ": ["mine:task"]},
        "equals": {'task={kind="mine:task"} #': [1, 2]},
    }.items():
        shutil.copytree("sweep", name)
        Path(name, "study.jsonl").unlink()
        Path(name, "sweep.json").write_text(json.dumps(config | {"space": space, "trials": len(*space.values())}))
        assert "only if you trust it" in tardygrad("sweep", name).err.replace("\n", " ")
    joins = config | {"spec": config["spec"] | {"engine": {"kind": "ray", "address": "127.0.0.1:1"}}}
    for stranger in (joins, config | {"space": {"engine.address ": ["127.0.0.1:1"]}, "trials": 1}):
        Path("blank/sweep.json").write_text(json.dumps(stranger))
        assert "is joined only if you trust it" in tardygrad("sweep", "blank").err.replace("\n", " ")
    spec = config["spec"] | {"task": {"kind": "mine:task", "clients": 40}}
    Path("blank/sweep.json").write_text(json.dumps(config | {"spec": spec}))
    assert "has other settings" in tardygrad("sweep", "quadratic", *settings, "--out", "blank").err.replace("\n", " ")
    assert not Path("imported").exists()


def test_a_sweep_works_for_own_tasks_without_clients_and_with_own_loops(here: Path, tardygrad: Command) -> None:
    with Path("mine.py").open("a") as file:
        file.write(LOOP)
    Path("own.toml").write_text(
        SPEC.replace("mine:task", "mine:six").replace("clients = 6\n[fleet]", "[fleet]\nclients = 6")
    )
    sweep = ("sweep", "own.toml", "--over", "method.rate=[0.1, 0.2]", "run.rounds=2")
    assert tardygrad(*sweep).code == 0
    assert tardygrad(*sweep, "fleet={kind='paper', clients=6}").code == 0  # not the 40 that the fleet has by default
    loop = ["task.kind=mine:loop", "method={kind='sgdclip', lr=1.0, buffer=2, local_steps=2}"]
    code, _, err = tardygrad("sweep", "own.toml", *loop, "--over", "method.lr=[0.5, 1.0]", "run.rounds=2", "--json")
    assert (code, "2 trials" in err) == (0, True), err


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("task.kind=nowhere:task", "must name a function that can be imported"),
        ("task.kind=mine:tusk", "mine has no `tusk`. Did you mean 'task'?"),
        ("method.kind=mine:nothing", "must be a function that returns a Method, got a int from 'mine:nothing'"),
        ("task.kind=exits:task", "whose import failed: SystemExit: 0 (exits.py, line 1)."),
        ("task.kind=mine:leaves", "in [task]: SystemExit: bye (mine.py, line"),
        ("method.clip=3.0", "has no key `clip` if its kind is 'mine:method'. Known keys: buffer, rate."),
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


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["run", "task.where=gradient"], 1, r"failed: ValueError: bad \udcff name (mine.py, line"),
        (["run", "task.where=gradient", "task.how=long"], 1, "xxx… (mine.py, line"),
        (["run", "task.where=init"], 1, r"code that the spec names failed: ValueError: bad \udcff name (mine.py"),
        (["run", "task.where=init", "task.returns_nothing=true"], 2, "a vector of its 2 parameters, got NoneType."),
        (["run", "task.where=x", "fleet.kind=mine:slow"], 1, "code that the spec names failed: ValueError: bad"),
        (["sweep", "task.where=evaluate", "--over=method.buffer=[2, 3]"], 1, "failed: ValueError: bad"),
        (["run", "task.where=x", "engine.kind=mine:engine"], 2, "returns a Pool, got a NoneType from 'mine:engine'."),
    ],
)
def test_own_code_that_fails_gets_a_sentence(
    argv: list[str], code: int, text: str, here: Path, tardygrad: Command
) -> None:
    with Path("mine.py").open("a") as file:
        file.write(BREAKS)
    verb, *rest = argv
    removed = [
        f"{key}=" for kind, key in {"late_rate": "method.rate", "slow": "fleet.seconds"}.items() if kind in str(rest)
    ]
    given = ("task.kind=mine:breaks", "run.rounds=4", "run.evaluate_every=1", *rest, *removed)
    got, _, err = tardygrad(verb, "own.toml", *given)
    assert (got, text in err.replace("\n", " "), len(err) < 5000) == (code, True, True), err


def test_a_function_makes_the_same_object_in_every_process(here: Path, tardygrad: Command) -> None:
    with Path("mine.py").open("a") as file:
        file.write(DRAWN)
    own = ("run", "own.toml", "task.kind=mine:drawn", "task.scales=[1.0]")
    assert tardygrad(*own, "run.rounds=6", "--out", "whole").code == 0
    assert tardygrad(*own, "run.rounds=3", "--out", "parts").code == 0
    assert read_json(Path("parts/spec.json"))["spec"]["task"]["scales"] == [1.0]
    assert tardygrad("resume", "parts", "run.rounds=6", "--trust").code == 0
    assert Path("whole/model.safetensors").read_bytes() == Path("parts/model.safetensors").read_bytes()

    mine = importlib.import_module("mine")
    task = tg.make(mine.drawn, clients=6, scales=[1.0])
    make, arguments = RemoteTask(task, call_of(task)).__reduce__()  # type: ignore[arg-type]
    sent: Any = make(*arguments)  # on a worker of Ray
    again = spec.load("own.toml", ["task.kind=mine:drawn", "task.scales=[1.0]"]).build().task
    assert torch.equal(sent.data.data[0], task.data.data[0])
    assert torch.equal(again.data.data[0], task.data.data[0])
    other = tg.make(mine.drawn, clients=6, scales=[2.0])
    assert not torch.equal(other.data.data[0], task.data.data[0])


def test_own_code_that_changes_the_directory_does_not_move_the_record(here: Path, tardygrad: Command) -> None:
    with Path("mine.py").open("a") as file:
        file.write(
            "\nimport os\nos.chdir('/')\n\ndef moving(clients: int):\n    os.chdir('/')\n    return task(clients)\n"
        )
    code, _, err = tardygrad("run", "own.toml", "task.kind=mine:moving", "run.rounds=2")
    assert (code, "recording in runs/own-1\n" in err) == (0, True)
    assert Path("runs/own-1/model.safetensors").exists()
