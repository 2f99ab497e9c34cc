"""Results on disk: made once, by several processes, whatever kills them."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from itertools import islice
from pathlib import Path

import pytest

import tardygrad as tg
from tardygrad.errors import RecordError
from tardygrad.runs.record import exclusive
from tardygrad.spec.spec import Spec
from tardygrad.sweeps import store
from tardygrad.sweeps.store import PlannedRun, Store
from tests.forkserver import Program


def planned(seed: int = 1, lr: float = 1.0) -> Spec:
    return tg.load_spec("digits", ["run.rounds=10", "run.evaluate_every=10", f"run.seed={seed}", f"method.lr={lr}"])


RUN = planned()


def test_runs_are_made_once_and_read_back(tmp_path: Path) -> None:
    some, runs = Store(tmp_path), [RUN, planned(2), planned(lr=3.0)]
    assert some.result(RUN) is None
    made = list(some.run([*runs, *runs], jobs=2))
    assert sorted(made) == sorted(some.path(run) for run in runs)
    found = Store(tmp_path).result(RUN)
    assert found is not None
    assert found.status == "finished"
    assert [point[0] for point in found.curve] == [10]
    assert found.accuracy == found.curve[-1][3] > 0
    assert 0 < found.clipped < 1
    assert list(some.run(runs, jobs=2)) == []
    again = tg.load_spec(some.path(RUN))  # a result can be run again by its file
    assert again.resolved() == RUN.resolved()


def test_a_result_is_found_by_what_its_spec_gives_but_not_by_where_its_files_are(tmp_path: Path) -> None:
    spec = {"task": {"kind": "digits", "clients": 4}, "run": {"rounds": 1, "seed": 0}, "engine": {"kind": "sim"}}
    path = Store(tmp_path).path(PlannedRun("run", spec))
    for table, change, same in (
        ("task", {"data": "here", "cache": "there", "pretrained": "x"}, True),
        ("engine", {"workers": 4}, True),
        ("run", {"checkpoint_every": 1}, True),
        ("run", {"seed": 1}, False),
        ("task", {"clients": 5}, False),
    ):
        other = PlannedRun("run", {**spec, table: spec[table] | change})
        assert (Store(tmp_path).path(other) == path) is same


def test_a_run_that_was_finished_elsewhere_is_not_done_again(tmp_path: Path) -> None:
    run = PlannedRun("mine", RUN.resolved())
    here = Store(tmp_path / "here")
    list(here.run([run]))
    there = Store(tmp_path / "there", known=json.loads(json.dumps([here.row(run)])))
    assert there.result(run) == here.result(run)
    assert list(there.run([run])) == []


def test_a_broken_file_is_made_again(tmp_path: Path) -> None:
    [path] = Store(tmp_path).run([RUN])
    whole = path.read_bytes()
    for broken in ("", "{", "[]", '{"result": 3}', '{"result": {"status": "finished"}}'):
        path.write_text(broken)
        assert Store(tmp_path).result(RUN) is None
    assert list(Store(tmp_path).run([RUN])) == [path]
    assert path.read_bytes() == whole


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    wild = tg.load_spec("digits", ["run.rounds=10", "method.lr=1e38", "method.local_lr=1e3", "method.clip=1e30"])
    some = Store(tmp_path)
    list(some.run([wild]))
    found = some.result(wild)
    assert found is not None
    assert (found.status, found.accuracy) == ("diverged", None)


def test_tails_are_measured_and_a_record_is_kept_if_asked_for(tmp_path: Path) -> None:
    run = PlannedRun("tails", RUN.resolved(), tails=(0, 10))
    some = Store(tmp_path, records=True)
    [path] = some.run([run])
    found = some.result(run)
    assert found is not None
    assert {tail.round for tail in found.tails} == {0, 10}
    assert found.tails[0].layer == "all"
    assert all(math.isfinite(tail.alpha or 0.0) for tail in found.tails)
    assert (path.with_suffix("") / "events.jsonl").exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(RecordError, match="in use by another process"):
        list(Store(tmp_path).run([RUN]))


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def unreadable(path: Path, *_: object) -> Path:
    path.write_text('{"result": {"status": "finished"}}')
    return path


def test_a_process_that_dies_and_a_result_that_cannot_be_read_end_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_run", die)
    with pytest.raises(RecordError, match="a process died"):
        list(Store(tmp_path).run([RUN]))
    monkeypatch.setattr(store, "_run", unreadable)
    some = Store(tmp_path)
    with pytest.raises(RecordError, match="has no result that can be read"):
        list(islice(some.run([RUN]), 2))


LONG = """
import sys
import tardygrad as tg

runs = [tg.load_spec("digits", ["run.rounds=10", f"run.seed={seed}"]) for seed in range(200)]
for path in tg.Store(sys.argv[1]).run(runs, jobs=2):
    print(path, flush=True)
"""


def test_killed_it_goes_on_and_leaves_no_process(tmp_path: Path) -> None:
    with Program(LONG, str(tmp_path), new_session=True) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.send_signal(signal.SIGKILL)
        program.wait()
        deadline = time.monotonic() + 60
        while _members(program.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _members(program.pid)
    whole = [path for path in tmp_path.glob("*.json") if json.loads(path.read_text("utf-8"))["result"]]
    assert 0 < len(whole) < 200
    assert not list(tmp_path.glob("*.draft"))[2:], "at most what the two were writing"
    runs = [tg.load_spec("digits", ["run.rounds=10", f"run.seed={seed}"]) for seed in range(3)]
    assert len(list(Store(tmp_path).run(runs, jobs=2))) <= 2


def _members(session: int) -> list[str]:
    """Living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found
