"""Where a client's inner state is kept: with the server, or on its worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import StateReference
from tardygrad.spec import spec

STEPS: Any = {"local_lr": 0.01, "buffer": 2, "local_steps": 3, "mode": "client"}


def test_in_the_simulator_both_places_are_the_same() -> None:
    task, fleet = tg.tasks.quadratic(clients=4, dimension=6), tg.Fleet.paper(clients=4, stragglers="mild")
    runs = [tg.simulate(tg.diloco(**STEPS, keep=keep), task, fleet, rounds=12) for keep in (True, "worker", False)]
    served, worker, without = (run.x for run in runs)
    assert torch.equal(served, worker)
    assert not torch.equal(served, without)


def test_a_job_whose_state_is_elsewhere_begins_anew_and_says_so() -> None:
    task, method = tg.tasks.quadratic(clients=1, dimension=6), tg.diloco(**STEPS | {"buffer": 1}, keep="worker")
    first, gone = (tg.Job(0, 0, 0, task.init(0), 3, None, 0, None, state) for state in (None, StateReference("w", 0)))
    a, b = (tg.work(job, task, method) for job in (first, gone))
    assert torch.equal(a.delta, b.delta)
    assert (a.state_lost, b.state_lost) == (False, True)


def test_the_server_takes_a_reference_for_a_state_only_if_states_stay_on_workers() -> None:
    task = tg.tasks.quadratic(clients=1, dimension=6)
    for keep, expected in ((True, tg.Refused), ("worker", tg.Advanced), (False, tg.Refused)):
        method = tg.diloco(**STEPS | {"buffer": 1}, keep=keep)
        server = tg.Server(method, task.init(0), clients=1, seed=0)
        (job,) = server.dispatch()
        happened, jobs = server.receive(tg.work(job, task, method)._replace(state=StateReference("w", 0)))
        assert type(happened) is expected
        assert jobs[0].state == (StateReference("w", 0) if keep == "worker" else None)


def test_another_place_is_refused() -> None:
    with pytest.raises(tg.Invalid, match=r"^`keep` must be true or false or worker, got 'server'\.$"):
        tg.diloco(**STEPS, keep="server")
    with pytest.raises(tg.Invalid, match=r"^`method.keep` must be true or false or worker, got 'here'\."):
        spec.load("digits", ["method.kind=diloco", "method.clip=", "method.keep=here"])
