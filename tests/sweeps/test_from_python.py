"""Sweeps and comparisons from Python."""

from __future__ import annotations

import json
import math
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tardygrad as tg
from tardygrad.report.build import build
from tardygrad.sweeps import read
from tardygrad.sweeps import runner as running
from tardygrad.sweeps.comparison import Comparison, Contender, SeedResult
from tardygrad.sweeps.statistics import estimate, holm, paired_p
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
    assert "<td>make_run</td>" in found._repr_html_()

    shown = tardygrad("sweep", str(tmp_path / "sweep"))
    assert (shown.code, "make_run     4/4" in shown.out) == (0, True)
    page = build([str(tmp_path / "sweep")]).html()
    assert f"make_run(lr={best[0]}, local_lr={best[1]}, seed=0)" in page


def test_a_sweep_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tardygrad: Command
) -> None:
    space, trials = {"lr": [0.1, 0.5, 1.0]}, running.Study.tell
    told: list[int] = []

    def interrupt(study: Any, trial: Any, result: Any) -> None:
        trials(study, trial, result)
        told.append(trial.number)
        if len(told) == 1:
            raise KeyboardInterrupt  # as Ctrl-C does

    monkeypatch.setattr(running.Study, "tell", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tg.sweep(make_run, space, out=tmp_path / "sweep")
    assert [trial.state for trial in read(tmp_path / "sweep").trials] == ["finished", "waiting", "waiting"]
    shown = tardygrad("sweep", str(tmp_path / "sweep"))
    assert (shown.code, "1/3" in shown.out) == (0, True)
    assert "2 trials to go; it was started in Python, so continue it there: tardygrad.sweep(make_run, " in shown.err
    found = tg.sweep(make_run, space, out=tmp_path / "sweep")
    assert told == [0, 1, 2]
    assert [trial.value for trial in found.trials] == [trial.value for trial in tg.sweep(make_run, space).trials]
    with pytest.raises(tg.Invalid, match=r"has other settings: `run\.seeds` is \[0\] there, got \[0, 1\]"):
        tg.sweep(make_run, space, seeds=2, out=tmp_path / "sweep")


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
    mixed = tg.sweep(diverging, {"lr": [1e38, 0.1]})
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
        (make_run, {"lr": count()}, {}, "`lr` must have at most 10,000 values, got more"),
        (make_run, {"lr": [0.1]}, {"seeds": range(10**9)}, "`seeds` must have at most 10,000 values"),
        (make_run, {"lr": [0.1]}, {"seeds": 10**9}, "`seeds` must be a whole number from 1 to 10,000, got 1000000000"),
        (make_run, {"rate": [0.1]}, {}, r"the sweep calls make_run\(rate=..., seed=...\), but: missing a required"),
        (make_run, {"seed": [1]}, {}, "`seed` is not a setting to sweep"),
        (make_run, {"lr": [0.1]}, {"seeds": [1, 1]}, "`seeds` must be a number, or one or more different seeds"),
        (make_run, {"lr": [0.1]}, {"target": 0.5, "best": "loss"}, "with a target, the best settings are those"),
        (make_run, {"lr": [0.1]}, {"best": "accuracy"}, "needs a task that has one. Use best='loss'"),
        (make_run, {"lr": [0.1]}, {"target": 1e6}, "x_0 already has a test loss of"),
        (lambda lr, seed: None, {"lr": [0.1]}, {}, "the function must return a run, .* got NoneType"),
        (
            unseeded,
            {"lr": [0.1]},
            {"seeds": [3]},
            "must pass its argument `seed` on to the run, got 3 and",
        ),
        (unevaluated, {"lr": [0.1]}, {}, "got one with evaluate_every=0"),
        (make_run, {"lr": [0.1]}, {"trails": 3}, "sweep has no argument `trails`. Did you mean 'trials'"),
    ],
)
def test_a_wrong_sweep_is_refused(make: Any, space: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tg.Invalid, match=message):
        tg.sweep(make, space, **changes)


def broken(lr: float, seed: int) -> tg.Run:
    if lr > 0.1 or seed > 0:
        raise RuntimeError("out of cheese")
    return make_run(lr, seed)


def test_an_error_in_one_setting_is_a_failed_trial_and_in_all_an_error() -> None:
    found = tg.sweep(broken, {"lr": [0.1, 1.0]})
    assert [(trial.status, trial.reason) for trial in found.trials] == [
        ("finished", None),
        ("failed", "RuntimeError: out of cheese"),
    ]
    with pytest.raises(tg.WorkFailed, match="every trial failed, the first with: RuntimeError: out of cheese"):
        tg.sweep(broken, {"lr": [0.1]}, seeds=2)


def results(scores: list[float | None], times: list[float | None]) -> list[SeedResult]:
    status = ["diverged" if score is None else "finished" for score in scores]
    return [
        SeedResult(i, status[i], score, times[i], 10.0, [(0.0, 0.1), (10.0, score or 0.1)])
        for i, score in enumerate(scores)
    ]


A, B, C = [0.90, 0.92, 0.91, 0.95, 0.90], [0.93, 0.96, 0.92, 0.99, 0.95], [0.91, 0.91, 0.93, 0.94, 0.92]
TIMES_A, TIMES_B = [10.0, 12.0, 11.0, 14.0, 12.0], [5.0, 6.0, 6.5, 6.0, 7.0]


def table(target: float | None = 0.9) -> Comparison:
    contenders = [
        Contender("FedAvg", results([*A], [*TIMES_A]), None, {}),
        Contender("Clip²_50%", results([*B], [*TIMES_B]), 0.75, {"lr": 0.1}),
        Contender("FedBuff", results([*C], [3.0, None, 4.0, 5.0, None]), 0.5, {}),
        Contender("SGD", results([None, 0.5, 0.5, None, 0.5], [None] * 5), None, {}),
    ]
    return Comparison(contenders, score="accuracy", reference="FedAvg", target=target, confidence=0.95, notes=[])


def test_the_statistics_are_those_of_scipy_and_of_a_computation_by_hand() -> None:
    found = table()
    mean, half_width = found.scores["FedAvg"]
    low, high = stats.t.interval(0.95, 4, np.mean(A), stats.sem(A))
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))
    p_b, p_c = stats.ttest_rel(B, A).pvalue, stats.ttest_rel(C, A).pvalue
    assert p_b < p_c
    assert found.score_differences["Clip²_50%"].p == pytest.approx(p_b)
    assert found.score_differences["Clip²_50%"].adjusted_p == pytest.approx(2 * p_b)  # of two: SGD has no test
    assert found.score_differences["FedBuff"].adjusted_p == pytest.approx(max(2 * p_b, p_c))
    interval = stats.ttest_rel(B, A).confidence_interval(0.95)
    difference, width = found.score_differences["Clip²_50%"].difference
    assert (difference - width, difference + width) == pytest.approx(tuple(interval))
    assert set(found.time_differences) == {"Clip²_50%"}  # the others did not always reach the target
    assert found.time_differences["Clip²_50%"].adjusted_p == pytest.approx(stats.ttest_rel(TIMES_B, TIMES_A).pvalue)
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])  # Holm (1979), by hand
    assert (paired_p([1.0, 2.0], [1.0, 2.0]), paired_p([1.0], [2.0])) == (1.0, None)
    assert paired_p([2.0, 3.0], [1.0, 2.0]) == 0.0
    assert estimate([0.5]) == (0.5, None)


def test_the_table_says_what_it_knows_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = str(table()).splitlines()
    headings = "method accuracy (%) difference p time to target (s) difference (s) p workable"
    assert " ".join(lines[0].split()) == headings
    assert lines[1].split()[:4] == ["FedAvg", "91.6", "±", "2.6"]
    assert "reached in 3 of 5" in lines[3]
    assert "diverged in 2 of 5" in lines[4]
    assert "not reached" in lines[4]
    assert "+3.4 ± 1.9" in lines[2]
    assert "75%" in lines[2]
    assert "time" not in str(table(target=None)).splitlines()[0]
    latex = table().to_latex(label="tab:x")
    assert r"Clip$^2$\_50\% & \textbf{95.0 $\pm$ 3.4} & +3.4 $\pm$ 1.9" in latex
    assert all(word in latex for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\label{tab:x}"))
    assert "<td>Clip²_50%</td><td>95.0 ± 3.4</td>" in table()._repr_html_()
    frame = table().to_pandas().set_index("method")
    assert frame.loc["FedBuff", "reached"] == 3
    assert math.isnan(frame.loc["FedBuff", "time_to_target"])
    assert frame.loc["SGD", "finished"] == 3
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tg.Invalid, match="`to_pandas` needs pandas, which is not installed"):
        table().to_pandas()


def test_a_figure_has_the_width_of_one_or_two_columns(tmp_path: Path) -> None:
    for columns, width in ((1, 234), (2, 486)):
        pdf = table().figure(tmp_path / "figure.pdf", columns=columns).read_bytes()
        assert pdf.startswith(b"%PDF")
        assert f"/MediaBox [0 0 {width} ".encode() in pdf
    assert b"simulated time" in table().figure(tmp_path / "figure.svg").read_bytes()
    for name, columns in (("figure.doc", 1), ("figure.pdf", 3)):
        with pytest.raises(tg.Invalid):
            table().figure(tmp_path / name, columns=columns)


def test_methods_functions_and_tuned_settings_are_compared_over_the_same_seeds(tmp_path: Path) -> None:
    tuned = tg.sweep(make_run, {"lr": [0.01, 1.0]})
    found = tg.compare(
        {"plain": method(0.1), "tuned": tuned, "function": lambda seed: make_run(0.1, seed)},
        seeds=range(1, 4), task=TASK, fleet=FLEET, rounds=20, target=1.0, reference="function", out=tmp_path / "out",
    )  # fmt: skip
    ours = [last_loss(tg.simulate(method(0.1), TASK, FLEET, rounds=20, seed=seed)) for seed in (1, 2, 3)]
    assert [run.score for run in found.contenders[0].runs] == ours
    assert found.scores["plain"] == found.scores["function"]
    assert found.score_differences["plain"].adjusted_p == 1.0
    assert found.contenders[1].workable == tuned.workable
    run = tg.simulate(method(1.0), TASK, FLEET, rounds=20, seed=1)
    reached = next(row["time"] for row in run.metrics if row.get("test_loss", math.inf) <= 1.0)
    assert found.contenders[1].runs[0].to_target == reached
    assert "also used for tuning" not in str(found)
    again = tg.compare({"a": tuned, "b": tuned}, seeds=2)
    assert "seeds 0 were also used for tuning, which flatters tuned methods" in str(again)
    assert "such as seeds=range(1, 3)" in str(again)
    assert "compare" in build([str(tmp_path / "out")]).html()
    assert json.loads((tmp_path / "out/sweep.json").read_text())["space"] == {"method": ["plain", "tuned", "function"]}


@pytest.mark.parametrize(
    ("contenders", "changes", "message"),
    [
        ({}, {}, "needs a dict of names and methods"),
        ({"a": 3}, {}, "a contender must be a method, a result of tg.sweep or a function that makes a run, got 3"),
        ({"a": method()}, {}, "needs task=... and fleet=... to run the method 'a'"),
        ({"a": simulated}, {"rounds": 3}, "`rounds` is a setting for methods"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"reference": "b"}, "`reference` must be one of a, got 'b'"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"score": "f1"}, "one of loss, distance, got 'f1'"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"confidence": 95}, "`confidence` must be between 0 and 1, got 95"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"budget": -1.0}, "`budget` must be a finite number, above 0"),
    ],
)
def test_a_wrong_comparison_is_refused(contenders: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tg.Invalid, match=message):
        tg.compare(contenders, **changes)


def test_a_stored_comparison_is_not_taken_for_another(tmp_path: Path) -> None:
    task, fleet = tg.tasks.quadratic(clients=4), tg.Fleet.paper(clients=4)
    one = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=2, local_steps=1)
    other = tg.sgdclip(local_lr=0.2, local_clip=1.0, lr=1.0, buffer=2, local_steps=1)
    how: Any = {"seeds": 2, "task": task, "fleet": fleet, "evaluate_every": 2, "out": tmp_path / "out"}
    first = tg.compare({"A": one}, rounds=4, **how)
    assert str(tg.compare({"A": one}, rounds=4, **how)) == str(first)
    for contender, rounds in ((other, 4), (one, 6)):
        with pytest.raises(tg.Invalid, match="has other settings"):
            tg.compare({"A": contender}, rounds=rounds, **how)
