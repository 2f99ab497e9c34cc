"""Optimizers of torch.optim as inner steps, and the state that clients keep: in admission checks and in processes."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.core.optimizers import Optimizer
from tardygrad.core.schedules import Constant, Power
from tests.measure_memory import Wide

CLASSES = sorted(
    name
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, torch.optim.Optimizer) and made is not torch.optim.Optimizer
)
NOT_OURS = {
    "LBFGS": "missing 1 required positional argument: 'closure'",
    "Muon": "only supports 2D parameters",
    "SparseAdam": "does not support dense gradients",
}


def quadratic() -> Any:
    return tg.tasks.quadratic(clients=4, dimension=6, heterogeneity=1.0, noise=tg.Noise("student", scale=0.1))


@pytest.mark.parametrize("name", CLASSES)
def test_every_optimizer_of_torch_keeps_its_state_through_a_run_or_says_why_it_cannot(name: str) -> None:
    how: dict[str, Any] = {"local_lr": 0.01, "optimizer": name, "keep": True, "buffer": 2, "local_steps": 2}
    if name in NOT_OURS:
        with pytest.raises(tg.Invalid, match=NOT_OURS[name]):
            tg.fedavg(**how)
        return
    run = tg.simulate(tg.fedavg(mode="client", **how), quadratic(), tg.Fleet.paper(clients=4), rounds=6)
    assert run.status == "finished"
    assert run.summary().refused == {}
    assert run.summary().loss is not None
    assert math.isfinite(run.summary().loss)
    assert len(run.server.levels[0].client_states) > 1


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("AdamX", None, "`optimizer` must be a class of torch.optim, got 'AdamX'. Did you mean 'Adam'?"),
        ("SGD", {"speed": 1.0}, "got {'speed': 1.0}: SGD.__init__() got an unexpected keyword argument 'speed'"),
        ("Adam", {"betas": [0.9]}, "`options.betas` must be a pair, got [0.9]."),
        ("Adam", {"eps": 10**400}, "`options.eps` must be a number, got 1000"),
        ("Adam", {"capturable": True}, "got {'capturable': True}: If capturable=True"),
    ],
)
def test_an_optimizer_or_options_that_cannot_be_are_refused_in_a_line(name: str, options: Any, said: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        tg.diloco(local_lr=0.1, optimizer=name, options=options, buffer=1, local_steps=1)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "NAdam", "Adagrad"])
def test_a_step_changes_none_of_its_arguments(name: str) -> None:
    inner = Optimizer(name, Constant(0.1), {"weight_decay": 0.1})
    direction, x = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])
    _, state = inner.update(direction, {}, tg.Step(1, x=x))
    before = {key: value.clone() for key, value in state.items()}
    move, _ = inner.update(direction, state, tg.Step(2, x=x))
    assert (direction.tolist(), x.tolist()) == ([1.0, -2.0], [3.0, 4.0])
    assert all(torch.equal(state[key], value) for key, value in before.items())
    assert torch.equal(inner.update(direction, state, tg.Step(2, x=x))[0], move)
    assert move.abs().min() > 0


def test_the_rate_is_read_at_the_round_and_decay_sees_the_model() -> None:
    inner = Optimizer("AdamW", Power(0.5, -1.0), {"weight_decay": 0.1, "eps": 1e-12})
    moves = [
        inner.update(torch.tensor([2.0]), {}, tg.Step(round, x=torch.tensor([x])))[0].item()
        for round, x in ((1, 0.0), (5, 0.0), (1, 10.0))
    ]
    assert moves == pytest.approx([0.5, 0.1, 0.5 + 0.5 * 0.1 * 10.0])  # η · sign(g), and η · λ · x


def kept(keep: bool = True) -> tuple[tg.Server, Job]:
    method = tg.fedavg(
        local_lr=0.1, optimizer="AdamW", keep=keep, buffer=2, local_steps=1, mode="client", concurrency=1
    )
    server = tg.Server(method, torch.zeros(3), clients=2, seed=0)
    (job,) = server.dispatch()
    return server, job


STATE = {"inner.1.exp_avg": torch.ones(3), "inner.1.exp_avg_sq": torch.ones(3), "inner.1.step": torch.tensor(1.0)}


def reading_record(job: Job) -> tg.Update:
    return tg.Update(job.client, job.serial, job.round, torch.ones(3), state=dict(STATE))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inner.1.exp_avg": torch.ones(4)}, "wrong shape"),
        ({"inner.1.exp_avg": torch.ones(3, 1)}, "wrong shape"),
        ({"inner.1.exp_avg": torch.ones(3, dtype=torch.float64)}, "wrong shape"),
        ({"inner.1.step": torch.ones(2)}, "wrong shape"),
        ({"inner.1.step": 1.0}, "wrong shape"),
        ({"inner.1.exp_avg": torch.tensor([0.0, math.nan, 0.0])}, "not finite"),
        ({"inner.1.exp_avg_sq": torch.tensor([0.0, math.inf, 0.0])}, "not finite"),
        ({"inner.1.step": torch.tensor(math.nan)}, "not finite"),
        (None, "wrong shape"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(change: Any, reason: str) -> None:
    server, job = kept()
    _, (job,) = server.receive(reading_record(job))  # one is in the buffer, and its state is kept
    before = ({c: dict(state) for c, state in server.client_states.items()}, list(server.buffer), server.round)
    good = reading_record(job)
    bad = good._replace(state=None if change is None else {**(good.state or {}), **change})
    happened, (again,) = server.receive(bad)
    assert isinstance(happened, tg.Refused)
    assert happened.reason == reason
    assert (server.client_states, server.buffer, server.round, server.x.tolist()) == (*before, [0.0] * 3)
    assert (again.client, again.serial) == (job.client, job.serial + 1)
    assert again.state is server.client_states[job.client]


@pytest.mark.parametrize(
    "change",
    [
        {"state": {**STATE, "inner.1.exp_avg": torch.tensor(1.0)}},
        {"state": {**STATE, "more": torch.ones(3)}},
        {"state": [1]},
        {"delta": torch.ones(3).to_sparse()},
        {"delta": torch.ones(3, requires_grad=True)},
        {"loss": None},
        {"steps": "x"},
        {"clipped": None},
        {"round": None},
        {"serial": None},
        {"client": "0"},
    ],
)
def test_the_gate_refuses_what_is_not_of_its_type_and_never_raises(change: dict[str, Any]) -> None:
    server, job = kept()
    before = server.x.clone()
    happened, _ = server.receive(reading_record(job)._replace(**change))
    assert isinstance(happened, tg.Refused)
    assert happened.reason == "wrong shape"
    assert (torch.equal(server.x, before), server.buffer, server.client_states) == (True, [], {})


def test_a_state_goes_out_with_the_clients_next_job_also_when_it_was_lost() -> None:
    method = tg.fedavg(local_lr=0.1, optimizer="AdamW", keep=True, buffer=1, local_steps=1, mode="client")
    server = tg.Server(method, torch.zeros(3), clients=1, seed=0)
    (first,) = server.dispatch()
    assert first.state is None
    _, (second,) = server.receive(sent := reading_record(first))
    server.receive(tg.Lost(0))
    _, (third,) = server.receive(tg.Joined(0))
    assert second.state == third.state == sent.state
    assert (second.serial, third.serial) == (1, 2)


@pytest.mark.timeout(120)
def test_a_state_of_four_million_numbers_travels_to_two_processes_and_back_also_when_they_are_killed() -> None:
    """Far more than a pipe holds: whoever sends it must find the other side listening."""
    wide, fleet = Wide(2_000_000, clients=4), tg.Fleet.paper(clients=4)
    one = tg.fedavg(local_lr=0.01, optimizer="AdamW", keep=True, buffer=1, local_steps=1, mode="client")
    alone = tg.simulate(one, wide, fleet, rounds=10, evaluate_every=0)
    with tg.SimPool(wide, one, fleet, workers=2, rounds=10) as pool:
        run = tg.begin(one, wide, pool, rounds=10, evaluate_every=0)
        for row in run.go():
            if row["round"] in (3, 6, 7):
                assert pool._prefetcher is not None
                jobs = pool._prefetcher.processes.jobs
                victim = max(jobs, key=lambda child: len(jobs[child])).process
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
    assert torch.equal(run.x, alone.x)
    ours, theirs = run.server.levels[0].client_states, alone.server.levels[0].client_states
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[client][name], value) for client in ours for name, value in theirs[client].items())
    assert max(sum(value.numel() for value in state.values()) for state in ours.values()) > 4_000_000
