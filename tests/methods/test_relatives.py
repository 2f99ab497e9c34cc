"""Tests for all relatives, in every mode: they converge, and give the same bits again, resumed and replayed."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.engines.sim import pool as sim
from tardygrad.runs import checkpoint, memory
from tardygrad.spec import spec

MODES = ("sync", "server", "client")
SLOW = {"local_lr": 0.03, "local_steps": 3}
ADAMW = {"betas": [0.8, 0.95], "weight_decay": 0.01}
REGIONS = {"region_lr": 1.5, "region_momentum": 0.2, "region_period": 3, "every": 2, "lr": 0.8, "momentum": 0.2,
           "local_clip": math.inf}  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fadas": ("fadas", {"lr": 0.05, "tau_c": 4, "concurrency": 9, "dispatch": "random"}),
    "dn_dylu": ("dn_dylu", {"lr": 0.5, "period": 4, "momentum": 0.5, "percentile": 90.0}),
    "dn_dylu-ceil": ("dn_dylu", {"lr": 1.0, "period": 2, "momentum": 0.2, "rounding": "ceil", "least": 2,
                                 "optimizer": "AdamW", "keep": True, **SLOW}),
    "dn": ("dn_dylu", {"lr": 0.5, "period": 4, "momentum": 0.5, "dylu": False}),
    "bi2clip": ("tailopt", {"lr": 1.0, "local_clip": 1.0, "local_lower": 1e-3, "clip": 0.5, "lower": 1e-3}),
    "avg-l2clip": ("tailopt", {"outer": "avg", "inner": "l2clip", "lr": 1.0, "local_clip": 4.0}),
    "adagrad-biclip": ("tailopt", {"outer": "adagrad", "lr": 0.3, "local_clip": 1.0, "eps": 0.01}),
    "rmsprop-biclip": ("tailopt", {"outer": "rmsprop", "lr": 0.02, "local_clip": 1.0, "eps": 0.01}),
    "adam2": ("tailopt", {"outer": "adam", "inner": "adam", "lr": 0.05, "unbiased": True, **SLOW}),
    "fedavg": ("fedavg", {}),
    "fedavg-adamw": ("fedavg", {"optimizer": "AdamW", "options": ADAMW, "keep": True, **SLOW}),
    "fedavgm": ("fedavgm", {"lr": 0.3, "momentum": 0.6}),
    "fedadam": ("fedadam", {"lr": 0.03, "eps": 0.01}),
    "fedyogi": ("fedyogi", {"lr": 0.03, "eps": 0.01}),
    "fedbuff": ("fedbuff", {"concurrency": 9, "dispatch": "random"}),
    "fedbuff-model": ("fedbuff", {"weight": tg.Root(fresh=1), "denominator": "weights", "toward": "model", "lr": 0.5}),
    "fedasync": ("fedasync", {}),
    "fedasync-compound": ("fedasync", {"mixing": "compound", "weight": tg.Hinge(slope=0.01), "max_delay": 20,
                                       "lr": 0.9}),
    "dcasgd-c": ("dcasgd", {"lr": 0.5, "source": "steps"}),
    "dcasgd-a": ("dcasgd", {"lr": 0.5, "adaptive": True, "strength": 0.2}),
    "diloco": ("diloco", {"lr": 0.5, "momentum": 0.3, "options": ADAMW, "local_clip": 4.0, "norm": "l2", **SLOW}),
    "halos": ("halos", {**REGIONS, "regions": 2, **SLOW}),
    "halos-far": ("halos", {**REGIONS, "regions": (5, 7), "exchange": 2.5, "dylu": False, "optimizer": "SGD",
                            "options": {"momentum": 0.3}, "blend": 0.5, "lr": 1.6, "local_lr": 0.06}),
}  # fmt: skip
KEEPING = ["dn_dylu-ceil", "fedavg-adamw", "dcasgd-a", "diloco", "halos", "halos-far"]
TOGETHER = [*KEEPING, "fedbuff-model"]
CASES = [(name, mode) for name in METHODS for mode in MODES]
SINGLE = [name for name, (kind, _) in METHODS.items() if kind in ("fedasync", "dcasgd", "dn_dylu", "halos")]  # M = 1


def rotated(first: int, also: Any = ()) -> Any:
    """Every method in one mode, which rotates from method to method, and these methods in every mode."""
    turns = {(name, MODES[(first + i) % 3]) for i, name in enumerate(METHODS)}
    return pytest.mark.parametrize(("name", "mode"), [one for one in CASES if one in turns or one[0] in also])


def settings(name: str, mode: Any, **changes: Any) -> dict[str, Any]:
    _, how = METHODS[name]
    several = {} if name in SINGLE else {"buffer": 3}
    given = {"local_lr": 0.1, "local_steps": 6, "mode": mode, **several, **how, **changes}
    return {key: value for key, value in given.items() if mode != "sync" or key not in ("concurrency", "dispatch")}


def method(name: str, mode: Any = "client", **changes: Any) -> tg.Method:
    made: tg.Method = spec.KINDS["method"][METHODS[name][0]](**settings(name, mode, **changes))
    return made


def rounds(name: str) -> int:
    """T: some thirty updates, so that most clients have two jobs, the quick ones many."""
    return 32 if name in SINGLE else 12


def task() -> Any:
    noise = tg.Noise(kind="student", tail=1.5, scale=0.1)
    return tg.tasks.quadratic(clients=12, dimension=30, heterogeneity=1.0, noise=noise)


def fleet() -> tg.Fleet:
    return tg.Fleet.paper(clients=12).crash(client=3, at=7.0, back=30.0).slowed(client=0, at=2.0, until=9.0, factor=4.0)


def begun(name: str, mode: Any, here: Any = None, **how: Any) -> tuple[tg.SimPool, Any]:
    here = here or task()
    one = method(name, mode)
    return tg.SimPool(here, one, fleet(), **how), tg.serve(one, here.init(0), clients=12, seed=0)


def simulated(name: str, mode: Any, **how: Any) -> tg.Run:
    return tg.simulate(method(name, mode), task(), fleet(), rounds=rounds(name), evaluate_every=0, **how)


@cache
def whole(name: str, mode: Any) -> tg.Run:
    """A run that nothing disturbs."""
    return simulated(name, mode)


def bits(server: Any) -> dict[str, Any]:
    """All that the next rounds depend on."""
    found: dict[str, Any] = {"transit": [message[:3] for *_, message in sorted(getattr(server, "transit", ()))]}
    for i, one in enumerate(server.levels):
        found[f"x of {i}"], found[f"round of {i}"], found[f"jobs of {i}"] = one.x.tolist(), one.round, one.roster.jobs
        found[f"state of {i}"] = {name: value.tolist() for name, value in one.vectors.state.items()}
        found[f"speeds of {i}"] = one.speeds and one.speeds.speed_by_client
        kept = {c: {name: value.tolist() for name, value in state.items()} for c, state in one.client_states.items()}
        found[f"kept by {i}"] = dict(sorted(kept.items()))
    return found


@rotated(0)
def test_two_processes_give_the_same_bits(name: str, mode: Any) -> None:
    assert bits(simulated(name, mode, workers=2).server) == bits(whole(name, mode).server)


@rotated(1)
def test_the_jobs_that_will_arrive_are_foreseen(name: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, server = begun(name, mode)
    submit, sent = pool.submit, list[tg.Job]()
    monkeypatch.setattr(pool, "submit", lambda job: sent.append(job) or submit(job))
    messages = [event.message for event in tg.drive(server, pool, rounds(name))]
    arrived = {(message.client, message.serial) for message in messages if isinstance(message, tg.Update)}
    ahead = sim.Lookahead(task(), method(name, mode), fleet(), rounds(name), 0)
    assert arrived == {(job.client, job.serial) for job in sent if ahead.arrives(job)}
    assert len(arrived) < len(sent)


def cut_and_resumed(name: str, mode: Any, cut: int, folder: Path, here: Any = None, **how: Any) -> tuple[Any, Any]:
    """The bits of a run that was saved after so many messages, read and gone on with; and what was saved."""
    pool, server = begun(name, mode, here, **how)
    for seen, _ in enumerate(tg.drive(server, pool, rounds(name))):
        if seen == cut:
            break
    folder.mkdir(exist_ok=True)
    checkpoint.save(folder, checkpoint.capture(server, pool.pending()))
    saved = checkpoint.read(folder)
    assert saved is not None
    pool, server = begun(name, mode, here, **how)
    pool.restore(checkpoint.apply(saved, server))
    for _ in tg.drive(server, pool, rounds(name)):
        pass
    return bits(server), saved


def unpacked(saved: checkpoint.Checkpoint) -> Any:
    return saved.part("server")


@rotated(2, also=KEEPING)
def test_a_run_cut_at_random_messages_resumes_to_the_same_bits(name: str, mode: Any, tmp_path: Path) -> None:
    for cut in np.random.default_rng(len(name)).integers(1, 32, size=2):
        assert cut_and_resumed(name, mode, int(cut), tmp_path / str(cut))[0] == bits(whole(name, mode).server)


def test_messages_between_servers_are_in_a_checkpoint(tmp_path: Path) -> None:
    under_way = []
    for cut in range(1, 31):
        resumed, saved = cut_and_resumed("halos-far", "client", cut, tmp_path / str(cut))
        assert resumed == bits(whole("halos-far", "client").server)
        under_way += [message.up for *_, message in unpacked(saved)["transit"]]
    assert under_way.count(True) >= 3
    assert under_way.count(False) >= 3


@pytest.mark.parametrize("name", TOGETHER)
def test_jobs_computed_together_have_the_same_clock_and_resume_to_the_same_bits(name: str, tmp_path: Path) -> None:
    small, done = tg.tasks.logistic(clients=12, samples=240), 0
    runs = []
    for batch in (1, 4):
        pool, server = begun(name, "client", small, batch=batch)
        times = [event.time for event in tg.drive(server, pool, rounds(name))]
        runs.append((times, server))
    (alone_times, alone), (times, together) = runs
    assert times == alone_times
    torch.testing.assert_close(alone.x, together.x, atol=1e-3, rtol=1e-3)
    for cut in (5, 14, 25):
        resumed, saved = cut_and_resumed(name, "client", cut, tmp_path / str(cut), small, batch=4)
        assert resumed == bits(together)
        done += len(saved.part("pending").done)
    assert done > 0


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    for number, (name, other) in enumerate(
        [
            ("dn_dylu", {"percentile": 100.0}),
            ("fedbuff", {"weight": tg.Root()}),
            ("fedbuff-model", {"denominator": "one"}),
            ("fedbuff-model", {"toward": "delta"}),
            ("fedasync", {"rho": 0.1}),
            ("dcasgd-a", {"decay": 0.5}),
            ("diloco", {"keep": False}),
            ("diloco", {"options": {"weight_decay": 0.2}}),
            ("halos-far", {"every": 5}),
            ("halos-far", {"exchange": 0.0}),
            ("halos-far", {"momentum": 0.1}),
        ]
    ):  # fmt: skip
        path = tmp_path / str(number)
        tg.simulate(method(name), task(), fleet(), rounds=3, evaluate_every=0, out=path)
        changed = method(name, **other)
        with pytest.raises(tg.RecordError, match="belongs to another run: its method is"):
            tg.resume(path, changed, task(), tg.SimPool(task(), changed, fleet()))


@rotated(0)
def test_a_replay_has_the_same_bits_on_either_clock(name: str, mode: Any) -> None:
    assert bits(tg.replay(whole(name, mode)).server) == bits(whole(name, mode).server)
    with tg.ThreadPool(task(), method(name, mode), workers=2) as pool:
        real = tg.train(method(name, mode), task(), pool, rounds=12, evaluate_every=0)
    assert bits(tg.replay(real).server) == bits(real.server)


@pytest.mark.parametrize("name", SINGLE)
def test_with_one_update_a_round_the_asynchronous_modes_are_the_same(name: str) -> None:
    assert bits(whole(name, "server").server) == bits(whole(name, "client").server)


def written(value: Any) -> Any:
    """As a spec in TOML has it."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, tg.Polynomial | tg.Hinge | tg.Threshold | tg.Root):
        return {"kind": type(value).__name__.lower(), **vars(value)}
    return value


TURNED: dict[str, dict[str, Any]] = {  # what METHODS leaves as it is
    "fadas": {"lr_rule": "paper", "bias_correction": False, "beta1": 0.5, "local_clip": 2.0},
    "fedbuff": {"weight": tg.Polynomial(exponent=1.0, fresh=1, average=3.0), "keep": True, "optimizer": "Adam"},
    "fedasync": {"weight": tg.Hinge(slope=2.0, bound=1.0, jump=True), "rho": 0.0, "max_delay": 3},
    "fedasync-compound": {"weight": tg.Threshold(bound=5.0)},
    "fedbuff-model": {"weight": None, "denominator": "one"},
    "bi2clip": {"local_epochs": 2, "local_steps": None},
    "dcasgd-a": {"decay": 0.5, "eps": 1e-3, "source": "steps", "buffer": 2},
    "halos": {"regions": (5, 7), "options": {"betas": [0.9, 0.99], "eps": 1e-4, "amsgrad": True}},
    "halos-far": {"options": None, "keep": False},
}


@pytest.mark.parametrize("turned", [False, True])
@rotated(1)
def test_a_spec_makes_the_same_method_and_survives_a_round_trip(name: str, mode: Any, turned: bool) -> None:
    given = settings(name, mode, **(TURNED.get(name, {}) if turned else {}))
    table = {key: written(value) for key, value in given.items()}
    tables = {
        "task": {"kind": "quadratic", "clients": 12},
        "fleet": {"kind": "paper"},
        "method": {"kind": METHODS[name][0], **table},
        "run": {"rounds": 3},
    }
    loaded = spec.parse(tables, "here")
    built, wanted = loaded.build().method, method(name, mode, **(TURNED.get(name, {}) if turned else {}))
    assert repr(built) == repr(wanted)
    assert spec.parse(json.loads(json.dumps(loaded.resolved(), allow_nan=False)), "here") == loaded


def test_every_kind_of_method_is_in_this_test_suite() -> None:
    assert {kind for kind, _ in METHODS.values()} == spec.KINDS["method"].keys() - {"sgdclip", "clip2"}


@pytest.mark.parametrize("name", METHODS)
def test_the_memory_of_states_is_forecast(name: str) -> None:
    one, here = method(name), tg.tasks.quadratic(clients=12, dimension=1000)
    need = memory.Meter(one, here, checkpoint_every=4)
    found = need.forecast(fleet(), rounds=rounds(name))
    assert found.peak == sum(part.bytes for part in found.parts.values()) > need.own
    server = tg.simulate(one, here, fleet(), rounds=rounds(name), evaluate_every=0).server
    outer = sum(long(level.vectors.state) for level in server.levels)
    kept = {long(state) for level in server.levels for state in level.client_states.values()} or {0}
    assert len(kept) == 1
    assert need.states == outer + 12 * max(kept)
    assert need.own == 4000 * (1 + len(server.levels)) + need.states  # x, and a sum for each server
    assert need.update == 4000 * (1 + one.compensate) + max(kept)
    assert (max(kept) > 0) == (name in KEEPING)


def long(state: dict[str, torch.Tensor]) -> int:
    """The bytes of its vectors."""
    return sum(value.nbytes for value in state.values() if value.numel() > 1)


REFUSED: dict[str, list[tuple[str, str, Any]]] = {  # a rule → settings that break it
    "must be at least 0 and below 1, got": [
        ("fadas", "beta1", 1.0), ("fadas", "beta2", -0.1), ("dn", "momentum", 1.0), ("dn_dylu", "smoothing", 1.0),
        ("rmsprop-biclip", "beta2", 1.0), ("fedavgm", "momentum", 1.0), ("fedadam", "beta1", 1.5),
        ("dcasgd-a", "decay", 1.0), ("diloco", "momentum", -0.1), ("halos", "region_momentum", 1.0),
    ],
    "must be a finite number above 0, got": [
        ("fadas", "eps", 0.0), ("fadas", "eps", math.inf), ("fedyogi", "eps", -1.0), ("dcasgd-a", "eps", 0.0),
    ],
    "must be between 1e-37 and 1e15, for float32, got": [("fedadam", "eps", 1e30), ("fadas", "eps", 1e-60)],
    "must be a number of rounds, 0 or more (inf: the rate never falls), got": [("fadas", "tau_c", -1)],
    "must be a finite number, 0 or more, got": [
        ("fedasync", "rho", -1.0), ("dcasgd-c", "strength", -1.0), ("halos", "exchange", -1.0),
    ],
    "must be a finite number, zero or more, got": [
        ("fedavg", "local_lr", -0.1), ("fedavg", "lr", math.inf), ("halos", "region_lr", -1.0),
    ],
    "must be zero or more (inf switches it off), got": [("fedavg", "local_clip", -1.0)],
    "must be a whole number from 1 to 1,000,000,000, got": [
        ("dn", "period", 0), ("dn", "period", 10**29), ("halos", "period", 0), ("halos", "region_period", 10**9 + 1),
    ],
    "must be a whole number, 1 or more, got": [("dn_dylu", "least", 0), ("fedavg", "buffer", 0), ("halos", "every", 0)],
    "must be a whole number, got True": [("dn", "period", True), ("dn_dylu", "least", True)],
    "must be between 0 and 1/period (0.25), got": [("dn", "c", 0.3)],
    "must be above 0 and at most 100 (the fastest), got": [("dn", "percentile", 0.0)],
    "must be one of": [("fadas", "lr_rule", "x"), ("bi2clip", "outer", "sgd"), ("fedasync", "mixing", "both")],
    "got 'synch'. Did you mean 'sync'?": [("fedavg", "mode", "synch")],
    "has no effect with": [
        ("avg-l2clip", "clip", 1.0), ("adam2", "lower", 1.0), ("adam2", "local_clip", 1.0),
        ("adam2", "local_lower", 1.0),
    ],
    "a lower threshold must not exceed the upper one (0.5), got 0.9.": [("bi2clip", "lower", 0.9)],
    "must be a number with mixing='compound', which": [("fedasync-compound", "lr", tg.Power(0.9, -0.5))],
    "must be the number of regions, or of clients in each, got": [
        ("halos", "regions", 0), ("halos", "regions", (3, 0)), ("halos", "regions", ()),
    ],
    "must be between 0 (regions ignore the global model) and 1, got": [("halos", "blend", 1.5)],
    "must be a number, got": [("fadas", "tau_c", ""), ("halos", "exchange", None)],
    "must be a string, got": [("diloco", "optimizer", None)],
    "must be a dict or None, got": [("diloco", "options", [1])],
    "must fit in a float, got": [("fedavg", "lr", 10**400)],
    "must be a schedule that gives numbers, got 'x' for round 1": [("fedavg", "lr", lambda round: "x")],
}  # fmt: skip


@pytest.mark.parametrize("rule", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(rule: str) -> None:
    for name, key, value in REFUSED[rule]:
        with pytest.raises(tg.Invalid) as caught:
            method(name, **{key: value})
        assert rule in str(caught.value)
        assert str(caught.value).startswith((f"`{key}` ", "a lower"))
