"""Sweeps from Python."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.report.build import build
from tardygrad.sweeps import read
from tardygrad.sweeps import runner as running
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad

TASK = tg.tasks.quadratic(clients=6, dimension=8, noise=tg.Noise(kind="student", tail=1.5, scale=0.2))
FLEET = tg.Fleet.paper(clients=6)


def method(lr: float = 1.0, **changes: Any) -> tg.Method:
    settings: dict[str, Any] = {"local_lr": 0.05, "local_clip": 1.0, "clip": 1.0, "buffer": 3, "local_steps": 3}
    return tg.clip2(lr=lr, **(settings | {"mode": "client"} | changes))


def make_run(lr: float, seed: int, local_lr: float = 0.05) -> tg.Run:
    return tg.begin(method(lr, local_lr=local_lr), TASK, FLEET, rounds=20, seed=seed)


def simulated(lr: float, seed: int, local_lr: float = 0.05) -> tg.Run:
    return tg.simulate(method(lr, local_lr=local_lr), TASK, FLEET, rounds=20, seed=seed)


def diverging(lr: float, seed: int) -> tg.Run:
    steps: dict[str, Any] = {"local_lr": 0.1, "local_clip": math.inf, "buffer": 3, "local_steps": 3, "mode": "client"}
    return tg.simulate(tg.sgdclip(lr=lr, **steps), TASK, FLEET, rounds=20, seed=seed)


def last_loss(run: tg.Run) -> float:
    loss = run.summary().loss
    assert loss is not None
    return loss


def test_a_sweep_scores_settings_as_runs_of_ones_own_would(tmp_path: Path, tardygrad: Command) -> None:
    found = tg.sweep(make_run, {"lr": [0.1, 1.0], "local_lr": np.array([0.01, 0.1])}, seeds=2, out=tmp_path / "sweep")
    ours = {
        (lr, local): np.mean([last_loss(simulated(lr, seed, local)) for seed in (0, 1)])
        for lr in (0.1, 1.0)
        for local in (0.01, 0.1)
    }
    assert {tuple(trial.params.values()): trial.value for trial in found.trials} == pytest.approx(ours)
    best = min(ours, key=lambda point: ours[point])
    assert found.best == {"lr": best[0], "local_lr": best[1]}
    assert found.best_value == pytest.approx(ours[best])
    assert found.run(seed=7).settings["seed"] == 7
    assert found.workable == sum(trial.workable is True for trial in found.trials) / 4
    frame = found.to_pandas()
    assert list(frame["lr"]) == [0.1, 0.1, 1.0, 1.0]
    assert f"lr={best[0]:g} local_lr={best[1]:g}" in str(found)
    assert "<td style='text-align: left'>make_run</td>" in found._repr_html_()

    shown = tardygrad("sweep", str(tmp_path / "sweep"))
    assert (shown.code, "make_run       4" in shown.out) == (0, True)
    page = build([str(tmp_path / "sweep")]).html()
    assert f"make_run(lr={best[0]}, local_lr={best[1]}, seed=0)" in page


def test_a_spec_is_swept_as_a_function_is(tmp_path: Path) -> None:
    def make_run(seed: int, **keys: Any) -> tg.Run:
        built = tg.load_spec("quadratic", [f"{key}={value}" for key, value in keys.items()]).build()
        assert built.fleet is not None
        return tg.begin(built.method, built.task, built.fleet, rounds=built.run.rounds, seed=seed)

    space = {"method.lr": [0.5, 1.0], "run.rounds": [3]}
    found = tg.sweep("quadratic", space, seeds=2, out=tmp_path / "out")
    assert [trial.value for trial in found.trials] == [
        trial.value for trial in tg.sweep(make_run, space, seeds=2).trials
    ]
    assert found.seeds == [0, 1]
    (best,) = [trial for trial in found.trials if trial.params == found.best]
    assert [*found.run(seed=1).go()][-1]["test_loss"] == best.seeds[1]["loss"]
    ranges = tg.sweep("quadratic", {"method.lr": {"low": 0.5, "high": 1.0, "log": True}}, trials=2, budget=1.0)
    assert len({trial.params["method.lr"] for trial in ranges.trials}) == 2
    with pytest.raises(tg.Invalid, match="the seeds of a spec are a number of them"):
        tg.sweep("quadratic", space, seeds=[3])


def test_a_sweep_of_a_partial_function_is_called_as_the_function() -> None:
    found = tg.sweep(partial(simulated, local_lr=0.1), {"lr": [0.1]})
    assert str(found).splitlines()[1].startswith("simulated ")


def test_a_sweep_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tardygrad: Command
) -> None:
    space, trials = {"lr": [0.1, 0.5, 1.0]}, running.Study.tell
    told: list[int] = []

    def interrupt(study: Any, trial: Any, result: Any) -> None:
        trials(study, trial, result)
        told.append(trial.number)
        if len(told) == 1:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    monkeypatch.setattr(running.Study, "tell", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^stopped after 1 of 3 trials\. The same call continues\.$"):
        tg.sweep(make_run, space, out=tmp_path / "sweep")
    assert [trial.status for trial in read(tmp_path / "sweep").trials] == ["finished"]
    shown = tardygrad("sweep", str(tmp_path / "sweep"))
    assert (shown.code, "1 of 3 trials so far" in shown.out) == (0, True)
    assert "2 trials to go; it was started in Python, so continue it there: tardygrad.sweep(make_run, " in shown.err
    found = tg.sweep(make_run, space, out=tmp_path / "sweep")
    assert told == [0, 1, 2]
    assert [trial.value for trial in found.trials] == [trial.value for trial in tg.sweep(make_run, space).trials]
    with pytest.raises(tg.Invalid, match=r"has other settings: `run\.seeds` is \[0\] there, got \[0, 1\]"):
        tg.sweep(make_run, space, seeds=2, out=tmp_path / "sweep")


def test_a_notebook_shows_the_progress_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    found = tg.sweep(make_run, {"lr": [0.1, 1.0]})
    first, last = capsys.readouterr().err.split("\r")[1:]
    assert re.fullmatch(r"trial 1/2  best \S+  \S+/\w+  0:\d\d:\d\d left +", first)
    assert re.fullmatch(rf"trial 2/2  best {found.best_value:.4g}  \S+/\w+  0:00:00 left +\n", last)


def test_ranges_are_sampled_and_budgets_and_targets_end_runs() -> None:
    drawn = tg.sweep(make_run, {"lr": {"low": 0.1, "high": 2.0, "log": True}}, trials=3, budget=10.0)
    assert len({trial.params["lr"] for trial in drawn.trials}) == 3
    assert all(trial.time is not None and trial.time <= 10.0 for trial in drawn.trials)
    same = tg.simulate(method(drawn.best["lr"]), TASK, FLEET, until=10.0)
    assert drawn.best_value == pytest.approx(last_loss(same))
    found = tg.sweep(make_run, {"lr": [0.001, 1.0]}, target=1.0)
    assert [trial.value is None for trial in found.trials] == [True, False]
    assert found.best == {"lr": 1.0}


def test_runs_that_have_ended_are_scored_too_and_divergence_is_a_result() -> None:
    ended, begun = (tg.sweep(make, {"lr": [0.1, 1.0]}, seeds=2) for make in (simulated, make_run))
    assert [trial.value for trial in ended.trials] == [trial.value for trial in begun.trials]
    short = tg.sweep(simulated, {"lr": [1.0]}, budget=15.0)
    assert short.trials[0].time is not None
    assert short.trials[0].time <= 15.0
    mixed = tg.sweep(diverging, {"lr": [1e39, 0.1]})
    assert [trial.status for trial in mixed.trials] == ["diverged", "finished"]
    assert mixed.best == {"lr": 0.1}


def unseeded(lr: float, seed: int) -> tg.Run:
    return make_run(lr, 0)


def unevaluated(lr: float, seed: int) -> tg.Run:
    return tg.begin(method(lr), TASK, FLEET, rounds=2, seed=seed, evaluate_every=0)


@pytest.mark.parametrize(
    ("make", "space", "changes", "message"),
    [
        (make_run, {}, {}, "`space` must be a dict such as"),
        (make_run, {"lr": 0.1}, {}, '`lr` needs a list, a range, or a dict with low and high, got 0.1. Use "lr":'),
        (make_run, {"lr": [0.1, 0.1]}, {}, "`lr` needs one or more different values"),
        (make_run, {"lr": [print]}, {}, "must be numbers, text, lists or dicts, which a file can hold, got builtin"),
        (make_run, {"lr": range(10**9)}, {}, "`lr` must have at most 10,000 values, got more"),
        (make_run, {"lr": [0.1]}, {"seeds": range(10**9)}, "`seeds` must have at most 10,000 values"),
        (make_run, {"lr": [0.1]}, {"seeds": 10**9}, "`seeds` must be a whole number from 1 to 10,000, got 1000000000"),
        (make_run, {"rate": [0.1]}, {}, r"the sweep calls make_run\(rate=..., seed=...\), but: missing a required"),
        (make_run, {"seed": [1]}, {}, "`seed` is not a setting to sweep"),
        (make_run, {"lr": [0.1]}, {"seeds": [1, 1]}, "`seeds` must be a number, or one or more different seeds"),
        (make_run, {"lr": [0.1]}, {"target": 0.5, "best": "loss"}, "with a target, the best settings are those"),
        (make_run, {"lr": [0.1]}, {"best": "accuracy"}, "`best` must be a test score of the task, one of"),
        (make_run, {"lr": [0.1]}, {"target": 1e6}, "x_0 already has a test loss of"),
        (lambda lr, seed: None, {"lr": [0.1]}, {}, "the function must return a run, .* got NoneType"),
        (unseeded, {"lr": [0.1]}, {"seeds": [3]}, "must pass its argument `seed` on to the run, got 3 and"),
        (unevaluated, {"lr": [0.1]}, {}, "got one with evaluate_every=0"),
        (make_run, {"lr": [0.1]}, {"target": "0.5"}, "`target` must be a number or None, got '0.5'"),
    ],
)
def test_a_wrong_sweep_is_refused(make: Any, space: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tg.Invalid, match=message):
        tg.sweep(make, space, **changes)


def broken(lr: float, seed: int) -> tg.Run:
    if lr > 0.1 or seed > 0:
        raise RuntimeError("out of cheese")
    return make_run(lr, seed)


def leaving(lr: float, seed: int) -> tg.Run:
    if lr > 0.1:
        raise SystemExit(3)
    return make_run(lr, seed)


def test_an_error_in_one_setting_is_a_failed_trial_and_in_all_an_error() -> None:
    for function, jobs, reason in ((broken, 1, "RuntimeError: out of cheese"), (leaving, 2, "SystemExit: 3")):
        good, bad = tg.sweep(function, {"lr": [0.1, 1.0]}, jobs=jobs).trials
        assert (good.status, good.reason, bad.status, bad.reason) == ("finished", None, "failed", reason)
    with pytest.raises(tg.WorkFailed, match="every trial failed, the first with: RuntimeError: out of cheese"):
        tg.sweep(broken, {"lr": [0.1]}, seeds=2)


@pytest.mark.parametrize("end", [tg.begin, tg.simulate])
def test_the_results_of_a_function_that_has_changed_are_refused(tmp_path: Path, end: Any) -> None:
    def function(local_steps: int = 3, rounds: int = 4, noise: float = 0.2) -> Any:
        task = tg.tasks.quadratic(clients=6, dimension=8, noise=tg.Noise(kind="student", tail=1.5, scale=noise))
        return lambda lr, seed: end(method(lr, local_steps=local_steps), task, FLEET, rounds=rounds, seed=seed)

    def sweep(make: Any) -> Any:
        return tg.sweep(make, {"lr": [0.1, 1.0]}, out=tmp_path / "sweep").best_value

    def compare(make: Any) -> Any:
        return tg.compare({"a": partial(simulated, 0.1), "b": partial(make, 1.0)}, seeds=2, out=tmp_path / "compared")

    first, compared = sweep(function()), str(compare(function()))
    assert (sweep(function()), str(compare(function()))) == (first, compared)
    changes: dict[str, Any] = {"method.local_steps": {"local_steps": 5}, "run.rounds": {"rounds": 9}}
    for key, change in (changes | {"task.noise": {"noise": 0.3}}).items():
        for call in (sweep, compare):
            rule = rf"has results of other runs: `{key}` of trial \d is .* there, got .*\. Choose another folder"
            with pytest.raises(tg.Invalid, match=rule):
                call(function(**change))


@pytest.mark.parametrize("change", ["batch", "data", "schedule"])
def test_stored_results_of_a_function_that_computes_something_else_now_are_refused(change: str, tmp_path: Path) -> None:
    """Nothing that a spec could hold differs, nor does the score of x_0."""

    def function(changed: bool) -> Callable[..., tg.Run]:
        def make(*, lr: float, seed: int) -> tg.Run:
            x = torch.linspace(-1, 1, 64).reshape(32, 2)
            rows = (x * (1 + (changed and change == "data")), (x[:, 0] > 0).long())
            power = 0.5 if changed and change == "schedule" else 0.25
            task = tg.TorchTask(
                lambda: torch.nn.Linear(2, 2), data=tg.shard(rows, clients=4), loss=torch.nn.functional.cross_entropy,
                test=(x, rows[1]), batch_size=3 if changed and change == "batch" else 4,
            )  # fmt: skip
            rates = [lr * t**-power for t in range(1, 9)]  # ends after some rounds
            method = tg.fedbuff(local_lr=lambda t: rates[t - 1], lr=1.0, buffer=2, local_steps=2, mode="client")
            return tg.begin(method, task, tg.Fleet.paper(clients=4), rounds=2, seed=seed)

        return make

    space = {"lr": [0.1]}
    stored = tg.sweep(function(False), space, out=tmp_path / "sweep")
    assert tg.sweep(function(False), space, out=tmp_path / "sweep").trials == stored.trials
    with pytest.raises(tg.Invalid, match="has results of other runs"):
        tg.sweep(function(True), space, out=tmp_path / "sweep")
