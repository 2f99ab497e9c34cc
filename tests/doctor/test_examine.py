"""The doctor: planted problems are named first, and a healthy run is left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tardygrad as tg
from tardygrad.doctor.convergence_checks import divergence, onset, overfitting, progress, swings
from tardygrad.doctor.delay_checks import delays
from tardygrad.doctor.examine import Examined, examine
from tardygrad.doctor.finding import NOT_SIMULATED
from tardygrad.doctor.tail_checks import tails
from tardygrad.doctor.trend import loss_at_start
from tardygrad.doctor.try_change import try_change
from tardygrad.doctor.what_if import WhatIf
from tardygrad.errors import RecordError
from tardygrad.runs.events import Evaluation
from tardygrad.runs.history import read_history as read
from tardygrad.spec import spec
from tests.doctor.planted import clip2, fleet, own_sgdclip, record, sgdclip
from tests.records import without_checks
from tests.report.records import record as made_up

NOISE = tg.Noise("student", 1.5, 0.1)


def causes(seen: Examined, *severities: str) -> list[str]:
    return [one.cause for one in seen.findings if one.severity in (severities or ("severe", "warning", "note"))]


def test_a_healthy_run_is_healthy(tmp_path: Path) -> None:
    seen = examine(record(tmp_path / "run", clip2(), fleet(), noise=NOISE))
    assert seen.healthy
    assert causes(seen, "severe", "warning") == []
    assert (seen.status, seen.rounds) == ("finished", 100)


def test_the_settings_of_a_method_of_ones_own_are_seen(tmp_path: Path) -> None:
    heavy: dict[str, Any] = {"noise": tg.Noise("student", 1.1, 1.0)}
    for name, strength in (("clipped", 1.0), ("loose", 1e9), ("unclipped", float("inf"))):
        own = record(tmp_path / f"own-{name}", tg.make(own_sgdclip, strength=strength), fleet(), **heavy)
        ready = record(tmp_path / f"ready-{name}", sgdclip(local_clip=strength), fleet(), **heavy)
        seen, expected = (examine(path) for path in (own, ready))
        assert read(own).setting("local_clip") == read(ready).setting("local_clip")
        assert causes(seen) == causes(expected)
        assert [one.says for one in seen.findings] == [one.says for one in expected.findings]
        assert not any("local_clip=" in text for one in seen.findings for text in one.overrides or ())
    hidden = replace(read(own), ready_method=None)  # the function returns a method of which nothing is known
    assert tails(hidden, WhatIf(hidden)) is None
    assert not hidden.knows_method


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (clip2(lr=0.0), "the server's step turns every round into nothing"),
        (clip2(local_lr=0.0), "every update is zero"),
    ],
)
def test_a_model_that_never_moved_is_not_healthy(tmp_path: Path, method: tg.Method, why: str) -> None:
    for rounds in (3, 100):
        seen = examine(record(tmp_path / str(rounds), method, fleet(), rounds=rounds, noise=NOISE))
        assert not seen.healthy
        assert seen.findings[0].cause == "progress"
        assert f"the model never moved: it is x_0 after {rounds} rounds, because {why}" in seen.findings[0].says


def test_delays_beyond_the_theory_are_noted_and_warned_of_only_if_the_loss_does_not_fall(tmp_path: Path) -> None:
    method = clip2(buffer=1, lr=0.3, local_steps=1)
    path = record(tmp_path / "run", method, fleet(16, slow=25.0), rounds=1600)
    late = next(one for one in examine(path).findings if one.cause == "delays")
    numbers = late.numbers or {}
    assert list(numbers["clients"]) == [15]
    assert numbers["clients"][15] > 0.9
    assert numbers["largest"] > 400
    assert numbers["factor"] == pytest.approx(numbers["largest"] / 40, rel=0.01)  # T^(1/2)
    assert "client 15 (far)" in late.says
    assert "Theorem 5" in late.says
    assert "up to unknown constants" in late.says
    assert late.severity == "note"
    assert late.says.endswith("The training loss falls all the same.")
    history = read(path)
    flat = replace(history, rounds=replace(history.rounds, loss=np.full(len(history.rounds), loss_at_start(history))))
    stuck = delays(flat, WhatIf(flat))
    assert stuck
    assert (stuck.severity, stuck.overrides) == ("warning", ())


def test_an_outer_clip_that_never_binds_is_noted(tmp_path: Path) -> None:
    method = replace(clip2(clip=5.0), keep=False)  # has no recipe
    (found,) = [one for one in examine(record(tmp_path / "run", method, fleet())).findings if one.cause == "outer clip"]
    assert (found.severity, found.advice) == ("note", None)
    assert "it changed nothing in all rounds. This run equals SGDClip." in found.says
    assert "coordinate" not in found.says  # who knows


@pytest.mark.parametrize(
    ("change", "cause", "key"),
    [
        ({"lr": 0.02}, "progress", "lr"),
        ({"lr": {"value": 0.02, "exponent": 0.0}}, "progress", "lr.value"),
        ({"kind": "clip2", "clip": 1e-4, "lr": 0.5}, "outer clip", "clip"),
        ({"local_clip": 0.001, "lr": 0.5}, "local clip", "local_clip"),
    ],
    ids=str,
)
def test_steps_that_are_too_small_are_told_to_grow_and_then_are_faster(
    change: dict[str, object], cause: str, key: str, tmp_path: Path
) -> None:
    how = {"kind": "sgdclip", "local_clip": 2.0} | change
    tables = planted(how, rounds=60)
    path = _run(tmp_path / "run", tables | {"run": tables["run"] | {"evaluate_every": 2}})
    (found,) = [one for one in examine(path).findings if one.severity == "warning"]
    assert (found.cause, [text.partition("=")[0] for text in found.overrides]) == (cause, [f"method.{key}"])
    assert "falls steadily, but too slowly" in found.says
    assert found.expected == NOT_SIMULATED
    tried = try_change(read(path), found.overrides)
    assert (tried.faster or 0) > 2
    assert not tried.worse
    assert "times as fast" in str(tried)


def planted(method: dict[str, object], *, slow: float = 2.0, rounds: int = 150, clients: int = 16) -> spec.Table:
    """The spec of a quadratic without noise, with clients around 2 s; the last may be slow."""
    laws = [{"kind": "lognormal", "median": 2.0, "sigma": 0.3}, {"kind": "lognormal", "median": slow, "sigma": 0.2}]
    sizes = {"near": clients - 1, "far": 1}
    groups = [{"name": name, "clients": sizes[name], "runtime": law} for name, law in zip(sizes, laws, strict=True)]
    how = {"local_lr": 0.05, "local_steps": 4, "buffer": 8, "mode": "client"} | method
    task = {"kind": "quadratic", "clients": clients, "dimension": 20}
    run = {"rounds": rounds, "evaluate_every": 0, "checkpoint_every": 10_000}
    return {"task": task, "fleet": {"kind": "groups", "groups": groups}, "method": how, "run": run}


def test_a_clear_probe_is_what_the_delays_are_held_against(tmp_path: Path) -> None:
    method = {"kind": "clip2", "local_clip": 2.0, "lr": 0.3, "clip": 1.0, "buffer": 1}
    tables = planted(method, slow=30.0, rounds=200)
    tables["task"] |= {"dimension": 2000, "noise": {"kind": "stable", "tail": 1.3, "scale": 0.1}}
    path = _run(tmp_path / "run", tables)
    for probed, source in ((False, "from the spec's noise"), (True, "probed at x_0")):
        found = examine(path, probed=probed).findings
        assert source in next(one.says for one in found if one.cause == "delays")
        assert causes(examine(path, probed=probed)).count("tail") == probed


def test_an_onset_is_found_though_some_clients_have_nothing_left_to_learn(tmp_path: Path) -> None:
    how = ["method.kind=dcasgd", "method.local_clip=", "method.local_lr=3.0", "method.lr=10.0", "method.buffer=1"]
    path = _run(tmp_path / "run", spec.load("logistic", [*how, "method.mode=client", "run.rounds=400"]).resolved())
    first = examine(path).findings[0]
    assert (read(path).rounds.loss[60:] == 0).any()
    assert 20 <= (first.numbers or {})["round"] <= 51
    assert "(medians of 20 rounds)" in first.says
    assert first.overrides == ["method.local_lr=0.3"]


def test_a_rate_that_diverges_is_named_first(tmp_path: Path) -> None:
    wild = sgdclip(lr=60.0, local_clip=np.inf, buffer=4)
    seen = examine(record(tmp_path / "run", wild, fleet(), rounds=400))
    first, *_ = seen.findings
    assert seen.status == "starved", "the server refuses updates that are too large"
    assert (first.severity, first.cause) == ("severe", "divergence")
    numbers = first.numbers or {}
    assert numbers["round"] < 15
    assert len(numbers["clients"]) == len(numbers["delays"]) == 4
    assert f"round {numbers['round']}" in first.says
    assert "smaller steps" in (first.advice or "")


def test_a_loss_that_heavy_tails_threw_up_is_not_blamed_on_the_rate(tmp_path: Path) -> None:
    path = record(tmp_path / "run", sgdclip(local_clip=np.inf, buffer=4), fleet(), rounds=60)
    history = read(path)
    norms, loss = history.rounds.norms.copy(), loss_at_start(history) * np.repeat([1.0, 3.0], [40, 20])
    norms[40, 0] = 1e4
    thrown = replace(history, rounds=replace(history.rounds, loss=loss, norms=norms))
    found = divergence(thrown, WhatIf(thrown))
    assert found
    assert (found.severity, found.advice, found.overrides) == ("severe", None, ())


def test_a_server_that_cannot_keep_up_is_the_bottleneck(tmp_path: Path) -> None:
    """Twelve clients of 1 s send 12 updates per second; the server takes 5. Nothing that clients do helps."""
    slow = replace(fleet(), server_time=0.2)
    seen = examine(record(tmp_path / "run", clip2(mode="sync", buffer=12), slow, rounds=20))
    assert "server" not in causes(seen), "it waits for the clients in every round"
    seen = examine(record(tmp_path / "busy", clip2(), slow))
    found = next(one for one in seen.findings if one.cause == "server")
    assert (found.severity, found.overrides) == ("warning", ())
    assert found.says.startswith("the server is busy 99% of the time: it spends 0.2 s on each update")
    assert "server" not in examine(record(tmp_path / "free", clip2(), fleet())).checks


@pytest.mark.parametrize("accuracy", [[0.5, 0.6, 0.7], [0.7, 0.6, 0.5]])
def test_a_test_loss_that_rises_while_the_training_loss_falls_is_overfitting(
    accuracy: list[float], tmp_path: Path
) -> None:
    history = read(record(tmp_path / "run", clip2(), fleet(), rounds=60))
    loss = np.where(np.arange(20) < 5, 1.0, 0.9 + 0.02 * np.arange(20))
    scores = [{"loss": value, "accuracy": accuracy[min(i // 5, 2)]} for i, value in enumerate(loss.tolist())]
    tested = replace(history, evaluations=[Evaluation(3.0 * i, 3 * i + 3, each, None) for i, each in enumerate(scores)])
    found = overfitting(tested, WhatIf(tested))
    assert found
    assert found.severity == ("note" if accuracy[-1] > accuracy[0] else "warning")
    assert "the test loss rose from 1 in round" in found.says
    rising = replace(tested, rounds=replace(tested.rounds, loss=tested.rounds.loss[::-1].copy()))
    assert overfitting(rising, WhatIf(rising)) is None, "the training loss rises too: that is no overfitting"


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([0.8, 0.7, 0.2, 0.5, 4.0, 0.4], "it was 0.2 in round 9, 4 in round 15 and 0.4 in round 18, while"),
        ([0.8, 0.7, 0.2, 0.1, 4.0], "it was 0.1 in round 12, 4 in round 15, while"),
        ([0.8, 0.7, 0.2, 0.28, 0.27], None),
        ([0.8, 0.1, 0.001, 0.004, 0.002], None),  # as large as the noise of a test loss near 0
        ([0.8, 0.2, 4.0], None),  # too few
    ],
)
def test_a_test_loss_that_goes_up_and_down_is_noted(losses: list[float], says: str | None, tmp_path: Path) -> None:
    history = read(record(tmp_path / "run", clip2(), fleet(), rounds=60))
    scores = [Evaluation(3.0 * i, 3 * i + 3, {"loss": loss}, None) for i, loss in enumerate(losses)]
    tested = replace(history, evaluations=scores)
    found = swings(tested, WhatIf(tested))
    assert found is None if says is None else found and says in found.says
    rising = replace(tested, rounds=replace(tested.rounds, loss=tested.rounds.loss[::-1].copy()))
    assert swings(rising, WhatIf(rising)) is None, "the training loss rises too: other checks say so"


@pytest.mark.parametrize(
    ("tested", "severity", "says"),
    [
        ([6.0, 5.9, 5.7, 5.9, 5.8, 5.9], "note", "Judge the run by its test scores."),
        ([6.0, 5.9, 5.7, 5.9, 6.5, 7.0], "warning", "The test loss rose from 5.7 in round 9 to 7."),
        ([6.0, 7.0], "note", "Judge the run by its test scores."),
    ],
)
def test_a_training_loss_that_is_only_noise_tells_nothing(
    tested: list[float], severity: str, says: str, tmp_path: Path
) -> None:
    history = read(record(tmp_path / "run", clip2(), fleet(), rounds=60))
    loss = np.exp(np.random.default_rng(3).standard_t(3, 60))
    assert loss[-6:].max() > 3 * loss.min()
    scores = [Evaluation(3.0 * i, 3 * i + 3, {"loss": each}, None) for i, each in enumerate(tested)]
    noisy = replace(history, rounds=replace(history.rounds, loss=loss), evaluations=scores)
    found = progress(noisy, WhatIf(noisy))
    assert found
    assert (found.severity, found.says.endswith(says)) == (severity, True)
    assert found.says.startswith("the training loss is too noisy to tell whether it falls: half of the rounds are")
    for check in (divergence, swings, overfitting):
        assert check(noisy, WhatIf(noisy)) is None
    thrown = replace(noisy, rounds=replace(history.rounds, loss=loss * 1e3))
    lost = divergence(thrown, WhatIf(thrown))
    assert lost
    assert lost.severity == "severe", "noise does not explain that it is far above the loss at x_0"


@pytest.mark.parametrize("rounds", [12, 25])
def test_few_rounds_that_end_high_by_chance_do_not_diverge(rounds: int, tmp_path: Path) -> None:
    history = read(record(tmp_path / "run", clip2(), fleet(), rounds=rounds))
    start = loss_at_start(history)
    loss = start * np.resize([1.0, 9.0, 0.5, 6.0, 0.3], rounds)
    loss[-3:] = start * np.array([0.9, 9.0, 8.0])
    noisy = replace(history, rounds=replace(history.rounds, loss=loss))
    assert divergence(noisy, WhatIf(noisy)) is None
    found = progress(noisy, WhatIf(noisy))
    assert (found is None) == (rounds < 20)
    assert found is None or found.severity == "note"
    risen = replace(history, rounds=replace(history.rounds, loss=start * np.geomspace(1.0, 50.0, rounds)))
    assert divergence(risen, WhatIf(risen)) is not None


@pytest.mark.parametrize("harmed", [True, False])
def test_a_clip_is_advised_only_to_a_run_that_noise_has_harmed(harmed: bool, tmp_path: Path) -> None:
    path = _run(tmp_path / "run", planted({"kind": "sgdclip", "local_clip": "inf", "lr": 1.0}, rounds=60))
    history = read(path)
    norms, loss = history.rounds.norms.copy(), loss_at_start(history) * np.geomspace(1.0, 0.01, 60)
    norms[30, 0] = 1e4
    loss[45:] *= 20 if harmed else 1
    thrown = replace(history, rounds=replace(history.rounds, loss=loss, norms=norms))
    found = tails(thrown, WhatIf(thrown))
    assert found
    assert (found.severity, bool(found.overrides), bool(found.advice)) == ("warning", harmed, harmed)
    assert found.says.endswith("So far the loss has recovered.") == (not harmed)


@pytest.mark.parametrize(
    ("kind", "rounds"), [({"kind": "clip2", "clip": 0.1}, 40), ({"kind": "clip2", "clip": 0.1}, 10), ({}, 40)]
)
def test_a_rate_of_50_that_clips_keep_finite_is_told_to_shrink(kind: spec.Table, rounds: int, tmp_path: Path) -> None:
    """The loss jumps up in the first rounds and stays there: only x_0 tells that the run learns nothing."""
    tables = planted({"kind": "sgdclip", "local_clip": 1.0, "lr": 50.0} | kind, rounds=rounds)
    path = _run(tmp_path / "run", tables | {"run": tables["run"] | {"evaluate_every": 2}})
    found = next(one for one in examine(path).findings if one.cause == "divergence")
    assert (found.severity, float(found.overrides[0].removeprefix("method.lr=")) <= 5) == ("severe", True)
    assert not try_change(read(path), found.overrides).worse


def test_local_steps_that_blow_up_are_found_though_the_training_loss_falls(tmp_path: Path) -> None:
    """The loss of a job is the mean over its steps: it begins at 100 and falls, and the accuracy stays at 10 %."""
    tables = planted({"kind": "sgdclip", "local_clip": 1.0, "local_lr": 50.0, "lr": 1.0, "local_steps": 3}, rounds=24)
    digits = {"kind": "digits", "clients": 16, "model": "mlp", "dim": 16, "depth": 1}
    path = _run(tmp_path / "run", tables | {"task": digits, "run": tables["run"] | {"evaluate_every": 2}})
    found = next(one for one in examine(path).findings if one.cause == "progress")
    assert (found.severity, found.overrides) == ("severe", ["method.local_lr=0.5"])
    assert "the model has learned nothing: test accuracy 0." in found.says
    assert not try_change(read(path), found.overrides).worse


def test_larger_steps_are_not_advised_to_a_run_whose_steps_are_long(tmp_path: Path) -> None:
    """Both runs fall slowly; the moves of one would have lowered the loss far more, straight downhill."""
    history = read(_run(tmp_path / "run", planted({"kind": "sgdclip", "local_clip": 1.0, "lr": 0.001}, rounds=40)))
    loss = loss_at_start(history) * np.geomspace(1.0, 0.7, 40)
    for factor, advised in ((1.0, True), (1e6, False)):
        changed = replace(history.rounds, loss=loss, move=factor * history.rounds.move)
        found = progress(replace(history, rounds=changed), WhatIf(history))
        assert bool(found and found.advice and "larger steps" in found.advice) == advised
    courses = {"fell only a little": np.geomspace(1.0, 0.95, 40) ** np.linspace(2, 1, 40), "did not fall": np.ones(40)}
    for course, shape in courses.items():
        flat = replace(history.rounds, loss=loss_at_start(history) * shape)
        found = progress(replace(history, rounds=flat), WhatIf(history))
        assert found
        assert f"the training loss {course}: from " in found.says


def test_steps_that_overshoot_are_told_from_steps_that_are_too_short(tmp_path: Path) -> None:
    """A flat loss says nothing about the steps; whether their lengths would have been enough does."""
    tables = planted({"kind": "sgdclip", "local_clip": 1.0, "lr": 1.0}, rounds=40)
    advice = []
    for task, lr in (({"kind": "logistic", "clients": 16, "samples": 400}, 60.0), ({}, 1e-9)):
        changed = {"task": tables["task"] | task, "method": tables["method"] | {"lr": lr}}
        if task:
            changed["task"].pop("dimension")
        found = examine(_run(tmp_path / f"run-{lr}", tables | changed)).findings
        advice.append(next(one.advice for one in found if one.cause == "progress"))
    assert advice == ["use smaller steps: method.local_lr=0.005 as a first try", None]


@pytest.mark.parametrize("downplay", [True, False])
def test_a_max_delay_that_refuses_most_updates_gets_advice(downplay: bool, tmp_path: Path) -> None:
    how = {"kind": "sgdclip", "local_clip": 1.0, "lr": 0.5, "buffer": 2, "max_delay": 1, "downplay": downplay}
    seen = examine(_run(tmp_path / "run", planted(how, rounds=40, clients=6)))
    found = next(one for one in seen.findings if one.cause == "refusals")
    assert (found.severity, "accept late updates: use " in (found.advice or "")) == ("warning", True)
    assert found.overrides[-1] == "method.max_delay="
    assert "% → 0.0%" in (found.expected or "")


def test_a_max_delay_that_helps_against_delays_is_a_trade_off(tmp_path: Path) -> None:
    """With M = 1, accepting all updates means delays that the learning rate may not stand."""
    how = {"kind": "sgdclip", "local_clip": 1.0, "lr": 0.5, "buffer": 1, "max_delay": 2}
    seen = examine(_run(tmp_path / "run", planted(how, rounds=60, clients=6)))
    found = next(one for one in seen.findings if one.cause == "refusals")
    assert (found.severity, found.overrides) == ("warning", ())
    assert (found.advice or "").endswith("or none if the learning rate stands their delays")
    assert "mean delay 1.83 → 5." in (found.expected or "")


def test_clients_that_differ_are_told_how_to_measure_other_modes(tmp_path: Path) -> None:
    how = {"kind": "sgdclip", "local_clip": 1.0, "lr": 0.5, "buffer": 4, "mode": "sync"}
    tables = planted(how, slow=20.0, rounds=60, clients=4)
    tables["task"]["heterogeneity"] = 1.0
    found = next(one for one in examine(_run(tmp_path / "run", tables)).findings if one.cause == "idle")
    assert "the clients' losses differ" in found.says
    assert (found.overrides, "tardygrad sweep " in (found.advice or "")) == ((), True)


def _run(path: Path, tables: spec.Table) -> Path:
    """Run a spec, as the command line does."""
    asked = spec.parse(tables)
    built = asked.build()
    with built.pool() as pool:
        run = tg.begin(built.method, built.task, pool, spec=asked.resolved(), out=path, **asked.run.settings())
        try:
            for _ in run.go():
                pass
        except (tg.Diverged, tg.Starved):
            pass
    return path


def test_a_starved_run_says_who_is_lost(tmp_path: Path) -> None:
    crashed = fleet()
    for client in range(8):
        crashed = crashed.crash(client=client, at=8.0)
    first, *_ = examine(record(tmp_path / "run", clip2(mode="server"), crashed)).findings
    assert (first.severity, first.cause) == ("severe", "starvation")
    assert (first.numbers or {})["lost"] == list(range(8))
    assert "method.buffer=4" in (first.advice or "")


def test_clients_that_never_contribute_are_named(tmp_path: Path) -> None:
    seen = examine(record(tmp_path / "run", clip2(), fleet(slow=10_000.0)))
    silent = next(one for one in seen.findings if one.cause == "starvation")
    assert (silent.numbers or {})["clients"] == [11]
    assert "client 11 (far) still working" in silent.says
    idle = examine(record(tmp_path / "idle", clip2(concurrency=6), fleet()))
    silent = next(one for one in idle.findings if one.cause == "starvation")
    assert "6 of 12 clients never contributed: clients 6, 7, 8, 9, 10 and 1 more (rack) never had a job." in silent.says
    assert "With method.dispatch=same a free slot goes to the client that left it" in silent.says


def test_refusals_are_counted_and_whose_they_are(tmp_path: Path) -> None:
    seen = examine(record(tmp_path / "run", clip2(buffer=1, max_delay=14), fleet(slow=5.0), rounds=150))
    refused = next(one for one in seen.findings if one.cause == "refusals")
    numbers = refused.numbers or {}
    assert numbers["clients"][0] == 11
    assert list(numbers["reasons"]) == ["too stale"]


def test_losses_are_noted(tmp_path: Path) -> None:
    crashed = fleet().crash(client=3, at=5.0, back=9.0)
    seen = examine(record(tmp_path / "run", clip2(), crashed, noise=NOISE))
    lost = next(one for one in seen.findings if one.cause == "lost clients")
    assert seen.healthy
    assert ("lost clients" in seen.checks, "lost clients" in seen.clean, "divergence" in seen.clean) == (
        True,
        False,
        True,
    )
    assert (lost.severity, lost.numbers) == ("note", {"clients": {3: 1}, "share": pytest.approx(1 / 600, rel=0.2)})


def test_a_sync_run_has_no_delays_and_is_told_what_waiting_costs(tmp_path: Path) -> None:
    seen = examine(record(tmp_path / "run", clip2(mode="sync", buffer=4), fleet(slow=30.0), noise=NOISE))
    assert "delays" not in causes(seen)
    idle = next(one for one in seen.findings if one.cause == "idle")
    assert (idle.severity, idle.overrides[0].startswith("method.mode=")) == ("warning", True)
    assert " s per round, mean delay 1 → " in (idle.expected or "")


def test_work_that_hardly_counts_is_found(tmp_path: Path) -> None:
    slow = tg.Fleet((tg.Group("quick", 4, tg.Uniform(1.0, 1.2)), tg.Group("slow", 4, tg.Uniform(30.0, 40.0))))
    seen = examine(record(tmp_path / "run", clip2(buffer=4, downplay=True), slow, rounds=200))
    dead = next(one for one in seen.findings if one.cause == "dead weight")
    assert dead.severity == "warning"
    assert (dead.numbers or {})["clients"] == [4, 5, 6, 7]
    assert (dead.numbers or {})["weight"] < 0.05 < 0.4 < (dead.numbers or {})["work"]


def test_clips_that_always_bind_are_found(tmp_path: Path) -> None:
    tables = spec.load("quadratic", ["run.rounds=40", "method.local_clip=1e-3", "method.clip=1e-6"]).resolved()
    seen = examine(_run(tmp_path / "run", tables))
    assert "outer clip" in causes(seen, "warning")
    loose = spec.load("quadratic", ["run.rounds=40", "method.local_clip=1e6", "task.noise="]).resolved()
    assert "local clip" in causes(examine(_run(tmp_path / "loose", loose)), "note")


def test_a_measured_tail_is_noted_and_warned_of_where_nobody_clips(tmp_path: Path) -> None:
    tables = spec.load("quadratic", ["run.rounds=20", "method.local_clip=inf", "method.lr=0.01"]).resolved()
    for name, clip, severity in (("bare", "inf", "warning"), ("clipped", 1.0, "note")):
        path = _run(tmp_path / name, tables | {"method": tables["method"] | {"local_clip": clip}})
        tail = {"event": "tail", "time": 1e9, "round": 20, "index": 1.4, "low": 1.3, "high": 1.5, "by": "", "number": 9}
        with (without_checks(path) / "events.jsonl").open("a") as file:
            file.write(json.dumps(tail | {"verdict": "heavy-tailed, infinite variance"}) + "\n")
        found = next(one for one in examine(path).findings if one.cause == "tail")
        assert found.severity == severity
        assert "the tail index of the updates of round 20 is 1.4 (1.3 to 1.5)" in found.says


def test_a_run_without_rounds_says_so(tmp_path: Path) -> None:
    path = record(tmp_path / "run", clip2(), fleet())
    for name in ("events.jsonl", "summary.json"):
        (path / name).unlink()
    seen = examine(path)
    assert causes(seen) == ["no rounds"]
    assert "tardygrad resume" in (seen.findings[0].advice or "")


def test_a_run_that_goes_on_is_examined_as_far_as_it_is(tmp_path: Path) -> None:
    task = tg.tasks.quadratic(clients=12, dimension=10, noise=NOISE)
    run = tg.begin(
        clip2(), task, tg.SimPool(task, clip2(), fleet()), rounds=100, out=tmp_path / "run", evaluate_every=0
    )
    rows = run.go()
    for _ in range(60):
        next(rows)
    assert run.record is not None
    run.record.sync()
    seen = examine(tmp_path / "run")
    rows.close()
    assert (seen.status, seen.rounds) == ("running", 60)
    assert causes(seen, "severe") == []


def test_a_resumed_run_is_examined_as_a_whole(tmp_path: Path) -> None:
    task = tg.tasks.quadratic(clients=12, dimension=10, noise=NOISE)

    def pool() -> tg.SimPool:
        return tg.SimPool(task, clip2(), fleet())

    tg.train(clip2(), task, pool(), rounds=50, out=tmp_path / "run", evaluate_every=0)
    for _ in tg.resume(tmp_path / "run", clip2(), task, pool(), rounds=100).go():
        pass
    once = record(tmp_path / "once", clip2(), fleet(), noise=NOISE)
    assert examine(tmp_path / "run").findings == examine(once).findings


def advance(**facts: Any) -> str:
    """The line of a round of two updates, with some of its facts changed."""
    many = {"clients": [0, 1], "delays": [1, 1], "norms": [1, 1]}
    numbers = dict.fromkeys(("norm", "move", "clipped", "local_clipped", "loss", "steps", "snapshots", "seconds"), 0)
    return json.dumps({"event": "advance", "time": 1, "round": 1, **many, **numbers, **facts})


@pytest.mark.parametrize(
    "line",
    [
        advance(clients=[], delays=[], norms=[]),
        advance(delays=[0, 1]),
        "nonsense",
    ],
)
def test_a_damaged_record_says_so(line: str, tmp_path: Path) -> None:
    path = made_up(tmp_path / "run")
    with (path / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RecordError, match="damaged"):
        examine(path)


def test_an_onset_is_where_the_band_is_left_for_good() -> None:
    assert onset(np.array([1.0, 2.0, 3.0])) is None
    assert onset(np.array([1.0, 50.0, 1.0, 50.0, 60.0])) == 3
    assert onset(np.array([np.nan, np.nan])) == 0
    assert onset(np.array([])) is None


def test_a_probe_looks_at_the_noise(tmp_path: Path) -> None:
    path = _run(tmp_path / "run", spec.load("quadratic", ["run.rounds=10"]).resolved())
    found = [one for one in examine(path, probed=True).findings if one.cause == "tail"]
    assert len(found) == 1
    assert found[0].says.startswith("the tail index of the gradient noise at x_0 is ")
    with pytest.raises(tg.Invalid, match=r"--probe needs a run with a spec, and the one in .* was started in Python"):
        examine(record(tmp_path / "python", replace(clip2(), keep=False), fleet(), rounds=5), probed=True)
