"""Workers on Ray: the contract on one small cluster of this machine, and what happens to those who die, hang or err."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.core.own_loop import OwnLoop, Trained
from tardygrad.engines import real_time
from tardygrad.engines.contract import Pending
from tardygrad.engines.ray import connection as joining
from tardygrad.errors import Interrupted
from tardygrad.runs.events import Arrival, ClientLost, Join, Refusal, kind_of, read_events
from tests.engines.contract import CLIENTS, PoolContract
from tests.forkserver import Program

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = [
    pytest.mark.usefixtures("forked_ray_workers"),
    pytest.mark.timeout(900),  # a busy machine may take a minute to start a worker
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

METHOD = tg.clip2(
    local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client", compensate=True
)


def faults(run: tg.Run, *kinds: Any) -> list[tuple[str, int]]:
    """The messages of a run that are no arrivals, or those of some kinds."""
    kinds = kinds or (Refusal, ClientLost, Join)
    return [(kind_of(event), event.client) for event in run.script if isinstance(event, kinds)]


def moody(folder: Path) -> Any:
    """A quadratic that does what files in a folder say, once each: die, fail, sleep so long, or hold a client's job."""
    noise = tg.Noise(kind="student", tail=1.5, scale=0.1)
    plain = tg.tasks.quadratic(clients=CLIENTS, dimension=4, heterogeneity=1.0, noise=noise)

    class Moody(type(plain)):  # type: ignore[misc]
        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            self.obey(batch.client)
            return super().gradient(x, batch, module_buffers)

        def evaluate(self, x: Any, module_buffers: Any) -> Any:
            self.obey("evaluation")
            return super().evaluate(x, module_buffers)

        def obey(self, who: Any) -> None:
            for path in folder.glob(f"*-{who}"):
                said = path.read_text()
                path.unlink()
                if path.name.startswith("die"):
                    os._exit(3)
                if path.name.startswith("fail"):
                    raise RuntimeError(said)
                if path.name.startswith("hold"):
                    (held := folder / f"{who}.held").touch()
                    while held.exists():
                        time.sleep(0.005)
                    continue
                time.sleep(float(said))

    return Moody(plain.h, plain.c, noise)


class Scene:
    """The pool that the tests share, its task, and a word to whoever works on a client."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.task = folder, moody(folder)
        self.pool = tg.RayPool(self.task, METHOD, workers=3)

    def have(self, what: str, who: int | str, how: str = "") -> None:
        (self.folder / f"{what}-{who}").write_text(how)

    def held(self, who: int | str) -> None:
        """Wait until someone holds a job, as they were told."""
        wait_for((self.folder / f"{who}.held").exists)

    def let_go(self, who: int | str) -> None:
        self.held(who)
        (self.folder / f"{who}.held").unlink()

    def jobs(self) -> list[Job]:
        x = self.task.init(0)
        return [Job(client, 0, 0, x, 2, None, 0) for client in range(CLIENTS)]

    def rest(self) -> None:
        """Let what is under way arrive, and all workers come back."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)
        self.pool.deadline = math.inf
        with suppress(Interrupted):  # a run that was stopped
            self.pool.next()
        while self.pool.next() is not None:
            pass
        self.gather()

    def gather(self) -> None:
        """Wait until all workers are there."""
        wait_for(lambda: self.pool._collect(0.1) or len(self.pool.workers.free) == 3)

    def processes(self) -> list[int]:
        """Those of the workers that have nothing to do, the next to get a job first."""
        return [ray.get(worker.actor.ping.remote())[0] for worker in self.pool.workers.free]

    def running(self, client: int) -> Any:
        """A client's job and who has it."""
        return next(running for running in self.pool.running.values() if running.job.client == client)


def wait_for(holds: Callable[[], Any], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("moods"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with scene.pool:
            yield scene
        assert not ray.is_initialized()
        gc.collect()


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    shared.pool.restore(Pending(0.0, [], []))
    yield shared
    shared.rest()


class TestRayPool(PoolContract):
    """Six clients, three workers."""

    @pytest.fixture(autouse=True)
    def _scene(self, scene: Scene) -> None:
        self.scene = scene

    @pytest.fixture
    def task(self, scene: Scene) -> Any:
        return scene.task

    @pytest.fixture
    def method(self) -> tg.Method:
        return METHOD

    def pool(self, task: tg.Task, method: tg.Method) -> AbstractContextManager[tg.Pool]:
        if type(task).__name__ == "Broken":
            self.scene.have("fail", 2, "out of cheese")
        if method.regions:
            return tg.RayPool(task, method, workers=2, cpus_per_worker=0.0, evaluate="between")
        return nullcontext(self.scene.pool)


def test_nobody_listens_outside_this_machine(scene: Scene) -> None:
    processes = psutil.Process().children(recursive=True)
    listening = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # a worker of the test before that is about to end
            listening += [line for line in one.net_connections() if line.status == psutil.CONN_LISTEN]
    assert len(listening) > 3
    assert {one.laddr.ip.removeprefix("::ffff:") for one in listening} == {"127.0.0.1"}


def test_a_start_vector_is_put_once_and_let_go(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    put, seen = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: seen.append(len(value)) or put(value))
    for job in scene.jobs():
        scene.pool.submit(job)
    del job
    for _ in range(CLIENTS):
        assert isinstance(scene.pool.next(), tg.Update)
    assert len(seen) == 1
    gc.collect()  # errors of earlier tests may hold jobs
    assert not scene.pool.transport.starts


def test_a_killed_worker_loses_its_job_only_and_the_run_goes_on_and_replays(scene: Scene, tmp_path: Path) -> None:
    scene.gather()
    victim, *others = scene.processes()
    scene.have("hold", 0)
    run = tg.begin(METHOD, scene.task, scene.pool, rounds=10**6, out=tmp_path / "run")
    for row in run.go():
        if row["round"] == 3:
            scene.held(0)
            os.kill(victim, signal.SIGKILL)
        if row["round"] >= 30 and run.counts["loss"]:
            run.stop()
    assert faults(run) == [("loss", 0), ("join", 0)]
    assert torch.equal(tg.replay(run).x, run.x)
    arrivals = [event for event in read_events(tmp_path / "run/events.jsonl") if isinstance(event, Arrival)]
    assert {event.node for event in arrivals} == {socket.gethostname()}
    named = {event.worker for event in arrivals}
    assert set(map(str, others)) <= named
    assert str(victim) not in named  # it held its first job


def test_a_worker_that_dies_over_a_job_and_one_that_died_idle_are_replaced(scene: Scene) -> None:
    scene.gather()
    scene.have("die", 1)
    os.kill(scene.processes()[2], signal.SIGKILL)
    for job in scene.jobs():
        scene.pool.submit(job)
    messages = list(iter(scene.pool.next, None))
    lost = [one.client for one in messages if isinstance(one, tg.Lost)]
    assert 1 in lost
    assert len(lost) == 2
    assert sorted(one.client for one in messages if isinstance(one, tg.Joined)) == sorted(lost)
    assert sum(isinstance(one, tg.Update) for one in messages) == CLIENTS - 2


def test_a_hung_job_is_written_off_and_its_late_update_refused(scene: Scene) -> None:
    tg.train(METHOD, scene.task, scene.pool, rounds=10)  # so that times are known
    scene.rest()
    scene.have("hold", 2)
    run = tg.begin(METHOD, scene.task, scene.pool, rounds=10**6)
    for row in run.go():
        if row["round"] == 1:
            scene.held(2)
            scene.running(2).began -= 1000.0  # seconds, of which it had thirty
        elif run.counts["loss"] and (scene.folder / "2.held").exists():
            scene.let_go(2)
        if run.counts["refusal"]:
            run.stop()
    assert faults(run) == [("loss", 2), ("join", 2), ("refusal", 2)]
    assert run.summary().refused == {"finished job": 1}
    assert torch.equal(tg.replay(run).x, run.x)


def test_a_worker_that_stays_away_is_ended_and_replaced(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.gather()
    before = scene.processes()
    monkeypatch.setattr(scene.pool.deadlines, "limit", lambda client: 0.5)
    scene.have("hold", 3)
    scene.pool.submit(scene.jobs()[3])
    assert list(iter(scene.pool.next, None)) == [tg.Lost(3), tg.Joined(3)]
    scene.gather()
    (gone,) = {*before} - {*scene.processes()}
    wait_for(lambda: not psutil.pid_exists(gone))


def test_models_are_evaluated_beside_the_training_even_if_the_evaluator_dies(scene: Scene) -> None:
    assert scene.pool.beside
    evaluator = scene.pool.evaluator
    assert evaluator is not None
    x = scene.task.init(0)
    scene.have("hold", "evaluation")
    asked = evaluator.ask(x, None)
    scene.held("evaluation")
    began = time.monotonic()
    assert evaluator.answer(asked, wait=False) is None
    lasted = time.monotonic() - began
    scene.let_go("evaluation")
    scores, seconds = evaluator.answer(asked, wait=True) or ({}, 0.0)
    assert scores == scene.task.evaluate(x, None)
    assert seconds > lasted > 0
    scene.have("die", "evaluation")
    asked = evaluator.ask(x, None)
    assert (evaluator.answer(asked, wait=True) or ({}, 0.0))[0] == scores
    scene.have("fail", "evaluation", "no scores today")
    asked = evaluator.ask(x, None)
    with pytest.raises(tg.WorkFailed, match="the evaluation failed: RuntimeError: no scores today"):
        evaluator.answer(asked, wait=True)


def test_workers_come_and_go(scene: Scene) -> None:
    scene.gather()
    for client in range(3):
        scene.have("hold", client)
    for job in scene.jobs():
        scene.pool.submit(job)
    scene.pool.resize(1)
    assert len(scene.pool.workers.members) == 3  # all are busy
    for client in range(3):
        scene.let_go(client)
    assert sum(isinstance(scene.pool.next(), tg.Update) for _ in range(CLIENTS)) == CLIENTS
    assert len(scene.pool.workers.members) == len(scene.pool.workers.free) == 1
    scene.pool.resize(3)
    scene.pool.resize(2)
    assert len(scene.pool.workers.members) == 2
    scene.pool.resize(3)
    scene.gather()


def test_no_room_for_any_worker_ends_the_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_time, "TIMEOUT", 1.0)
    with tg.RayPool(scene.task, METHOD, workers=2, cpus_per_worker=1000.0, evaluate="between") as pool:
        pool.submit(scene.jobs()[0])
        said = "0 of 2 workers have started: each takes 1000 CPUs and 0 GPUs, and the cluster has 3 and 0."
        assert pool.status() == said
        with pytest.raises(tg.WorkFailed, match=f"no worker has answered for 1 s. {said}"):
            pool.next()


def test_a_task_that_cannot_travel_is_said_to() -> None:
    class Locked(type(tg.tasks.quadratic(clients=1))):  # type: ignore[misc]
        """A task that no call is known of, and that no process can be sent."""

        def __init__(self) -> None:
            vars(self).update(vars(tg.tasks.quadratic(clients=1)), lock=threading.Lock())
            vars(self).pop("_call", None)

    lock: Any = Locked()
    with pytest.raises(tg.Invalid, match="must be picklable to be sent"), tg.RayPool(lock, METHOD):
        pass


def test_an_update_that_does_not_fit_the_model_is_refused_and_its_client_named(scene: Scene) -> None:
    plain = tg.tasks.quadratic(clients=3, dimension=4, heterogeneity=1.0)

    class Odd(OwnLoop, type(plain)):  # type: ignore[misc]
        def train(self, job: Job) -> Trained:
            x = job.x + 1.0
            return Trained([x, x.double(), x.repeat(2, 1)][job.client])

    task, method = Odd(plain.h, plain.c, None), tg.fedavg(buffer=1, local_steps=1, mode="client")
    with tg.RayPool(task, method, workers=1, evaluate="between", wire="int8") as pool:
        for client in range(3):
            pool.submit(Job(client, 0, 0, task.init(0), 1, None, 0))
        messages = [pool.next() for _ in range(3)]
        assert isinstance(messages[0], tg.Update)
        assert messages[1:] == [tg.Refused(client, 0, 0, "wrong shape") for client in (1, 2)]


DRIVER = """
import os, psutil, signal, torch
torch.set_num_threads(1)
import tardygrad as tg
from tests.forkserver import forked_ray_workers
task = tg.tasks.quadratic(clients=2, dimension=4)
method = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=1, local_steps=2, mode="client")
with forked_ray_workers(), tg.RayPool(task, method, workers=1, evaluate="between") as pool:
    tg.train(method, task, pool, rounds=1)
    list(iter(pool.next, None))  # the worker is there, and idle
    named = {one.pid: one.name() for one in psutil.Process().children(recursive=True)}
    others = [pid for pid, name in named.items() if "Agent" not in name]  # those look for Ray for another minute
    os.kill(pool.workers.members[0].process, signal.SIGKILL)
    run = tg.train(method, task, pool, rounds=5)
    print(*others, pool.workers.members[0].process, len(run.metrics), run.summary().lost, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_driver_leaves_no_process_and_a_dead_worker_no_words() -> None:
    with Program(DRIVER) as driver:
        printed, _ = driver.communicate()
    assert driver.returncode == -signal.SIGKILL
    (line,) = printed.splitlines()
    *processes, rounds, lost = map(int, line.split())
    assert len(processes) >= 3  # the head, the raylet and a worker
    assert (rounds, lost) == (5, 1)
    wait_for(lambda: not any(psutil.pid_exists(one) for one in processes))


# ------------------------------------------------------------------------------------------------- without a cluster


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": 0}, "`workers` must be a whole number, 1 or more, got 0"),
        ({"address": "local"}, "`address` must be 'auto' or host:port, got 'local'"),
        ({"grace": float("inf")}, "`grace` must be a finite number, 0 or more, got inf"),
        ({"gpus_per_worker": 1.5}, "`gpus_per_worker` must be a fraction of a GPU or a whole number, got 1.5"),
        ({"gpus_per_worker": 1.0}, "`gpus_per_worker` needs a task that can be moved"),
        ({"patience": float("nan")}, "`patience` must be a number, 0 or more, got nan"),
        ({"evaluate": "never"}, "`evaluate` must be one of beside, between, got 'never'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(tg.Invalid, match=said):
        tg.RayPool(moody(tmp_path), METHOD, **wrong)


def test_a_task_that_is_elsewhere_is_refused() -> None:
    task: Any = tg.tasks.quadratic(clients=4, dimension=4)
    object.__setattr__(task, "device", torch.device("cuda:0"))
    with pytest.raises(tg.Invalid, match=r"needs a task on the CPU, got one on cuda:0\. Use gpus_per_worker"):
        tg.RayPool(task, METHOD)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tg.Invalid, match=r"needs Ray\. Use pip install -c constraints\.txt -e '\.\[ray\]'\."):
        tg.RayPool(moody(tmp_path), METHOD)


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    with pytest.raises(tg.Invalid, match=r"must be that of a Ray cluster, got '127\.0\.0\.1:1': ConnectionRefused"):
        joining.join(ray, "127.0.0.1:1")


def test_the_store_has_room_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    half = 2**34
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=half // 2048, f_frsize=4096))
    task: Any = SimpleNamespace(parameters=10**8, init_module_buffers=lambda: None)
    small: Any = SimpleNamespace(parameters=10, init_module_buffers=lambda: None)
    assert joining.object_store(small, METHOD, workers=4, payload=0) == joining.MIN_OBJECT_STORE
    few, many = (joining.object_store(task, METHOD, workers=n, payload=0) for n in (1, 2))
    assert joining.MIN_OBJECT_STORE < few < many <= half
    assert joining.object_store(task, METHOD, workers=1000, payload=0) == half
    huge: Any = SimpleNamespace(parameters=10**15, init_module_buffers=lambda: None)
    with pytest.raises(tg.Invalid, match="/dev/shm is too small: half of it"):
        joining.object_store(huge, METHOD, workers=1, payload=0)


def test_a_pool_works_only_inside_its_with_statement(tmp_path: Path) -> None:
    task = moody(tmp_path)
    pool = tg.RayPool(task, METHOD, workers=1)
    for work in (
        lambda: tg.train(METHOD, task, pool, rounds=1),
        lambda: pool.submit(Job(0, 0, 0, task.init(0), 2, None, 0)),
        pool.next,
    ):
        with pytest.raises(tg.Invalid, match="use a RayPool inside its `with` block"):
            work()


def test_an_evaluation_that_hangs_is_asked_for_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    x = scene.task.init(0)
    evaluator = scene.pool.evaluator
    assert evaluator is not None
    scores = evaluator.answer(evaluator.ask(x, None), wait=True)
    assert scores
    scene.have("hold", "evaluation")
    asked = evaluator.ask(x, None)
    scene.held("evaluation")
    limit = {0: 0.5}  # seconds, by how many have died over it
    monkeypatch.setattr(evaluator._deadlines, "limit", lambda client: limit.get(asked.deaths, math.inf))
    again = evaluator.answer(asked, wait=True)
    assert again
    assert again[0] == scores[0]
    assert asked.deaths == 1
