"""Specs: tables into objects and back. What is refused is in tests/cli/test_bad_specs.py."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.constructors import call
from tardygrad.runs import run
from tardygrad.spec import shipped, spec
from tests.cli.conftest import SMALL


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def tables(path: Path, *overrides: str) -> Any:
    return spec.load(path, overrides).resolved()


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_spec_survives_a_round_trip_through_json(name: str) -> None:
    loaded = spec.load(name)
    written = json.loads(json.dumps(loaded.resolved(), allow_nan=False))
    again = spec.parse(written, name)
    assert again == loaded
    assert again.resolved() == written


def test_the_tables_become_what_the_constructors_make(small: Path) -> None:
    method, task, fleet, _, length = spec.load(small).build()
    same = tg.clip2(
        local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=3, mode="client"
    )  # fmt: skip
    assert (repr(method.inner), repr(method.outer), str(method)) == (repr(same.inner), repr(same.outer), str(same))
    assert repr(task) == repr(tg.tasks.quadratic(clients=8, dimension=20, noise=tg.Noise("student", 1.5, 0.1)))
    assert fleet == tg.Fleet.paper(clients=8)
    assert length == spec.RunTable(rounds=12, checkpoint_every=5)


def test_every_default_of_the_signatures_is_in_the_resolved_spec(small: Path) -> None:
    resolved = tables(small)
    assert resolved["method"]["norm"] == "coordinate"
    assert resolved["method"]["dispatch"] == "same"  # of Method, behind **settings
    assert resolved["method"]["max_delay"] is None
    assert resolved["task"]["seed"] == 0
    assert resolved["fleet"] == {
        "kind": "paper", "clients": 8, "stragglers": "large", "continuous": False,
        "server_time": 0.0, "crashes": [], "slow": [], "available": [], "faults": [], "at_window_end": "suspend",
        "dropout": 0.0, "slow_spells": [], "ids": [], "link": None, "diurnal": None, "availability": None,
    }  # fmt: skip
    assert resolved["engine"] == {"kind": "sim", "workers": 1, "batch": 1}
    given = {"rounds": 12, "seed": 0, "evaluate_every": 10, "checkpoint_every": 5, "tail_every": 0, "threads": 1}
    assert resolved["run"] == given | {
        "until": None, "evaluate_clients": 0, "lower_is_better": [], "higher_is_better": [], "track": [],
    }  # fmt: skip


def test_the_run_table_has_the_keys_and_defaults_of_a_run() -> None:
    assert {*inspect.get_annotations(run.Settings)} - {"out"} == {*spec.RunTable(rounds=1).settings()}
    begun = tg.begin(*_smallest(), rounds=1)
    assert begun.settings == spec.RunTable(rounds=1).settings()


def _smallest() -> tuple[tg.Method, tg.Task, tg.Pool]:
    task, method = tg.tasks.clock(clients=1), tg.sgdclip(local_lr=1, local_clip=1, lr=1, buffer=1, local_steps=1)
    return method, task, tg.SimPool(task, method, tg.Fleet.paper(clients=1))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.5", 0.5),
        ("2", 2.0),
        ("{value=0.1, exponent=-0.5}", tg.Power(0.1, -0.5)),
        ("{peak=1, rounds=140, warmup=10}", tg.Cosine(1.0, 140, 10)),
    ],
)
def test_a_schedule_is_a_number_or_a_table(value: str, expected: Any, small: Path) -> None:
    loaded = spec.load(small, [f"method.lr={value}"])
    assert loaded.method.arguments["lr"] == expected
    assert spec.parse(loaded.resolved()).method.arguments["lr"] == expected


FLEET = """{kind='groups', server_time=0.1, groups=[
    {name='fast', clients=3, runtime={kind='uniform', low=1, high=2}, link={latency=0.1, down=1e6}},
    {name='whole', clients=1, runtime={kind='integer', low=1, high=2}},
    {name='log', clients=1, runtime={kind='lognormal', median=1, sigma=0.5}},
    {name='exp', clients=1, runtime={kind='exponential', mean=2}},
    {name='heavy', clients=1, runtime={kind='pareto', minimum=1, tail=1.5}},
    {name='[red]', clients=1, runtime={kind='trace', seconds=[1, 2.5]}}],
    crashes=[{client=0, at=3}, {client=1, at=3, back=9}], slow=[{client=2, at=1, until=2}],
    available=[{client=3, windows=[[0, 5], [6, 7]], period=10}],
    faults=[{client=4, job=0, sends='nan'}, {client=4, job=0, sends='twice'}]}"""


def test_a_fleet_of_groups_with_everything_that_goes_wrong(small: Path) -> None:
    loaded = spec.load(small, ["fleet=" + FLEET.replace("\n", "")])
    fleet = loaded.build().fleet
    assert fleet is not None
    runtimes = [
        tg.Uniform(1, 2), tg.Integer(1, 2), tg.LogNormal(1, 0.5), tg.Exponential(2), tg.Pareto(1, 1.5),
        tg.Trace((1, 2.5)),
    ]  # fmt: skip
    assert [group.runtime for group in fleet.groups] == runtimes
    assert fleet.groups[0].link == tg.Link(latency=0.1, down=1e6)
    other = tg.Fleet(fleet.groups, server_time=0.1).crash(client=0, at=3).crash(client=1, at=3, back=9)
    other = other.slowed(client=2, at=1, until=2).during([(0, 5), (6, 7)], client=3, period=10)
    assert fleet == other.faulty(client=4, job=0, sends="nan").faulty(client=4, job=0, sends="twice")
    assert spec.parse(json.loads(json.dumps(loaded.resolved(), allow_nan=False))).build().fleet == fleet


def test_a_trace_is_found_beside_its_spec_and_kept_in_the_resolved_one(small: Path) -> None:
    rows = "\n".join(f"{client},{client + 1}.5,c{client % 2}" for client in range(8))
    small.with_name("times.csv").write_text(f"client,seconds,class\n{rows}\n")
    small.write_text(SMALL.replace('kind = "paper"', 'kind = "trace"\npath = "times.csv"'))
    loaded = spec.load(small)
    resolved = loaded.resolved()
    small.with_name("times.csv").unlink()
    assert resolved["fleet"]["kind"] == "groups"
    assert "times.csv" not in json.dumps(resolved)
    again = spec.parse(resolved).build().fleet
    assert again is not None
    assert again.classes == ("c0", "c1") * 4
    assert again.groups[2].runtime == tg.Trace((3.5,))


@pytest.mark.parametrize(
    "overrides",
    [["task.clients=", "fleet.clients=8"], ["fleet.clients=8"], []],
    ids=["in the fleet", "in both", "in the task"],
)
def test_clients_are_said_once_and_flow_to_the_other(overrides: list[str], small: Path) -> None:
    built = spec.load(small, overrides).build()
    assert built.fleet is not None
    assert (built.task.clients, built.fleet.clients) == (8, 8)


def test_threads_need_no_fleet(tmp_path: Path) -> None:
    path = tmp_path / "threads.toml"
    path.write_text(SMALL.replace('[fleet]\nkind = "paper"', '[engine]\nkind = "threads"\nworkers = 3'))
    loaded = spec.load(path)
    built = loaded.build()
    assert (built.fleet, loaded.resolved()["engine"]) == (None, {"kind": "threads", "workers": 3, "second": 0.0})
    with built.pool() as pool:
        assert isinstance(pool, tg.ThreadPool)


def test_overrides_are_toml_or_bare_words_and_the_last_one_wins(small: Path) -> None:
    resolved = tables(small, "method.mode=server", "method.mode='sync'", "task.noise.tail=1.2", "run.seed = 3")
    assert resolved["method"]["mode"] == "sync"
    assert resolved["task"]["noise"] == {"kind": "student", "tail": 1.2, "scale": 0.1}
    assert resolved["run"]["seed"] == 3


def test_an_override_may_change_the_kind_and_remove_what_the_new_one_lacks(small: Path) -> None:
    method = spec.load(small, ["method.kind=sgdclip", "method.clip=", "method.local_steps=", "method.local_epochs=1"])
    assert str(method.build().method) == "SGDClip (client-centric, M=2, K=1 epoch)"


def test_a_file_comes_before_a_shipped_spec_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits").mkdir()
    assert spec.load("digits").task.kind == "digits"
    Path("logistic").write_text(SMALL)
    assert spec.load("logistic").task.kind == "quadratic"


def test_the_folders_of_a_task_are_kept_as_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("specs/images", "images"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    images = SMALL.partition("[fleet]")[2]
    Path("specs/mine.toml").write_text(f'[task]\nkind = "cifar10"\nclients = 8\ndata = "images"\n[fleet]{images}')
    assert tables(Path("specs/mine.toml"))["task"]["data"] == str(tmp_path / "specs/images")
    resolved = tables(Path("specs/mine.toml"), "task.data=images")["task"]
    assert resolved["data"] == str(tmp_path / "images")
    Path("hub").mkdir()
    assert tables(Path("specs/mine.toml"), "task.data=hub")["task"]["data"] == "hub"
    Path("vit").mkdir()
    assert tables(Path("specs/mine.toml"), "task.model=vit")["task"]["model"] == "vit"  # a word, not a folder


def test_the_files_of_texts_and_text_models_are_kept_as_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("texts", "bert", "python"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    fresh = ["task.config=", "task.model=bert"]
    resolved = spec.load("causal_lm", [*fresh, "task.data=texts"]).resolved()["task"]
    assert (resolved["data"], resolved["model"]) == (str(tmp_path / "texts"), str(tmp_path / "bert"))
    resolved = spec.load("causal_lm", [*fresh, "task.model=OWNER/NAME"]).resolved()["task"]
    assert (resolved["data"], resolved["model"]) == ("python", "OWNER/NAME")
    Path("mine.txt").write_text("words")
    assert spec.load("lm", ["task.text=mine.txt"]).resolved()["task"]["text"] == str(tmp_path / "mine.txt")
    assert spec.load("lm").resolved()["task"]["text"] == "python"


@pytest.mark.parametrize("name", ["logistic", "quadratic"])
def test_a_shipped_spec_learns(name: str) -> None:
    method, task, fleet, _, length = spec.load(name, ["run.evaluate_every=0"]).build()
    assert fleet is not None
    run = tg.simulate(method, task, fleet, **length.settings())
    before, after = task.evaluate(task.init(0), None)["loss"], task.evaluate(run.x, None)["loss"]
    assert after < before / 2


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such shape"), r"in \[task\]: ValueError: no such shape \(test_spec.py, line \d+\)\."),
        (TypeError("an int is not iterable"), r"in \[task\]: TypeError: an int is not iterable \("),
        (KeyError("labels"), r"in \[task\]: KeyError: 'labels' \("),
        (RuntimeError("shapes differ"), r"in \[task\]: RuntimeError: shapes differ \("),
        (MemoryError("4 TB"), r"in \[task\]: not enough memory for these sizes \('4 TB'\)\. Use smaller values\."),
    ],
)
def test_an_error_of_a_constructor_is_reported_as_what_it_is(error: Exception, text: str) -> None:
    def make() -> None:
        raise error

    with pytest.raises(tg.Invalid, match=text):
        call(make, {}, "task")
