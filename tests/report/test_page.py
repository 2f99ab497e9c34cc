"""Pages: what they say, what is compared with what, and that nothing of a record gets out of its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tardygrad.errors import Invalid, RecordError
from tardygrad.report import live
from tardygrad.report.build import Report, build
from tardygrad.report.comparison import compare
from tardygrad.report.groups import grouped
from tardygrad.report.loader import find, read
from tardygrad.report.page import figures, put
from tardygrad.results.blocks import Table
from tardygrad.results.theme import rendered
from tardygrad.runs.events import TailEstimate
from tests.report.records import EVIL, ODD, check_charts, events, record, write

ALONE = {
    "score-1",
    "score-2",
    "training-loss",
    "timeline",
    "delays",
    "lateness",
    "shares",
    "clipped",
    "local-clipped",
    "tail",
    "trouble",
    "memory",
}


class Elements(HTMLParser):
    """The elements of a page, and what their scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report on one run."""
    return build([str(record(tmp_path_factory.mktemp("alone") / "my run", rounds=51))])


def keys(report: Report) -> set[str]:
    return {figure.key for figure in figures(report.sections)}


def test_a_run_has_every_figure(alone: Report) -> None:
    assert keys(alone) == ALONE
    check_charts(alone.sections)
    for figure in figures(alone.sections):
        assert figure.caption.endswith((".", ")"))
        assert figure.chart["description"]
        assert any(figure.chart["datasets"].values())


def test_a_page_is_small_and_has_landmarks_headings_and_captions(alone: Report) -> None:
    page = alone.html()
    assert len(page) < 1_500_000
    found = Elements(page)
    tags = [tag for tag, _ in found.tags]
    assert [tags.count(tag) for tag in ("main", "nav", "header", "h1")] == [1, 1, 1, 1]
    assert tags.count("figure") == tags.count("figcaption") == len(ALONE)
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in found.tags:
        if tag == "a":
            assert str(attrs["href"]).removeprefix("#") in ids


def test_a_page_can_fetch_nothing_and_run_nothing_but_its_scripts(alone: Report) -> None:
    found = Elements(alone.html())
    (policy,) = [str(attrs["content"]) for _, attrs in found.tags if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    script = re.findall(r"script-src ([^;]*)", policy)[0]
    assert "unsafe" not in script
    assert "connect-src" not in policy
    assert not [attrs for _, attrs in found.tags if "src" in attrs or any(name.startswith("on") for name in attrs)]


def test_nothing_of_a_record_is_taken_for_anything_but_text(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"label": EVIL, "method": EVIL, "classes": [[EVIL, 3], ["large", 1]]}
    asked |= {"versions": {EVIL: EVIL}, "spec": {EVIL: {EVIL: EVIL, "run": [EVIL]}}, "run": {"seed": EVIL, EVIL: EVIL}}
    path = record(tmp_path / "run", **asked)
    rows = events(6)
    rows[-1][EVIL] = 1.0  # a score of that name
    rows.append({"event": "refusal", "time": 6.0, "client": 0, "serial": 99, "round": 0, "reason": EVIL})
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write(path / "summary.json", {"status": EVIL, "reason": EVIL, "rounds": 6, "seconds": 1.0})
    calm = record(tmp_path / "calm")
    for places in ([path], [path, calm]):
        page = build([str(place) for place in places], title=EVIL).html()
        found = Elements(page)
        assert len(found.scripts) == 2 + [tag for tag, _ in found.tags].count("figure")
        assert "alert(1)" in found.text
        assert not [tag for tag, attrs in found.tags if tag == "script" and attrs.get("src")]
        assert "\u2028" not in page
        for chart in found.scripts[:-2]:
            assert not re.search(r"[<>&]", chart)
            assert expressions(json.loads(chart)) == []


def test_no_title_has_what_would_end_a_string(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    rows = [{**row, ODD: 1.0} if row["event"] == "evaluation" else row for row in events(12)]
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (figure,) = [one for one in figures(build([str(path)]).sections) if one.key == "score-3"]
    assert figure.title == f"Test {ODD}"
    found = titles(figure.chart)
    assert "test a.b[’c’].d∖" in found
    assert not [title for title in found if re.search(r"""[\\'"]""", title)]
    rendered(json.dumps(figure.chart), ".svg")


def titles(spec: Any) -> list[str]:
    """Every title in a chart."""
    if isinstance(spec, list):
        return [found for each in spec for found in titles(each)]
    if not isinstance(spec, dict):
        return []
    own = [value for key, value in spec.items() if key == "title" and isinstance(value, str)]
    return own + [found for value in spec.values() for found in titles(value)]


def expressions(spec: Any) -> list[str]:
    """Text of the record where Vega would read a field's name or an expression."""
    if isinstance(spec, list):
        return [found for each in spec for found in expressions(each)]
    if not isinstance(spec, dict):
        return []
    found = [
        str(value)
        for key, value in spec.items()
        if key in ("field", "expr", "test", "calculate", "filter", "href", "url", "signal") and "alert" in str(value)
    ]
    return found + [one for key, value in spec.items() if key != "datasets" for one in expressions(value)]


def test_the_command_that_repeats_a_run_is_shown(alone: Report) -> None:
    page = alone.html()
    assert f"tardygrad run &#39;{alone.runs[0].history.path}&#39;" in page
    assert "[task]\nkind = &#34;quadratic&#34;" in page


def test_a_run_begun_in_python_says_so(tmp_path: Path) -> None:
    page = build([str(record(tmp_path / "run", rounds=1, spec=None))]).html()
    assert "started in Python" in page
    assert "tardygrad run" not in page


def test_a_spec_of_any_length_makes_a_small_page(tmp_path: Path) -> None:
    page = build([str(record(tmp_path / "run", rounds=1, spec={"fleet": {"seconds": list(range(200_000))}}))]).html()
    assert "more characters are in spec.json" in page
    assert len(page) < 1_500_000


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_run_that_has_hardly_begun_has_a_page(tmp_path: Path, rounds: int) -> None:
    report = build([str(record(tmp_path / "run", rounds=rounds, torn=True))])
    assert "There is no completed round yet." in report.html() or rounds
    assert "score-1" not in keys(report)
    assert "still running, or killed" in report.html()


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    rows = events(12)
    for row in rows:
        if row["event"] in ("advance", "evaluation") and row["round"] > 6:
            row["loss"] = None
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (figure,) = [one for one in figures(build([str(path)]).sections) if one.key == "training-loss"]
    assert "6 missing or non-finite values are not shown." in figure.caption
    assert len(figure.chart["datasets"]["round"]) == 6


def test_runs_that_differ_only_in_their_seed_are_one_group(tmp_path: Path) -> None:
    other = {"task": {"kind": "quadratic"}, "method": {"kind": "clip2", "lr": 2.0}, "run": {"seed": 0}}
    stories = [read(record(tmp_path / str(seed), seed=seed)) for seed in (0, 1)]
    stories += [read(record(tmp_path / "other", spec=other))]
    stories += [read(record(tmp_path / name, spec=None)) for name in ("python", "python-2")]
    groups = grouped(stories)
    assert [len(group.runs) for group in groups] == [2, 1, 1, 1]
    assert [group.name for group in groups[:2]] == ["Clip², lr=1.0", "Clip², lr=2.0"]
    assert len({group.name for group in groups}) == 4


def test_speed_ups_are_times_to_the_target_over_the_baselines(tmp_path: Path) -> None:
    slow = record(tmp_path / "slow", label="sync-Clip²", spec={"method": {"mode": "sync"}})
    rows = [{**row, "time": 10 * row["time"]} for row in events(12)]
    (slow / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = grouped(read(path) for path in (record(tmp_path / "0"), record(tmp_path / "1", seed=1), slow))
    found = compare(groups, target=0.89)
    assert (found.reference, found.target) == ("sync-Clip²", 0.89)
    assert found.times == {"Clip²": (9.0, None, 2), "sync-Clip²": (90.0, None, 1)}
    assert found.speedups == {"Clip²": 10.0, "sync-Clip²": 1.0}
    assert found.score_differences == {}  # other seeds
    assert found.scores["Clip²"].mean == pytest.approx((12 / 13 + 1 - 1.1 / 13) / 2, rel=1e-4)  # type: ignore[union-attr]
    assert compare(groups).target == pytest.approx(0.75 + 0.9 * (12 / 13 - 0.75), rel=1e-4)  # most of the way
    unreached = compare(groups, target=0.999)
    assert (set(unreached.times.values()), set(unreached.speedups.values())) == ({None}, {None})
    assert "speed-up" not in unreached.page_table().headings  # which would have dashes only


def compared(report: Report) -> dict[str, dict[str, str]]:
    """The table that compares runs: name of the run to heading to cell."""
    (table,) = [block for block in report.sections[0].blocks if isinstance(block, Table)]
    return {row[0]: dict(zip(table.headings, row, strict=True)) for row in table.rows}


def test_the_speed_up_of_the_rounds_is_of_runs_that_made_as_many(tmp_path: Path) -> None:
    slow = record(tmp_path / "all/slow", label="sync-Clip²", spec={"method": {"mode": "sync"}})
    rows = [{**row, "time": 10 * row["time"]} for row in events(12)]
    (slow / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record(tmp_path / "all/equal", label="as many")
    table = compared(build([str(tmp_path / "all")]))
    assert {name: row["speed-up, all rounds"] for name, row in table.items()} == {"as many": "10×", "sync-Clip²": "1×"}
    record(tmp_path / "all/fewer", label="fewer", rounds=11, spec={"method": {"lr": 2.0}})
    assert "speed-up, all rounds" not in compared(build([str(tmp_path / "all")]))["as many"]


def test_a_target_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    rule = r"--target is an accuracy, above 0 and at most 1, got 90\. Did you mean 0\.9\?"
    for target, error in ((90, rule), (float("nan"), r"got nan\. Use for example 0\.9\.")):
        with pytest.raises(Invalid, match=error):
            build([str(path)], target=target)
    rows = [{key: value for key, value in row.items() if key != "accuracy"} for row in events(12)]
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build([str(path)], target=90)
    with pytest.raises(Invalid, match=r"--target must be a finite loss, got inf\. Use for example 0\.5\."):
        build([str(path)], target=float("inf"))


def named(folder: Path, *methods: dict[str, Any], **tables: Any) -> list[str]:
    """What runs of FedBuff with these settings are called beside each other."""
    for number, method in enumerate(methods):
        given = {
            "task": {"kind": "digits", "seed": 0},
            "method": {"kind": "fedbuff", **method},
            "run": {"seed": number},
        }
        record(folder / str(number), label="FedBuff", spec={**given, **tables})
    return [group.name for group in grouped(map(read, find([str(folder)]).runs))]


def test_runs_of_one_method_are_named_by_what_differs_words_first(tmp_path: Path) -> None:
    hinge = {"local_lr": 0.1, "optimizer": "SGD", "weight": {"kind": "hinge", "slope": 10.0, "bound": 4.0}}
    power = {"local_lr": 0.1, "optimizer": "SGD", "weight": {"kind": "polynomial", "exponent": 0.5}}
    adam = {**power, "local_lr": 0.001, "optimizer": "AdamW"}
    assert named(tmp_path / "three", hinge, power, adam) == [
        "FedBuff, weight.kind=hinge, local_lr=0.1",
        "FedBuff, weight.kind=polynomial, local_lr=0.1",
        "FedBuff, weight.kind=polynomial, local_lr=0.001",
    ]
    assert named(tmp_path / "kinds", hinge, power) == ["FedBuff, weight.kind=hinge", "FedBuff, weight.kind=polynomial"]
    steep = {**hinge, "weight": {**hinge["weight"], "slope": 20.0}}  # type: ignore[dict-item]
    assert named(tmp_path / "slopes", hinge, steep, power) == [
        "FedBuff, weight.kind=hinge, weight.slope=10.0",
        "FedBuff, weight.kind=hinge, weight.slope=20.0",
        "FedBuff, weight.kind=polynomial",
    ]


def test_a_key_that_two_tables_have_keeps_its_table(tmp_path: Path) -> None:
    for number in (1, 2):
        record(tmp_path / "all" / str(number), spec={"task": {"seed": number, "dim": number}, "run": {"seed": 0}})
    groups = grouped(map(read, find([str(tmp_path / "all")]).runs))
    assert [group.name for group in groups] == ["Clip², task.seed=1", "Clip², task.seed=2"]


def test_names_have_the_keys_that_tell_runs_apart_and_no_others(tmp_path: Path) -> None:
    names = named(tmp_path / "many", *({f"setting_{key}": key * 10 + lr for key in range(9)} for lr in (1, 2)))
    assert names == ["FedBuff, setting_0=1", "FedBuff, setting_0=2"]
    for name in ("one", "two"):
        record(tmp_path / "all" / name, spec={"task": {"data": "x" * 90 + name}})
    groups = grouped(map(read, find([str(tmp_path / "all")]).runs))
    ends = [f"Clip², data={'x' * 14}…{'x' * 17}{name}" for name in ("one", "two")]
    assert [group.name for group in groups] == ends


def test_the_tail_index_has_a_band_a_rule_at_2_and_hollow_points(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    facts: list[dict[str, Any]] = [
        {"index": 1.5, "low": 1.3, "high": 1.7, "verdict": "heavy-tailed, infinite variance"},
        {"index": 1.9, "low": None, "high": float("inf"), "verdict": "too few to tell"},
        {},
        {"index": 2.2},
    ]
    none = dict.fromkeys(TailEstimate._fields[1:])
    with (path / "events.jsonl").open("a") as file:
        file.writelines(
            json.dumps({"event": "tail", **none, "time": 12.0 + i, **one}) + "\n" for i, one in enumerate(facts)
        )
    (figure,) = [one for one in figures(build([str(path)]).sections) if one.key == "tail-index"]
    rows = figure.chart["datasets"]["rows"]
    assert [(row["low"], row["index"], row["high"], row["few"]) for row in rows] == [
        (1.3, 1.5, 1.7, False),
        (1.9, 1.9, 1.9, True),
        (2.2, 2.2, 2.2, False),
    ]
    assert "Hollow points: too few values to tell. 1 missing or non-finite" in figure.caption
    svg = rendered(json.dumps(figure.chart), ".svg").decode()
    assert svg.count(">below 2: infinite variance<") == 2
    assert svg.count('fill-opacity="0"') == 2


def test_a_method_that_clips_nothing_is_left_out_of_the_figure_of_clipping(tmp_path: Path) -> None:
    record(tmp_path / "all/0")
    bare = record(tmp_path / "all/1", label="SGDClip", spec={"method": {"kind": "sgdclip"}})
    rows = [{**row, "clipped": 0.0} if row["event"] == "advance" else row for row in events(12)]
    (bare / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = {one.key: one for one in figures(build([str(tmp_path / "all")]).sections)}
    groups = {key: {row["group"] for row in drawn[key].chart["datasets"]["round"]} for key in ("clipped", "score-1")}
    assert groups == {"clipped": {"Clip²"}, "score-1": {"Clip²", "SGDClip"}}
    assert "Not shown because nothing was clipped: SGDClip." in drawn["clipped"].caption
    assert "clipped" not in {one.key for one in figures(build([str(bare)]).sections)}


def test_long_lines_have_no_marks_and_equal_times_are_said(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=70)
    rows = [{**row, "time": float(int(row["time"] / 2))} for row in events(70)]
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = {one.key: one for one in figures(build([str(path)]).sections)}
    marks = {
        key: drawn[key].chart["concat"][0]["layer"][-1]["encoding"].get("opacity") for key in ("score-1", "clipped")
    }
    assert marks == {"score-1": None, "clipped": {"value": 0}}
    assert "are averaged in the line against time" in drawn["clipped"].caption
    assert "are averaged in the line against time" not in drawn["score-1"].caption


@pytest.mark.parametrize("status", ["stopped", "diverged"])
def test_a_run_says_how_it_ended_and_how_it_goes_on_if_it_was_stopped(tmp_path: Path, status: str) -> None:
    path = record(tmp_path / "a run", rounds=2)
    write(path / "summary.json", {"status": status, "reason": "for a reason", "rounds": 2, "seconds": 1.0})
    again, text = f"tardygrad resume '{path}'", Elements(build([str(path)]).html()).text
    assert status in text
    assert "for a reason" in text
    assert (again in text) == (status == "stopped")
    assert (f"The run was stopped. Continue it with `{again}`." == live.status([read(path)])) == (status == "stopped")


def test_a_baseline_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"--baseline must be one of 'Clip²', got 'Clip'\. Did you mean 'Clip²'\?"):
        build([str(record(tmp_path / "run"))], baseline="Clip")


def test_several_runs_are_laid_over_each_other_and_told_one_by_one(tmp_path: Path) -> None:
    for seed in range(3):
        record(tmp_path / f"all/{seed}", seed=seed, rounds=51)
    report = build([str(tmp_path / "all")])
    assert keys(report) >= {"score-1", "training-loss", "shares", "clipped", "timeline-1", "tail-3"}
    assert "mean ± 95% confidence interval (Student&#39;s t)" in report.html()
    check_charts(report.sections)
    (curve,) = [one for one in figures(report.sections) if one.key == "score-1"]
    assert curve.chart["datasets"]["round"][0]["high"] > curve.chart["datasets"]["round"][0]["value"]


def test_a_page_on_many_long_runs_is_small(tmp_path: Path) -> None:
    rows = [
        row | {"time": row["time"] / 3, "loss": row["round"] / 7}
        for row in events(200)
        if row["event"] in ("advance", "evaluation")
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for number in range(32):
        path = record(tmp_path / f"all/{number:02}", rounds=0, label=f"M{number}", spec={"method": {"lr": number}})
        (path / "events.jsonl").write_text(text)
    report = build([str(tmp_path / "all")])
    page = report.html()
    assert len(page) < 4_000_000
    assert "Only the first 12 of 32 runs are shown here." in page
    (curve,) = [one for one in figures(report.sections) if one.key == "training-loss"]
    points = [point for point in curve.chart["datasets"]["round"] if point["group"] == "M0"]
    assert 20 < len(points) <= 3200 // 32 + 1
    assert [points[0]["round"], points[-1]["round"]] == [1, 200]
    assert points[0]["value"] == 0.142857
    assert "One value in 2 is drawn." in curve.caption
    assert len({(entry.colour, entry.dash) for entry in curve.legend}) == 32


def test_of_very_many_reasons_the_rarer_are_one(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=0)
    refusal = {"event": "refusal", "time": 1.0, "client": 0, "serial": 0, "round": 0}
    rows = [{**refusal, "reason": f"reason {i}"} for i in range(1000)]
    rows += [{**refusal, "client": 3, "reason": "the usual"}] * 9
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (figure,) = [one for one in figures(build([str(path)]).sections) if one.key == "trouble"]
    drawn = {row["what"]: row["number"] for row in figure.chart["datasets"]["rows"]}
    assert len(drawn) == 13
    assert drawn["refused: the usual"] == 9
    assert list(drawn.items())[-1] == ("refused: 989 others", 989)


def test_a_page_that_cannot_be_written_says_so_in_its_own_words(tmp_path: Path) -> None:
    place = tmp_path / "none/page.html"
    rule = rf"^cannot write {str(place)!r}: No such file or directory\. Free some space, or choose another path\.$"
    with pytest.raises(RecordError, match=rule):
        put(place, b"")


def test_equal_areas_of_the_delays_are_equal_shares(tmp_path: Path) -> None:
    """Bars have the same width whatever delays they cover, and each class's heights add up to 1."""
    path = record(tmp_path / "run", rounds=0)
    row = next(row for row in events(1) if row["event"] == "advance")

    def histogram(delays: list[int]) -> tuple[Any, str]:
        pairs = [row | {"clients": [0, 3], "delays": [delay, 1]} for delay in delays]
        (path / "events.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        (figure,) = [one for one in figures(build([str(path)]).sections) if one.key == "delays"]
        return figure.chart, figure.caption

    chart, caption = histogram([1, 1, 4, 40] + [1] * 36)
    axis = chart["spec"]["encoding"]["x"]
    assert (axis["type"], axis["scale"]["domain"]) == ("ordinal", [str(delay) for delay in range(1, 41)])
    assert "Each bar is one delay." in caption
    chart, caption = histogram([1, 2, 3, 64] + [1] * 60)
    assert chart["spec"]["encoding"]["x"]["scale"]["domain"] == ["1", "2–3", "4–7", "8–15", "16–31", "32–63", "64–127"]
    assert "Each bar covers twice as many delays as the one before it." in caption
    rows = [(row["class"], row["delay"], row["updates"]) for row in chart["datasets"]["rows"]]
    small, large = "small: 64 updates", "large: 64 updates"
    assert rows == [(small, "1", 61), (small, "2–3", 2), (small, "64–127", 1), (large, "1", 64)]
    assert sum(row["share"] for row in chart["datasets"]["rows"]) == pytest.approx(2)
    assert "resolve" not in chart


@pytest.mark.parametrize(("clip", "bounded"), [(1.0, True), ("inf", False)])
def test_the_tail_of_updates_says_whether_clips_bound_them(clip: float | str, bounded: bool, tmp_path: Path) -> None:
    method = {"kind": "clip2", "lr": 1.0, "local_clip": clip}
    path = record(tmp_path / "run", rounds=60, spec={"task": {"kind": "quadratic"}, "method": method, "run": {}})
    (figure,) = [figure for figure in figures(build([str(path)]).sections) if figure.key == "tail"]
    assert ("Local clipping bounds updates" in figure.caption) is bounded
