"""Sweeps: the space, the trials, each exactly once whatever dies, and what is workable."""

from __future__ import annotations

import logging
import math
import os
import re
import runpy
import shutil
import signal
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tardygrad as tg
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.record import read_json, write_json
from tardygrad.spec import spec
from tardygrad.sweeps import Sweep, Trial, groups, read, remark, sweep
from tardygrad.sweeps import runner as running
from tardygrad.sweeps.config import configure, overrides, saved_config
from tardygrad.sweeps.runner import RETRIES, Runner
from tardygrad.sweeps.study import Study
from tardygrad.sweeps.trials import judged
from tests.cli.conftest import SMALL

DOCS = Path(__file__).parents[2] / "docs/cli.md"
FEW = ["method.lr=1", "method.clip=0.5", "method.local_clip=1"]
RATES = ["method.local_lr=[0.01, 0.1, 0.3]"]
ONE = ["method.local_lr=[0.1]"]
RANGES = ["method.local_lr={low=0.001, high=1.0, log=true}", "method.buffer={low=1, high=4}", "method.lr=[0.5, 1.0]"]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    return "small.toml"


Ended = Callable[[list[str]], None]


@pytest.fixture(scope="module")
def ended_sweeps() -> dict[str, Path]:
    return {}


@pytest.fixture
def ended(small: str, ended_sweeps: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Put a sweep that has ended at `here`; each is made once for all tests."""

    def put(over: list[str]) -> None:
        if (key := str(over)) not in ended_sweeps:
            ended_sweeps[key] = tmp_path_factory.mktemp("sweep") / "here"
            sweep(small, FEW, over=over, out=ended_sweeps[key])
        shutil.copytree(ended_sweeps[key], "here")

    return put


def runner(source: str, changes: Sequence[str] = FEW, *, jobs: int = 1, out: str = "here", **how: Any) -> Runner:
    return Runner(Path(out), *configure(source, changes, **how), jobs)


def facts(found: Sweep) -> list[Any]:
    """Everything about the trials but how long they really took."""
    rows = [trial._asdict() for trial in found.trials]
    for row in rows:
        row["seeds"] = [{key: value for key, value in seed.items() if key != "seconds"} for seed in row["seeds"]]
    return rows


def test_the_papers_grid_has_64_points_for_sgdclip_and_256_for_clip2(small: str) -> None:
    plain, _ = configure("logistic")
    clipped, _ = configure(small)
    assert (plain.trials, clipped.trials) == (64, 256)
    assert list(plain.space) == ["method.lr", "method.local_lr", "method.local_clip"]
    assert plain.space["method.lr"] == [0.1, 0.01, 0.001, 0.0001]
    assert plain.space["method.local_clip"] == np.linspace(1e-4, 1.5, 4).tolist()
    points = list(plain.grid())
    assert len({tuple(point.values()) for point in points}) == 64
    assert points[1] == points[0] | {"method.local_clip": plain.space["method.local_clip"][1]}


def test_other_keys_multiply_the_grid_and_a_swept_rate_replaces_it(small: str) -> None:
    words = ["method.downplay=[false, true]", "fleet.stragglers=['mild', 'large']"]
    config, _ = configure(small, ["method.lr=1.0"], over=words)
    rates = ["method.local_lr", "method.clip", "method.local_clip"]
    assert list(config.space) == ["method.downplay", "fleet.stragglers", *rates]
    assert config.trials == 2 * 2 * 4 * 4 * 4
    chosen, _ = configure(small, over=[*words, "method.clip=[0.1, 0.2]"])
    assert list(chosen.space) == ["method.downplay", "fleet.stragglers", "method.clip"]
    part, _ = configure("quadratic", over=["method.lr.value=[1.0, 5.0]"])
    assert list(part.space) == ["method.lr.value"]


def test_a_group_is_the_method_and_every_other_word(small: str) -> None:
    over = ["method.downplay=[false, true]", "fleet.stragglers=['mild', 'large']", "method.buffer=[2, 4]"]
    over += ["method.mode=['sync', 'client']", "fleet.continuous=[false, true]"]
    config, _ = configure(small, FEW, over=over)
    first = config.first()
    assert config.group(first) == "sync-Clip², mild, fleet.continuous=false"
    other = first | {"method.downplay": True, "method.mode": "client", "fleet.stragglers": "large"}
    assert config.group(other) == "SD-Clip², large, client, fleet.continuous=false"


def test_a_point_is_a_command_line_that_makes_the_same_spec(small: str) -> None:
    params = {"method.lr": {"value": 0.1, "exponent": -0.5}, "method.clip": "inf", "fleet.crashes": []}
    config, _ = configure(
        small, over=["method.lr=[{value=0.1, exponent=-0.5}, 1]", "method.clip=[inf]", "fleet.crashes=[[]]"]
    )
    assert config.space["method.clip"] == ["inf"]
    assert config.at(params).method == spec.load(small, overrides(params)).method
    assert config.at(params).method.arguments["clip"] == math.inf


def test_a_trial_is_the_run_of_its_point_and_jobs_change_nothing(small: str) -> None:
    over = [*RATES, "fleet.stragglers=['mild', 'large']"]
    one = sweep(small, FEW, over=over, seeds=2, out="one")
    two = sweep(small, FEW, over=over, seeds=2, out="two", jobs=3)
    assert facts(one) == facts(two)
    assert [trial.number for trial in one.trials] == list(range(6))
    trial = one.trials[4]
    runs = []
    for seed in (0, 1):
        built = spec.load(small, [*FEW, *overrides(trial.params), f"run.seed={seed}"]).build()
        assert built.fleet is not None
        runs.append(tg.simulate(built.method, built.task, built.fleet, rounds=12, seed=seed))
    losses = [run.summary().loss for run in runs]
    assert [seed["loss"] for seed in trial.seeds] == losses
    assert trial.loss == trial.value == np.mean(losses)
    assert trial.clipped == np.mean([row["clipped"] for run in runs for row in run.metrics])
    assert [point[0] for point in trial.seeds[0]["curve"]] == [0, 10, 12]
    assert trial.start["loss"] == np.mean([seed["curve"][0][2] for seed in trial.seeds])


def test_a_swept_task_is_made_anew(small: str) -> None:
    found = sweep(small, FEW, over=["method.local_lr=[0.1]", "task.clients=[4, 8]", "task.condition=[2, 20]"], out="x")
    for trial in found.trials:
        built = spec.load(small, [*FEW, *overrides(trial.params)]).build()
        assert built.fleet is not None
        assert built.fleet.clients == trial.params["task.clients"]
        assert trial.loss == tg.simulate(built.method, built.task, built.fleet, rounds=12).summary().loss
    assert len({trial.start["loss"] for trial in found.trials}) == 2


def test_to_diverge_or_to_starve_is_a_result(small: str) -> None:
    over = ["method.lr=[0.5, 3e38]", "method.local_lr=[1e38, 0.5]"]
    found = sweep(small, ["method.clip=inf", "method.local_clip=inf"], over=over, out="here")
    assert [trial.status for trial in found.trials] == ["starved", "finished", "starved", "diverged"]
    assert [trial.value is None for trial in found.trials] == [True, False, True, True]
    assert "the model is not finite after round" in (found.trials[3].reason or "")
    assert "updates were refused" in (found.trials[0].reason or "")  # the clients diverged, not the server
    (group,) = groups(found)
    assert (group.trials, group.finished, group.diverged, group.other, group.workable) == (4, 1, 1, 2, 1)
    assert group.share == 0.25
    assert group.best == found.trials[1]
    lost = "fleet.crashes=[{client=0, at=3}, {client=1, at=3}]"
    (starved,) = sweep(small, [*FEW, lost, "task.clients=2"], over=["method.local_lr=[0.1]"], out="there").trials
    assert (starved.status, starved.workable) == ("starved", False)


def made(score: float | None, status: Any = "finished", start: float = 0.1, **more: Any) -> Trial:
    return Trial(0, {}, "SGDClip", {"accuracy": start}, [], status=status, accuracy=score, **more)


def test_the_workable_share_by_hand() -> None:
    trials = [made(0.9), made(0.83), made(0.81), made(0.1), made(None, "diverged"), made(None, "failed")]
    trials += [made(None, "pruned"), made(0.9, start=0.89)]
    told = [True, True, False, False, False, None, None, True]  # 0.1 + 0.9 × 0.8 = 0.82
    assert [trial.workable for trial in judged(trials, "accuracy", 0.9, higher=True, target=False)] == told
    found = Sweep(
        "made", {}, "test accuracy", "accuracy", 8, judged(trials, "accuracy", 0.9, higher=True, target=False), {}
    )
    (group,) = groups(found)
    assert (group.workable, group.judged, group.share) == (3, 6, 0.5)
    nothing = judged([made(0.1), made(0.05)], "accuracy", 0.9, higher=True, target=False)
    assert [trial.workable for trial in nothing] == [False, False]  # nobody learned anything
    losses = [made(None)._replace(loss=loss, start={"loss": 2.0}) for loss in (0.5, 0.65, 0.66, 3.0)]
    found_losses = judged(losses, "loss", 0.9, higher=False, target=False)
    assert [trial.workable for trial in found_losses] == [True, True, False, False]
    reached = judged([made(0.9, value=7.0), made(0.9)], "accuracy", 0.9, higher=True, target=True)
    assert [trial.workable for trial in reached] == [True, False]


def test_a_budget_ends_runs_and_counts_what_was_scored_until_then(small: str) -> None:
    changes = [*FEW, "run.evaluate_every=2", "run.rounds=50"]
    (trial,) = sweep(small, changes, over=["method.local_lr=[0.1]"], budget=8.0, out="here").trials
    built = spec.load(small, [*changes, "method.local_lr=0.1"]).build()
    assert built.fleet is not None
    run = tg.simulate(built.method, built.task, built.fleet, rounds=50, evaluate_every=2)
    until = [row for row in run.metrics if row["time"] <= 8.0]
    assert 2 < len(until) < 50
    assert trial.seeds[0]["rounds"] == len(until)
    assert trial.time == until[-1]["time"]
    assert trial.value == [row["test_loss"] for row in until if "test_loss" in row][-1]
    (early,) = sweep(small, changes, over=["method.local_lr=[0.1]"], budget=0.1, out="early").trials
    assert early.value == early.start["loss"]


def test_best_by_the_time_to_a_target(small: str) -> None:
    changes = [*FEW, "run.evaluate_every=1"]
    found = sweep(small, changes, over=["method.local_lr=[0.0001, 0.1, 0.3]"], best="time", target=1.0, out="here")
    assert found.goal == "simulated seconds to a test loss of 1"
    assert [trial.value is None for trial in found.trials] == [True, False, False]
    assert [trial.workable for trial in found.trials] == [False, True, True]
    for trial in found.trials[1:]:
        assert trial.loss is not None
        assert trial.loss <= 1.0 < trial.seeds[0]["curve"][-2][2]
        assert trial.value == trial.time
    (group,) = groups(found)
    assert group.best is not None
    assert group.best.value == min(trial.value for trial in found.trials[1:] if trial.value is not None)


def test_accuracy_is_the_goal_where_there_is_one() -> None:
    config, _ = configure("logistic")
    assert (config.best, config.score, config.direction()) == ("accuracy", "accuracy", "maximize")
    config, _ = configure("logistic", best="time", target=0.8)
    assert (config.best, config.score, config.direction()) == ("time", "accuracy", "minimize")


def _kill(config: Any) -> None:
    """Leave a study as a process does that dies while a trial is under way and another one is written."""
    Study(Path("killed"), config).next()
    with Path("killed/study.jsonl").open("a") as journal:
        journal.write('{"op_code": 4, "study_id"')
    Path("killed/study.jsonl.lock").touch()


@pytest.mark.parametrize(("sampler", "trials", "stops"), [("random", 6, [2, 4]), ("tpe", 12, [5, 11])])
def test_a_killed_sampler_draws_what_it_would_have_drawn(
    small: str, sampler: Any, trials: int, stops: list[int]
) -> None:
    how: dict[str, Any] = {"over": RANGES, "sampler": sampler, "trials": trials, "prune": sampler == "tpe"}
    whole = sweep(small, ["run.evaluate_every=2"], out="whole", **how)
    for stop in stops:
        begun = runner(small, ["run.evaluate_every=2"], out="killed", **how)
        for _ in begun.go():
            if begun.done == stop:
                break
        _kill(begun.config)
    assert facts(sweep(small, ["run.evaluate_every=2"], out="killed", **how)) == facts(whole)
    assert [trial.number for trial in whole.trials] == list(range(trials))
    assert len({str(trial.params) for trial in whole.trials}) == trials
    for trial in whole.trials:
        assert type(trial.params["method.buffer"]) is int
        assert 0.001 <= trial.params["method.local_lr"] <= 1.0
        assert trial.params["method.lr"] in (0.5, 1.0)


def test_several_processes_draw_as_many_trials_as_were_asked_for(small: str) -> None:
    found = sweep(small, over=RANGES, sampler="tpe", trials=13, jobs=3, out="here")
    assert [trial.status for trial in found.trials] == ["finished"] * 13
    assert len({str(trial.params) for trial in found.trials}) == 13


def test_what_was_done_stays_done(small: str) -> None:
    begun = runner(small, over=RATES, jobs=2)
    for _ in begun.go():
        assert len(read("here").trials) == begun.done  # also while it runs
        if begun.done == 2:
            break
    before = [(trial.number, trial.seeds) for trial in read("here").trials]
    assert len(before) == 2
    after = sweep(small, FEW, over=RATES, out="here")
    assert [(trial.number, trial.seeds) for trial in after.trials if (trial.number, trial.seeds) in before] == before
    assert [trial.number for trial in after.trials] == [0, 1, 2]
    assert list(runner(small, over=RATES).go()) == []  # nothing is left to do


def test_a_process_that_dies_is_replaced_and_its_trial_begun_again(small: str) -> None:
    begun = runner(
        small, [*FEW, "run.rounds=30"], over=["method.local_lr=[0.01, 0.02, 0.03, 0.04, 0.05, 0.06]"], jobs=2
    )
    for number, _ in enumerate(begun.go()):
        if number in (0, 2):
            for worker in begun._trials:
                os.kill(worker.process.pid or 0, signal.SIGKILL)
    found = read("here")
    assert [trial.status for trial in found.trials] == ["finished"] * 6
    again = sweep(
        small, [*FEW, "run.rounds=30"], over=["method.local_lr=[0.01, 0.02, 0.03, 0.04, 0.05, 0.06]"], out="x"
    )
    assert facts(found) == facts(again)


def test_a_trial_that_kills_its_processes_fails_and_the_others_go_on(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest: Callable[..., Any] = running.run_trial

    def deadly(config: Any, tasks: Any, params: Any, prune: Any) -> Any:
        Path(f"tried-{params['method.local_lr']}-{os.getpid()}").touch()
        if params["method.local_lr"] == 0.1:
            os.kill(os.getpid(), signal.SIGKILL)
        if params["method.local_lr"] == 0.3:
            raise MemoryError("too large")
        return honest(config, tasks, params, prune)

    monkeypatch.setattr(running, "run_trial", deadly)
    found = sweep(small, FEW, over=RATES, out="here")
    assert [trial.status for trial in found.trials] == ["finished", "failed", "failed"]
    assert found.trials[1].reason == ("4 processes died running it (exit code -9). Out of memory? Use fewer jobs.")
    assert found.trials[2].reason == "MemoryError: too large"
    assert len(list(Path().glob("tried-0.1-*"))) == RETRIES + 1
    (group,) = groups(found)
    assert (group.other, group.workable, group.share) == (2, 1, 1.0)


def test_pruning_ends_what_falls_behind(small: str) -> None:
    rates = "method.local_lr=[0.1, 0.0001, 0.001, 0.0002, 0.2]"
    changes = [*FEW, "run.evaluate_every=1", "run.rounds=32"]
    found = sweep(small, changes, over=[rates], prune=True, out="here")
    states = [trial.status for trial in found.trials]
    assert states[0] == "finished"
    assert states[1:4] == ["pruned"] * 3
    assert found.trials[1].seeds[0]["rounds"] == 2  # a sixteenth of all
    assert found.trials[1].workable is None
    assert found.trials[1].value is None
    (group,) = groups(found)
    assert group.best is not None
    assert group.best.params["method.local_lr"] in (0.1, 0.2)
    assert (group.pruned, group.other) == (states.count("pruned"), 0)
    assert group.share is None  # pruning chose who could be workable


@pytest.mark.parametrize("dies", ["worker", "writer"])
def test_a_death_after_the_word_to_prune_changes_no_fate(
    small: str, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = ["method.local_lr=[0.1, 0.0001, 0.001, 0.0002, 0.2]"]
    changes = [*FEW, "run.evaluate_every=1", "run.rounds=32"]
    whole = sweep(small, changes, over=rates, prune=True, out="whole")
    begun = runner(small, changes, over=rates, prune=True)
    honest, deaths = Study.prune, list[int]()

    def deadly(study: Study, trial: Any, round: int, loss: float) -> bool:
        told = honest(study, trial, round, loss)
        if told and not deaths:
            deaths.append(trial.number)
            if dies == "writer":
                raise KeyboardInterrupt
            os.kill(next(iter(begun._trials)).process.pid or 0, signal.SIGKILL)
        return told

    monkeypatch.setattr(Study, "prune", deadly)
    with suppress(KeyboardInterrupt):
        list(begun.go())
    assert deaths == [1]
    assert facts(sweep(small, changes, over=rates, prune=True, out="here")) == facts(whole)


def test_a_sweep_in_use_is_not_touched(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardygrad.runs.record.time.sleep", lambda _: None)
    begun = runner(small, over=RATES).go()
    next(begun)
    with pytest.raises(RecordError, match=r"the sweep in 'here' is in use by another process\."):
        sweep(small, FEW, over=RATES, out="here")
    begun.close()
    assert len(sweep(small, FEW, over=RATES, out="here").trials) == 3


def test_optuna_leaves_no_trace(small: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = (logging.getLogger("optuna").level, list(warnings.filters))
    sweep(small, FEW, over=RANGES, sampler="tpe", trials=3, out="here")
    assert (logging.getLogger("optuna").level, list(warnings.filters)) == before
    assert capfd.readouterr() == ("", "")


def test_optuna_reads_a_study_as_the_docs_say(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = sweep(small, FEW, over=RATES, seeds=2, out="runs/quadratic-sweep-1")
    (snippet,) = re.findall(r"^```py\n(.*?)^```$", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    Path("snippet.py").write_text(snippet)
    runpy.run_path("snippet.py")
    best = groups(found)[0].best
    assert best is not None
    assert capsys.readouterr().out == f"{best.number} {best.params} {best.seeds[0]['loss']}\n"


def test_a_damaged_sweep_says_so(small: str, ended: Ended) -> None:
    ended(RATES)
    journal, config = Path("here/study.jsonl"), Path("here/sweep.json")
    lines = journal.read_text("utf-8").splitlines(keepends=True)
    for content in (["no journal at all\n", *lines], lines[1:]):
        journal.write_text("".join(content), "utf-8")
        for look in (lambda: read("here"), lambda: sweep(small, FEW, over=RATES, out="here")):
            with pytest.raises(RecordError, match=r"^the study in 'here/study\.jsonl' is damaged \(.+\)\. Restore it"):
                look()
        assert journal.read_text("utf-8") == "".join(content)
    for begun in ("", lines[0].rstrip()):  # its first line is written just now
        journal.write_text(begun, "utf-8")
        assert read("here").trials == []
    whole = read_json(config)
    for damage in ({"versions": {}}, whole | {"space": {"method.other": [1]}}):
        write_json(config, damage)
        with pytest.raises(RecordError, match=r"^the record in 'here' is damaged \(.+\)\.$"):
            saved_config(Path("here"))
    with pytest.raises(Invalid, match=r"'.' holds no run: sweep.json cannot be read"):
        read(".")
    Path("here/study.db").touch()
    write_json(config, whole)
    with pytest.raises(
        Invalid, match=r"^the sweep in 'here' is of an earlier version\. Run it again in another folder"
    ):
        sweep(small, FEW, over=RATES, out="here")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"over": ["method.bufer=[1]"]}, r"\[method\] has no key `bufer`. Did you mean 'buffer'\?"),
        ({"over": ["method.buffer=2"]}, r"--over must be TABLE.KEY=\[VALUES\]"),
        ({"over": ["method.buffer=[2, 64]"]}, "`buffer` must be between 1 and the number of clients"),
        ({"over": ["method.lr=[1979-05-27]"]}, "`method.lr` must be a number or a schedule"),
        ({"over": ["method.lr=[1]", "method.lr=[2]"]}, "a key can be swept only once, got `method.lr` twice"),
        ({"over": ["method.lr=[1]", "method.lr.value=[2]"]}, "a key and a key inside it cannot both be swept"),
        ({"over": ["engine.workers=[1, 2]"]}, "`engine.workers` does not change results"),
        ({"over": ["method.lr={low=0.1, high=1}"]}, "a grid needs lists, got a range for `method.lr`"),
        ({"over": ["method.lr={low=1, high=0.1}"], "sampler": "tpe"}, "a range must have low < high, got low=1"),
        ({"over": ["method.lr={low=0, high=1, log=true}"], "sampler": "tpe"}, "a range must have 0 < low < high"),
        ({"over": ["method.lr={low=0}"], "sampler": "tpe"}, "a range needs two finite numbers"),
        ({"over": ["method.lr={lo=0}"], "sampler": "tpe"}, "got `lo` for `method.lr`. Did you mean 'low'?"),
        ({"best": "speed"}, "`best` must be a test score of the task, one of loss, distance, or time, got 'speed'"),
        ({"best": "time", "target": math.nan}, "`target` must be a finite number, got nan"),
        (
            {"over": [f"run.seed={[*range(9999)]}", f"run.rounds={[*range(1, 1001)]}", "method.local_lr=[1]"]},
            "a grid must have at most 100,000 points, got 9,999,000. Use the sampler random.",
        ),
        ({"trials": 5}, "a grid has as many trials as points, got 5"),
        ({"trials": 0, "sampler": "tpe"}, "`trials` must be a whole number, 1 or more, got 0"),
        ({"seeds": 2, "prune": True}, "pruning needs one seed per trial, got 2"),
        ({"workable": 1.5}, "`workable` must be above 0 and at most 1, got 1.5"),
        ({"budget": -1.0}, "`budget` must be a finite number, above 0, got -1.0"),
        ({"changes": ["engine.workers=2"]}, "got engine.workers=2. Use --jobs 2"),
        ({"changes": ["run.track=['tensorboard']"]}, r"the trials of a sweep are not tracked. Add run.track=\[\]"),
        ({"changes": ["run.evaluate_every=0"]}, "a sweep compares test scores, got run.evaluate_every=0"),
        ({"jobs": -1}, "`jobs` must be a whole number, 0 or more, got -1"),
    ],
)
def test_a_broken_rule_is_refused_before_anything_is_written(small: str, how: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        sweep(small, how.pop("changes", FEW), out="here", **how)
    assert not Path("here").exists()


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("logistic", 90, r"a target accuracy must be above 0 and at most 1, got 90\. Did you mean 0\.9\?$"),
        ("logistic", -1, r"at most 1, got -1\.$"),
        ("logistic", 0.1, r"^x_0 already has a test accuracy of 0\.\d+, got the target 0.1. Use a higher target"),
        ("small.toml", 1000, r"^x_0 already has a test loss of [\d.]+, got the target 1000. Use a lower target"),
    ],
)
def test_a_target_that_is_impossible_or_met_is_refused(small: str, source: str, target: float, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        configure(source, best="time", target=target)


def placed(values: Sequence[float], space: dict[str, Any], **start: float) -> Sweep:
    """A sweep over the points of a grid with these losses."""
    points = [dict(zip(space, point, strict=True)) for point in product(*space.values())]
    trials = [
        made(None, value=value)._replace(number=i, params=point, loss=value, start=start)
        for i, (point, value) in enumerate(zip(points, values, strict=True))
    ]
    return Sweep("made", space, "test loss", "loss", len(points), trials, {})


def test_the_best_at_the_edge_is_told_of() -> None:
    space: dict[str, Any] = {"method.lr": [0.1, 1.0, 10.0], "fleet.stragglers": ["mild", "large"]}
    edge = "best at the edge of lr: better settings may lie beyond"
    assert remark(placed([1, 2, 3, 4, 5, 6], space, loss=9.0)) == edge
    assert remark(placed([6, 5, 4, 3, 2, 1], space, loss=9.0)) == edge
    assert remark(placed([6, 5, 1, 3, 2, 4], space, loss=9.0)) is None
    assert remark(placed([1, 5, 1, 3, 2, 4], space, loss=9.0)) is None  # as good inside
    under_way = placed([1, 2, 3, 4, 5, 6], space, loss=9.0)
    assert remark(under_way._replace(total=7)) is None
    beyond: dict[str, Any] = {"method.clip": [0.1, 1, "inf"]}
    assert remark(placed([3, 2, 1], beyond, loss=9.0)) is None
    assert remark(placed([1, 2, 3], beyond, loss=9.0)) == "best at the edge of clip: better settings may lie beyond"
    whole = under_way._replace(space={"method.lr": {"low": 0.1, "high": 50, "log": True}})
    assert remark(whole) == edge
    assert remark(whole._replace(space={"method.lr": {"low": 0.01, "high": 50, "log": True}})) is None


def test_a_sweep_without_a_trial_better_than_x_0_says_so(small: str) -> None:
    space: dict[str, Any] = {"method.lr": [0.1, 1.0]}
    assert remark(placed([9.0, 10.0], space, loss=9.0)) == "no trial is better than x_0"
    found = sweep(small, ["method.clip=inf", "method.local_clip=inf", "method.lr=1e38"], over=RATES, out="here")
    assert remark(found) == "no trial is better than x_0"
    assert remark(sweep(small, FEW, over=RATES, out="there")) != "no trial is better than x_0"


def test_a_folder_is_gone_on_with_only_if_the_same_is_asked(small: str, ended: Ended) -> None:
    ended(RATES)
    with pytest.raises(Invalid, match=r"'here' has other settings: `seeds` is 1 there, got 2. Choose another folder."):
        sweep(small, FEW, over=RATES, seeds=2, out="here")
    with pytest.raises(Invalid, match=r"`run.rounds` is 12 there, got 13"):
        sweep(small, [*FEW, "run.rounds=13"], over=RATES, out="here")
    Path("run").mkdir()
    Path("run/spec.json").write_text("{}")
    with pytest.raises(Invalid, match="already holds a run"):
        sweep(small, FEW, over=RATES, out="run")


def test_a_combination_that_cannot_be_is_a_failed_trial(small: str) -> None:
    over = ["method.local_lr=[0.1]", "method.buffer={low=2, high=4}", "method.concurrency=[4, 2]"]
    found = sweep(small, [*FEW, "method.mode=server"], over=over, sampler="random", trials=12, out="here")
    bad = [trial for trial in found.trials if trial.params["method.concurrency"] < trial.params["method.buffer"]]
    assert bad
    assert {(trial.status, trial.group) for trial in bad} == {("failed", "refused")}
    assert all("`concurrency` must be at least `buffer`" in (trial.reason or "") for trial in bad)
    assert {trial.status for trial in found.trials if trial not in bad} == {"finished"}
