"""Workers that are groups of processes under `torch.distributed`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tardygrad as tg
from tardygrad.engines.ray.group import check_group
from tardygrad.engines.scripted import check_replayable
from tests.engines.distributed_training import make_task
from tests.engines.test_ray_pool import wait_for

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = [
    pytest.mark.timeout(900),  # a busy machine may take a minute to start a worker
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

METHOD = tg.fedavg(buffer=1, local_steps=3, mode="client", concurrency=1, dispatch="random")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module")
def pool(cluster: Any, folder: Path) -> Iterator[tg.RayPool]:
    with tg.RayPool(make_task(folder), METHOD, workers=1, processes_per_worker=2, evaluate="between") as pool:
        yield pool


def go(pool: tg.RayPool) -> tg.Run:
    """Run, and let the job arrive that is under way at the end."""
    try:
        return tg.train(METHOD, pool.task, pool, rounds=5, evaluate_every=0)
    finally:
        pool.interrupt(False)
        while pool.next() is not None:
            pass


def ranks(folder: Path) -> list[int]:
    """The processes of the last job."""
    return [int((folder / f"rank-{i}").read_text()) for i in range(2)]


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_all_ranks_do_each_job_and_rank_0_answers(pool: tg.RayPool, folder: Path) -> None:
    (folder / "fsdp").touch()
    run = go(pool)
    (folder / "fsdp").unlink()
    first, second = ranks(folder)
    assert first != second
    assert alive(first)
    alone = tg.simulate(METHOD, pool.task, tg.Fleet.paper(clients=2, stragglers="mild"), rounds=5, evaluate_every=0)
    assert {client for row in run.metrics for client in row["clients"]} == {0, 1}
    torch.testing.assert_close(run.x, alone.x, atol=1e-5, rtol=1e-5)  # both clients have the same rows
    with pytest.raises(tg.Invalid, match=r"^a replay does each job in one process, and the workers of this run are "):
        tg.replay(run)


def test_the_death_of_any_rank_is_the_death_of_the_worker(pool: tg.RayPool, folder: Path) -> None:
    go(pool)
    before = ranks(folder)
    (folder / "die-on-1").touch()
    run = go(pool)
    assert (run.status, run.summary().lost) == ("finished", 1)
    assert not set(before) & set(ranks(folder))
    wait_for(lambda: not any(map(alive, before)), 60.0)


def test_an_error_of_any_rank_ends_the_run_with_its_message(pool: tg.RayPool, folder: Path) -> None:
    (folder / "raise-on-1").touch()
    with pytest.raises(
        tg.WorkFailed, match=r"^the work of client \d, job \d, from round \d failed: ValueError: no luck"
    ):
        go(pool)
    assert go(pool).status == "finished"


def test_no_rank_outlives_its_worker(pool: tg.RayPool, folder: Path) -> None:
    go(pool)
    before = ranks(folder)
    pool.workers.kill(pool.workers.members[0].actor)
    wait_for(lambda: not any(map(alive, before)), 60.0)


def test_what_cannot_be_a_group_is_refused() -> None:
    task = tg.TrainerTask(nn.Linear(2, 1), train=lambda module, job: 0.0, clients=2)
    rule = "`processes_per_worker` above 1 needs a task with a training loop of its own, such as a TrainerTask"
    cases: list[tuple[Any, Any, Any, str]] = [
        (task, 0, 0, "`processes_per_worker` must be a whole number, 1 or more, got 0."),
        (tg.tasks.quadratic(clients=2, dimension=3), 2, 0, f"{rule}, got 2 with a Quadratic."),
        (task, 4, 1, "`gpus_per_worker` must be 0 or one for each of the worker's 4 processes, got 1. "
                     "Use gpus_per_worker=4."),
    ]  # fmt: skip
    for given, processes, gpus, message in cases:
        with pytest.raises(tg.Invalid) as caught:
            check_group(given, processes, gpus)
        assert str(caught.value) == message
    check_group(task, 4, 4)
    check_replayable(1)
