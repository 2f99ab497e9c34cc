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

from experiments.trials import ClaimTrial
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.record import exclusive
from tardygrad.spec import spec
from tardygrad.sweeps import store
from tardygrad.sweeps.store import Store, StoredResult
from tests.forkserver import Program

TRIAL = ClaimTrial("Clip²", rounds=10).at(lr=1.0, clip=0.003)
RUN = TRIAL.run(1)
RUNS = [RUN, TRIAL.run(2), TRIAL.at(lr=3.0).run(1), ClaimTrial("FADAS", rounds=10).at(lr=0.01, tau_c=1.0).run(1)]


def test_runs_are_made_once_and_read_back(tmp_path: Path) -> None:
    some = Store(tmp_path)
    assert some.result(RUN) is None
    made = list(some.run_missing(lambda: RUNS, jobs=2))
    assert sorted(made) == sorted(some.path(run) for run in RUNS)
    assert len(set(made)) == 4
    found = Store(tmp_path).result(RUN)
    assert found is not None
    assert found.status == "finished"
    assert [point[0] for point in found.curve] == [10]
    assert found.accuracy == found.curve[-1][3] > 0
    assert 0 < found.clipped < 1
    assert list(some.run_missing(lambda: RUNS, jobs=2)) == []


def test_a_result_can_be_run_again_by_its_file(tmp_path: Path) -> None:
    some = Store(tmp_path)
    [path] = some.run_missing(lambda: [RUN], jobs=1)
    again = spec.load(path)
    assert again.resolved() == spec.parse(RUN.spec).resolved()


def test_a_broken_file_is_made_again(tmp_path: Path) -> None:
    some = Store(tmp_path)
    [path] = some.run_missing(lambda: [RUN], jobs=1)
    whole = json.loads(path.read_text("utf-8"))
    right = whole.pop("result")
    del whole["check"]
    changes: list[dict[str, object]] = [
        *({"accuracy": value} for value in ("x", 1e300, -5, math.nan)),
        *({"status": value} for value in (None, "foo")),
        *({"time": value} for value in (None, 0, -1, math.inf)),
        *({"curve": [point]} for point in ([1], [math.inf, 1, 1, 1], [1, 1.0, 0.5, 2.0])),
        {"loss": math.nan},
        {"clipped": 1.5},
        {"tails": [[0, "all", 1.5, None, None, "heavy-tailed", None, None]]},
    ]
    edited = [
        [],
        {"result": right},
        *({"result": right, "versions": versions} for versions in (None, {}, {"torch": "\ud800"})),
    ]
    edited += [whole | {"result": result} for result in (3, *(right | change for change in changes))]
    texts = [json.dumps(row) for row in edited]
    for broken in ("", "{", *texts):
        path.write_text(broken)
        assert Store(tmp_path).result(RUN) is None
    path.write_text(json.dumps(whole | {"result": right}))
    assert Store(tmp_path).result(RUN) is not None
    path.write_text("")
    damaged = [{"name": path.stem, "result": right}]  # without versions
    assert Store(tmp_path / "other", summaries=damaged).result(RUN) is None
    assert list(Store(tmp_path, summaries=damaged).run_missing(lambda: [RUN], jobs=1)) == [path]
    assert json.loads(path.read_text("utf-8"))["result"] == right


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    some = Store(tmp_path)
    wild = ClaimTrial("SGDClip", rounds=10).at(lr=1e38, local_lr=1e3, local_clip=1e3).run(1)
    list(some.run_missing(lambda: [wild], jobs=1))
    found = some.result(wild)
    assert found is not None
    assert (found.status, found.accuracy) == ("diverged", None)


def test_results_are_ranked_by_score_then_loss() -> None:
    best_first = [(90.0, 0.3), (90.0, 0.4), (90.0, None), (0.0, 0.1), (None, 0.1)]
    merits = [StoredResult("finished", *scores, 1.0, [], 0.0, 0.0).merit for scores in best_first]
    assert sorted(set(merits), reverse=True) == merits


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(RecordError, match="in use by another process"):
        list(Store(tmp_path).run_missing(lambda: [RUN], jobs=1))


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_run", die)
    with pytest.raises(RecordError, match="a process died"):
        list(Store(tmp_path).run_missing(lambda: [RUN], jobs=1))


def unreadable(path: Path, *_: object) -> Path:
    path.write_text('{"result": {"status": "finished"}}')
    return path


def test_a_result_that_cannot_be_read_is_not_made_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_run", unreadable)
    some = Store(tmp_path)
    with pytest.raises(RecordError, match=f"must have a result that can be read, got '{some.path(RUN)}'. Remove"):
        list(islice(some.run_missing(lambda: [RUN], jobs=1), 2))


def test_a_directory_in_place_of_a_result_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_run", die)
    some = Store(tmp_path)
    some.path(RUN).mkdir(parents=True)
    with pytest.raises(Invalid, match="must be a file, and is a directory"):
        list(some.run_missing(lambda: [RUN], jobs=1))


LONG = """
import sys
from pathlib import Path
from experiments.trials import ClaimTrial
from tardygrad.sweeps.store import Store

runs = [ClaimTrial("Clip²", rounds=10).at(lr=1.0, clip=0.003).run(seed) for seed in range(200)]
for path in Store(Path(sys.argv[1])).run_missing(lambda: runs, jobs=2):
    print(path, flush=True)
"""


def test_killed_it_goes_on_and_leaves_no_process(tmp_path: Path) -> None:
    with Program(LONG, str(tmp_path), new_session=True) as one:
        assert one.stdout is not None
        one.stdout.readline()
        one.send_signal(signal.SIGKILL)
        one.wait()
        deadline = time.monotonic() + 60
        while _members(one.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _members(one.pid)
    whole = [path for path in tmp_path.glob("*.json") if json.loads(path.read_text("utf-8"))["result"]]
    assert 0 < len(whole) < 200
    assert not list(tmp_path.glob("*.draft"))[2:], "at most what the two were writing"
    assert len(list(Store(tmp_path).run_missing(lambda: [TRIAL.run(seed) for seed in range(3)], jobs=2))) <= 3


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
