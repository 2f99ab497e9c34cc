"""Memory: what is forecast is what is there, counted exactly and measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tardygrad as tg
from tardygrad.runs import memory
from tardygrad.tasks import clock

ROUNDS = 60


def fleet() -> tg.Fleet:
    """With a crash, a slow-down, and a client that is gone for good in the middle of a job."""
    paper = tg.Fleet.paper(clients=12).crash(client=3, at=7.0, back=30.0)
    return paper.slowed(client=0, at=2.0, until=9.0, factor=4.0).during([(0.0, 3.5)], client=2)


def method(**how: Any) -> tg.Method:
    settings: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "local_steps": 3}
    return tg.clip2(**(settings | how))


def models_alive(one: tg.Method, task: Any) -> Iterator[int]:
    """After every event of a true run: the distinct models that the server, its past and the jobs in flight hold."""
    pool = tg.SimPool(task, one, fleet())
    server = tg.Server(one, task.init(0), clients=12, seed=0)
    for _ in tg.drive(server, pool, ROUNDS):
        in_flight = [job.x for *_, job in pool.due if job is not None]
        yield len({x.data_ptr() for x in (server.x, *server.vectors.past.values(), *in_flight)})


@pytest.mark.parametrize(
    ("mode", "compensate", "buffer"),
    [
        ("sync", True, 3),
        ("sync", False, 8),
        ("server", False, 3),
        ("server", True, 1),
        ("client", True, 8),
        ("client", False, 1),
    ],
)
def test_the_models_alive_are_counted_at_every_event(mode: Any, compensate: bool, buffer: int) -> None:
    one = method(mode=mode, compensate=compensate, buffer=buffer)
    still = clock(clients=12, parameters=50)
    meter = memory.Meter(one, still)
    server = tg.Server(one, still.init(0), clients=12, seed=0)
    events = tg.drive(server, tg.SimPool(still, one, fleet()), ROUNDS)
    counted = [len(meter.alive) for _ in meter.follow(server, events)]
    real = list(models_alive(one, tg.tasks.quadratic(clients=12, dimension=50)))
    assert counted == real
    assert meter.memory.rounds == ROUNDS


def test_a_peak_is_the_sum_of_its_parts() -> None:
    one, task = method(mode="client", buffer=3, compensate=True), tg.tasks.quadratic(clients=12, dimension=1000)
    found = memory.Meter(one, task).forecast(fleet(), rounds=ROUNDS)
    parts = {name: tuple(part) for name, part in found.parts.items()}
    starts = max(models_alive(one, task)) - 1
    assert parts["model"] == (None, 2 * 4000)  # x and the sum
    assert parts["start vectors"] == (starts, 4000 * starts)
    assert parts["updates"] == (1, 8000)
    assert parts["work"] == (None, 5 * 4000)
    assert found.peak == sum(part.bytes for part in found.parts.values())
    text = f"model 8 kB + {starts} start vectors {4 * starts} kB + 1 update 8 kB + work 20 kB"
    assert str(found) == f"{memory.size(found.peak)} = {text}"


def test_checkpoints_processes_batches_and_threads_cost_more() -> None:
    one, task = method(mode="client", buffer=3), tg.tasks.quadratic(clients=12, dimension=1000)
    plain, recorded, crew, together = (
        memory.Meter(one, task, **how)
        for how in (
            {},
            {"checkpoint_every": 10},
            {"processes": 2},
            {"batch": 4, "checkpoint_every": 10},
        )
    )
    peaks = [meter.forecast(fleet(), rounds=ROUNDS) for meter in (plain, recorded, crew, together)]
    assert peaks[0].parts["checkpoint"].bytes == 0
    assert peaks[1].parts["checkpoint"].bytes == 4000 + peaks[1].parts["start vectors"].bytes
    assert peaks[2].parts["updates"].bytes == 4000 * (1 + 11)  # the last, and one for every client at work
    assert peaks[2].parts["work"].bytes >= 2 * peaks[0].parts["work"].bytes
    assert together.work == 4 * plain.work
    assert peaks[3].parts["updates"].bytes == 4000 * (1 + 11)
    assert peaks[3].parts["checkpoint"].bytes == 4000 * (1 + 11) + peaks[3].parts["start vectors"].bytes
    for mode, starts in {"client": 12, "server": 12, "sync": 0}.items():
        bound = memory.Meter(method(mode=mode, buffer=3), task, threads=2).bound(rounds=ROUNDS)
        assert bound.parts["start vectors"].number == starts


def test_updates_of_a_batch_that_wait_are_at_most_one_for_each_client_at_work() -> None:
    uneven = tg.Fleet((tg.Group("fast", 20, tg.Exponential(1.0)), tg.Group("slow", 20, tg.Pareto(1.0, 1.1))))
    one, task = method(mode="client", buffer=4), tg.tasks.logistic(clients=40)
    pool = tg.SimPool(task, one, uneven, batch=8, rounds=80)
    server = tg.Server(one, task.init(0), clients=40, seed=0)
    assert pool._batcher is not None
    waiting = [(len(pool._batcher.done), len(server.roster.jobs)) for _ in tg.drive(server, pool, 80)]
    assert all(done <= jobs for done, jobs in waiting)
    assert max(done for done, _ in waiting) > 7  # more than a batch: new jobs overtake computed ones


def frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 500), nn.Linear(500, 2))
    network[0].requires_grad_(False)
    return network


def test_frozen_weights_are_in_no_vector_and_are_counted_once() -> None:
    data = (torch.randn(24, 4), torch.arange(24) % 2)
    shards = tg.shard(data, clients=12)
    task = tg.TorchTask(frozen(), loss=nn.functional.cross_entropy, data=shards, test=data)
    one = method(mode="client", buffer=3, compensate=True)
    pool, server = tg.SimPool(task, one, fleet()), tg.Server(one, task.init(0), clients=12, seed=0)
    trained, untrained = 500 * 2 + 2, 4 * 500 + 500
    most = 0
    for event in tg.drive(server, pool, 20):
        held = [*server.vectors.past.values(), *(job.x for job in event.jobs), server.x]
        most = max(most, len(server.vectors.past))
        assert {x.numel() for x in held} == {task.parameters} == {trained}
    assert most > 3
    needs = memory.Meter(one, task)
    assert (needs.model, needs.update) == (4 * trained, 8 * trained)
    x = 4 * trained
    module, views = 4 * (trained + untrained), 2 * x
    assert needs.own == 2 * x + module + views
    processes = memory.Meter(one, task, processes=3)
    assert processes.work == 3 * (5 * x + 2 * x) + 2 * x + 7 * x


def test_the_state_of_an_outer_step_is_part_of_the_model() -> None:
    def init(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"m": torch.zeros_like(x), "v": torch.zeros_like(x), "count": torch.zeros(())}

    adam = tg.Transform(init, lambda direction, state, step: (direction, state))
    plain = method(buffer=3)
    one = tg.Method(name="Adam", inner=plain.inner, outer=adam, buffer=3, local_steps=1)
    task = tg.tasks.quadratic(clients=12, dimension=1000)
    assert memory.Meter(one, task).own - memory.Meter(plain, task).own == 8000


def test_a_task_with_its_own_loop_is_forecast_too() -> None:
    own = tg.TrainerTask(nn.Linear(50, 10), train=lambda module, job: 0.0, clients=3)
    torch_task = tg.TorchTask(nn.Linear(50, 10), data=[[(torch.ones(50), 0)]] * 3, loss=nn.functional.cross_entropy)
    steps: Any = {"buffer": 2, "local_steps": 1}
    meters = [memory.Meter(tg.fedavg(**steps), own), memory.Meter(tg.fedavg(**steps, local_lr=0.1), torch_task)]
    assert meters[0].own == meters[1].own > 4 * own.parameters


def test_a_run_that_would_starve_is_forecast_up_to_there() -> None:
    starving = tg.Fleet.paper(clients=2).crash(client=0, at=30.0).crash(client=1, at=30.0)
    one, task = method(mode="client", buffer=1), tg.tasks.quadratic(clients=2, dimension=10)
    found = memory.Meter(one, task).forecast(starving, rounds=1000)
    assert 0 < found.rounds < 1000
    near = memory.Meter(one, task).forecast(starving, rounds=1000, messages=5)
    assert 0 < near.rounds < found.rounds


def test_too_much_is_refused_with_the_arithmetic() -> None:
    one, task = method(mode="sync", buffer=3), tg.tasks.quadratic(clients=12, dimension=1000)
    found = memory.Meter(one, task).forecast(fleet(), rounds=10)
    found.check(found.peak)
    with pytest.raises(tg.Invalid, match=r"must fit in \d+ kB, got 28 kB = model 8 kB \+ .* in round \d+\. Allow more"):
        found.check(found.peak - 1000)


def test_what_is_no_amount_of_memory_is_refused() -> None:
    for text in ("", "GB", "0", "0.5B", "9" * 400, "-1GB", "8 pounds", "1e9", "nan"):
        with pytest.raises(tg.Invalid, match="an amount of memory must be 1 byte or more"):
            memory.read_size(text)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure")
@pytest.mark.parametrize("how", [{"mode": "client", "compensate": True}, {"mode": "sync"}], ids=["client", "sync"])
def test_the_peak_that_a_run_takes_is_the_one_forecast(how: dict[str, Any], tmp_path: Path) -> None:
    """Within a third and 20 MB, of some 160 and 80 MB."""
    command = [sys.executable, "-m", "tests.measure_memory", json.dumps(how), str(tmp_path / "out")]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # freed vectors go back to the system at once
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, env=environment)
    found = json.loads(done.stdout)
    assert found["real"] < 1.35 * found["forecast"] + 20e6, found
    assert found["forecast"] < 1.35 * found["real"] + 20e6, found
