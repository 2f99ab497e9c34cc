"""Tracking: every tracker holds each round once, whatever happened to the run, and the run does not notice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import tardygrad as tg
from tardygrad.runs import track
from tardygrad.runs.record import read_lines
from tardygrad.spec import spec

ROUNDS = 25
TASK = tg.tasks.quadratic(clients=8, dimension=20, heterogeneity=1.0)
METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=3, mode="client")


def pool() -> tg.SimPool:
    return tg.SimPool(TASK, METHOD, tg.Fleet.paper(clients=8))


def begun(out: Path | None, **how: Any) -> tg.Run:
    return tg.begin(METHOD, TASK, pool(), **({"rounds": ROUNDS, "out": out} | how))


def finish(run: tg.Run, *names: str) -> tg.Run:
    for _ in track.tracked(run, names):
        pass
    return run


def killed_and_resumed(tmp_path: Path, *names: str) -> tg.Run:
    """A run whose process died seven rounds after its last checkpoint: its directory, as it was then, goes on."""
    run = begun(tmp_path / "first")
    for row in track.tracked(run, names):
        if row["round"] == 17:
            shutil.copytree(tmp_path / "first", tmp_path / "run")
    again = tg.resume(tmp_path / "run", METHOD, TASK, pool())
    assert again.server.round == 10
    return finish(again, *names)


class Seen:
    """A tracker that remembers, and raises where it is told to."""

    def __init__(self, folder: Path, config: Any, *, fail: str = "") -> None:
        self.fail, self.config = fail, config
        self.rounds: list[int] = []
        self.points: list[dict[str, float]] = []
        self.summary: Any = None
        if fail == "begin":
            raise RuntimeError("no\nnetwork")

    def log(self, round: int, scalars: dict[str, float]) -> None:
        if self.fail == "log" and round == 3:
            raise RuntimeError("no\nnetwork")
        self.rounds.append(round)
        self.points.append(scalars)

    def finish(self, summary: Any) -> None:
        if self.fail == "finish":
            raise RuntimeError("no\nnetwork")
        self.summary = summary


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Seen]]:
    """Put a `Seen` in the place of TensorBoard; those that were made."""

    def put(fail: str = "") -> list[Seen]:
        made: list[Seen] = []

        def make(folder: Path, config: Any) -> Seen:
            made.append(Seen(folder, config, fail=fail))
            return made[-1]

        monkeypatch.setitem(track.TRACKERS, "tensorboard", make)
        return made

    return put


def test_a_tracker_is_sent_the_numbers_of_every_round_the_config_and_the_summary(tmp_path: Path, seen: Any) -> None:
    made = seen()
    run = finish(begun(tmp_path / "run"), "tensorboard")
    (one,) = made
    assert one.rounds == list(range(1, ROUNDS + 1))
    assert {"time", "loss", "steps", "delay_mean", "delay_max", "clipped", "local_clipped", "norm", "move"} == set(
        one.points[0]
    )
    assert {"test_loss", "test_distance"} <= set(one.points[9])
    assert one.points[-1]["steps"] == run.summary().local_steps
    assert one.points[4]["delay_mean"] == sum(run.metrics[4]["delays"]) / 2
    assert one.config["method"]["kind"] == "clip2"
    assert one.summary["status"] == "finished"


def test_what_is_not_finite_is_not_sent() -> None:
    row = {"time": 1.0, "loss": float("nan"), "norm": None, "delays": [1, 3], "steps": 4, "round": 1}
    assert track.scalars(row, 9) == {"time": 1.0, "steps": 9, "delay_mean": 2.0, "delay_max": 3}


def test_the_bits_of_a_run_do_not_change_with_tracking(tmp_path: Path) -> None:
    plain = begun(tmp_path / "plain")
    for _ in plain.go():
        pass
    shown = finish(begun(tmp_path / "shown"), "tensorboard")
    assert torch.equal(plain.x, shown.x)
    events = [tmp_path / one / "events.jsonl" for one in ("plain", "shown")]
    first, second = ([{**row, "seconds": 0} for row in read_lines(path)] for path in events)
    assert first == second


@pytest.mark.parametrize("where", ["begin", "log", "finish"])
def test_a_tracker_that_fails_is_left_out_with_one_line(
    where: str, tmp_path: Path, seen: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = seen(where)
    run = finish(begun(tmp_path / "run"), "tensorboard")
    assert run.status == "finished"
    assert (tmp_path / "run/summary.json").exists()
    assert (
        capsys.readouterr().err == "warning: tensorboard failed and gets no more metrics (RuntimeError: no network)\n"
    )
    assert [one.rounds for one in made] == {"begin": [], "log": [[1, 2]]}.get(where, [list(range(1, ROUNDS + 1))])


def test_a_loop_that_ends_early_is_a_run_that_was_stopped_and_a_resumed_one_sends_all_of_it(
    tmp_path: Path, seen: Any
) -> None:
    made = seen()
    rows: Any = track.tracked(begun(tmp_path / "run"), ["tensorboard"])
    for row in rows:
        if row["round"] == 4:
            break
    rows.close()
    assert (made[0].summary["status"], made[0].rounds) == ("stopped", [1, 2, 3, 4])
    for _ in range(2):  # the second time, it has finished before
        finish(tg.resume(tmp_path / "run", METHOD, TASK, pool()), "tensorboard")
        assert made[-1].rounds == list(range(1, ROUNDS + 1))


def test_nothing_is_written_for_a_run_that_may_not_begin(tmp_path: Path, seen: Any) -> None:
    made = seen()
    run = begun(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/spec.json").write_text("{}")
    with pytest.raises(tg.Invalid, match="already holds a run"):
        finish(run, "tensorboard")
    assert not made
    assert not (tmp_path / "run/track").exists()


def test_bad_names_missing_packages_and_missing_records_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "run")
    with pytest.raises(
        tg.Invalid, match=r"one of tensorboard, wandb, trackio, mlflow, got 'wandby'. Did you mean 'wandb'"
    ):
        track.tracked(run, ["wandby"])
    with pytest.raises(tg.Invalid, match=r"a list of names, got 'mlflow'. Use \['mlflow'\]."):
        track.tracked(run, "mlflow")
    with pytest.raises(tg.Invalid, match="needs a run with a record"):
        track.tracked(begun(None), ["tensorboard"])
    for found in (None, ModuleSpec("mlflow", None)):  # the second is a mere folder of that name
        monkeypatch.setattr(track, "find_spec", {"mlflow": found}.get)
        with pytest.raises(tg.Invalid, match=r"not installed. Use pip install -c constraints.txt -e '.\[mlflow\]'."):
            track.tracked(run, ["mlflow"])
    assert not (tmp_path / "run").exists()


def test_a_spec_knows_the_same_trackers() -> None:
    words = get_args(get_args(spec.parameters(spec.RunTable)["track"].annotation)[0])
    assert list(words) == list(track.TRACKERS)
    asked = spec.load("quadratic", ['run.track=["mlflow", "wandb"]'])
    assert asked.run.track == ("mlflow", "wandb")
    assert spec.load("quadratic", ["run.track=mlflow"]).run.track == ("mlflow",)
    with pytest.raises(tg.Invalid, match=r"must be one of tensorboard, .*, got 'mlflo'\. Did you mean 'mlflow'\?"):
        spec.load("quadratic", ["run.track=mlflo"])
    assert spec.parse(asked.resolved()) == spec.parse(json.loads(json.dumps(asked.resolved())))


def test_tensorboard_holds_every_round_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = killed_and_resumed(tmp_path, "tensorboard")
    read = EventAccumulator(str(tmp_path / "run/track/tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    points = read.Scalars("loss")
    assert [point.step for point in points] == list(range(1, ROUNDS + 1))
    assert [point.value for point in points] == pytest.approx([row["loss"] for row in run.metrics], rel=1e-6)
    assert [point.step for point in read.Scalars("test_loss")] == [10, 20, 25]
    assert [point.value for point in read.Scalars("summary/rounds")] == [ROUNDS]
    assert "spec/text_summary" in read.Tags()["tensors"]


def test_mlflow_holds_every_round_of_a_resumed_run_once(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow")
    run = killed_and_resumed(tmp_path, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run/track/mlflow/mlflow.db'}")
    one = client.search_runs([client.get_experiment_by_name("tardygrad").experiment_id])[0]  # the newest
    points = sorted(client.get_metric_history(one.info.run_id, "loss"), key=lambda point: point.step)
    assert [(point.step, point.value) for point in points] == [(row["round"], row["loss"]) for row in run.metrics]
    assert one.data.params["run.rounds"] == str(ROUNDS)
    assert (one.info.status, one.data.metrics["summary/rounds"]) == ("FINISHED", ROUNDS)


def test_wandb_keeps_files_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    killed_and_resumed(tmp_path, "wandb")
    assert list((tmp_path / "run/track/wandb").glob("offline-run-*/*.wandb"))


def test_trackio_holds_every_round_of_a_resumed_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="is no part of the extra dev")
    run = killed_and_resumed(tmp_path, "trackio")
    (name,) = (name for name in trackio.SQLiteStorage.get_runs("tardygrad") if name.startswith("run-"))
    points = [row for row in trackio.SQLiteStorage.get_logs("tardygrad", name) if "loss" in row]
    assert [(row["step"], row["loss"]) for row in points] == [(row["round"], row["loss"]) for row in run.metrics]
