"""`reproduce baselines`: everyone tuned alike, by trials that nothing repeats and no timing changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial

from tardygrad.errors import RecordError
from tardygrad.reproduce import baseline_specs, baselines
from tardygrad.reproduce.baseline_page import picture, text, verdicts
from tardygrad.reproduce.baseline_specs import BASELINES, CLIPPED, LESSONS, BaselineTrial
from tardygrad.reproduce.baselines import BaselineLine, Comparison, finished, marked, upcoming
from tardygrad.reproduce.page import marks
from tardygrad.reproduce.trials import FLEETS, TUNING
from tardygrad.runs.record import exclusive, write_json
from tardygrad.spec import spec
from tardygrad.sweeps import store
from tardygrad.sweeps.store import Run
from tardygrad.tasks.image_task import FASHION
from tests.cli.conftest import Command, tardygrad  # noqa: F401
from tests.tasks.picture_files import GRAY, striped, write_idx

SPACE = {"lr": FloatDistribution(0.01, 10.0, log=True), "momentum": FloatDistribution(0.0, 0.95)}


def made_up(path: Path, run: Run, records: bool) -> Path:
    """A run that takes no time: the nearer its rate to 1 the better, and diverged beyond 8."""
    method, seed = run.spec["method"], run.spec["run"]["seed"]
    rate = method["lr"]
    score = None if rate > 8 else (95.0 - 10 * abs(1 - rate) - seed + method.get("local_clip", 0.0)) / 100
    result = {"status": "diverged" if score is None else "finished", "accuracy": score, "time": 70.0 + seed}
    curve = [[280, 35.0, 1.0, score and score - 0.1], [280, 70.0, 1.0, score]]
    rest = {"loss": 1.0, "curve": curve, "clipped": 0.1, "local_clipped": 0.2}
    write_json(path, {"spec": run.spec, "result": {**result, **rest}})
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_run", made_up)


def comparison(folder: Path, trials: int = 12, *names: str, seeds: int = 2) -> Comparison:
    return Comparison(folder, list(names or ("clip2", "fadas", "fadas-clipped")), trials, seeds, fashion=True)


def run_all(one: Comparison, jobs: int = 1) -> Iterator[Path]:
    while runs := one.store.missing(one.wanted()):
        yield from one.store.run_missing(runs, jobs)


def points(one: Comparison) -> list[list[tuple[dict[str, float], float | None]]]:
    return [[(trial.params, trial.value) for trial in trials] for trials in one.tuned().values()]


@pytest.mark.parametrize("name", BASELINES)
def test_every_contender_is_a_spec_with_as_many_updates_of_as_many_steps(name: str) -> None:
    ranges: Any = BASELINES[name].space
    for point in ({key: one.low for key, one in ranges.items()}, {key: one.high for key, one in ranges.items()}):
        read = spec.parse(BaselineTrial(name, "mild").at(point).run(3).spec)
        built = read.build()
        assert built.run.rounds is not None
        assert built.method.buffer * built.run.rounds == 1120
        assert (built.method.local_steps, read.run.seed) == (5, 3)
        assert read.run.rounds % read.run.evaluate_every == 0


def test_rates_have_the_same_ranges_for_everyone() -> None:
    for rate in ("local_lr", "lr"):
        assert len({repr(one.space[rate]) for one in BASELINES.values() if rate in one.space}) == 1
    assert all("local_lr" in one.space for one in BASELINES.values())


def test_what_was_published_without_clipping_is_there_with_and_without() -> None:
    for clipped, plain in CLIPPED.items():
        one, other = BASELINES[clipped], BASELINES[plain]
        assert other.method.get("local_clip", math.inf) == math.inf
        assert "local_clip" not in (*other.space, *one.method)
        assert {key: one.space[key] for key in other.space} == other.space
        assert one.space.keys() - other.space.keys() == {"local_clip"}


def test_a_setting_near_the_end_of_its_range_is_named_where_the_range_could_be_wider() -> None:
    one = BaselineTrial("dn-dylu", "mild").at({"local_lr": 0.1, "lr": 9.9, "period": 4, "momentum": 0.0})
    assert one.edges() == ["lr", "period"]


def searched(trials: int, told: list[FrozenTrial] | None = None, cut: Callable[[int], int] = lambda n: n) -> Any:
    told = [] if told is None else told
    while found := upcoming(SPACE, told, trials):
        for point in found[: max(cut(len(found)), 1)]:
            told.append(finished(SPACE, point, -abs(point["lr"] - 1)))
    return told


def test_a_trials_point_does_not_depend_on_where_it_was_stopped_or_how_many_are_asked() -> None:
    whole = [one.params for one in searched(23)]
    assert len({str(one) for one in whole}) == 23
    assert [one.params for one in searched(23, cut=lambda n: n // 2)] == whole
    assert [one.params for one in searched(23, searched(12))] == whole
    assert [one.params for one in searched(12)] == whole[:12]


def test_trials_after_the_random_ones_learn_from_those_before_their_batch() -> None:
    told = searched(baselines.RANDOM)
    ahead = upcoming(SPACE, told, 99)
    assert len(ahead) == baselines.BATCH
    other = [finished(SPACE, one.params, abs(one.params["lr"] - 1)) for one in told]
    assert upcoming(SPACE, other, 99) != ahead
    begun = [*told, finished(SPACE, ahead[0], -1.0)]
    assert upcoming(SPACE, begun, 99) == ahead[1:], "the batch does not see its own"


def test_the_best_trial_is_the_first_of_the_highest() -> None:
    told = [finished(SPACE, {"lr": lr, "momentum": 0.5}, value) for lr, value in ((1, 0), (2, 9), (3, 9), (4, 0))]
    assert baselines.best(told)["lr"] == 2


@pytest.mark.usefixtures("quick")
def test_everyone_is_tuned_and_then_run_with_other_seeds(tmp_path: Path) -> None:
    one = comparison(tmp_path)
    assert one.missing_count() == 3 * 2 * 12 + 3 * 3 * 2
    assert sum(1 for _ in run_all(one, jobs=2)) == 3 * 2 * 12 + 3 * 3 * 2
    mild, large, fashion = one.tables()
    assert [line.trial.name for line in mild] == ["clip2", "fadas", "fadas-clipped"]
    assert [(line.trial.lesson, line.trial.stragglers) for line in fashion] == [("fashion", "large")] * 3
    assert [line.trial.given for line in fashion] == [line.trial.given for line in large]
    for line, told in zip(mild, one.tuned().values(), strict=False):
        top = max(told, key=lambda trial: trial.value)
        assert (line.trial.settings, len(told)) == (top.params, 12)
        assert line.accuracy == pytest.approx(top.value - 1.5), "seeds 1 and 2, not 0"
        assert line.time == pytest.approx(71.5)
        assert (line.reached, line.reach) in ((2, 70.0), (1, None), (0, None))
    assert any(trial.value == 0.0 for told in one.tuned().values() for trial in told), "a run that diverged"
    assert (one.missing(), one.missing_count()) == ({}, 0)
    before = points(one)
    assert comparison(tmp_path).wanted() == []
    assert points(comparison(tmp_path)) == before
    assert comparison(tmp_path, 13, seeds=3).missing() == {
        (12, 2): [f"{name} ({fleet})" for fleet in FLEETS for name in ("clip2", "fadas", "fadas-clipped")]
    }
    assert points(comparison(tmp_path, 5)) == [told[:5] for told in before], "fewer trials are the first of them"


@pytest.mark.usefixtures("quick")
def test_stopped_anywhere_it_goes_on_to_the_same_trials(tmp_path: Path) -> None:
    list(run_all(comparison(tmp_path / "whole", 12, "clip2"), jobs=2))
    for stop in (7, 8, 10):
        going = run_all(comparison(tmp_path / "torn", 12, "clip2"), jobs=2)
        list(islice(going, stop))
        going.close()
    some = comparison(tmp_path / "torn", 12, "clip2")
    mild = next(iter(some.tuned()))
    for number in (2, 11):
        some.store.path(mild.at(some.tuned()[mild][number].params).run(TUNING)).unlink()
    torn = comparison(tmp_path / "torn", 12, "clip2")
    assert len(torn.tuned()[mild]) == 2, "the trials before the first missing run"
    list(run_all(torn))
    whole = comparison(tmp_path / "whole", 12, "clip2")
    assert (points(torn), torn.tables()) == (points(whole), whole.tables())


@pytest.mark.usefixtures("quick")
def test_a_changed_experiment_takes_no_old_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(run_all(comparison(tmp_path, 3, "clip2")))
    assert [len(told) for told in comparison(tmp_path, 3, "clip2").tuned().values()] == [3, 3]
    wider = BASELINES["clip2"]._replace(space={**BASELINES["clip2"].space, "lr": SPACE["lr"]})
    with monkeypatch.context() as other:
        other.setitem(BASELINES, "clip2", wider)
        assert [len(told) for told in comparison(tmp_path, 3, "clip2").tuned().values()] == [0, 0]
    monkeypatch.setattr(baseline_specs, "ROUNDS", 10)
    assert [len(told) for told in comparison(tmp_path, 3, "clip2").tuned().values()] == [0, 0]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(RecordError, match="in use by another process"):
        list(run_all(comparison(tmp_path)))


def line(
    name: str, accuracy: float, spread: float | None = 0.5, reach: float | None = 30.0, reached: int = 2
) -> BaselineLine:
    return BaselineLine(BaselineTrial(name, "large").lowest(), accuracy, spread, 77.0, reached, reach)


def test_the_best_is_marked_and_what_is_within_its_spread_is_tied() -> None:
    lines = [line("clip2", 94.4), line("fadas", 94.9), line("fadas-clipped", 94.3), line("dn-dylu", 80.0, 40.0)]
    assert [one.mark for one in marked(lines)] == ["tied", "best", "", ""]
    assert marked([]) == []
    assert verdicts(marked(lines)) == [
        "best: FADAS (94.9 ± 0.5); within its spread: Clip² (94.4 ± 0.5)",
        "with local clipping: FADAS 94.9 → 94.3",
    ]
    assert verdicts(marked(lines[:1])) == ["best: Clip² (94.4 ± 0.5); within its spread: none"]


def test_a_single_seed_has_no_spread_and_ties_with_nobody(tmp_path: Path) -> None:
    lines = marked([line(name, 94.9, None) for name in ("clip2", "fadas")])
    assert [one.mark for one in lines] == ["best", ""]
    assert verdicts(lines) == ["best: Clip² (94.9)"]
    page = text(comparison(tmp_path, seeds=1), [lines], "the command")
    assert "The tables show the best setting with seed 1 only" in page
    assert "±" not in page
    assert picture([lines]).to_dict()


def test_the_page_says_what_was_searched_and_the_picture_shows_everyone(tmp_path: Path) -> None:
    import vl_convert

    lines = marked([line(name, 60.0 + i, reach=None if i else 30.0, reached=i) for i, name in enumerate(BASELINES)])
    page = text(comparison(tmp_path), [lines, lines, []], "the command", "no images.")
    for name, one in BASELINES.items():
        assert f"| {one.label} | local_lr 0.003 to 1, " in page
        assert f"| {one.label} | {60 + list(BASELINES).index(name)}.0 ± 0.5 |" in page
    assert page.startswith("Made by `the command`.")
    assert page.endswith("Fashion-MNIST was not run: no images.")
    assert "| 77 | 30 | local_lr 0.003, " in page
    assert "| 77 | 1 of 2 seeds | local_lr 0.003, " in page
    drawn: Any = vl_convert.vegalite_to_svg(picture([lines, lines, []]).to_json())
    for one in BASELINES.values():
        assert f">{one.label}<" in drawn
    assert drawn.count(">digits, large stragglers<") == 2


@pytest.fixture
def small(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> Command:  # noqa: F811
    """The command with two methods, ten rounds and no images of clothes."""
    kept = {name: BASELINES[name] for name in ("clip2", "fadas")}
    for module in (baseline_specs, baselines):
        monkeypatch.setattr(module, "BASELINES", kept)
    monkeypatch.setattr(baseline_specs, "ROUNDS", 10)
    monkeypatch.setitem(spec.KINDS["task"], "fashion", FASHION._replace(folder=None).task)
    return lambda *argv: tardygrad("reproduce", "baselines", "--trials", "2", "--seeds", "1", *argv)


@pytest.mark.usefixtures("quick")
def test_the_command_runs_reads_and_writes_a_page(small: Command) -> None:
    done = small("--jobs", "2")
    assert done.code == 0
    assert done.err.startswith("fashion is skipped: in [task]: Fashion-MNIST needs its images, got no `data`.")
    assert done.err.endswith("\n12 runs to do, stored in runs/baselines\n")
    assert done.out.count("best: ") == 2
    assert "±" not in done.out
    assert "digits, large stragglers" in done.out
    assert len(list(Path("runs/baselines").glob("*.json"))) == 2 * 2 * (2 + 1)
    told = small("--read", "--json")
    assert (told.code, told.err) == (0, "")
    lines = told.json["lines"]
    assert {one["spread"] for one in lines} == {None}
    more = small("--read", "--trials", "20", "--seeds", "3", "--only", "clip2")
    assert (more.code, more.err.count("\n")) == (2, 1)
    assert "wanted 20 trials and 3 seeds, found 2 and 1 of clip2 (mild), clip2 (large). Leave" in more.err
    assert [(one["stragglers"], one["name"]) for one in lines] == [
        (fleet, name) for fleet in FLEETS for name in ("clip2", "fadas")
    ]
    assert lines[0]["settings"].keys() == BASELINES["clip2"].space.keys()
    again = small("--page", "docs/page.md")
    assert (again.code, "to make" in again.err) == (0, False)
    page = Path("docs/page.md").read_text("utf-8")
    assert page.startswith(f"# Baselines\n\n{marks('baselines')[0]}\n\nMade by `tardygrad reproduce baselines")
    assert "Fashion-MNIST was not run: in [task]" in page
    assert Path("docs/images/baselines.svg").read_bytes().startswith(b"<svg")


def test_ctrl_c_says_how_to_go_on(small: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.Store, "run_missing", stopped)
    code, out, err = small()
    assert (code, out) == (130, "")
    assert err.endswith("stopped; finished runs are stored in runs/baselines: continue with the same command\n")


def test_images_of_clothes_are_learnt_with_the_setting_for_digits(small: Command) -> None:
    write_idx(Path("mine/fashion"), striped(400, GRAY), striped(2000, GRAY), packed=False)
    done = small("--only", "fadas", "--trials", "1", "--data", "mine", "--json")
    assert (done.code, done.err) == (0, "5 runs to do, stored in runs/baselines\n")
    mild, large, fashion = done.json["lines"]
    assert [(one["lesson"], one["stragglers"]) for one in (mild, large, fashion)] == [
        ("digits", "mild"),
        ("digits", "large"),
        ("fashion", "large"),
    ]
    assert fashion["settings"] == large["settings"]
    assert all(0 < one["accuracy"] < 100 and one["time"] > 0 for one in (mild, large, fashion))
    assert small("--only", "fadas", "--trials", "1", "--read", "--json").json["lines"][2] == fashion


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--only", "clip"], "--only must be one of clip2, fadas, got 'clip'. Did you mean 'clip2'?"),
        (["--only", "fadas", "--page", "page.md"], "--page needs all methods, got --only. Leave out one of"),
        (["--read"], "wanted 2 trials and 1 seed, found 0 and 0 of clip2 (mild), fadas (mild), "),
        (["--trials", "0"], "Invalid value for '--trials'"),
        (["--seeds", "0"], "Invalid value for '--seeds'"),
    ],
)
def test_broken_rules_are_said_in_a_line(small: Command, argv: list[str], said: str) -> None:
    code, out, err = small(*argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not Path("runs").exists()


def test_a_page_without_a_place_is_left_alone_before_anything_is_run(small: Command) -> None:
    Path("mine.md").write_text("my thesis")
    code, _, err = small("--page", "mine.md")
    assert code == 2
    assert "a place for the baselines" in err
    assert not Path("runs").exists()


def test_where_the_images_are_is_no_part_of_a_result(tmp_path: Path) -> None:
    here = BaselineTrial("clip2", "large", lesson="fashion").lowest()
    there = BaselineTrial("clip2", "large", lesson="fashion", data="elsewhere").lowest()
    some = store.Store(tmp_path)
    assert some.path(here.run(TUNING)) == some.path(there.run(TUNING))
    assert some.path(here.run(TUNING)) != some.path(BaselineTrial("clip2", "large").lowest().run(TUNING))
    assert there.run(1).spec["task"]["data"] == "elsewhere"
    assert LESSONS["fashion"].task["noise"] == LESSONS["digits"].task["noise"]
