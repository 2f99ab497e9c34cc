"""Records: append-only, crash-safe, and clear about what went wrong."""

from __future__ import annotations

import json
import math
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors.torch import load_file

import tardygrad as tg
from tardygrad.runs import checkpoint
from tardygrad.runs.events import read_metrics
from tardygrad.runs.history import read_history
from tardygrad.runs.record import Record, read_json, read_lines, to_json_value, write_json
from tardygrad.runs.record import replace as replace_file

METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client")
FLEET = tg.Fleet.paper(clients=5).crash(client=1, at=4.0, back=9.0)


def task(dimension: int = 4) -> Any:
    return tg.tasks.quadratic(clients=5, dimension=dimension, heterogeneity=1.0)


def run_in(out: Path, **settings: Any) -> tg.Run:
    return tg.simulate(METHOD, task(), FLEET, **({"rounds": 20, "evaluate_every": 5, "out": out} | settings))


def test_a_record_tells_the_whole_story_in_order(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    events = list(read_lines(tmp_path / "run/events.jsonl"))
    kinds = [event["event"] for event in events]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert kinds.count("advance") == 20
    assert kinds.count("arrival") == 40 == run.summary().updates
    assert kinds.count("evaluation") == 4
    assert kinds.count("loss") == kinds.count("join") == 1 == run.summary().lost
    assert kinds.count("dispatch") == run.server.roster.sent
    arrival = next(event for event in events if event["event"] == "arrival")
    assert set(arrival) == {"event", "time", "client", "serial", "round", "delay", "steps", "loss"}
    advance = next(event for event in events if event["event"] == "advance")
    assert advance["delays"] == [1, 1]
    assert {"norm", "move", "norms", "clipped", "local_clipped", "snapshots"} <= set(advance)


def test_metrics_summary_spec_and_model_are_there_at_the_end(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    metrics = read_metrics(tmp_path / "run/events.jsonl")
    assert [row["round"] for row in metrics] == list(range(1, 21))
    assert [row["round"] for row in metrics if "test_loss" in row] == [5, 10, 15, 20]
    summary = read_json(tmp_path / "run/summary.json")
    assert summary["status"] == "finished"
    assert summary["loss"] == metrics[-1]["test_loss"]
    assert summary["delay_max"] == max(max(row["delays"]) for row in metrics)
    assert torch.equal(load_file(tmp_path / "run/model.safetensors")["x"], run.x)
    spec = read_json(tmp_path / "run/spec.json")
    assert spec["run"]["seed"] == 0
    assert spec["versions"]["torch"] == torch.__version__


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    run_in(tmp_path / "run")
    before = (tmp_path / "run/events.jsonl").read_bytes()
    with pytest.raises(tg.Invalid, match="already holds a run"):
        run_in(tmp_path / "run")
    assert (tmp_path / "run/events.jsonl").read_bytes() == before


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("hello")
    with pytest.raises(tg.Invalid, match="needs a directory"):
        run_in(tmp_path / "run")


def test_two_processes_cannot_write_one_record(tmp_path: Path) -> None:
    pool = tg.SimPool(task(), METHOD, FLEET)
    run = tg.begin(METHOD, task(), pool, rounds=20, out=tmp_path / "run")
    going = run.go()
    next(going)
    second = tg.resume(tmp_path / "run", METHOD, task(), tg.SimPool(task(), METHOD, FLEET))
    before = second.status
    with pytest.raises(tg.RecordError, match="in use by another process"):
        next(second.go())
    assert second.status == before
    going.close()


def test_a_torn_last_line_is_ignored_and_a_torn_line_in_the_middle_is_named(tmp_path: Path) -> None:
    run_in(tmp_path / "run")
    path = tmp_path / "run/events.jsonl"
    whole = path.read_bytes()
    lines = whole.count(b"\n")
    path.write_bytes(whole[:-10])
    assert len(list(read_lines(path))) == lines - 1
    path.write_bytes(whole[:-10] + b"\n" + whole)
    with pytest.raises(tg.RecordError, match=rf"line {lines} of .*events.jsonl' is damaged"):
        list(read_lines(path))


def test_a_record_shorter_than_its_checkpoint_is_called_damaged(tmp_path: Path) -> None:
    run_in(tmp_path / "run")
    (tmp_path / "run/events.jsonl").write_bytes(b"")
    with pytest.raises(tg.RecordError, match="its lines are not those of the checkpoint"):
        tg.resume(tmp_path / "run", METHOD, task(), tg.SimPool(task(), METHOD, FLEET), rounds=30)


def test_what_holds_no_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(tg.Invalid, match=r"holds no run: spec\.json cannot be read"):
        tg.resume(tmp_path, METHOD, task(), tg.SimPool(task(), METHOD, FLEET))
    (tmp_path / "sweep.json").touch()
    with pytest.raises(tg.Invalid, match=r"holds no run, but a sweep or a comparison\. Its report has the command"):
        read_history(tmp_path)


def test_numbers_that_are_not_finite_become_null() -> None:
    assert to_json_value({"a": [math.nan, (math.inf, 1.5)], 3: "NaN"}) == {"a": [None, [None, 1.5]], "3": "NaN"}
    json.dumps(to_json_value({"a": math.nan}), allow_nan=False)


def test_a_full_disk_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardygrad.runs.record.EVENTS", "/dev/full")  # writes to it fail
    with pytest.raises(tg.RecordError, match=r"No space left on device\. Free some space, or choose another"):
        run_in(tmp_path / "run", checkpoint_every=1)


def test_a_pipe_a_device_or_a_directory_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, kind in (("pipe", "a pipe, a socket or a device"), ("folder", "a directory")):
        with pytest.raises(tg.Invalid, match=rf"{name}' must be a file, and is {kind}\. Choose another name"):
            replace_file(tmp_path / name, b"new")
    with pytest.raises(tg.Invalid, match="cannot be a directory: File name too long"):
        replace_file(tmp_path / ("x" * 253), b"new")  # its draft has six letters more
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_in_place_of_the_events_is_not_written_through(tmp_path: Path) -> None:
    run_in(tmp_path / "run", rounds=4, checkpoint_every=2)
    events = (tmp_path / "run/events.jsonl").rename(tmp_path / "mine")
    (tmp_path / "run/events.jsonl").symlink_to(events)
    before = events.read_bytes()
    with pytest.raises(tg.RecordError, match="Too many levels of symbolic links"):
        list(tg.resume(tmp_path / "run", METHOD, task(), FLEET, rounds=8).go())
    assert events.read_bytes() == before


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "a.json", {"a": 1})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(tg.RecordError, match="No space left"):
        write_json(tmp_path / "a.json", {"a": 2})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_checkpoints_hold_each_model_once_and_no_pickle(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    newest = sorted((tmp_path / "run/checkpoints").iterdir())[-1]
    assert sorted(path.name for path in newest.iterdir()) == ["state.json", "tensors.safetensors"]
    saved = checkpoint.read(tmp_path / "run/checkpoints")
    assert saved is not None
    jobs = [job["$Job"] for job in saved.state["pending"]["$Pending"]["jobs"]]
    names = {job["x"]["$tensor"] for job in jobs} | {saved.state["server"]["x"]["$tensor"]}
    assert len(names) == len({job["round"] for job in jobs} | {saved.state["round"]})
    assert sum(len(tensor) == run.x.numel() for tensor in saved.tensors.values() if tensor.dim()) == len(names)


def test_a_record_that_cannot_be_made_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(tg.RecordError, match="cannot write to"):
        Record(tmp_path, {})


def test_a_record_stays_in_its_place_if_the_task_changes_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moving(type(task())):  # type: ignore[misc]
        def init(self, seed: int) -> Any:
            os.chdir("/")
            return super().init(seed)

        def evaluate(self, *args: Any) -> Any:
            os.chdir(tmp_path.parent)
            return super().evaluate(*args)

    monkeypatch.chdir(tmp_path)
    moving = task()
    moving.__class__ = Moving
    run = tg.simulate(METHOD, moving, FLEET, rounds=3, out="run")
    assert run.path == tmp_path / "run"
    assert (tmp_path / "run/model.safetensors").exists()


def test_the_docs_name_every_key_of_a_record(tmp_path: Path) -> None:
    fleet = tg.Fleet.paper(clients=8).crash(client=0, at=2.0, back=4.0)
    settings: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "buffer": 2, "local_steps": 2}
    method = tg.sgdclip(**settings, mode="client", max_delay=3)
    tg.simulate(method, tg.tasks.logistic(clients=8), fleet, rounds=40, out=tmp_path / "run")
    docs = (Path(__file__).parents[2] / "docs/records.md").read_text("utf-8")
    events = list(read_lines(tmp_path / "run/events.jsonl"))
    kinds = {row["event"] for row in events}
    assert kinds == {"dispatch", "arrival", "refusal", "loss", "join", "advance", "evaluation"}
    rows = [*events, *read_metrics(tmp_path / "run/events.jsonl"), read_json(tmp_path / "run/summary.json")]
    assert not {key for row in rows for key in [*row, *kinds] if f"`{key}`" not in docs} - {"accuracy"}


def test_events_follow_their_schema() -> None:
    root = Path(__file__).parents[2]
    schema = Draft202012Validator(read_json(root / "docs/events.schema.json"))
    recorded = sorted((root / "tests/recorded").rglob("events.jsonl"))
    assert recorded
    for path in recorded:
        for row in read_lines(path):
            schema.validate(row)
    advance = {"event": "advance", "time": 1.0, "round": 1}
    assert not schema.is_valid(advance)
    assert not schema.is_valid({"event": "wake", "time": 1.0, "client": 2, "round": "3"})


@pytest.mark.parametrize(("what", "checkpoint_every"), [("moved", 100), ("deleted", 1), ("replaced", 1)])
def test_a_run_whose_folder_is_moved_or_deleted_fails_and_creates_no_other(
    what: str, checkpoint_every: int, tmp_path: Path
) -> None:
    pool = tg.SimPool(task(), METHOD, FLEET)
    run = tg.begin(METHOD, task(), pool, rounds=30, out=tmp_path / "run", checkpoint_every=checkpoint_every)
    going = run.go()
    next(going)
    (tmp_path / "run").rename(tmp_path / "away")
    if what == "deleted":
        shutil.rmtree(tmp_path / "away")
    if what == "replaced":
        (tmp_path / "run").mkdir()
    with pytest.raises(tg.RecordError, match=r"run' was moved or deleted while it was written\. Resume the run where"):
        list(going)
    assert run.status == "failed"
    assert not list((tmp_path / "run").glob("*"))
    if what != "deleted":
        again = tg.resume(tmp_path / "away", METHOD, task(), tg.SimPool(task(), METHOD, FLEET))
        list(again.go())
        assert torch.equal(again.x, tg.simulate(METHOD, task(), FLEET, rounds=30).x)


def test_a_run_needs_a_folder_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tg.Invalid, match=r"`out` must be a directory, got ''\. Use out='\.'"):
        tg.simulate(METHOD, task(), FLEET, rounds=2, out="")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_a_kill_left_before_the_run_began_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/spec.json.draft").write_text("{")
    assert run_in(tmp_path / "run").status == "finished"


def test_a_kill_before_any_call_of_the_system_leaves_a_folder_to_begin_or_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first calls of a run, up to its first event."""

    class Killed(BaseException):
        pass

    calls = {Path: ["mkdir", "open", "replace"], os: ["fsync"]}
    for number in range(20):
        left = number

        def counted(call: Any) -> Any:
            def instead(*given: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return call(*given, **named)

            return instead

        path = tmp_path / str(number)
        going = tg.begin(METHOD, task(), tg.SimPool(task(), METHOD, FLEET), rounds=2, out=path).go()
        with monkeypatch.context() as patched:
            for where, names in calls.items():
                for name in names:
                    patched.setattr(where, name, counted(getattr(where, name)))
            try:
                next(going)
            except Killed:
                pass
            else:
                break  # it made its first round without such a call
        with suppress(tg.Invalid):
            assert run_in(path, rounds=2).status == "finished"
            continue
        again = tg.resume(path, METHOD, task(), tg.SimPool(task(), METHOD, FLEET))
        list(again.go())
        assert again.status == "finished"
    assert 3 < number < 19
