"""plan, specs, --version and --help: nothing is trained, nothing is written."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

from tardygrad.engines.sim import process_pool
from tardygrad.spec import shipped, spec
from tests.cli.conftest import SMALL, Command


def test_a_plan_has_the_clock_of_the_run(tardygrad: Command) -> None:
    link = "fleet.link={latency=0.1, up=1000}"
    plan = tardygrad("plan", "small.toml", link, "--json").json
    ran = tardygrad("run", "small.toml", link, "--json").json
    assert (plan["method"], plan["time"], plan["rounds"]) == (ran["method"], ran["time"], ran["rounds"])
    assert (plan["delay"]["mean"], plan["delay"]["max"]) == (ran["delay_mean"], ran["delay_max"])
    assert plan["rounds_per_second"] == plan["rounds"] / plan["time"]
    assert plan["parameters"] == 20
    assert sum(one["updates"] for one in plan["classes"].values()) == ran["updates"] == 24
    assert sum(one["share"] for one in plan["classes"].values()) == pytest.approx(1.0)
    assert {name: one["clients"] for name, one in plan["classes"].items()} == {"small": 4, "medium": 2, "large": 2}


def test_a_plan_starts_no_processes(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool.ProcessPool, "__init__", None)
    assert tardygrad("plan", "small.toml", "engine.workers=2").code == 0


def test_nobody_idles_client_centric_and_the_fast_ones_do_in_sync_rounds(tardygrad: Command) -> None:
    assert tardygrad("plan", "small.toml", "--json").json["idle"] == pytest.approx(0.0)
    groups = [
        {"name": str(seconds), "clients": 1, "runtime": {"kind": "trace", "seconds": [seconds]}} for seconds in (1, 4)
    ]
    Path("two.json").write_text(json.dumps(_tables() | {"fleet": {"kind": "groups", "groups": groups}}))
    plan = tardygrad("plan", "two.json", "method.mode=sync", "task.clients=", "--json").json
    assert (plan["time"], plan["delay"]) == (48.0, {"mean": 1.0, "median": 1.0, "p90": 1.0, "max": 1})
    assert plan["idle"] == pytest.approx(1 - (1 + 4) / (2 * 4))


def test_sleep_is_not_idleness(tardygrad: Command) -> None:
    """One of two clients works, the other is asleep half of the time and has a job otherwise."""
    groups = "fleet={kind='groups', groups=[{name='a', clients=2, runtime={kind='trace', seconds=[1]}}]}"
    nights = "fleet.available=[{client=0, windows=[[0, 2]], period=4}]"
    how = ["plan", "small.toml", groups, nights, "task.clients=", "method.buffer=1", "run.rounds=60"]
    plan = tardygrad(*how, "--json").json
    assert (plan["idle"], plan["asleep"]) == (0.0, pytest.approx(0.25, abs=0.02))
    out = tardygrad(*how).out
    assert re.search(r"^asleep +2\d\.\d% of 2 clients' time\nidle +0\.0% of the rest$", out, re.MULTILINE)
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_plan_has_the_memory_of_the_run(tardygrad: Command) -> None:
    how = ["small.toml", "method.compensate=true", "run.rounds=30"]
    memory = tardygrad("plan", *how, "--json").json["memory"]
    assert memory["peak"] == sum(part["bytes"] for part in memory["parts"].values())
    assert memory["rounds"] == 30
    ran = tardygrad("run", *how, "--json", "--out", "here")
    parts = memory["parts"]
    assert f"+ {parts['start vectors']['number']} start vector" in ran.err
    assert tardygrad("plan", *how).out.splitlines()[-1].split() == ["total", f"{memory['peak'] / 1000:.3g}", "kB"]


def _tables() -> spec.Table:
    path = Path("small.toml")
    path.write_text(SMALL)
    return spec.load(path).resolved()


def test_a_plan_is_a_table_and_writes_nothing(tardygrad: Command) -> None:
    code, out, err = tardygrad("plan", "small.toml")
    assert (code, err) == (0, "")
    for words in ("Clip² (client-centric, M=2, K=3)", "8 s for 12 rounds", "p90", "medium", "mean delay"):
        assert words in out
    assert [path.name for path in Path().iterdir()] == ["small.toml"]


def test_a_plan_needs_a_fleet(tardygrad: Command) -> None:
    Path("threads.toml").write_text(SMALL.replace('[fleet]\nkind = "paper"', '[engine]\nkind = "threads"'))
    assert tardygrad("plan", "threads.toml").err == (
        "error: a plan needs a [fleet], got a spec without one. Describe your clients in it.\n"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["run.until=0.1"], "a plan needs a round, got run.until=0.1, when none is done. Use a larger one."),
        (["run.until=0.1", "--search"], "a search needs a run of at least one round, got none."),
        (["run.rounds=99999999"], "at most 10,000,000 updates (rounds · buffer), got 199,999,998. Use fewer run"),
        (["run.rounds=", "run.until=9", "engine.kind=threads"], "got real seconds in run.until. Set run.rounds."),
    ],
)
def test_a_plan_needs_a_length_that_it_can_simulate(options: list[str], says: str, tardygrad: Command) -> None:
    result = tardygrad("plan", "small.toml", *options)
    assert (result.code, result.out) == (2, "")
    assert says in result.err


def test_a_plan_may_be_as_long_as_a_run_in_seconds(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = tardygrad("plan", "small.toml", "run.rounds=", "run.until=30", "--json").json
    assert (limited["time"] <= 30, limited["rounds"] > 12) == (True, True)
    monkeypatch.setattr("tardygrad.cli.plan.MAX_UPDATES", 20)
    assert "got more in" in tardygrad("plan", "small.toml", "run.rounds=", "run.until=1e9").err


def test_specs_lists_what_comes_with_the_package(tardygrad: Command) -> None:
    code, out, _ = tardygrad("specs")
    assert code == 0
    listed = tardygrad("specs", "--json").json
    assert [one["name"] for one in listed] == shipped()
    assert all(one["name"] in out and one["description"][:40] in out for one in listed)
    assert all(len(one["description"]) > 20 for one in listed)


def test_version_and_help(tardygrad: Command) -> None:
    assert tardygrad("--version") == (0, f"tardygrad {importlib.metadata.version('tardygrad')}\n", "")
    assert tardygrad("--help").code == 0
    for verb in ("run", "resume", "replay", "plan", "specs"):
        assert tardygrad(verb, "--help").code == 0
    assert tardygrad().code == 2
