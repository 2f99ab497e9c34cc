"""The script's verbs, and updates that travel as fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Job, Refused
from tardygrad.engines.recorded import Refusal, Resume
from tardygrad.engines.wire import BLOCK, send, unpack

CLIENTS = 3
WIRES = ["float32", "bfloat16", "int8"]
METHOD = tg.clip2(
    local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client", compensate=True
)


def task(dimension: int = 7) -> Any:
    noise = tg.Noise(kind="student", tail=1.5, scale=0.1)
    return tg.tasks.quadratic(clients=CLIENTS, dimension=dimension, heterogeneity=1.0, noise=noise)


class ByHand:
    """What a wire makes of updates, client by client, with what it left out of them."""

    def __init__(self, here: Any, wire: Any) -> None:
        self.task, self.wire = here, wire
        self.left: dict[tuple[int, str], Any] = {}

    def sent(self, job: Job) -> tg.Update:
        made = tg.work(job, self.task, METHOD)
        for name in ("delta", "curvature"):
            packed, self.left[job.client, name] = send(
                getattr(made, name), self.left.get((job.client, name)), self.wire
            )
            made = made._replace(**{name: unpack(packed)})
        return made

    def forget(self, *clients: int) -> None:
        self.left = {name: error for name, error in self.left.items() if name[0] not in clients}


def same(one: tg.Update, other: tg.Update) -> bool:
    assert one.curvature is not None
    assert other.curvature is not None
    return torch.equal(one.delta, other.delta) and torch.equal(one.curvature, other.curvature)


@pytest.mark.parametrize(("wire", "dimension"), [("float32", 7), ("bfloat16", 7), ("int8", BLOCK + 3)])
def test_an_update_arrives_as_if_packed_by_hand_with_the_error_fed_back(wire: Any, dimension: int) -> None:
    here = task(dimension)
    x = here.init(0)
    order = [int(client) for client in np.random.default_rng(1).integers(CLIENTS, size=20)]
    order[9], order[14] = -1, -2  # client 1 is lost, and all is forgotten
    script = [{-1: ("lose", 1), -2: Resume(0.0, 0)}.get(client, ("arrive", client)) for client in order]
    pool, hand = tg.ScriptedPool(script, here, METHOD, wire=wire), ByHand(here, wire)
    serials, fed = [0] * CLIENTS, 0
    for client in order:
        if client == -1:
            assert pool.next() == tg.Lost(1)
            hand.forget(1)
        elif client == -2:
            hand.forget(*range(CLIENTS))  # it is no message: what follows it comes
        else:
            job = Job(client, serials[client], 0, x, 2, None, 0)
            serials[client] += 1
            pool.submit(job)
            arrived, error = pool.next(), hand.left.get((client, "delta"))
            assert isinstance(arrived, tg.Update)
            assert same(arrived, hand.sent(job))
            bare = ByHand(here, wire).sent(job)
            fed += error is not None and not same(arrived, bare)
    assert fed >= (0 if wire == "float32" else 8)
    assert pool.next() is None


def trained(wire: Any, script: list[Any]) -> tg.Run:
    return tg.train(METHOD, task(), tg.ScriptedPool(script, task(), METHOD, wire=wire), rounds=5)


ARRIVALS: list[Any] = [("arrive", client) for client in (0, 1, 0, 2, 0, 1, 0, 2, 1, 0)]


@pytest.mark.parametrize("wire", WIRES[1:])
def test_a_narrow_wire_changes_the_run_and_its_replay_has_the_same_bits(wire: Any) -> None:
    run = trained(wire, ARRIVALS)
    assert not torch.equal(run.x, trained("float32", ARRIVALS).x)
    assert torch.equal(tg.replay(run).x, run.x)


def test_only_what_was_too_stale_had_come_and_left_an_error() -> None:
    here = task()
    job = Job(0, 0, 0, here.init(0), 2, None, 0)
    left = {}
    for reason in ("too stale", "not finite", "lost on the way"):
        pool = tg.ScriptedPool([Refusal(1.0, 0, 0, 0, reason)], here, METHOD, wire="int8")
        pool.submit(job)
        assert pool.next() == Refused(0, 0, 0, reason)  # type: ignore[arg-type]
        left[reason] = pool.errors
    hand = ByHand(here, "int8")
    hand.sent(job)
    assert torch.equal(left["too stale"][0]["delta"], hand.left[0, "delta"])
    assert left["not finite"] == left["lost on the way"] == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((), r"verb must be one of arrive, lose, join, sleep, wake, repeat, got None\."),
        ((["arrive"], 0), r"verb must be one of .*, got \['arrive'\]\."),
        (("arrive", 2), r"the script says \('arrive', 2\), but client 2 has nothing to deliver\."),
        (("arrive",), r"client None has nothing to deliver\."),
    ],
)
def test_a_line_that_is_none_says_so(line: Any, said: str) -> None:
    with pytest.raises(tg.Invalid, match=said):
        tg.ScriptedPool([line], task(), METHOD).next()


def test_a_refusal_of_who_has_no_job_is_delivered_all_the_same() -> None:
    pool = tg.ScriptedPool([Refusal(1.0, 99, 0, 0, "too stale")], task(), METHOD, wire="int8")
    assert pool.next() == Refused(99, 0, 0, "too stale")
