"""FADAS and DN+DyLU run as the paper's methods do: the same bits again, resumed, replayed, in processes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad import checkpoint, memory, run, spec
from tardygrad.pools import sim
from tests.laws.test_relatives import speeds
from tests.test_resume import fleet, task

ROUNDS = 60
METHODS: dict[str, dict[str, Any]] = {
    "fadas": {"lr": 0.05, "tau_c": 4, "buffer": 3, "concurrency": 9, "dispatch": "random"},
    "dn_dylu": {"lr": 0.3, "period": 4, "momentum": 0.5, "percentile": 90.0},
    "dn": {"lr": 0.3, "period": 4, "momentum": 0.5, "dylu": False, "mode": "client"},
}


def method(name: str, **changes: Any) -> tg.Method:
    how: dict[str, Any] = {"local_lr": 0.1, "local_steps": 6, **METHODS[name], **changes}
    return tg.fadas(**how) if name == "fadas" else tg.dn_dylu(**how)


def simulated(name: str, **settings: Any) -> tg.Run:
    return tg.simulate(method(name), task(), fleet(), rounds=ROUNDS, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_a_function_of_its_settings_in_one_process_or_two(name: str) -> None:
    whole = simulated(name)
    assert torch.equal(simulated(name).x, whole.x)
    assert not torch.equal(simulated(name, seed=1).x, whole.x)
    crew = simulated(name, workers=2)
    assert torch.equal(crew.x, whole.x)
    assert speeds(crew.server) == speeds(whole.server)


@pytest.mark.parametrize("name", METHODS)
def test_the_jobs_that_will_arrive_are_foreseen(name: str) -> None:
    pool, server = (
        tg.SimPool(task(), method(name), fleet()),
        tg.Server(method(name), task().init(0), clients=12, seed=0),
    )
    messages = [event.message for event in tg.drive(server, pool, ROUNDS)]
    arrived = {(message.client, message.serial) for message in messages if isinstance(message, tg.Update)}
    assert arrived == sim.needed(task(), method(name), fleet(), ROUNDS, 0)


@pytest.mark.parametrize("name", METHODS)
def test_jobs_computed_together_have_the_same_clock_and_nearly_the_same_model(name: str) -> None:
    small, paper = tg.tasks.logistic(clients=12, samples=240), tg.Fleet.paper(clients=12)
    one = method(name, **({"eps": 0.1} if name == "fadas" else {}))  # a small one makes much of rounding
    alone, together = (tg.simulate(one, small, paper, rounds=30, evaluate_every=0, batch=batch) for batch in (1, 4))
    assert [(row["time"], row["steps"]) for row in alone.metrics] == [
        (row["time"], row["steps"]) for row in together.metrics
    ]
    torch.testing.assert_close(alone.x, together.x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_cut_at_random_messages_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = simulated(name)
    for number, cut in enumerate(np.random.default_rng(5).integers(1, 60, size=6)):
        one = method(name)
        pool, server = tg.SimPool(task(), one, fleet()), tg.Server(one, task().init(0), clients=12, seed=0)
        for seen, _ in enumerate(tg.drive(server, pool, ROUNDS)):
            if seen == cut:
                break
        checkpoint.save(tmp_path / str(number), checkpoint.capture(server, pool.pending()))
        saved = checkpoint.read(tmp_path / str(number))
        assert saved is not None
        pool, server = tg.SimPool(task(), one, fleet()), tg.Server(one, task().init(0), clients=12, seed=0)
        pool.restore(checkpoint.apply(saved, server))
        for _ in tg.drive(server, pool, ROUNDS):
            pass
        assert torch.equal(server.x, whole.x)
        assert speeds(server) == speeds(whole.server)
        assert all(torch.equal(server.state[key], value) for key, value in whole.server.state.items())


def test_a_checkpoint_of_another_pace_is_refused(tmp_path: Path) -> None:
    simulated("dn_dylu", out=tmp_path / "run")
    other = method("dn_dylu", percentile=100.0)
    with pytest.raises(tg.RecordError, match="belongs to another run: its method is"):
        tg.resume(tmp_path / "run", other, task(), tg.SimPool(task(), other, fleet()))


@pytest.mark.parametrize("name", METHODS)
def test_a_replay_has_the_same_bits_on_either_clock(name: str) -> None:
    whole = simulated(name)
    assert torch.equal(tg.replay(whole).x, whole.x)
    with tg.ThreadPool(task(), method(name), workers=2) as pool:
        real = tg.train(method(name), task(), pool, rounds=ROUNDS)
    again = tg.replay(real)
    assert torch.equal(again.x, real.x)
    assert speeds(again.server) == speeds(real.server)


@pytest.mark.parametrize("name", METHODS)
def test_it_converges_on_the_quadratic(name: str) -> None:
    calm = tg.tasks.quadratic(clients=12, dimension=20, heterogeneity=0.0)
    done = tg.simulate(
        method(name), calm, tg.Fleet.paper(clients=12, stragglers="mild"), rounds=400, evaluate_every=400
    )
    first, last = calm.evaluate(calm.init(0), None)["loss"], done.metrics[-1]["test_loss"]
    assert last < first / 100


@pytest.mark.parametrize("name", METHODS)
def test_it_stays_finite_under_a_heavy_tail_if_local_steps_are_clipped(name: str) -> None:
    noise = tg.Noise(kind="student", tail=1.2, scale=1.0)
    wild = tg.tasks.quadratic(clients=12, dimension=200, heterogeneity=1.0, noise=noise)
    one = method(name, local_clip=1.0, lr=0.05)
    done = tg.simulate(one, wild, tg.Fleet.paper(clients=12), rounds=300, evaluate_every=300)
    assert done.status == "finished"
    assert done.metrics[-1]["test_loss"] < wild.evaluate(wild.init(0), None)["loss"]


def test_their_names() -> None:
    assert [run.label(method(name)) for name in METHODS] == ["FADAS", "DN+DyLU", "DN"]
    assert str(method("dn")) == "DN (client-centric, M=1, K=6)"


@pytest.mark.parametrize("name", METHODS)
def test_a_spec_makes_the_same_method_and_survives_a_round_trip(name: str) -> None:
    kind = "fadas" if name == "fadas" else "dn_dylu"
    tables = {
        "task": {"kind": "quadratic", "clients": 12},
        "fleet": {"kind": "paper"},
        "method": {"kind": kind, "local_lr": 0.1, "local_steps": 6, **METHODS[name]},
        "run": {"rounds": 3},
    }
    loaded = spec.parse(tables, "here")
    assert repr(loaded.build().method) == repr(method(name))
    assert spec.parse(json.loads(json.dumps(loaded.resolved(), allow_nan=False)), "here") == loaded


def test_the_state_of_an_outer_step_counts_twice_while_a_round_is_made() -> None:
    need = memory.needs(method("fadas"), tg.tasks.quadratic(clients=12, dimension=1000))
    assert need.own == 4 * 4000  # x, m, v, v̂
    assert need.step == (memory.ROUND + 3) * 4000
    assert need.outer == 3 * 4000


@pytest.mark.parametrize(
    ("name", "setting", "said"),
    [
        ("fadas", {"beta1": 1.0}, "`beta1` must be at least 0 and below 1, got 1.0."),
        ("fadas", {"beta2": -0.1}, "`beta2` must be at least 0 and below 1, got -0.1."),
        ("fadas", {"eps": 0.0}, "`eps` must be a finite number above 0, got 0.0."),
        ("fadas", {"eps": math.inf}, "`eps` must be a finite number above 0, got inf."),
        ("fadas", {"tau_c": -1}, "`tau_c` must be a number of rounds, 0 or more (inf: the rate never falls), got -1."),
        ("fadas", {"lr_rule": "text"}, "`lr_rule` must be 'code' or 'paper', got 'text'."),
        ("dn", {"momentum": 1.0}, "`momentum` must be at least 0 and below 1, got 1.0."),
        ("dn", {"period": 0}, "`period` must be a whole number, 1 or more, got 0."),
        ("dn", {"period": True}, "`period` must be a whole number, 1 or more, got True."),
        ("dn", {"c": 0.3}, "`c` must be between 0 and 1/period (0.25), got 0.3."),
        ("dn", {"percentile": 0.0}, "`percentile` must be above 0 and at most 100 (the fastest), got 0.0."),
        ("dn_dylu", {"smoothing": 1.0}, "`smoothing` must be at least 0 and below 1, got 1.0."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(name: str, setting: dict[str, Any], said: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        method(name, **setting)
    assert str(caught.value) == said


def test_a_period_that_no_number_holds_is_refused() -> None:
    with pytest.raises(tg.Invalid, match=r"`period` must be at most 1,000,000,000, got 1000000"):
        tg.dn_dylu(local_lr=0.1, lr=1.0, period=10**29, local_steps=1)
