"""`weight_by="samples"`: updates count by their clients' numbers of samples, as in FedAvg."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import tardygrad as tg
from tardygrad.core.task import sample_counts
from tardygrad.runs.run import check_run
from tardygrad.runs.settings import with_defaults
from tests.test_fleet import fleet_of

COUNTS = (1, 2, 3, 10)


def task(counts: tuple[int, ...] = COUNTS) -> tg.TorchTask:
    rows = [torch.randn(sum(counts), 3, generator=torch.Generator().manual_seed(0)), torch.arange(sum(counts)) % 2]
    parts = list(torch.arange(sum(counts)).split(list(counts)))
    shards = tg.Shards(tuple(rows), tuple(parts))
    return tg.TorchTask(lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy, data=shards)


def fedavg(mode: str = "sync", buffer: int = 4, **more: Any) -> tg.Method:
    return tg.fedavg(local_lr=0.5, buffer=buffer, local_steps=3, mode=mode, **more)


def run(method: tg.Method, own: Any, **settings: Any) -> tg.Run:
    fleet = fleet_of(*(1.0 + client / 8 for client in range(own.clients)))
    return tg.simulate(method, own, fleet, **{"rounds": 6, "evaluate_every": 0} | settings)


def updates(method: tg.Method, own: tg.TorchTask) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """x_0, and the updates that the clients send from it."""
    server = tg.serve(method, own.init(0), clients=own.clients, seed=0, samples=[1] * own.clients)
    jobs = sorted(server.dispatch(), key=lambda job: job.client)
    return own.init(0), [tg.work(job, own, method).delta for job in jobs]  # type: ignore[misc]


def test_a_synchronous_round_is_fedavgs_mean_over_the_samples_of_its_clients() -> None:
    method = fedavg(weight_by="samples")
    x, deltas = updates(method, own := task())
    expected = x + sum(n * delta.double() for n, delta in zip(COUNTS, deltas, strict=True)) / sum(COUNTS)
    assert torch.allclose(run(method, own, rounds=1).x.double(), expected, atol=1e-6)
    assert not torch.allclose(run(fedavg(), own, rounds=1).x.double(), expected, atol=1e-3)


def test_a_round_of_some_clients_divides_by_their_samples_and_an_asynchronous_one_by_its_buffer() -> None:
    """Clients 0 and 1 with 1 and 2 of 16 samples, a mean of 4: the weights are 1/4 and 1/2."""
    own = task()
    for mode, divisor in (("sync", 0.75), ("client", 2)):
        server = tg.serve(fedavg(mode, 2, weight_by="samples"), own.init(0), clients=4, seed=0, samples=COUNTS)
        jobs = {job.client: job for job in server.dispatch()}
        first, second, *_ = jobs
        deltas = [tg.work(jobs[client], own, server.method) for client in (first, second)]
        server.receive(deltas[0])
        advanced = server.receive(deltas[1]).happened
        assert isinstance(advanced, tg.Advanced)
        shares = [COUNTS[client] / 4 for client in (first, second)]
        assert advanced.weights == tuple(shares)
        divisor = sum(shares) if mode == "sync" else divisor
        total = sum(share * update.delta for share, update in zip(shares, deltas, strict=True))  # type: ignore[operator]
        assert torch.allclose(server.x, own.init(0) + total / divisor, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "server", "client"])
def test_equal_counts_give_the_bits_of_a_method_without_weights(mode: str) -> None:
    own = task((5, 5, 5, 5))
    for make in (fedavg, _clip2):
        assert torch.equal(run(make(mode, 3), own).x, run(make(mode, 3, weight_by="samples"), own).x)
    assert not torch.equal(run(fedavg(mode, 3), task()).x, run(fedavg(mode, 3, weight_by="samples"), task()).x)


def _clip2(mode: str, buffer: int, **more: Any) -> tg.Method:
    return tg.clip2(
        local_lr=0.5, local_clip=1.0, lr=1.0, clip=0.5, buffer=buffer, local_steps=3, mode=mode, downplay=True, **more
    )


def test_a_weighted_run_is_resumed_and_replayed_to_the_same_bits(tmp_path: Path) -> None:
    method, own = fedavg("client", 3, weight_by="samples"), task()
    whole = run(method, own, rounds=9)
    fleet: Any = whole.pool.fleet
    part = tg.begin(method, own, fleet, rounds=9, evaluate_every=0, out=tmp_path / "run")
    for row in part.go():
        if row["round"] == 4:
            part.stop()
    with pytest.raises(tg.RecordError, match="belongs to another run"):
        tg.resume(tmp_path / "run", fedavg("client", 3), own, fleet)
    again = tg.resume(tmp_path / "run", method, own, fleet)
    for _ in again.go():
        pass
    assert torch.equal(again.x, whole.x)
    assert torch.equal(tg.replay(again).x, whole.x)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(3), 0)])


def test_a_task_that_does_not_know_its_counts_says_so() -> None:
    method = fedavg(weight_by="samples", buffer=2)
    with pytest.raises(tg.Invalid, match='weight_by="samples" needs a task that counts samples, got Quadratic'):
        run(method, tg.tasks.quadratic(clients=4))
    settings: Any = {"loss": nn.functional.cross_entropy, "data": [Stream(), Stream()]}
    with pytest.raises(tg.Invalid, match="number of each client's samples, which a stream does not have"):
        run(method, tg.TorchTask(nn.Linear(3, 2), **settings))
    assert sample_counts(tg.TorchTask(nn.Linear(3, 2), **settings, samples=[3, 9]), "samples") == (3, 9)
    with pytest.raises(tg.Invalid, match="`samples` must be a number for each of the 2 clients, got 1"):
        tg.TorchTask(nn.Linear(3, 2), **settings, samples=[3])
    trainer = tg.TrainerTask(nn.Linear(3, 2), train=lambda module, job: 0.0, clients=4)
    with pytest.raises(tg.Invalid, match="which a training loop of its own does not have"):
        sample_counts(trainer, "samples")
    with pytest.raises(tg.Invalid, match="`weight_by` must be samples or None, got 'loss'"):
        fedavg(weight_by="loss")
    server = tg.serve(method, torch.zeros(8), clients=4, seed=0)
    with pytest.raises(tg.Invalid, match="needs the clients' samples"):
        server.receive(tg.Update(server.dispatch()[0].client, 0, 0, torch.zeros(8)))
    regional = tg.halos(local_lr=0.5, buffer=2, local_steps=2, regions=2, every=2, weight_by="samples")
    for wrong in ([1, 2], [0, 0, 0, 0], [3, 1, -1, 2], [1.0, math.nan, 2, 3], [True, 1, 1, 1]):
        for some in (method, regional):
            with pytest.raises(tg.Invalid, match=r"`samples` must have a whole number for each of the .* got \["):
                tg.serve(some, torch.zeros(8), clients=4, seed=0, samples=wrong)


def test_on_ray_the_driver_opens_no_data_to_count_rows() -> None:
    pytest.importorskip("ray")
    opened = []

    def rows(client: int) -> Any:
        opened.append(client)
        return [(torch.ones(3), 1)]

    method, settings = fedavg(weight_by="samples"), with_defaults({"rounds": 1, "evaluate_every": 0})
    for samples in (None, [1] * 4):
        own = tg.TorchTask(nn.Linear(3, 2), loss=nn.functional.cross_entropy, data=rows, clients=4, samples=samples)
        pool = tg.RayPool(own, method)
        if samples:
            check_run(method, own, pool, settings)
            continue
        with pytest.raises(tg.Invalid, match=r"on this engine only workers open the data\. Give the task samples="):
            check_run(method, own, pool, settings)
    assert not opened
