"""Comparisons: their statistics, their table, their figure, and how they are stored."""

from __future__ import annotations

import math
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import tardygrad as tg
from tardygrad.report.build import build
from tardygrad.report.comparison import stored_section
from tardygrad.report.page import figures
from tardygrad.results.comparison import Comparison, Contender, SeedResult
from tardygrad.results.comparison_figure import mean_curve
from tardygrad.results.statistics import holm
from tardygrad.sweeps import runner as running
from tardygrad.sweeps.compare import read_comparison
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad
from tests.sweeps.test_from_python import FLEET, TASK, last_loss, make_run, method


def results(scores: list[float | None], times: list[float | None]) -> list[SeedResult]:
    status = ["diverged" if score is None else "finished" for score in scores]
    return [
        SeedResult(i, status[i], score, times[i], 10.0, [(0.0, 0.1), (8.0, score or 0.1)], {"simulated": True})
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
    return Comparison(
        contenders, score="accuracy", higher=True, reference="FedAvg", target=target, confidence=0.95, notes=[]
    )


def test_the_statistics_are_those_of_scipy_and_of_a_computation_by_hand() -> None:
    found = table()
    mean, half_width, _ = found.scores["FedAvg"]
    low, high = stats.t.interval(0.95, 4, np.mean(A), stats.sem(A))
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))
    p_b, p_c = stats.ttest_rel(B, A).pvalue, stats.ttest_rel(C, A).pvalue
    assert p_b < p_c
    assert found.score_differences["Clip²_50%"].p == pytest.approx(p_b)
    assert found.score_differences["Clip²_50%"].adjusted_p == pytest.approx(2 * p_b)  # of two: SGD has no test
    assert found.score_differences["FedBuff"].adjusted_p == pytest.approx(max(2 * p_b, p_c))
    interval = stats.ttest_rel(B, A).confidence_interval(0.95)
    difference, width, _ = found.score_differences["Clip²_50%"].difference
    assert (difference - width, difference + width) == pytest.approx(tuple(interval))
    assert set(found.time_differences) == {"Clip²_50%"}  # the others did not always reach the target
    assert found.time_differences["Clip²_50%"].adjusted_p == pytest.approx(stats.ttest_rel(TIMES_B, TIMES_A).pvalue)
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])  # Holm (1979), by hand


def test_the_table_says_what_it_knows_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = str(table()).splitlines()
    headings = "method accuracy (%) difference p time to target (s) difference (s) p workable"
    assert " ".join(lines[0].split()) == headings
    assert lines[1].split()[:4] == ["FedAvg", "91.6", "±", "2.6"]
    assert "3 of 5 reached" in lines[3]
    assert "2 of 5 diverged" in lines[4]
    assert "0 of 5 reached" in lines[4]
    assert "+3.4 ± 1.9" in lines[2]
    assert "75%" in lines[2]
    assert "time" not in str(table(target=None)).splitlines()[0]
    latex = table().to_latex(label="tab:x")
    assert r"Clip$^2$\_50\% & \textbf{95.0 $\pm$ 3.4} & +3.4 $\pm$ 1.9" in latex
    assert r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\begin{tabular}{lrrrrrrr}" in latex
    assert all(word in latex for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\label{tab:x}"))
    assert (
        "<td style='text-align: left'>Clip²_50%</td><td style='text-align: right'>95.0 ± 3.4</td>"
        in table()._repr_html_()
    )
    frame = table().to_pandas().set_index("method")
    assert frame.loc["FedBuff", "reached"] == 3
    assert math.isnan(frame.loc["FedBuff", "time_to_target"])
    assert frame.loc["SGD", "finished"] == 3
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tg.Invalid, match="`to_pandas` needs pandas, which is not installed"):
        table().to_pandas()


def compared(score: str = "accuracy", **runs: list[SeedResult]) -> Comparison:
    contenders = [Contender(name, own, None, {}) for name, own in runs.items()]
    return Comparison(
        contenders,
        score=score,
        higher=score != "loss",
        reference=next(iter(runs)),
        target=0.5,
        confidence=0.95,
        notes=[],
    )


def test_a_score_is_called_as_the_task_calls_it() -> None:
    found = compared("f1_macro", ours=results([0.9, 0.8], [3.0, 3.0]))
    assert found.table().headings[1] == "f1_macro"
    assert found.result().startswith("ours has a mean test f1_macro of 0.85")
    assert all("test f1_macro" in note for note in found.notes()[:2])
    (figure,) = figures([stored_section(found, "", 1)])
    assert figure.title == "Mean test f1_macro"
    assert figure.caption.startswith("The mean test f1_macro of each method")
    assert "'test f1_macro'" in str(figure.chart)


@pytest.mark.parametrize(
    ("ours", "theirs", "cells", "note"),
    [
        ([0.9], [0.8], ["90", "+10"], "test accuracy after the last round, with one seed: no interval, no test"),
        ([0.9, 0.9], [0.8, 0.8], ["90 (all equal)", "+10 (all equal)", "–"], "all equal: every seed gives the same"),
        ([0.3, 0.1 + 0.2], [0.3, 0.3], ["30 (all equal)", "+0 (all equal)", "–"], "no interval and no test"),
        ([0.9, 0.8], [0.8, 0.7], ["85 ± 64", "+10 (all equal)", "–"], "all equal: "),
        ([0.9, None], [0.8, 0.7], ["1 of 2 diverged", "–", "–"], "paired by seed"),
        ([0.9, 0.8], [None, 0.7], ["85 ± 64", "–", "–"], "no differences: not every run of theirs has a score"),
    ],
)
def test_what_is_not_known_is_not_a_number(
    ours: list[float | None], theirs: list[float | None], cells: list[str], note: str
) -> None:
    times: list[float | None] = [3.0] * len(ours)
    found = compared(theirs=results(theirs, times), ours=results(ours, times))
    row = found.table().rows[1]
    assert list(row[1 : 1 + len(cells)]) == cells
    assert note in "\n".join(found.notes())
    assert "all equal" not in found.result()
    assert ("3" if len(ours) == 1 else "3 (all equal)") in row  # the time to the target


def test_a_comparison_says_what_else_differs() -> None:
    def changed(facts: dict[str, Any], first: int = 0) -> list[SeedResult]:
        known = {"simulated": True, "random_fleet": True, "settings": {"task.batch_size": 1}}
        return [
            run._replace(facts=known | facts, seed=first + run.seed, status="finished")
            for run in results([0.8, 0.9], [3.0, 4.0])
        ]

    plain = changed({})
    assert len(compared(a=plain, b=plain).notes()) == 4  # the fourth: all differences are 0
    mixed = compared(a=plain, b=changed({"simulated": False}))
    assert "some clocks are simulated and some are real, so times are not compared" in mixed.notes()
    assert mixed.time_differences == {}
    real = compared(a=changed({"simulated": False}), b=changed({"simulated": False})).notes()
    assert "on a real clock the same seed does not give the same arrivals" in real
    assert any(note.startswith("time to target: seconds to") for note in real)
    fixed = compared(a=plain, b=changed({"random_fleet": False})).notes()
    assert "the fleet has no random times: seeds change only the training and the sampling of clients" in fixed
    other = compared(a=plain, b=changed({"settings": {"task.batch_size": 2}})).notes()
    assert "the runs of a seed differ in task.batch_size too" in other
    unpaired = compared(a=plain, b=changed({}, first=5))
    assert unpaired.score_differences == {}
    assert "no differences where methods have other seeds than the reference" in unpaired.notes()
    missing = [run._replace(score=None) for run in plain]
    assert compared(a=plain, b=missing).table().rows[1][1] == "2 of 2 not finite"
    lost = [plain[0]._replace(score=0.05, curve=[(0.0, 0.1), (1.0, 0.05)]), plain[1]._replace(curve=[(0.0, 0.1)])]
    note = "1 of 2 runs of b end with a worse accuracy than x_0, so its mean says little: see the curves"
    assert note in compared(a=plain, b=lost).notes()


def test_a_mean_curve_keeps_finished_scores_and_ends_where_a_run_diverges() -> None:
    finished = SeedResult(0, "finished", 0.9, None, 10.0, [(0.0, 0.1), (8.0, 0.9)], {})
    shorter = finished._replace(seed=1, time=6.0, curve=[(0.0, 0.1), (6.0, 0.7)])
    rows = mean_curve(Contender("a", [finished, shorter], None, {}), 0.95)
    assert (rows[-1]["time"], rows[-1]["mean"]) == (10.0, pytest.approx(0.8))
    broken = finished._replace(seed=1, status="diverged", score=None, curve=[(0.0, 0.1), (5.0, 0.2)])
    rows = mean_curve(Contender("a", [finished, broken], None, {}), 0.95)
    assert rows[-1]["time"] == 5.0
    assert mean_curve(Contender("a", [finished, broken._replace(curve=[])], None, {}), 0.95) == []


def test_a_figure_has_the_width_of_one_or_two_columns(tmp_path: Path) -> None:
    for columns, width in ((1, 234), (2, 486)):
        pdf = table().figure(tmp_path / "figure.pdf", columns=columns).read_bytes()
        assert pdf.startswith(b"%PDF")
        assert f"/MediaBox [0 0 {width} ".encode() in pdf
    assert b"simulated seconds" in table().figure(tmp_path / "figure.svg").read_bytes()
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
    assert found.score_differences["plain"] == ((0.0, None, 3), None, None)
    assert found.contenders[1].workable == tuned.workable
    run = tg.simulate(method(1.0), TASK, FLEET, rounds=20, seed=1)
    reached = next(row["time"] for row in run.metrics if row.get("test_loss", math.inf) <= 1.0)
    assert found.contenders[1].runs[0].to_target == reached
    assert "also used for tuning" not in str(found)
    again = tg.compare({"a": tuned, "b": tuned}, seeds=2)
    assert "seed 0 was also used for tuning, which flatters tuned methods" in str(again)
    assert "such as seeds=range(1, 3)" in str(again)


def test_tasks_that_look_alike_are_told_apart_by_the_scores_of_their_first_models() -> None:
    def run_of(label: int, seed: int) -> tg.Run:
        rows = torch.arange(24.0).reshape(6, 4), torch.full((6,), label)
        loss = torch.nn.functional.cross_entropy
        task = tg.TorchTask(lambda: torch.nn.Linear(4, 2), data=tg.shard(rows, clients=6), loss=loss, test=rows)
        return tg.begin(method(), task, FLEET, rounds=2, seed=seed)

    found = tg.compare({"zeros": partial(run_of, 0), "ones": partial(run_of, 1)}, seeds=2)
    assert "the runs of a seed differ in the score of x_0 too" in found.notes()
    assert "score of x_0" not in str(tg.compare({"a": partial(run_of, 0), "b": partial(run_of, 0)}, seeds=2))


def test_any_text_on_a_line_may_name_a_method(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "[red]%(seed)s {0} \\input{x}", "../..", "a" * 300]
    found = tg.compare(dict.fromkeys(names, method()), seeds=1, task=TASK, fleet=FLEET, rounds=2, out=tmp_path / "out")
    assert [row[0] for row in found.table().rows] == names
    assert "<script>" not in found._repr_html_()
    assert names[1] in str(read_comparison(tmp_path / "out"))


@pytest.mark.parametrize(
    ("contenders", "changes", "message"),
    [
        ({}, {}, "needs a dict of names and methods"),
        ({"a\n": method()}, {}, "the name of a method must be text on one line"),
        ({"a": lambda number: None}, {}, r"the comparison calls a\(seed=\.\.\.\), but: missing a required argument"),
        ({"a": 3}, {}, "a contender must be a method, a result of tg.sweep or a function that makes a run, got 3"),
        ({"a": method()}, {}, "needs task=... and fleet=... to run the method 'a'"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"rounds": 3}, "`rounds` is a setting for methods"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"reference": "b"}, "`reference` must be one of a, got 'b'"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"score": "f1"}, "one of loss, distance, got 'f1'"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"confidence": 95}, "`confidence` must be between 0 and 1, got 95"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"budget": -1.0}, "`budget` must be a finite number, above 0"),
        ({"a": lambda seed: make_run(1.0, seed)}, {"target": 1e9}, "x_0 already has a test loss of .* Use a lower"),
    ],
)
def test_a_wrong_comparison_is_refused(contenders: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tg.Invalid, match=message):
        tg.compare(contenders, **changes)


def test_a_stored_comparison_is_shown_as_one(tmp_path: Path, tardygrad: Command) -> None:
    tuned = tg.sweep(make_run, {"lr": [0.01, 1.0]})
    how: Any = {"seeds": [1, 2], "target": 1.0, "out": tmp_path / "out"}
    found = tg.compare({"tuned": tuned, "plain_50%": lambda seed: make_run(0.1, seed)}, **how)
    stored = read_comparison(tmp_path / "out")
    assert (str(stored), stored.to_latex(), stored.contenders[0].settings) == (str(found), found.to_latex(), tuned.best)
    shown = tardygrad("sweep", str(tmp_path / "out"))
    assert (shown.code, shown.out) == (0, f"{found}\nreport with: tardygrad report {tmp_path / 'out'}\n")
    report = build([str(tmp_path / "out")])
    assert report.results == [f"{found.result()}."]
    assert [section.title for section in report.sections] == ["Results"]
    assert report.title == "Comparison out"
    titled = build([str(tmp_path / "out")], title="mine")
    assert (titled.title, [section.title for section in titled.sections]) == ("mine", ["Comparison out"])
    assert titled.results == [f"Comparison out: {found.result()}."]
    (figure,) = figures(report.sections)
    assert {row["method"] for row in figure.chart["datasets"]["rows"]} == {"tuned", "plain_50%"}
    assert [each.name for each in report.paper_figures()] == ["compared-one-column", "compared-two-columns"]
    assert report.tables == [found.to_latex(label="tab:compared-1")]
    assert "lr=1" in report.html()


def test_an_interrupted_comparison_shows_what_it_has_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tardygrad: Command
) -> None:
    tell, told = running.Study.tell, list[int]()

    def interrupt(study: Any, trial: Any, result: Any) -> None:
        tell(study, trial, result)
        told.append(trial.number)
        if len(told) == 3:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    monkeypatch.setattr(running.Study, "tell", interrupt)
    methods: Any = {"a": lambda seed: make_run(0.1, seed), "b": lambda seed: make_run(1.0, seed)}
    with pytest.raises(KeyboardInterrupt):
        tg.compare(methods, seeds=2, out=tmp_path / "out")
    assert build([str(tmp_path / "out")]).results[0].startswith("So far, after 3 of 4 runs, a has the ")
    shown = tardygrad("sweep", str(tmp_path / "out"))
    assert "1 of 2 waiting" in shown.out
    assert "1 run to go; it was started in Python, so continue it there: tardygrad.compare(..., out=" in shown.err
    found = tg.compare(methods, seeds=2, target=1.0, out=tmp_path / "out")  # a target changes no run
    assert told == [0, 1, 2, 3]
    assert str(found) == str(tg.compare(methods, seeds=2, target=1.0))


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
    with pytest.raises(tg.Invalid, match=r"`run\.compared\.score` is 'accuracy' there, got 'distance'"):
        tg.compare({"A": one}, rounds=4, score="distance", **how)
    assert read_comparison(tmp_path / "out").score == "loss"
