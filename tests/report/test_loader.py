"""Reading records: whole, torn, old, hostile, long."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tardygrad.errors import Invalid, RecordError
from tardygrad.report import live
from tardygrad.report.build import build
from tardygrad.report.loader import BARS, CLASSES, CLIENTS, EVEN, POINTS, client_bars, find, read, sample, tail_of
from tardygrad.report.run_charts import SPANS, delays_over_time, timeline
from tardygrad.results.blocks import Figure, Table
from tardygrad.runs.history import ClientHistory, PastJob
from tardygrad.tail.estimate import estimate
from tests.report.records import EVIL, events, record, write


def test_a_record_is_counted_right(tmp_path: Path) -> None:
    run = read(record(tmp_path / "run"))
    history, small, large = run.history, run.classes["small"], run.classes["large"]
    assert (len(history.rounds), history.time, history.status, history.seconds) == (12, 12.0, "finished", 1.5)
    assert (len(small.delays), len(large.delays)) == (22, 2)
    assert (small.weight, large.weight) == (22.0, pytest.approx(0.4))
    assert (small.refused, large.refused) == ({}, {"too stale": 1})
    assert (small.losses, large.losses) == (1, 0)
    assert run.rounds.items[-1]["steps"] == 120
    scores = [row["scores"]["accuracy"] for row in run.scores.items]
    assert scores == pytest.approx([0.75, 6 / 7, 0.9, 12 / 13], rel=1e-4)
    assert history.rounds.snapshots.max() == 2


def test_every_second_of_a_client_is_working_idle_or_lost(tmp_path: Path) -> None:
    run = read(record(tmp_path / "run"))
    small, large = run.classes["small"], run.classes["large"]
    assert (small.clients, small.working, small.lost) == (3, 2 * 12.0 + 3.0, 3.0)  # client 2: 3 at work, 3 lost, 6 idle
    assert (large.clients, large.working, large.lost) == (1, 12.0, 0.0)
    assert [(bar.start, bar.end) for bar in run.bars.away] == [(3.0, 6.0)]
    assert [bar.end for bar in run.bars.working if bar.client == 3] == [3.0, 12.0]


def test_the_update_of_another_job_does_not_end_the_one_that_is_out(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=1)
    again = {"event": "refusal", "time": 5.0, "client": 0, "serial": 0, "round": 0, "reason": "finished job"}
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    bars = [bar for bar in read(path).bars.working if bar.client == 0]
    assert [(bar.start, bar.end) for bar in bars] == [(0.0, 1.0), (1.0, 5.0)]


def test_a_torn_record_is_of_a_run_that_has_not_ended(tmp_path: Path) -> None:
    history = read(record(tmp_path / "run", torn=True)).history
    assert (history.status, history.ended, len(history.rounds)) == ("not ended", False, 12)
    assert history.seconds == pytest.approx(1.2)


def test_a_summary_from_before_a_resume_is_not_believed(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    write(path / "summary.json", {"status": "stopped", "reason": None, "rounds": 5, "seconds": 1.0})
    assert read(path).history.status == "not ended"


def test_a_run_without_a_file_is_one_that_has_not_come_far(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    for gone, rounds in (("summary.json", 12), ("events.jsonl", 0)):
        (path / gone).unlink()
        assert len(read(path).history.rounds) == rounds


def test_what_is_not_finite_is_none(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=0)
    row = events(1)[-3]
    assert row["event"] == "advance"
    row |= {"loss": None, "clipped": float("nan"), "norms": [None, float("nan")]}
    (path / "events.jsonl").write_text(json.dumps(row) + "\n")
    (kept,) = read(path).rounds.items
    assert (kept["loss"], kept["clipped"], kept["local_clipped"]) == (None, None, 0.1)


@pytest.mark.parametrize(
    "norms",
    [
        [1.234562 * (1 + 1e-10 * i) for i in range(400)],  # an index of 1e8 or so
        [5e-324] * 300 + [1e99] * 30,
        [1.0 + 1e-16 * i for i in range(400)],
    ],
)
def test_norms_too_even_or_too_far_apart_have_no_tail(tmp_path: Path, norms: list[float]) -> None:
    path = record(tmp_path / "run", rounds=0)
    row = next(row for row in events(1) if row["event"] == "advance")
    pairs = zip(norms[::2], norms[1::2], strict=True)
    (path / "events.jsonl").write_text("".join(json.dumps(row | {"norms": pair}) + "\n" for pair in pairs))
    assert read(path).tail is None
    assert "Too few updates, or too similar norms" in build([str(path)]).html()


def test_norms_that_differ_a_little_have_a_tail() -> None:
    found = tail_of(1 + 0.05 * np.arange(400) / 400)
    assert found
    assert 100 < found.tail < EVEN


def test_the_tail_of_the_norms_is_the_librarys_and_needs_as_many() -> None:
    norms = [(1 - (i + 0.5) / 1000) ** (-1 / 1.5) for i in range(1000)]
    found, theirs = tail_of(np.array(norms)), estimate(norms)
    assert found
    assert (found.tail, found.number) == (theirs.hill, theirs.k)
    assert found.tail == pytest.approx(1.5, abs=2 * found.error)
    assert tail_of(np.array(norms[:99])) is None
    assert tail_of(np.array(norms[:100])) is not None


def test_text_is_cut_short_and_can_be_printed(tmp_path: Path) -> None:
    run = read(record(tmp_path / "run", label=EVIL * 9, method="a\ud800\n\x1b[2J", classes=[["x" * 999, 4]]))
    assert len(run.history.label) == 40
    assert run.history.method.isprintable()
    assert len(next(iter(run.classes))) == 40


def test_of_very_many_classes_the_last_are_one(tmp_path: Path) -> None:
    classes = read(record(tmp_path / "run", classes=[[f"c{i}", 1] for i in range(1000)])).classes
    assert len(classes) == CLASSES
    assert classes["all others"].clients == 1000 - CLASSES + 1


def test_a_record_that_cannot_be_right_is_called_damaged(tmp_path: Path) -> None:
    path = record(tmp_path / "run")
    (path / "events.jsonl").write_text('{"event": "dispatch", "time": 0.0, "client": "nobody", "serial": 0}\n')
    with pytest.raises(RecordError, match="damaged"):
        read(path)


def test_a_long_record_is_shortened(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=0)
    with (path / "events.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in events(20 * POINTS))
    run = read(path)
    rounds = run.rounds.items
    assert len(run.history.rounds) == 20 * POINTS
    assert len(rounds) <= POINTS + 1
    assert (rounds[0]["round"], rounds[-1]["round"]) == (1, 20 * POINTS)
    (late,) = delays_over_time(run)
    assert len({row["round"] for row in late.chart["datasets"]["rows"]}) <= SPANS
    assert len(run.bars.working) <= BARS
    assert sum(bar.jobs for bar in run.bars.working) >= run.history.taken
    assert sum(len(own.delays) for own in run.classes.values()) == 2 * 20 * POINTS


def test_of_many_clients_some_are_drawn() -> None:
    clients = [ClientHistory(jobs=[PastJob(0.0, 1.0, 1, True)]) for _ in range(1000)]
    bars = client_bars(clients, 1.0, most=CLIENTS, limit=BARS)
    assert len(bars.working) == 1000 // bars.stride + 1 <= CLIENTS


def test_a_client_that_is_asleep_is_not_drawn_at_work() -> None:
    client = ClientHistory()
    for state, now in (("asleep", 0.0), ("awake", 2.0), ("asleep", 4.0), ("awake", 7.0), ("asleep", 9.0)):
        client.change(state, now)  # type: ignore[arg-type]
        if now == 7.0:
            client.add_job(PastJob(3.0, 8.0, 1, True))
    client.end(10.0)
    bars = client_bars([client], 10.0, most=4, limit=50)
    assert [(bar.start, bar.end, bar.jobs) for bar in bars.working] == [(3.0, 4.0, 1), (7.0, 8.0, 0)]
    assert [(bar.start, bar.end) for bar in bars.asleep] == [(0.0, 2.0), (4.0, 7.0), (9.0, 10.0)]
    assert client.working_seconds == 2.0


def test_asleep_is_a_state_of_the_timeline_and_of_its_table(tmp_path: Path) -> None:
    path = record(tmp_path / "run", rounds=0)
    rows = events(12)
    rows += [
        {"event": "sleep", "time": 12.0, "client": client, "round": 12, "job": "cancel"} for client in (0, 1, 2, 3)
    ]
    rows.append({"event": "wake", "time": 18.0, "client": 3, "round": 12})
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure, table = timeline(read(path))
    assert isinstance(figure, Figure)
    assert isinstance(table, Table)
    assert [entry.name for entry in figure.legend] == ["small", "large", "idle", "asleep", "lost"]
    assert {(row["start"], row["end"], row["what"]) for row in figure.chart["datasets"]["asleep"]} == {
        (12.0, 18.0, "asleep")
    }
    assert list(table.headings) == ["class", "clients", "working", "idle", "asleep", "lost"]
    assert [row[2:] for row in table.rows] == [
        ("50.0%", "11.1%", "33.3%", "5.6%"),
        ("66.7%", "0.0%", "33.3%", "0.0%"),
    ]


def test_bars_are_merged_until_there_are_few_whatever_the_states() -> None:
    spans = [(float(i), i + 0.5) for i in range(5000)]
    clients = [
        ClientHistory(jobs=[PastJob(*span, 1, True) for span in spans[i::8]], away=spans[i + 4 :: 8]) for i in range(4)
    ]
    bars = client_bars(clients, 5000.0, most=4, limit=50)
    assert len(bars.working) + len(bars.away) <= 50
    assert sum(bar.jobs for bar in (*bars.working, *bars.away)) == 5000


@pytest.mark.parametrize("number", [0, 1, 4, 5, 6, 9, 100])
def test_a_sample_has_the_first_and_the_last(number: int) -> None:
    items = sample(range(number), limit=4).items
    assert items[:1] + items[-1:] == ([0, number - 1] if number else [])
    assert items == sorted(set(items))
    assert len(items) <= 5


def test_a_folder_stands_for_the_runs_below_it(tmp_path: Path) -> None:
    one, other = record(tmp_path / "all/b/run"), record(tmp_path / "all/a")
    record(one / "inside")  # which is its own affair
    assert find([str(tmp_path / "all"), str(one)]) == ([other, one], [])
    (tmp_path / "all/sweep").mkdir()
    write(tmp_path / "all/sweep/sweep.json", {})
    assert find([str(tmp_path / "all")]) == ([other, one], [tmp_path / "all/sweep"])
    for place, what in ((tmp_path / "none", "is not a directory"), (tmp_path / "empty", "contains no runs or sweeps")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(Invalid, match=rf"{what}\. Pass a run or sweep directory, such as runs/digits-1"):
            find([str(place)])


def test_a_folder_that_cannot_be_listed_is_refused_unless_it_is_inside_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, closed, scandir = record(tmp_path / "all/run"), list[Path](), os.scandir

    def listed(path: Any) -> Any:
        if Path(path) in closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    (run / "checkpoints").mkdir(exist_ok=True)
    closed.append(run / "checkpoints")
    assert find([str(tmp_path / "all")]).runs == [run]
    (tmp_path / "all/other").mkdir()
    for place in (tmp_path / "all/other", tmp_path / "all"):
        closed.append(place)
        rule = f"a folder of runs must be readable, got {str(place)!r} (Permission denied). Make it readable, or pass "
        with pytest.raises(Invalid, match=re.escape(rule)):
            find([str(tmp_path / "all")])


def test_a_killed_run_is_told_from_a_running_one_and_offers_to_be_continued(tmp_path: Path) -> None:
    path = record(tmp_path / "a run", torn=True)
    assert (read(path).history.state, read(path).history.resume_hint) == ("not ended", None)
    with (path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        running = read(path).history
        assert (running.state, running.resume_hint) == ("running", None)
        assert "updates itself" in live.status([read(path)])
        token = live.state([str(path)])
    assert live.state([str(path)]) != token, "though no file has changed"
    killed, again = read(path).history, f"tardygrad resume '{path}'"
    assert (killed.state, killed.resume_hint) == ("killed", again)
    assert live.status([read(path)]) == f"The run was killed. Continue it with `{again}`."
    own = replace(killed, spec={"task": {"kind": "mine:task"}})
    assert own.resume_hint == again
    assert "in Python" in (replace(killed, spec=None).resume_hint or "")
