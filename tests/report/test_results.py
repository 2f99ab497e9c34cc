"""What a report concludes: its first sentence, its warnings, its table, on the page and in LaTeX."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tardygrad.report.build import build
from tardygrad.report.comparison import compare, headline
from tardygrad.report.groups import grouped, mean_curve
from tardygrad.report.loader import find, read
from tardygrad.report.page import figures
from tardygrad.results.blocks import Note, Table
from tardygrad.results.theme import BLACK, CLASS_COLOURS, COLOURS
from tests.report.records import EVIL, record, write

SYNC: dict[str, Any] = {"label": "sync-Clip²"}


def rewritten(path: Path, slower: float = 1.0, jitter: float = 0.0, **scores: Any) -> Path:
    """The record with other times and other scores: functions of a round, or None to leave one out."""
    rows = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    for row in rows:
        row["time"] = slower * row["time"] + jitter
        if row["event"] == "evaluation":
            row |= {name: score(row["round"]) for name, score in scores.items() if score}
            for name in [name for name, score in scores.items() if score is None]:
                del row[name]
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def seeds(folder: Path, name: str, number: int = 2, slower: float = 1.0, **facts: Any) -> None:
    """Runs of a method that differ in their seed, and so in their scores and times."""
    for seed in range(number):
        spec = {"task": {"kind": "quadratic"}, "method": {"kind": name}, "run": {"seed": seed}}
        path = record(folder / f"{name}-{seed}", seed=seed, **{"spec": spec, "label": name, **facts})
        rewritten(path, slower, jitter=0.1 * seed)


def result(*paths: Path, **options: Any) -> str:
    """The sentence that a page opens with."""
    groups = grouped(map(read, find(list(map(str, paths))).runs))
    return headline(groups, compare(groups, **options))


def notes(path: Path) -> list[str]:
    return [block.text for block in build([str(path)]).sections[0].blocks if isinstance(block, Note)]


def test_a_page_opens_with_the_result(tmp_path: Path) -> None:
    seeds(tmp_path, "Clip²")
    seeds(tmp_path, "sync-Clip²", slower=10.0)
    page = build([str(tmp_path)], target=0.85).html()
    sentence = (
        "Clip² and sync-Clip² have the same mean test accuracy, 91.9 ± 4.9%; Clip² is the first to reach 85.0%, after "
        "7.55 simulated seconds, 9.94 times as fast as sync-Clip²."
    )
    assert f'<main id="main" tabindex="-1">\n<p class="result">{sentence}</p>' in page


def test_the_result_names_the_best_and_the_fastest(tmp_path: Path) -> None:
    record(tmp_path / "quick")
    slow = record(tmp_path / "slow", **SYNC, spec={"method": {"mode": "sync"}})
    rewritten(slow, 10.0, accuracy=lambda t: t / 12)
    assert result(tmp_path, target=0.85) == (
        "sync-Clip² has the best test accuracy, 100% with one seed, so small "
        "differences may be chance; Clip² is the first to reach 85.0%, after 6 "
        "simulated seconds, 20 times as fast as sync-Clip²."
    )
    assert result(tmp_path, target=0.85, baseline="Clip²") == (
        "sync-Clip² has the best test accuracy, 100% with one seed, so small "
        "differences may be chance; the difference from Clip² is +7.692 points; "
        "Clip² is the first to reach 85.0%, after 6 simulated seconds."
    )


def test_a_target_that_the_baseline_missed_has_no_factor(tmp_path: Path) -> None:
    record(tmp_path / "quick")
    seeds(tmp_path, "sync-Clip²", slower=10.0)
    rewritten(tmp_path / "sync-Clip²-1", accuracy=lambda t: 0.5)
    assert result(tmp_path, target=0.85).endswith(
        "Clip² is the only one to reach 85.0%, after 6 simulated seconds; sync-Clip² did not reach it in all its runs."
    )
    assert result(tmp_path, target=0.999).endswith("; no method reached 99.9% in all its runs.")


def test_the_result_says_that_no_run_is_synchronous(tmp_path: Path) -> None:
    seeds(tmp_path, "FedBuff", slower=3.0)
    seeds(tmp_path, "Clip²")
    assert result(tmp_path, target=0.85, baseline="FedBuff").endswith("as fast as FedBuff (no run is synchronous).")


def test_one_method_or_one_run_has_nothing_to_compare_with(tmp_path: Path) -> None:
    one = record(tmp_path / "one")
    assert result(one) == (
        "Clip² ends with a test accuracy of 92.3% after 12 rounds, 12 simulated seconds; a single run, so there is "
        "nothing to compare it with."
    )
    seeds(tmp_path / "seeds", "Clip²")
    assert result(tmp_path / "seeds", target=0.85) == (
        "Clip² has a mean test accuracy of 91.9 ± 4.9% over 2 seeds; it reached 85.0% after 7.55 simulated seconds."
    )
    bare = rewritten(record(tmp_path / "bare"), loss=None, accuracy=None)
    assert result(bare).startswith("Clip² ends without a test score after 12 rounds")
    assert (
        result(bare, record(tmp_path / "other", label="other", rounds=2))
        == "2 runs of which none has a test score yet."
    )


def test_a_run_that_did_not_finish_is_no_result(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=6, torn=True)
    assert result(path) == (
        "Clip² has not ended after 6 of 12 rounds, 6 simulated seconds; the last evaluation found a test accuracy of "
        "85.7%."
    )
    other = record(tmp_path / "other", **SYNC, spec={"method": {"mode": "sync"}})
    assert result(path, other).startswith("So far: sync-Clip² has the best test accuracy, 92.31% with one seed")
    write(other / "summary.json", {"status": "diverged", "reason": "x", "rounds": 12, "seconds": 1.0})
    assert result(other).startswith("sync-Clip² diverged after 12 of 12 rounds")
    write(path / "summary.json", {"status": "failed", "reason": "x", "rounds": 12, "seconds": 1.0})
    assert result(path, other) == "no method has a test accuracy in all its runs."


def test_different_tasks_have_no_common_result(tmp_path: Path) -> None:
    record(tmp_path / "0")
    record(tmp_path / "1", spec={"task": {"kind": "glue", "name": "rte"}})
    assert result(tmp_path) == "2 runs on different tasks (quadratic and glue rte), whose scores cannot be compared."


def test_simulated_and_real_clocks_are_not_compared(tmp_path: Path) -> None:
    record(tmp_path / "simulated")
    record(tmp_path / "real", **SYNC, clock="real", spec={"method": {"mode": "sync"}, "task": {"kind": "quadratic"}})
    assert notes(tmp_path) == ["Some clocks are simulated and some are real, so times are not compared."]
    assert "times are not compared because the clocks differ" in result(tmp_path)
    assert not any("time" in figure.chart["datasets"] for figure in figures(build([str(tmp_path)]).sections[1:2]))
    compared = compare(grouped(read(tmp_path / name) for name in ("simulated", "real")), target=0.85)
    assert set(compared.speedups.values()) == {None}
    assert "speed-up, all rounds" in compared.page_table().headings
    assert compared.seconds == "seconds (simulated or real)"


@pytest.mark.parametrize(
    ("facts", "simulated"),
    [
        ({"clock": "real"}, False),
        ({"clock": None, "spec": {"engine": {"kind": "sim"}}}, True),
        ({"clock": None, "spec": {"engine": {"kind": "ray"}}}, False),
        ({"clock": None, "spec": {"engine": {"kind": "mine"}}}, None),
        ({"clock": None, "spec": None}, None),
    ],
)
def test_a_record_says_what_its_clock_is(tmp_path: Path, facts: dict[str, Any], simulated: bool | None) -> None:
    path = record(tmp_path / "run", **facts)
    assert read(path).history.simulated is simulated
    assert ("12 simulated seconds" in result(path)) == (simulated is True)


def test_a_mean_of_some_runs_is_no_number(tmp_path: Path) -> None:
    seeds(tmp_path, "Clip²", 3)
    seeds(tmp_path, "sync-Clip²", 3, slower=10.0)
    seeds(tmp_path, "FedBuff", 1)
    write(tmp_path / "Clip²-1/summary.json", {"status": "diverged", "reason": "x", "rounds": 12, "seconds": 1.0})
    write(tmp_path / "FedBuff-0/summary.json", {"status": "starved", "reason": "x", "rounds": 12, "seconds": 1.0})
    rewritten(tmp_path / "sync-Clip²-0", loss=lambda t: None)
    table = compare(grouped(map(read, sorted(tmp_path.iterdir()))), target=0.85).page_table()
    found = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    assert [row["accuracy (%)"] for row in found] == ["1 of 3 diverged", "1 of 1 starved", "91.5 ± 1.9"]
    assert [row["test loss"] for row in found] == ["–"] * 3
    assert [row["status"] for row in found] == ["finished, diverged", "starved", "finished"]


def test_columns_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    for name, rounds in (("Clip²", 12), ("sync-Clip²", 9)):
        facts: dict[str, Any] = {"run": {"until": 12.5, "seed": 0}, "spec": {"method": {"kind": name}}}
        record(tmp_path / name, rounds=rounds, label=name, **facts)
    table, text = build([str(tmp_path)], target=0.85).sections[0].blocks
    assert isinstance(table, Table)
    heads = ["method", "accuracy (%)", "difference", "time to target (s)", "difference (s)", "speed-up", "test loss"]
    assert list(table.headings) == [*heads, "runs", "rounds", "mean delay", "largest delay"]
    assert text.startswith("Test accuracy after the last round, with one seed: no interval, no test. Differences from")


def test_every_colour_can_be_seen_on_dark_ground() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    style = files("tardygrad.report").joinpath("page.css").read_text("utf-8")
    ground = re.search(r"--ground: light-dark\(#ffffff, (#\w+)\)", style)
    assert ground
    replaced = dict(re.findall(r'\[stroke="(#\w+)"\] \{ stroke: light-dark\(#\w+, (#\w+)\)', style))
    assert replaced == dict(re.findall(r'\[fill="(#\w+)"\] \{ fill: light-dark\(#\w+, (#\w+)\)', style))
    for colour in {*COLOURS.values(), *CLASS_COLOURS} - {BLACK}:  # black is the colour of the text
        shown = luminance(replaced.get(colour, colour))
        assert (shown + 0.05) / (luminance(ground[1]) + 0.05) > 3, colour


def test_a_fleet_without_randomness_is_named(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path / f"fixed-{seed}", seed=seed, random_fleet=False)
    rule = "The fleet has no random times: seeds change only the training and the sampling of clients."
    assert notes(tmp_path) == [rule]


def test_seeds_of_a_run_started_in_python_are_one_group(tmp_path: Path) -> None:
    def described(seed: int, task: str = "TorchTask at 0x7f12") -> dict[str, Any]:
        return {"method": {"kind": "clip2", "lr": 1.0}, "task": {"described": task}, "run": {"seed": seed}}

    runs = [described(0), described(1, "TorchTask at 0x99"), described(1), described(0, "another")]
    views = [
        read(record(tmp_path / str(i), spec=None, described=tables, run=tables["run"])) for i, tables in enumerate(runs)
    ]
    assert [[run.history.path.name for run in group.runs] for group in grouped(views)] == [["0", "1"], ["2"], ["3"]]


def test_own_scores_are_in_the_table_and_may_be_the_target(tmp_path: Path) -> None:
    for name, factor in (("Clip²", 1.0), ("sync-Clip²", 10.0)):
        seeds(tmp_path, name, slower=factor)
    for path in tmp_path.iterdir():
        rewritten(path, f1=lambda t: t / 20, error=lambda t: 1 / t, accuracy=None, loss=None)
    compared = compare(grouped(map(read, sorted(tmp_path.iterdir()))), target=0.4)
    assert (compared.score, compared.higher, compared.target) == ("f1", True, 0.4)
    (table,) = [block for block in build([str(tmp_path)]).sections[0].blocks if hasattr(block, "headings")]
    assert list(table.headings[:2]) == ["method", "f1"]
    assert "test error" in table.headings
    assert table.rows[0][1] == "0.6 (all equal)"


def test_the_latex_table_is_that_of_the_comparison(tmp_path: Path) -> None:
    seeds(tmp_path, "Clip²", label=EVIL)
    seeds(tmp_path, "sync-Clip²", slower=10.0)
    (text,) = build([str(tmp_path)], target=0.85).tables
    assert r"sync-Clip$^2$ & \textbf{91.9 $\pm$ 4.9} & -- & -- & 75 $\pm$ 191 & -- & -- \\" in text
    assert "<script>" not in text
    assert "Differences from sync-Clip$^2$, paired by seed; p: two-sided paired t-test" in text


@pytest.mark.parametrize(
    ("run", "length"),
    [
        ({"until": 14.5}, 14.5),
        ({"until": 14.5, "rounds": 20}, 14.5),
        ({"until": 14.5, "rounds": 12}, 12.0),  # all rounds were made before
        ({"until": 10.0}, 12.0),  # resumed in Python with more time
        ({"rounds": 12}, 12.0),
    ],
)
def test_the_length_of_a_run_that_its_time_ended_is_that_time(
    tmp_path: Path, run: dict[str, Any], length: float
) -> None:
    path = record(tmp_path / "run", run={"seed": 0, **run})
    late = {"event": "evaluation", "time": 99.0, "round": 12, "loss": 0.1, "seconds": 1.0}  # as on a real clock
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps(late) + "\n")
    history = read(path).history
    assert history.time == length
    assert max(job.end for client in history.by_client for job in client.jobs) == length
    assert f" {length:g} simulated seconds" in result(path)
    (path / "summary.json").unlink()
    assert read(path).history.time == 12.0


def points(folder: Path, axis: str) -> list[tuple[float, float, int]]:
    """The place, the mean loss and the number of runs of every point of the curve of a group."""
    (group,) = grouped(map(read, sorted(folder.iterdir())))
    curve = mean_curve(group, axis, lambda run: run.rounds, lambda row: row["loss"])
    return [(row[axis], row["value"], row["runs"]) for row in curve]


def test_a_mean_curve_goes_on_when_its_shortest_run_has_ended(tmp_path: Path) -> None:
    for seed, rounds in enumerate((8, 4)):
        record(tmp_path / f"runs/{seed}", rounds=rounds, seed=seed)
    first, other = ([(1 + 0.1 * seed) / t for t in range(1, 9)] for seed in (0, 1))
    both = [(t + 1.0, pytest.approx((first[t] + other[t]) / 2, rel=1e-5), 2) for t in range(4)]
    alone = [(t + 1.0, pytest.approx(first[t], rel=1e-5), 1) for t in range(4, 8)]
    assert points(tmp_path / "runs", "round") == both + alone
    kept = [(t + 1.0, pytest.approx((first[t] + other[3]) / 2, rel=1e-5), 2) for t in range(4, 8)]
    assert points(tmp_path / "runs", "time") == both + kept  # a model that is finished does not change
    figure = next(figure for figure in figures(build([str(tmp_path / "runs")]).sections) if figure.key == "score-1")
    assert "Where a line is thin, it is the mean of fewer runs, because the others made fewer rounds" in figure.caption
    write(tmp_path / "runs/1/summary.json", {"status": "diverged", "reason": "x", "rounds": 4, "seconds": 1.0})
    assert points(tmp_path / "runs", "time") == both + alone


def test_a_mean_curve_is_that_of_lines_whose_points_are_elsewhere(tmp_path: Path) -> None:
    for seed in range(2):
        rewritten(record(tmp_path / f"runs/{seed}", rounds=3), jitter=0.5 * seed)
    assert [(place, runs) for place, _, runs in points(tmp_path / "runs", "time")] == [
        (1.5, 2), (2.0, 2), (2.5, 2), (3.0, 2), (3.5, 2)
    ]  # fmt: skip
    assert points(tmp_path / "runs", "time")[0][1] == pytest.approx((0.75 + 1.0) / 2)
