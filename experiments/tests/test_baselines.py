"""The baselines: everyone is tuned alike on validation rows, by trials that no timing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tardygrad as tg
from experiments import baselines, lib
from experiments.baselines import BaselineCell, BaselineLine, BaselinePlan, Baselines, Tuning, plan
from experiments.baselines_page import BaselineTable, picture, text
from experiments.tests.conftest import Script
from tardygrad.runs.record import write_json
from tardygrad.sweeps import store
from tardygrad.sweeps.store import PlannedRun, Store

SMALL = """
text = "{seed} {random} {batch} {seeds}"
tuning_seed = 0
seeds = [1, 2]
random_trials = 4
trials_per_batch = 2
[ranges]
lr = {low = 0.01, high = 10.0}
local_lr = {low = 0.1, high = 0.5}
momentum = {low = 0.0, high = 0.9, log = false}
[fleet.mild]
kind = "paper"
stragglers = "mild"
[fleet.large]
kind = "paper"
stragglers = "large"
[workload.digits]
heading = "Digits"
title = "digits"
task = {kind = "digits", clients = 8, model = "mlp", dim = 4, validation_rows = 100}
fleets = ["mild", "large"]
methods = ["sync", "plain", "clipped"]
updates = 16
method = {local_steps = 1}
trials = 7
evaluations = 2
score = "accuracy"
worst = 0.0
target = 80.0
seconds = 36.0
[workload.fashion]
heading = "Fashion-MNIST"
title = "clothes"
task = {kind = "fashion", clients = 8, model = "cnn", dim = 1, batch_size = 4, test_rows = 20}
fleets = ["large"]
updates = 16
method = {local_steps = 1}
settings_from = "digits"
evaluations = 2
score = "accuracy"
worst = 0.0
target = 80.0
seconds = 36.0
[workload.text]
heading = "Text"
title = "text"
task = {kind = "digits", clients = 8, model = "mlp", dim = 8, validation_rows = 100}
fleets = ["mild"]
methods = ["plain", "clipped"]
updates = 16
method = {local_steps = 1}
updates_of = {dn_dylu = 24}
settings_of.plain = {buffer = 4}
trials = 3
trial_length = 0.5
evaluations = 2
score = "loss"
worst = 5.0
target = 2.2
seconds = 36.0
ranges = {lr = {low = 0.1, high = 100.0}}
[method.sync]
label = "sync-SGD"
settings = {kind = "sgdclip", mode = "sync", buffer = 2, local_clip = "inf"}
search = ["local_lr", "lr"]
[method.plain]
label = "SGD"
settings = {kind = "sgdclip", mode = "client", buffer = 2, local_clip = "inf"}
search = ["local_lr", "lr"]
[method.clipped]
label = "DN, clipped"
settings = {kind = "dn_dylu", mode = "client", period = 2, local_clip = 0.1}
search = ["local_lr", "lr", "momentum"]
ranges = {local_lr = {low = 0.2, high = 1.0}}
[comparison]
"without waiting" = [["sync", "plain"]]
"with clips" = [["plain", "clipped"]]
"""


def made_up(path: Path, run: PlannedRun, records: bool) -> Path:
    """A run that takes no time: the nearer its rate to 1 the better, and diverged beyond 6."""
    spec = run.spec
    rate, seed, on_test = spec["method"]["lr"], spec["run"]["seed"], "score_on" not in spec["task"]
    score = None if rate > 6 else 0.95 - abs(1 - rate) / 10 - seed / 100 - on_test / 10
    curve = [[1, 35.0, 3.0, score and score - 0.1], [2, 70.0, rate + seed, score]]
    result = {"status": "diverged" if score is None else "finished", "accuracy": score, "time": 70.0 + seed}
    rest = {"loss": None if score is None else rate + seed, "curve": curve, "clipped": 0.1, "local_clipped": 0.2}
    write_json(path, {"spec": spec, "versions": {"threads": "1"}, "result": {**result, **rest}})
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_run", made_up)


def comparison(folder: Path, **changes: Any) -> Baselines:
    return Baselines(replace(BaselinePlan.read(SMALL), **changes), Store(folder))


def run_all(some: Baselines, jobs: int = 1) -> Iterator[Path]:
    return some.store.run(some.wanted, jobs)


def points(some: Baselines) -> list[list[tuple[dict[str, float], float | None]]]:
    cells = filter(some.plan.has_trials, some.plan.cells())
    return [[(trial.params, trial.value) for trial in some.tuning(cell).finished] for cell in cells]


def spec_of(cell: BaselineCell, seed: int = 1) -> Any:
    return tg.load_spec(plan().run(cell, plan().lowest(cell), seed).spec)


def test_every_method_is_a_spec_with_as_many_updates_of_as_many_steps() -> None:
    for cell in (cell for cell in plan().cells() if cell.fleet != "mild"):
        workload = plan().workloads[cell.workload]
        trial, run = spec_of(cell, 0), spec_of(cell, 3)
        method = run.build_method()
        assert method.buffer * run.run.rounds == workload.updates or run.method.kind in ("dn_dylu", "halos")
        assert (method.local_steps, run.run.seed) == (workload.method["local_steps"], 3)
        assert run.run.rounds == workload.evaluations * run.run.evaluate_every
        assert trial.run.rounds == trial.run.evaluate_every == run.run.rounds * workload.trial_length
        apart = [each.task.arguments["score_on"] for each in (trial, run)]
        assert apart == ["validation", "test"] or workload.name == "fashion"
        assert trial.task.arguments["validation_rows"] == run.task.arguments["validation_rows"]


@pytest.mark.usefixtures("quick")
def test_everyone_is_tuned_on_validation_rows_and_run_on_test_rows_with_other_seeds(tmp_path: Path) -> None:
    some = comparison(tmp_path)
    digits, clothes, texts = 3 * (7 + 2), 3 * 2, 2 * (3 + 2)
    assert [cost.runs for cost in some.costs()] == [digits, digits, clothes, texts]
    assert some.costs()[3].seconds == 2 * (3 / 2 + 2) * 36, "trials of half the length"
    assert sum(1 for _ in run_all(some, jobs=2)) == 2 * digits + clothes + texts
    mild, large, fashion, loss = some.tables()
    assert [line.cell.method for line in mild] == ["sync", "plain", "clipped"]
    assert [line.settings for line in fashion] == [line.settings for line in large]
    for line in mild:
        trials = some.tuning(line.cell).finished
        top = max(trials, key=lambda trial: trial.value)
        assert (line.settings, len(trials)) == (top.params, 7)
        assert line.score == pytest.approx(top.value - 10 - 1.5), "test rows, seeds 1 and 2"
        assert line.time == pytest.approx(71.5)
        assert line.times_to_target == [70.0 for score in line.scores if score >= 80]
        assert line.score_at(50.0) == pytest.approx(line.score - 10)
        assert line.score_at(10.0) is None
    assert any(line.times_to_target for line in mild)
    values = [trial.value for line in [*mild, *large] for trial in some.tuning(line.cell).finished]
    assert min(values) == 0.0, "a run that diverged"
    for line in loss:
        trials = some.tuning(line.cell).finished
        assert line.settings["lr"] == min(trial.params["lr"] for trial in trials), "a loss is minimised"
        assert {-5.0, *(-trial.params["lr"] for trial in trials)} >= {trial.value for trial in trials}
        assert line.score == pytest.approx(line.settings["lr"] + 1.5)
        assert line.curves[0] == [(35.0, 3.0), (70.0, line.settings["lr"] + 1)]
    before = points(some)
    again = comparison(tmp_path)
    assert again.store.missing(again.wanted()) == []
    assert points(comparison(tmp_path)) == before


@pytest.mark.usefixtures("quick")
def test_stopped_anywhere_it_goes_on_to_the_same_trials(tmp_path: Path) -> None:
    list(run_all(comparison(tmp_path / "whole"), jobs=2))
    for stop in (3, 5, 10):
        going = run_all(comparison(tmp_path / "torn"), jobs=2)
        list(islice(going, stop))
        going.close()
    stored = sorted((tmp_path / "torn").glob("digits*seed0*.json"))
    stored[2].unlink()
    torn, whole = comparison(tmp_path / "torn"), comparison(tmp_path / "whole")
    list(run_all(torn))
    assert (points(torn), torn.tables()) == (points(whole), whole.tables())


@pytest.mark.usefixtures("quick")
def test_a_changed_experiment_takes_no_old_trials(tmp_path: Path) -> None:
    list(run_all(comparison(tmp_path)))
    same = comparison(tmp_path)
    wider = comparison(tmp_path, ranges={**same.plan.ranges, "lr": {"low": 0.02, "high": 10.0}})
    longer = {**same.plan.workloads, "digits": replace(same.plan.workloads["digits"], updates=32)}
    for other in (wider, comparison(tmp_path, workloads=longer)):
        assert [len(trials) for trials in points(other)][:6] == [0] * 6


def lines(*scores: list[float], workload: str = "digits", fleet: str = "large") -> list[BaselineLine]:
    """Lines with these scores by seed; the first one ends first."""
    small = BaselinePlan.read(SMALL)
    found = []
    for i, (name, some) in enumerate(zip(small.workloads[workload].methods, scores, strict=True)):
        cell, times = BaselineCell(workload, fleet, name), [70.0 + i, 74.0 + i][: len(some)]
        curves = [[(35.0, score - 1), (time, score)] for score, time in zip(some, times, strict=True)]
        found.append(BaselineLine(cell, small.lowest(cell), ["lr"], some, times, times[:i], curves))
    return Baselines(small, Store(Path("nowhere"))).marked(found)


def test_the_best_is_marked_and_what_may_be_as_good_by_chance_is_tied() -> None:
    accurate = lines([94.1, 94.7], [95.4, 94.4], [80.1, 79.9])
    assert [line.mark for line in accurate] == ["tied", "best", ""]
    table = BaselineTable(BaselinePlan.read(SMALL), accurate)
    assert table.sentences() == [
        "best: SGD (94.9 ± 0.7); tied with it: sync-SGD (94.4 ± 0.4)",
        "without waiting, 0 of 1 better and 0 worse: sync-SGD 94.4 → SGD 94.9 (72 → 73 s)",
        "with clips, 0 of 1 better and 1 worse: SGD 94.9 → DN, clipped 80.0",
    ]
    assert table.headings()[3:5] == ("at 74 s", "to the end (s)")
    assert table.row(accurate[0])[3:6] == ("94.4", "72", "never"), "at 74 s it has its last score with every seed"
    assert table.row(accurate[1])[5] == "1 of 2 seeds"
    half = [accurate[0]._replace(times=[70.0]), *accurate[1:]]
    assert BaselineTable(BaselinePlan.read(SMALL), half).headings()[3] == "at 75 s", "a method ends with all its seeds"
    low = lines([2.26, 2.25], [2.0, 2.01], workload="text", fleet="mild")
    assert [line.mark for line in low] == ["", "best"]
    assert BaselineTable(BaselinePlan.read(SMALL), low).sentences() == [
        "best: DN, clipped (2.005 ± 0.007); tied with it: none",
        "with clips, 1 of 1 better and 0 worse: SGD 2.255 → DN, clipped 2.005",
    ]
    single = lines([94.9], [94.9], [94.9])
    assert [line.mark for line in single] == ["best", "", ""], "a single seed ties with nobody"
    sentences = BaselineTable(replace(BaselinePlan.read(SMALL), seeds=[1]), single).sentences()
    assert sentences[::2] == ["best: sync-SGD (94.9)", "with clips: SGD 94.9 → DN, clipped 94.9"]


def test_a_run_that_diverged_counts_as_the_worst_and_has_no_time_to_its_end(tmp_path: Path) -> None:
    some = comparison(tmp_path, seeds=[1, 2, 3])
    workload, cell = some.plan.workloads["text"], BaselineCell("text", "mild", "plain")
    some._tunings[cell] = tuning = Tuning(some.plan, cell)
    tuning.advance(lambda point: 0.0)
    for seed, run in enumerate(some.runs(cell), 1):
        status = "diverged" if seed == 1 else "finished"
        loss = None if seed == 1 else 700.0 if seed == 2 else 2.0
        result = {"status": status, "accuracy": None, "loss": loss, "time": 10.0 * seed, "curve": [[1, 5.0, 1.0, None]]}
        row = {"spec": run.spec, "result": {**result, "clipped": 0.0, "local_clipped": 0.0}}
        write_json(some.store.path(run), row | {"versions": {"threads": "1"}})
    line = some.line(cell)
    assert line is not None
    assert line.scores == [workload.worst, workload.worst, 2.0], "no loss is worse than that of a run that diverged"
    assert (line.times, line.time) == ([20.0, 30.0], 25.0)
    assert line.score_at(10.0) == pytest.approx((workload.worst + 1 + 1) / 3)


@pytest.mark.usefixtures("quick")
def test_the_page_says_what_was_searched(tmp_path: Path) -> None:
    import vl_convert

    some = comparison(tmp_path)
    list(run_all(some))
    page = text(some, "the command")
    assert page.startswith("Made by `the command`.")
    assert (
        "| DN, clipped | local_lr 0.2 to 1, lr 0.01 to 10, momentum 0 to 0.9 | local_steps=1, kind='dn_dylu', " in page
    )
    assert "All 70 runs of the plan are done." in page
    assert "| text | text | 16, DN, clipped 24 | 1 | 3 on each fleet, 0.5 of the length | 0.1 |" in page
    assert "| fashion | clothes | 16 | 1 | those of digits | 0.1 |" in page
    drawn: Any = [picture(BaselineTable(some.plan, each)) for each in some.tables()]
    *dots, curves = (vl_convert.vegalite_to_svg(chart.to_json()) for chart in drawn)
    assert all(">DN, clipped<" in chart for chart in dots)
    assert ">DN<" in curves
    assert 'stroke-dasharray="6,2"' in curves, "clipped"
    table = BaselineTable(some.plan, some.tables()[-1])
    assert table.headings()[:5] == ("method", "test loss (nats per token)", "perplexity", "mark", "at 72 s")


@pytest.fixture
def small(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The script with a small plan."""
    monkeypatch.setattr(baselines, "plan", lambda: BaselinePlan.read(SMALL))
    return lambda *argv: script("baselines", *argv)


@pytest.mark.usefixtures("quick")
def test_the_script_runs_reads_and_writes_a_page(small: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tables need all runs, and 30 known ones are missing" in small("--read").err
    done = small("--jobs", "2", "--save", "runs.jsonl")
    assert (done.code, done.out.count("best: ")) == (0, 4)
    rows = [json.loads(line) for line in Path("runs.jsonl").read_text().splitlines()]
    assert len(list(Path("runs/baselines").glob("*.json"))) == len(rows) == 70
    monkeypatch.setattr(lib, "stored_runs", lambda name: rows)
    elsewhere = small("--read", "--out", "empty", "--page", "docs/page.md")
    assert (elsewhere.code, elsewhere.out) == (0, "")
    page = Path("docs/page.md").read_text("utf-8")
    assert page.startswith(f"{lib.marks('baselines')[0]}\n\nMade by `python -m experiments.baselines`.")
    assert page.count("best: ") == 4
    assert Path("docs/images/baselines-digits-mild.svg").read_bytes().startswith(b"<svg")
