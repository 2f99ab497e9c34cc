"""Processes that compute ahead: the same bits, whatever their number and whatever happens to them."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.engines.sim import process_pool as crew
from tardygrad.runs.record import lock
from tests.forkserver import Program

FLEET = tg.Fleet.paper(clients=12).crash(client=3, at=7.0, back=20.0).crash(client=0, at=4.0)


def task(noise: float = 0.1) -> Any:
    student = tg.Noise(kind="student", tail=1.5, scale=noise)
    return tg.tasks.quadratic(clients=12, dimension=300, heterogeneity=1.0, noise=student)


def method(mode: Any = "client", **how: Any) -> tg.Method:
    settings = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 3, "local_steps": 3}
    return tg.clip2(mode=mode, **(settings | how))


def with_batchnorm() -> tg.TorchTask:
    def module() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 2)
        )

    x = torch.linspace(-1, 1, 360).reshape(120, 3)
    data = (x, (x.sum(1) > 0).long())
    return tg.TorchTask(module, loss=torch.nn.functional.cross_entropy, data=tg.shard(data, clients=12), test=data)


@pytest.mark.parametrize(
    ("mode", "make"), [("sync", task), ("server", with_batchnorm), ("client", task), ("client", with_batchnorm)]
)
def test_the_number_of_processes_changes_no_bit(make: Any, mode: Any) -> None:
    runs = [tg.simulate(method(mode, compensate=True), make(), FLEET, rounds=15, workers=p) for p in (1, 2, 4)]
    for run in runs[1:]:
        assert torch.equal(run.x, runs[0].x)
        assert run.metrics == runs[0].metrics
        if run.server.module_buffers and runs[0].server.module_buffers:
            assert torch.equal(run.server.module_buffers.floats, runs[0].server.module_buffers.floats)


def test_the_processes_may_read_their_data_by_other_processes() -> None:
    class Drawn(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.rand(3), torch.tensor(row % 2)

    def run(workers: int, num_workers: int) -> tg.Run:
        loss, data = torch.nn.functional.cross_entropy, [Drawn() for _ in range(12)]
        reading = tg.TorchTask(
            lambda: torch.nn.Linear(3, 2), data=data, loss=loss, batch_size=4, num_workers=num_workers
        )
        return tg.simulate(method(), reading, FLEET, rounds=4, evaluate_every=0, workers=workers)

    assert torch.equal(run(1, 0).x, run(2, 1).x)


def test_a_run_whose_processes_are_killed_gives_the_same_bits() -> None:
    whole = tg.simulate(method(), task(), FLEET, rounds=40)
    with tg.SimPool(task(), method(), FLEET, workers=2, rounds=40) as pool:
        run = tg.begin(method(), task(), pool, rounds=40)
        killed = 0
        for row in run.go():
            if row["round"] % 10 == 5:
                assert pool._prefetcher is not None
                victim = list(pool._prefetcher.processes.jobs)[killed % 2].process
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
                killed += 1
        assert killed == 4
    assert torch.equal(run.x, whole.x)


def test_processes_compute_nothing_that_no_round_needs(tmp_path: Path) -> None:
    base = type(task())

    class Counted(base):  # type: ignore[misc, valid-type]
        def batches(self, job: Any) -> Any:
            (tmp_path / f"{job.client}-{job.serial}").touch()
            return super().batches(job)

    counted = Counted(task().h, task().c, None)
    run = tg.simulate(method(), counted, FLEET, rounds=10, workers=2)
    assert len(list(tmp_path.iterdir())) == run.summary().updates == 30 < run.server.roster.sent


def test_work_that_kills_its_process_every_time_is_named() -> None:
    base = type(task())

    class Deadly(base):  # type: ignore[misc, valid-type]
        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            if batch.client == 2:
                os._exit(9)
            return super().gradient(x, batch, module_buffers)

    deadly = Deadly(task().h, task().c, None)
    with pytest.raises(
        tg.WorkFailed, match=r"client 2, job 0, from round 0 failed: 6 processes died while computing it"
    ):
        tg.simulate(method(), deadly, FLEET, rounds=10, workers=2)


def test_a_resumed_run_may_have_another_number_of_processes(tmp_path: Path) -> None:
    whole = tg.simulate(method(compensate=True), task(), FLEET, rounds=30)
    with tg.SimPool(task(), method(compensate=True), FLEET, workers=2, rounds=30) as pool:
        run = tg.begin(method(compensate=True), task(), pool, rounds=30, out=tmp_path / "run")
        for row in run.go():
            if row["round"] == 11:
                run.stop()
    with tg.SimPool(task(), method(compensate=True), FLEET, workers=3, rounds=30) as pool:
        again = tg.resume(tmp_path / "run", method(compensate=True), task(), pool)
        for _ in again.go():
            pass
    assert torch.equal(again.x, whole.x)


ORPHANS = """
    import tardygrad as tg
    from tests.engines.test_process_pool import FLEET, method, task

    pool = tg.SimPool(task(), method(), FLEET, workers=3)
    print(*(child.process.pid for child in pool._prefetcher.processes.jobs), flush=True)
    input()
"""


def test_processes_do_not_outlive_a_killed_run() -> None:
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ORPHANS)],
        cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 60
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, "orphans are left"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


STOPPED = """
    import tardygrad as tg
    from tests.engines.test_process_pool import FLEET, method, task

    for _ in range(10):
        with tg.SimPool(task(), method(), FLEET, workers=2) as pool:
            server = tg.Server(method(), task().init(0), clients=task().clients, seed=0)
            for event in tg.drive(server, pool, 5):
                pass
"""


def test_a_run_that_ends_with_jobs_assigned_says_nothing() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STOPPED)],
        cwd=root, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")


def test_a_crew_has_room_for_the_start_vectors_of_all_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    least = []
    put = crew.SharedModels.put
    monkeypatch.setattr(crew.SharedModels, "put", lambda self, job: (put(self, job), least.append(len(self.free)))[0])
    with tg.SimPool(task(), method(mode="client", buffer=1), FLEET, workers=2) as pool:
        server = tg.Server(method(mode="client", buffer=1), task().init(0), clients=task().clients, seed=0)
        for _ in tg.drive(server, pool, 60):
            pass
        shelf = pool._prefetcher.processes.models
        used = {id(job.x) for jobs in pool._prefetcher.processes.jobs.values() for job in jobs}
        assert shelf.slot_of.keys() == used
        assert len(shelf.free) + len(used) == crew.model_slots(2) == 5
    assert min(least) < 3


def test_large_buffers_do_not_make_two_messages_wait_for_each_other() -> None:
    x = torch.linspace(-1, 1, 36).reshape(12, 3)
    wide = torch.nn.Sequential(torch.nn.Linear(3, 60_000), torch.nn.BatchNorm1d(60_000), torch.nn.Linear(60_000, 2))
    given = {"loss": torch.nn.functional.cross_entropy, "data": tg.shard((x, (x.sum(1) > 0).long()), clients=4)}
    fleet, one = tg.Fleet.paper(clients=4), method(buffer=1, local_steps=1)
    runs = [tg.simulate(one, tg.TorchTask(wide, **given), fleet, rounds=6, evaluate_every=0, workers=n) for n in (1, 2)]
    assert torch.equal(runs[0].x, runs[1].x)


def test_a_job_that_never_arrives_may_fail() -> None:
    """Client 0 sends nothing finite, so the run leaves its plan, and jobs are computed that no round needs."""

    class Odd(type(task())):  # type: ignore[misc]
        def batches(self, job: Any) -> Any:
            if job.client == 11:  # the slowest class: its job is due long after the last round
                raise RuntimeError("out of cheese")
            return ((job.client, batch) for batch in super().batches(job))

        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            value, g = super().gradient(x, batch[1], module_buffers)
            return value, g * (float("nan") if batch[0] == 0 else 1.0)

    fleet = tg.Fleet.paper(clients=12)
    odd = Odd(task().h, task().c, None)
    runs = [tg.simulate(method(), odd, fleet, rounds=4, workers=n, evaluate_every=0) for n in (1, 2)]
    assert runs[0].summary().refused["not finite"] > 0
    assert torch.equal(runs[0].x, runs[1].x)


def test_a_task_without_parameters_is_computed_by_processes_too() -> None:
    clock = tg.tasks.clock(clients=12, parameters=0)
    runs = [tg.simulate(method(), clock, FLEET, rounds=5, workers=n, evaluate_every=0) for n in (1, 2)]
    assert runs[0].summary().time == runs[1].summary().time > 0


def test_what_cannot_have_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tg.Invalid, match="`workers` must be a whole number, 0 or more"):
        tg.SimPool(task(), method(), FLEET, workers=-1)
    one = task()
    one.device = torch.device("cuda")  # type: ignore[attr-defined]
    with pytest.raises(tg.Invalid, match=r"`workers` above 1 compute on CPUs, got a task on cuda. Use workers=1."):
        tg.SimPool(one, method(), FLEET, workers=2)
    monkeypatch.setitem(mp.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(
        tg.Invalid, match="`workers` above 1 needs a process that may start others, and this one is a d"
    ):
        tg.SimPool(task(), method(), FLEET, workers=2)


HEIR = """
    import os, signal, sys, time
    import tardygrad as tg
    from tests.engines.test_process_pool import FLEET, method, task

    class Slow(type(task())):
        def gradient(self, *given):
            if given[1].client == 5:
                print("at work", flush=True)
                time.sleep(600)
            return super().gradient(*given)

    slow = Slow(task().h, task().c, None)
    pool = tg.SimPool(slow, method(), FLEET, workers=2)
    run = tg.begin(method(), slow, pool, rounds=9, out=sys.argv[1])
    for worker in pool._prefetcher.processes.children.alive:
        os.kill(worker.process.pid, signal.SIGKILL)  # its heir is forked while the record is locked
    list(run.go())
"""


def test_a_job_does_not_hold_the_lock_of_a_record_whose_run_was_killed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with Program(textwrap.dedent(HEIR), str(tmp_path / "run"), env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.kill()
        process.wait()
        lock(tmp_path / "run", "the run in", tries=100).close()
