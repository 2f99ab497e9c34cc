"""The noise probe: what it finds is the noise that a task was given, whatever its clients and layers are like."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tardygrad as tg
from tardygrad.errors import Invalid
from tardygrad.tail import probe
from tardygrad.tail.probe import VALUES, gradients, sampling


def quadratic(noise: tg.Noise | None, dimension: int = 2000) -> Any:
    return tg.tasks.quadratic(clients=20, dimension=dimension, heterogeneity=5.0, noise=noise)


def small(module: nn.Module, **how: Any) -> tg.TorchTask:
    rng = torch.Generator().manual_seed(0)
    data = (torch.randn(400, 6, generator=rng), torch.arange(400) % 3)
    shards = tg.tasks.shard(data, clients=4)
    return tg.TorchTask(module, loss=nn.functional.cross_entropy, data=shards, **how)


@pytest.mark.parametrize(
    ("noise", "verdict", "index"),
    [
        (tg.Noise("stable", 1.5), "heavy-tailed, infinite variance", 1.5),
        (tg.Noise("stable", 1.8), "heavy-tailed, infinite variance", 1.8),
        (tg.Noise("pareto", 1.5), "heavy-tailed, infinite variance", 1.5),
        (tg.Noise("student", 3.0), "heavy-tailed, finite variance", 3.0),
    ],
    ids=str,
)
def test_the_noise_of_unlike_clients_is_found_as_it_was_given(noise: tg.Noise, verdict: str, index: float) -> None:
    task = quadratic(noise)
    found = probe(task, task.init(0)).whole
    assert found.tail is not None
    assert found.tail.verdict == verdict
    assert found.tail.index == pytest.approx(index, rel=0.1)


def test_coordinates_of_many_scales_are_heavy_together_and_light_each() -> None:
    class Task(tg.tasks.quadratic(clients=1).__class__):  # type: ignore[misc]
        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            value, g = super().gradient(x, batch, module_buffers)
            return value, g * torch.logspace(-4, 0, len(g))

    plain = quadratic(tg.Noise("stable", 2.0))
    task = Task(plain.h, torch.zeros_like(plain.c), plain.noise)
    found = probe(task, task.init(0), batches=64).whole
    assert found.tail is not None
    assert found.scaled is not None
    assert found.tail.block_sum is not None
    assert found.tail.block_sum < 1.8
    assert found.scaled.verdict == "light-tailed"
    assert found.scaled.block_sum == pytest.approx(2.0, abs=0.1)


def test_layers_are_modules_and_cover_the_vector() -> None:
    task = small(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    found = probe(task, task.init(0))
    assert [(layer.name, layer.size) for layer in found.layers] == [("0", 56), ("2", 27)]
    assert found.whole.size == task.parameters == 83
    alone = small(nn.Linear(6, 3))
    assert [layer.name for layer in probe(alone, alone.init(0)).layers] == ["weight", "bias"]


def test_a_threshold_clips_what_it_says() -> None:
    task = quadratic(tg.Noise("stable", 1.5), dimension=200)
    x = task.init(0)
    suggested = probe(task, x).whole.suggested
    assert probe(task, x, clip=suggested).whole.above == pytest.approx(0.05, abs=0.001)
    assert probe(task, x, clip=math.inf).whole.above == 0.0
    assert probe(task, x).whole.above is None


def test_buffers_are_left_as_they_are_and_so_is_the_model() -> None:
    task = small(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    x, module_buffers = task.init(0), task.init_module_buffers()
    assert module_buffers is not None
    before = [tensor.clone() for tensor in (x, *module_buffers)]
    probe(task, x, module_buffers=module_buffers)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, *module_buffers), strict=True))


def test_a_large_model_is_looked_at_in_few_places() -> None:
    class Large(tg.Task):
        clients, parameters = 2, 20_000_000

        def batches(self, job: Any) -> Iterator[int]:
            return iter(range(job.steps))

        def gradient(self, x: Any, batch: int, module_buffers: Any) -> Any:
            return None, x

    x = torch.zeros(Large.parameters)
    chosen = sampling(Large(), x, batches=16)  # type: ignore[arg-type]
    rows = list(gradients(Large(), x, chosen))  # type: ignore[arg-type]
    assert len(rows) == 32
    assert sum(row.numel() for row in rows) == 4 * VALUES + len(rows)  # and their lengths
    sample = chosen.parts[0].sample
    assert len(np.unique(sample)) == len(sample)
    assert sample.max() > Large.parameters * 0.99


def test_without_noise_there_is_nothing_to_say() -> None:
    for task, fix in (
        (quadratic(None), "The task has no gradient noise."),
        (small(nn.Linear(6, 3), batch_size=1000), "Use a smaller batch_size."),
    ):
        with pytest.raises(Invalid, match=f"a client's mini-batches, got equal ones. {fix}"):
            probe(task, task.init(0))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"batches": 0}, "`batches` must be a whole number, 2 or more, got 0."),
        ({"batches": 5}, "`batches` must be even, since noise is measured on pairs of mini-batches, got 5."),
        ({"clients": 0}, "`clients` must be a whole number, 1 or more, got 0."),
    ],
)
def test_a_probe_that_cannot_be_is_refused(how: dict[str, int], message: str) -> None:
    task = quadratic(None, dimension=3)
    with pytest.raises(Invalid) as error:
        probe(task, task.init(0), **how)  # type: ignore[arg-type]
    assert str(error.value) == message
