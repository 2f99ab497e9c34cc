"""Which machine is slow: from the workers and nodes of a record, in the report and the doctor's findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tardygrad as tg
from tardygrad.doctor.examine import examine
from tardygrad.report.build import build
from tardygrad.runs.history import MachineTimes, read_history
from tardygrad.runs.record import read_json, write_json
from tests.records import without_checks
from tests.report.records import check_charts

METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=1.0, buffer=2, local_steps=4, mode="client")
SLOW = "slow<b>"


def recorded(path: Path, *nodes: str) -> Path:
    """A run of six clients, the last two of them four times slower; client i is a worker of its own on node i // 2."""
    fleet = tg.Fleet((tg.Group("fast", 4, tg.Uniform(1, 2)), tg.Group("slow", 2, tg.Uniform(4, 8))))
    tg.simulate(METHOD, tg.tasks.quadratic(clients=6), fleet, rounds=40, evaluate_every=0, out=path)
    write_json(path / "spec.json", read_json(path / "spec.json") | {"classes": []})  # no fleet is emulated
    without_checks(path)
    rows = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    for row in rows:
        if row["event"] == "arrival" and nodes:
            row |= {"worker": str(row["client"]), "node": nodes[row["client"] // 2]}
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_doctor_names_the_slow_machine(tmp_path: Path) -> None:
    seen = examine(recorded(tmp_path / "run", "a", "b", SLOW))
    (finding,) = [finding for finding in seen.findings if finding.cause == "machines"]
    assert finding.severity == "warning"
    assert finding.says.startswith(f"machine {SLOW} is ")
    assert "times slower than the median of the other 2 machines" in finding.says
    assert (finding.numbers or {})["ratio"] == pytest.approx(4, rel=0.3)
    assert f"look at what else runs on {SLOW}" in (finding.advice or "")


@pytest.mark.parametrize("nodes", [(), ("a", "a", "a"), ("a", "b", "a")])
def test_without_several_machines_or_a_slow_one_nothing_is_said(nodes: tuple[str, ...], tmp_path: Path) -> None:
    seen = examine(recorded(tmp_path / "run", *nodes))
    assert "machines" not in [finding.cause for finding in seen.findings if finding.severity == "warning"]
    assert ("machines" in seen.checks) == (len(set(nodes)) > 1)


def test_a_report_compares_machines(tmp_path: Path) -> None:
    report = build([str(recorded(tmp_path / "run", "a", "b", SLOW))])
    check_charts(report.sections)
    page = report.html()
    assert "Speed of the machines" in page
    assert "slow&lt;b&gt;" in page
    assert SLOW not in page.replace("\\u003c", "")
    assert "Speed of the machines" not in build([str(recorded(tmp_path / "one", "a", "a", "a"))]).html()


def test_the_time_that_a_job_waited_for_its_worker_does_not_count() -> None:
    times = MachineTimes()
    for job in range(4):  # all sent at once to one worker, which takes a second for each
        times.add("a", "1", sent=0.0, arrived=1.0 + job, steps=2)
    (machine,) = times.machines()
    assert (machine.median, machine.workers, machine.updates) == (0.5, 1, 4)


def test_an_emulated_fleet_says_nothing_about_machines(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run", "a", "b", "c")
    write_json(path / "spec.json", read_json(path / "spec.json") | {"classes": [["all", 6]]})
    assert read_history(path).machines == []
