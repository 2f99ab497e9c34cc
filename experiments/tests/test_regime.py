"""The paper's own regime: what is run, how settings are chosen, the rules of the verdicts, the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tardygrad as tg
from experiments import lib
from experiments import regime as regime_module
from experiments.regime import Line, Regime, RegimePlan, plan
from experiments.regime_claims import judge
from experiments.regime_page import verdicts
from experiments.tests.conftest import Script, Scripted
from tardygrad.runs.history import read_history
from tardygrad.runs.record import read_json, write_json
from tardygrad.sweeps.store import LayerTail, PlannedRun, StoredResult

SMALL = """
buffer = 4
tuning_seed = 0
seeds = [1, 2]
rungs = [2, 4]
[workload.sst2]
title = "digits"
task = {kind = "digits", model = "mlp", dim = 8, validation_rows = 100}
clients = 10
rounds = 6
method = {local_steps = 1}
seconds = {update = 0.5, evaluation = 2.0}
[method.SGDClip]
settings = {kind = "sgdclip", local_clip = 0.1}
grid = {local_lr = [0.1, 0.3], lr = [0.5, 1.0]}
[method."Clip²"]
settings = {kind = "clip2", local_clip = 0.1, lr = 1.0}
grid = {local_lr = [0.1, 0.3], clip = [0.003, 0.01]}
[method.SD-SGDClip]
settings = {kind = "sgdclip", local_clip = 0.1, downplay = true, lr = 1.0}
grid = {local_lr = [0.1, 0.3]}
[part.cells]
title = "Cells"
workloads = ["sst2"]
fleets = ["large"]
modes = ["sync", "client"]
methods = ["SGDClip", "Clip²", "SD-SGDClip"]
[part.buffers]
title = "Buffers"
workloads = ["sst2"]
fleets = ["large"]
modes = ["client"]
methods = ["SGDClip", "Clip²"]
changes = [{label = "M = 1", "method.buffer" = 1}]
[part.tails]
title = "Tails"
workloads = ["sst2"]
fleets = ["large"]
modes = ["client"]
methods = ["Clip²"]
seeds = [1]
tails = [0, 3, 6]
[text]
verdicts = ""
runs = ""
tails = ""
[claim.E]
says = "At M = 1 SGDClip collapses, and Clip² holds."
rule = ""
"""


CHOICES = {
    f"sst2, client, {method}": {"local_lr": 2.0, other: 1.0}
    for method, other in (("SGDClip", "lr"), ("Clip²", "clip"), ("SD-Clip²", "clip"))
}  # by workload, mode and method


def results(score: Callable[[Any], float], seconds: float = 10.0, tails: list[LayerTail] | None = None) -> Scripted:
    """A store whose scores follow a rule."""

    def result_of(run: PlannedRun) -> StoredResult:
        accuracy, time = score(run.spec), 900.0 if run.spec["method"]["mode"] == "sync" else seconds
        measured = (tails or []) if run.tails else []
        return StoredResult("finished", accuracy, 0.0, time, [(1, time, 0.0, accuracy)], 0.0, 0.0, measured)

    return Scripted(result_of)


def finished(plan: RegimePlan, store: Scripted, choices: dict[str, Any] | None = None) -> Regime:
    """A plan of which everything is done."""
    regime = Regime(plan, store, known_choices=choices or {})
    store.finish_all(regime.wanted)
    return regime


def only(*parts: str) -> RegimePlan:
    return replace(plan(), parts={name: plan().parts[name] for name in parts})


def line(part: str, **change: Any) -> Line:
    return Line(part, "sst2", "large", "client", **change)


def test_settings_are_chosen_by_halving_on_validation_rows_and_reported_on_test_rows() -> None:
    store = results(lambda spec: 50 + 10 * spec["method"]["local_lr"] + spec["method"]["lr"])
    regime = Regime(RegimePlan.read(SMALL), store)
    grids = 4 + 4 + 4 + 4 + 2  # SGDClip and Clip² twice, SD-SGDClip only without waiting
    assert store.finish_all(regime.wanted) == [grids, grids // 2, 5 * 2 + 2 * 2 + 1]
    for cell in regime.plan.lines():
        assert all(run.spec["task"]["score_on"] == "validation" for run in regime.trials(cell))
        assert not any("score_on" in run.spec["task"] for run in regime.runs(cell))
    assert regime.chosen(line("cells", method="SGDClip")) == {"local_lr": 0.3, "lr": 1.0}
    run, _ = regime.runs(line("buffers", method="SGDClip", change="M = 1"))
    assert (run.spec["method"]["buffer"], run.spec["run"]["rounds"], run.spec["method"]["lr"]) == (1, 24, 1.0)


@pytest.mark.parametrize(
    ("sgdclip", "clip2", "verdict"),
    [
        (20.0, 4.0, "reproduced"),
        (20.0, 10.0, "in part"),
        (20.0, 11.0, "not reproduced"),
        (-1.0, -2.0, "not reproduced"),
    ],
)
def test_the_verdict_on_m_1(sgdclip: float, clip2: float, verdict: str) -> None:
    lost = {"sgdclip": sgdclip, "clip2": clip2}
    store = results(lambda spec: 80.0 - (lost[spec["method"]["kind"]] if spec["method"]["buffer"] == 1 else 0.0))
    assert judge(Regime(RegimePlan.read(SMALL), store))["E"].verdict == "not run"
    assert judge(finished(RegimePlan.read(SMALL), store))["E"].verdict == verdict


def scores(given: dict[tuple[str, ...], float]) -> Callable[[Any], float]:
    """A rule for a store: the accuracy by workload, mode and method kind, 80 if it has none, mean over seeds 1 to 3."""

    def score(spec: Any) -> float:
        method = spec["method"]
        name = f"{'sd-' * bool(method.get('downplay'))}{'dc-' * bool(method.get('compensate'))}{method['kind']}"
        spread = 0.125 * len(name) * (spec["run"]["seed"] - 2)
        return given.get((spec["task"]["name"], name), given.get((name,), 80.0)) + spread

    return score


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"A": "reproduced", "B": "not reproduced", "C": "not reproduced", "D": "not reproduced"}),
        ({("sgdclip",): 70.0, ("dc-clip2",): 81.0}, {"B": "reproduced", "C": "reproduced", "D": "reproduced"}),
        ({("sst2", "clip2"): 60.0, ("stsb", "clip2"): 80.5, ("qqp", "clip2"): 80.5}, {"B": "in part"}),
        ({("fadas",): 79.0, ("dn_dylu",): 79.0}, {"F": "reproduced"}),
        ({("fadas",): 80.5, ("dn_dylu",): 79.0, ("sd-clip2",): 81.0}, {"F": "in part"}),
        ({("fadas",): 82.0}, {"F": "not reproduced"}),
    ],
)
def test_the_rules_of_the_plan(given: dict[tuple[str, ...], float], expected: dict[str, str]) -> None:
    found = judge(finished(only("cells", "relatives"), results(scores(given))))
    assert {number: found[number].verdict for number in expected} == expected
    assert found["E"].verdict == found["G"].verdict == "not run"


@pytest.mark.parametrize(
    ("behind", "seconds", "verdict"),
    [
        ({"sst2": 1.5}, 10.0, "in part"),
        ({"sst2": 1.5, "stsb": 1.5}, 10.0, "not reproduced"),
        ({}, 150.0, "in part"),  # 6 times sooner: enough with mild stragglers, and not with large ones
        ({}, 900.0, "not reproduced"),
    ],
)
def test_the_verdict_on_not_waiting(behind: dict[str, float], seconds: float, verdict: str) -> None:
    def score(spec: Any) -> float:
        return 80.0 - (behind.get(spec["task"]["name"], 0.0) if spec["method"]["mode"] != "sync" else 0.0)

    found = judge(finished(only("cells"), results(score, seconds)))["A"]
    assert (found.verdict, len(found.details)) == (verdict, 6)


@pytest.mark.parametrize(
    ("sgdclip", "clip2", "verdict"),
    [
        ([80, 80, 50, 50], [80, 80, 75, 50], "reproduced"),
        ([80, 80, 74, 50], [80, 80, 75, 50], "reproduced"),
        ([80, 75, 50, 50], [80, 76, 50, 50], "in part"),
        ([80, 75, 50, 50], [80, 75, 50, 50], "not reproduced"),
        ([80, 80, 80, 50], [80, 80, 50, 60], "not reproduced"),
    ],
)
def test_the_verdict_on_local_rates(sgdclip: list[float], clip2: list[float], verdict: str) -> None:
    by_kind = {"sgdclip": sgdclip, "clip2": clip2}
    rates = [0.5, 2.0, 8.0, 32.0]

    def score(spec: Any) -> float:
        method = spec["method"]
        return 0.0 if method.get("downplay") else by_kind[method["kind"]][rates.index(method["local_lr"])]

    found = judge(finished(only("rates"), results(score), CHOICES))["G"]
    assert found.verdict == verdict
    assert f"SGDClip {sum(each >= 75 for each in sgdclip)}, Clip² {sum(each >= 75 for each in clip2)}" in found.numbers


def test_every_run_of_the_plan_is_a_spec_that_can_be_read() -> None:
    regime = finished(plan(), results(lambda spec: 80.0))
    lines = regime.plan.lines()
    runs = [run for each in lines[:: len(lines) // 20] for run in regime.all_runs(each)[:2]]
    runs += [regime.runs(each)[0] for each in lines if each.change]
    for run in runs:
        tg.load_spec(run.spec)
    assert {len(method.points()) for method in plan().methods.values()} == {6}
    assert "| E. " in verdicts(regime)


@pytest.fixture
def small(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The script with a small plan, of which nothing is stored."""
    monkeypatch.setattr(regime_module, "plan", lambda: RegimePlan.read(SMALL))
    monkeypatch.setattr(lib, "stored_runs", lambda name: [])
    return lambda *argv: script("regime", "--data", ".", *argv)


def test_the_script_runs_what_is_missing_once_and_repeats_stored_runs(
    small: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_page = ("--page", "docs/regime.md")
    done = small("--jobs", "1", "--save", "runs.jsonl", *with_page)
    every = 18 + 18 // 2 + 15  # as above
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[-1].endswith(" is done, 0 known runs are left")
    page = Path("docs/regime.md").read_text("utf-8")
    assert "| large | client | Clip², M = 1 |" in page
    assert f"All {every} runs of the plan are done." in page
    assert "| sst2, sync, Clip² | local_lr 0.3, clip 0.01 | 2 | " in page, "a trial"
    assert all(f"| client-centric | {number} | " in page for number in (0, 3, 6))
    assert Path("docs/images/regime-sst2.svg").exists()
    assert "M, updates per round" in Path("docs/images/regime-buffers.svg").read_text()
    assert "round 6" in Path("docs/images/regime-tails-sst2.svg").read_text()
    records = [path for path in Path("runs/regime").iterdir() if path.is_dir()]
    assert len(records) == len(list(Path("runs/regime").glob("*-*.json")))
    assert not list(Path("runs/regime").glob("*/model.safetensors"))
    assert read_history(records[0]).spec, "as `report` does"

    rows = [json.loads(row) for row in Path("runs.jsonl").read_text().splitlines()]
    assert len(rows) == every
    monkeypatch.setattr(lib, "stored_runs", lambda name: rows)
    assert small("--out", "empty", "--save", "again.jsonl", *with_page).code == 0, "on another machine"
    assert Path("docs/regime.md").read_text("utf-8") == page
    assert not list(Path("empty").glob("sst2*"))
    assert Path("again.jsonl").read_text() == Path("runs.jsonl").read_text()

    first = small("--quick", "--jobs", "1").out
    assert (first.count("| yes |"), first.count("| no |")) == (5, 0), "cells with one seed, and no trials"
    repeated = next(Path("runs/regime/quick").glob("sst2-client-sgdclip-*.json"))
    row = read_json(repeated)
    write_json(repeated, row | {"result": row["result"] | {"accuracy": 0.0}})
    assert small("--quick", "--read").out.count("| yes |") == 4
    some = [row for row in rows if not row["name"].startswith("sst2-client-clip2-large-seed1")]
    monkeypatch.setattr(lib, "stored_runs", lambda name: some)
    printed = small("--quick", "--read").out
    assert "| client | Clip² | 1 | not stored |" in printed
    assert printed.count("| yes |") == 3
    assert "--quick has its own runs and no page" in small("--quick", "--save", "some.jsonl").err
    monkeypatch.setattr(lib, "stored_runs", lambda name: [])
    refused = small("--quick", "--out", "none")
    assert "--quick needs settings that the whole plan has chosen, and those of sst2, cl" in refused.err
