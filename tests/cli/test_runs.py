"""run, resume and replay: what they print, what they write, what they return."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tardygrad.cli.run import recorded_spec
from tardygrad.core.messages import Job, Update
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.contract import perform
from tardygrad.errors import Invalid, WorkFailed
from tardygrad.runs.record import read_json, write_json
from tardygrad.runs.resume import resume
from tardygrad.spec.spec import load
from tardygrad.tasks.clock import Clock
from tests.cli.conftest import Command, Result
from tests.records import without_checks

DIVERGING = ["method={kind='sgdclip', local_lr=10.0, local_clip=inf, lr=3e38, buffer=2, local_steps=3, mode='client'}"]
STARVING = ["fleet.crashes=[{client=0, at=3}, {client=1, at=3}]", "task.clients=2", "run.rounds=100"]


def test_run_prints_a_summary_and_leaves_a_record(tardygrad: Command) -> None:
    code, out, err = tardygrad("run", "small.toml")
    assert code == 0
    assert out.splitlines()[:2] == ["Clip² (client-centric, M=2, K=3)", "finished after 12 rounds, 8 s on the clock"]
    first, second = err.splitlines()
    assert first == "Clip² (client-centric, M=2, K=3) on quadratic, recording in runs/small-1"
    assert second.startswith("memory: ")
    assert {path.name for path in Path("runs/small-1").iterdir()} >= {"spec.json", "events.jsonl", "model.safetensors"}


def test_runs_are_numbered_and_never_overwritten(tardygrad: Command) -> None:
    for number in (1, 2, 3):
        assert tardygrad("run", "small.toml", "--json").json["out"] == f"runs/small-{number}"
    before = Path("runs/small-1/events.jsonl").read_bytes()
    code, out, err = tardygrad("run", "small.toml", "--out", "runs/small-1")
    assert (code, out) == (2, "")
    assert err.startswith("error: the directory 'runs/small-1' already holds a run.")
    assert Path("runs/small-1/events.jsonl").read_bytes() == before


def test_the_record_holds_the_resolved_spec_and_the_threads_of_torch(tardygrad: Command) -> None:
    before = torch.get_num_threads()
    tardygrad("run", "small.toml", "method.clip=inf", "run.threads=2", "--out", "here")
    recorded = json.loads(Path("here/spec.json").read_text())
    assert recorded["spec"]["method"]["clip"] == "inf"
    assert recorded["spec"]["run"]["threads"] == 2
    assert recorded["versions"]["threads"] == "2"
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("word", "how"), [("starved", STARVING), ("diverged", DIVERGING)])
def test_a_status_is_one_word_and_the_reason_stands_beside_it(word: str, how: list[str], tardygrad: Command) -> None:
    code, _, err = tardygrad("run", "small.toml", *how, "--out", "here")
    summary = json.loads(Path("here/summary.json").read_text())
    assert (code, summary["status"]) == (1, word)
    assert err.splitlines()[-1] == f"error: {summary['reason']}"


def test_a_recorded_run_is_a_spec(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "method.buffer=3", "run.seed=4", "--out", "here")
    again = tardygrad("run", "here", "--json").json
    assert again["out"] == "runs/here-1"
    assert Path("runs/here-1/model.safetensors").read_bytes() == Path("here/model.safetensors").read_bytes()
    numbered = tardygrad("run", "runs/here-1", "run.seed=5", "--json").json
    assert numbered["out"] == "runs/here-2"
    assert json.loads(Path("runs/here-2/spec.json").read_text())["spec"]["run"]["seed"] == 5


def test_a_run_begun_in_python_is_no_spec(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "-o", "here")
    write_json(Path("here/spec.json"), read_json(Path("here/spec.json")) | {"spec": None})
    Path("there").mkdir()
    Path("here").rename("there/whole")
    for verb in ("run", "tail", "plan"):
        code, _, err = tardygrad(verb, "there/whole")
        assert (code, err.count("\n")) == (2, 1)
        assert "and the one in 'there/whole' was started in Python, and it has no spec" in err


def test_too_little_memory_is_said_before_anything_is_written(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    before = Path("here/events.jsonl").read_bytes()
    peak = tardygrad("plan", "small.toml", "--json").json["memory"]["peak"]
    for argv in (["run", "small.toml", "--out", "there"], ["resume", "here", "run.rounds=30"], ["plan", "small.toml"]):
        code, out, err = tardygrad(*argv, "--max-memory", "0.1KB")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: the vectors of this run must fit in 100 B, got ")
        assert " = model 160 B + " in err
    assert not Path("there").exists()
    assert Path("here/events.jsonl").read_bytes() == before
    assert tardygrad("run", "small.toml", "--max-memory", str(peak)).code == 0
    assert tardygrad("run", "small.toml", "--max-memory", str(peak - 1)).code == 2
    assert "an amount of memory must be" in tardygrad("run", "small.toml", "--max-memory", "much").err


def test_a_longer_run_is_a_resumed_one(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "run.rounds=30", "--out", "whole")
    tardygrad("run", "small.toml", "--out", "parts")
    result = tardygrad("resume", "parts", "run.rounds=30", "--json")
    assert (result.code, result.json["rounds"], result.json["updates"]) == (0, 30, 60)
    assert Path("parts/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    recorded = json.loads(Path("parts/spec.json").read_text())
    assert recorded["run"]["rounds"] == recorded["spec"]["run"]["rounds"] == 30


ONE_GROUP = "fleet={kind='groups', groups=[{name='a', clients=8, runtime={kind='uniform', low=1, high=2}}]}"


@pytest.mark.parametrize(
    "fleet",
    [
        ["fleet={kind='trace', path='times.csv'}"],
        [ONE_GROUP, "fleet.link={down=1e3, up=500, sigma=0.3}"],
        [ONE_GROUP, "fleet.diurnal={period=10, awake=0.5}", "fleet.at_window_end=cancel"],
        [ONE_GROUP, "fleet.available=[{client='3', windows=[[0, 4]], period=9}]"],
    ],
    ids=["trace", "link", "diurnal", "named"],
)
def test_a_run_on_any_fleet_can_be_resumed(fleet: list[str], tardygrad: Command) -> None:
    """The record has the fleet as its spec says it, and the engine has it by the numbers of the task's clients."""
    Path("times.csv").write_text(
        "client,seconds\n" + "".join(f"{client},{1 + client}\n" for client in range(7, -1, -1))
    )
    tardygrad("run", "small.toml", *fleet, "run.rounds=20", "--out", "whole")
    tardygrad("run", "small.toml", *fleet, "--out", "parts")
    resumed = tardygrad("resume", "parts", "run.rounds=20")
    assert resumed.code == 0, resumed.err
    assert Path("parts/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    built = load("parts").build()
    assert built.fleet is not None
    other = replace(built.fleet, groups=(*built.fleet.groups[:-1], replace(built.fleet.groups[-1], dropout=0.1)))
    with pytest.raises(
        Invalid, match=r"the fleet must be that of the run in 'parts', whose `groups\[\d\]\.dropout` is"
    ):
        resume("parts", built.method, built.task, other, rounds=30)


@pytest.mark.parametrize(
    ("argv", "fragment"),
    [
        (["here", "run.rounds=5"], "must be at least the rounds already made (12), got 5."),
        (["here", "method.lr=5"], "may only change run.rounds, run.until or run.track, got 'method.lr=5'."),
        (["nowhere"], "there is no run directory 'nowhere'."),
    ],
)
def test_what_cannot_be_resumed_is_one_line(argv: list[str], fragment: str, tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    code, out, err = tardygrad("resume", *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert fragment in err


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
    without_checks("here")
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
    assert err == "error: a replay needs a run that has ended, got 'here'. Continue it with: tardygrad resume here\n"


def test_resuming_a_finished_run_says_that_it_is(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tardygrad("run", "small.toml", "--out", "here")
    said = "the run in here has finished its 12 rounds; add run.rounds=N for more\n"
    monkeypatch.setattr("tardygrad.spec.spec.Spec.build", None)  # nothing is made for it
    assert tardygrad("resume", "here") == Result(0, first.out, said)
    assert tardygrad("resume", "here", "run.rounds=12") == Result(0, first.out, said)


def test_a_run_is_tracked_if_its_spec_says_so(tardygrad: Command) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard")
    result = tardygrad("run", "small.toml", 'run.track=["tensorboard"]', "--out", "here", "--json")
    assert (result.code, result.json["status"]) == (0, "finished")
    assert len(result.err.splitlines()) == 2
    assert json.loads(Path("here/spec.json").read_text())["spec"]["run"]["track"] == ["tensorboard"]
    assert list(Path("here/track/tensorboard").iterdir())
    assert tardygrad("replay", "here").out == "the same bits after 12 rounds\n"


def test_more_clients_than_workers_are_told_how_to_wait_less(tardygrad: Command) -> None:
    common = ("run", "quadratic", "run.rounds=2", "run.evaluate_every=0", "engine.kind=threads", "engine.workers=1")
    for mode, advised in (("client", 1), ("server", 4)):
        code, _, err = tardygrad(*common, f"method.mode={mode}")
        assert code == 0
        fix = f"method.concurrency={advised} method.dispatch=random"
        said = "40 clients share 1 worker: jobs wait, and updates get stale. To dispatch only to free workers"
        assert f"{said}: {fix}" in err


def test_on_a_cluster_a_resumed_run_may_have_other_workers_and_nothing_else() -> None:
    tables = load("quadratic", ["engine.kind=ray", "engine.workers=3"]).resolved()
    recorded = {"spec": tables, "run": tables["run"], "versions": {}}
    changed = recorded_spec("here", recorded, ["engine.workers=5", "engine.address="], trust=False)
    assert changed.engine.arguments["workers"] == 5
    changed = recorded_spec("here", recorded, ["engine.place={3 = 'a'}", "engine.place.4=b"], trust=False)
    assert changed.engine.arguments["place"] == {"3": "a", "4": "b"}
    with pytest.raises(Invalid, match=r"engine.gpus_per_worker or engine.place, got 'engine.wire=int8'"):
        recorded_spec("here", recorded, ["engine.wire=int8"], trust=False)


def test_a_run_whose_work_fails_says_how_to_go_on(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Job, task: Task, method: Method) -> Update:
        if isinstance(task, Clock):  # what it will take is foreseen
            return perform(job, task, method)
        raise WorkFailed(f"the work of client {job.client} failed: out of cheese.")

    with monkeypatch.context() as patch:
        patch.setattr("tardygrad.engines.sim.pool.perform", fail)
        code, out, err = tardygrad("run", "small.toml", "--out", "here")
    assert (code, out) == (1, "")
    assert err.endswith("failed: out of cheese. Continue with: tardygrad resume here\n")
    assert tardygrad("resume", "here").code == 0


def test_a_run_that_begins_with_sleepers_is_replayed_to_the_same_bits(tardygrad: Command) -> None:
    days = ["fleet.diurnal={period=50, awake=0.4, spread=0.3}", "fleet.at_window_end=cancel"]
    assert tardygrad("run", "small.toml", *days, "--out", "days").code == 0
    assert '"event":"sleep","time":0.0' in Path("days/events.jsonl").read_text("utf-8")
    assert tardygrad("replay", "days").out.startswith("the same bits after ")


def test_too_little_memory_is_not_blamed_on_the_disk(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tardygrad.runs.checkpoint.save_file", full)
    code, _, err = tardygrad("run", "small.toml")
    assert (code, "not enough memory (MemoryError). Use a smaller model" in err.replace("\n", " ")) == (1, True), err


def test_what_an_engine_cannot_do_is_refused_before_it_starts(
    tardygrad: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("tardygrad.engines.ray.session.Session.open", lambda *_: pytest.fail("Ray is started"))
    given = ("task.kind=digits", "task.dimension=", "task.noise=", "run.evaluate_clients=1")
    code, _, err = tardygrad("run", "small.toml", *given, "engine.kind=ray")
    assert (code, "`evaluate_clients` cannot read training data" in err.replace("\n", " ")) == (2, True), err
