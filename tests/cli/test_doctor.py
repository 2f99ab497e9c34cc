"""doctor, and plan with --search and --fit."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Command
from tests.report.records import record


def test_a_healthy_run_is_told_so_in_a_line(tardygrad: Command) -> None:
    even = "fleet={kind='groups', groups=[{name='rack', clients=8, runtime={kind='lognormal', median=1, sigma=0.1}}]}"
    how = ["method.buffer=4", "method.clip=0.1", "run.rounds=60", "method.lr={value=1.0, exponent=-0.5}", even]
    tardygrad("run", "small.toml", *how, "--out", "run")
    code, out, err = tardygrad("doctor", "run")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("Clip² (client-centric, M=4, K=3): finished after 60 rounds")
    assert out.splitlines()[-1].startswith("healthy: nothing wrong with rounds, divergence, starvation, ")
    noted = {one["cause"] for one in tardygrad("doctor", "run", "--json").json["findings"]}
    assert noted.isdisjoint(out.splitlines()[-1].removeprefix("healthy: nothing wrong with ").split(", "))
    seen = tardygrad("doctor", "run", "--json").json
    assert (seen["healthy"], seen["rounds"], seen["run"]) == (True, 60, "run")
    tried = tardygrad("doctor", "run", "--try").out
    assert tried == out + "nothing to try: no finding suggests a change of settings\n"


SIX = (
    "fleet={kind='groups', groups=[{name='near', clients=5, runtime={kind='uniform', low=0.9, high=1.1}}, {name='far', "
    "clients=1, runtime={kind='uniform', low=9, high=11}}]}"
)
WAITING = ["task.clients=6", "task.noise=", SIX, "method.mode=sync", "method.buffer=6", "method.clip=inf"]


def test_a_sync_run_that_waits_for_a_straggler_is_told_what_the_planner_recommends(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", *WAITING, "run.rounds=40", "run.evaluate_every=2", "--out", "run")
    seen = tardygrad("doctor", "run", "--try", "--json").json
    assert not seen["healthy"]
    (found,) = [one for one in seen["findings"] if one["cause"] == "idle"]
    assert found.keys() == {"severity", "cause", "says", "advice", "expected", "numbers", "overrides", "trial"}
    assert (found["severity"], found["numbers"]["idle"] > 0.7) == ("warning", True)
    planned = tardygrad("plan", "run", "--fit", "run", "--json").json
    assert found["overrides"] == [text for text in planned["overrides"] if not text.startswith("run.rounds")]
    assert planned["best"]["lag"] <= 2 < planned["settings"][0]["lag"], "the fastest by the clock may not learn"
    assert "Client-centric, M = 1, is faster by the clock, but may need a smaller learning rate" in found["says"]
    assert found["trial"]["faster"] > 2
    assert not found["trial"]["worse"]
    out = tardygrad("doctor", "run").out
    assert out.splitlines()[-1] == f"change the run: tardygrad run run {' '.join(found['overrides'])}"
    assert tardygrad(*shlex.split(out.splitlines()[-1].partition(": tardygrad ")[2]), "--out", "again").code == 0


def test_findings_are_printed(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "method.lr=0.01", "task.noise=", "run.rounds=40", "--out", "run")
    out = tardygrad("doctor", "run", "--try").out
    assert "progress: the training loss falls steadily, but too slowly" in " ".join(out.split())
    assert "do use larger steps: method.lr=0.1 as a first try" in " ".join(out.split())
    assert "tried reaches test loss" in " ".join(out.split())
    assert "times as fast" in out
    assert out.splitlines()[-1] == "change the run: tardygrad run run method.lr=0.1"


def test_text_of_a_record_is_printed_as_it_is(tardygrad: Command) -> None:
    evil = "[red]x[/red]\x1b[31m"
    record(Path("run"), method=f"{evil} (client-centric, M=1, K=5)", classes=[[evil, 3], ["b", 1]])
    code, out, _ = tardygrad("doctor", "run")
    assert code == 0
    assert "[red]x[/red]" in out
    assert "\x1b" not in out


def test_what_is_no_run_cannot_be_examined(tardygrad: Command) -> None:
    assert tardygrad("doctor", "nowhere").err.startswith("error: there is no run directory 'nowhere'.")
    record(Path("runs/one"))
    assert "Did you mean 'runs/one'?" in tardygrad("doctor", "one").err
    assert tardygrad("doctor", "runs").err == "error: 'runs' is a folder of runs. Choose one of them: runs/one.\n"
    Path("runs/one/events.jsonl").write_text("nonsense\n")
    code, _, err = tardygrad("doctor", "runs/one")
    assert (code, "is damaged" in err) == (1, True)


def test_a_search_ranks_settings(tardygrad: Command) -> None:
    seen = tardygrad("plan", "small.toml", "--search", "--json").json
    assert seen["current"]["current"]
    assert (seen["current"]["mode"], seen["current"]["buffer"]) == ("client", 2)
    assert seen["best"] == seen["settings"][0]
    assert seen["best"]["per_effective"] == pytest.approx(seen["best"]["time"] / seen["best"]["effective"])
    assert seen["tolerance"]["delay"] == pytest.approx(12**0.5)
    late = [one["delay_max"] > 12**0.5 for one in seen["settings"]]
    assert [one["warning"] is not None for one in seen["settings"]] == late
    assert any(late)
    assert all(one["excluded"] is None for one in seen["settings"])
    assert seen["sync"] == next(one for one in seen["settings"] if one["mode"] == "sync")
    assert (seen["current"]["needed_rounds"], seen["fit"]) == (12, None)
    out = tardygrad("plan", "small.toml", "--search").out
    assert re.search(r"^best ", out, re.M)
    assert re.search(r"^best sync ", out, re.M)
    assert re.search(r"^now ", out, re.M)
    assert "\nranked by  predicted time for the effective updates of the current setting's rounds" in out
    assert "\n!  above 3.464, the delay that the theory tolerates (12 rounds and tail index 1.5" in out
    *_, answer, overrides = out.splitlines()
    assert (answer, overrides) == (seen["answer"], "set  " + " ".join(seen["overrides"]))
    assert re.fullmatch(
        r"use [\w-]+, M = \d+: [\d.]+ s for \d+ rounds, [\d.]+ times as fast as the best synchronous setting "
        r"\([\d.,]+ s\) and [\d.]+ times as fast as the current setting \([\d.]+ s\)",
        answer,
    )


def test_a_search_without_a_choice_says_so(tardygrad: Command) -> None:
    even = "fleet.crashes=[{client=7, at=0.5}]"
    Path("one.toml").write_text(SMALL.replace('kind = "paper"', 'kind = "paper"\nclients = 8'))
    out = tardygrad("plan", "one.toml", even, "method.downplay=true", "--search").out
    assert "the delay that the theory tolerates" not in out, "the method downplays late updates"
    assert "ruled out: 1 of " in out
    assert "1 because it starves" in out
    best = tardygrad("plan", "small.toml", "method.mode=sync", "method.buffer=1", "--search", "--max-delay", "1").out
    assert "\nkeep synchronous, M = 1: " in best


def test_a_fitted_fleet_can_be_written_and_run(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "run.rounds=60", "--out", "run")
    for name in ("fitted.toml", "fitted.json"):
        code, out, _ = tardygrad("plan", "small.toml", "--fit", "run", "--write", name)
        assert code == 0
        assert f"written  {name}" in out
        assert "class" in out
        tables = json.loads(Path(name).read_text()) if name.endswith("json") else tomllib.loads(Path(name).read_text())
        assert sum(group["clients"] for group in tables["fleet"]["groups"]) == 8
        planned = tardygrad("plan", name, "run.rounds=60", "--json").json
        there = tardygrad("plan", "small.toml", "run.rounds=60", "--json").json
        assert planned["time"] == pytest.approx(there["time"], rel=0.25)
    assert tardygrad("plan", "small.toml", "--fit", "run", "--write", "fitted.toml").err == (
        "error: --write must be a new file, got 'fitted.toml', which exists. Choose another name.\n"
    )


def test_a_written_spec_is_told_how_to_run_the_best_and_has_tomls_infinity(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", *WAITING, "run.rounds=30", "--out", "run")
    changed = [*WAITING, "method.local_clip=inf", "--fit", "run", "--write", "a b.toml"]
    out = tardygrad("plan", "small.toml", *changed).out
    told = next(line for line in out.splitlines() if line.startswith("run  "))
    faster = next(line for line in out.splitlines() if line.startswith("set  "))
    assert told == f"run  tardygrad run 'a b.toml' {faster.removeprefix('set  ')}"
    assert tomllib.loads(Path("a b.toml").read_text())["method"]["local_clip"] == float("inf")
    assert tardygrad(*shlex.split(told)[2:], "--out", "best").code == 0


def test_a_fit_is_told_client_by_client(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "run.rounds=60", "--out", "run")
    seen = tardygrad("plan", "small.toml", "--fit", "run", "--json").json["fit"]
    assert [one["client"] for one in seen] == list(range(8))
    assert (seen[0]["runtime"]["kind"], set(seen[0]["runtime"]["seconds"])) == ("trace", {1.0, 2.0})
    twice = tardygrad("plan", "small.toml", "method.local_steps=6", "--fit", "run", "--json").json["fit"]
    assert set(twice[0]["runtime"]["seconds"]) == {2.0, 4.0}


def test_a_threads_spec_can_be_planned_with_a_fit(tardygrad: Command) -> None:
    Path("threads.toml").write_text(SMALL.replace('[fleet]\nkind = "paper"', '[engine]\nkind = "threads"'))
    tardygrad("run", "threads.toml", "--out", "run")
    assert tardygrad("plan", "threads.toml", "--fit", "run", "--json").code == 0
    assert "a search needs a [fleet]" in tardygrad("plan", "threads.toml", "--search").err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--max-delay", "3"], "--max-delay needs --search or --fit RUN"),
        (["--search", "--write", "x.toml"], "--write needs --fit RUN"),
        (["--search", "--max-memory", "1GB"], "--max-memory cannot be combined with --search or --fit"),
        (["--search", "task.clients=10001"], "a search can have at most 10,000 clients, got 10,001."),
        (["--fit", "run", "--write", "x.yaml"], "--write must be a file that ends in .toml or .json, got 'x.yaml'"),
        (
            ["--fit", "run"],
            "a fit needs a run with as many clients as the spec (8), got 'run' with 4. Use task.clients=4, or",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], says: str, tardygrad: Command) -> None:
    record(Path("run"))
    code, out, err = tardygrad("plan", "small.toml", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {says}")
