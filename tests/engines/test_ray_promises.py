"""What a run on Ray promises: it survives its workers, its driver, its nodes and its disk, and its record says how."""

from __future__ import annotations

import math
import os
import shutil
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import NOTHING, Job, StateReference
from tardygrad.engines.contract import pack
from tardygrad.engines.ray.server_shards import ShardedVectors
from tardygrad.engines.ray.worker import WorkerProcess, received
from tardygrad.engines.ray.workers import Worker, Workers
from tardygrad.engines.wire import BLOCK
from tardygrad.runs.events import read_metrics
from tardygrad.runs.record import read_lines
from tardygrad.runs.signals import Signals
from tardygrad.spec import spec
from tests.cli.conftest import Command
from tests.engines.test_ray_pool import wait_for
from tests.forkserver import Program
from tests.records import without_checks

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = [
    pytest.mark.usefixtures("forked_ray_workers"),
    pytest.mark.timeout(900),  # a busy machine may take a minute to start a worker
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

ON_RAY = ["engine.kind=ray", "engine.cpus_per_worker=0.0", "engine.evaluate=between"]


def says(process: Program, words: str) -> None:
    """Wait until a run says something, whatever else it has to say of workers that are not there yet."""
    assert process.stderr is not None
    assert process.stderr.readline() in ("starting Ray\n", "joining Ray\n")
    said = list[str]()
    while not (said and words in said[-1]):
        said.append(process.stderr.readline())
        assert said[-1], said


def go(run: tg.Run) -> tg.Run:
    for _ in run.go():
        pass
    return run


def events(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path / "events.jsonl"))


def fates(rows: list[dict[str, Any]]) -> dict[tuple[int, int], list[str]]:
    """What became of every job: an arrival, refusals by their reasons, a loss, or nothing yet."""
    made: dict[tuple[int, int], list[str]] = {}
    out: dict[int, int] = {}
    for row in rows:
        client = row.get("client")
        if row["event"] == "dispatch":
            assert client not in out
            out[client] = row["serial"]
            made[client, row["serial"]] = []
        elif row["event"] in ("arrival", "refusal"):
            made[client, row["serial"]].append(row.get("reason", "arrival"))
            if row.get("reason") != "finished job":
                assert out.pop(client) == row["serial"]
        elif row["event"] == "loss" and client in out:
            made[client, out.pop(client)].append("loss")
    return made


# --------------------------------------------------------------------------------------------------------- workers


class Killer(threading.Thread):
    """Kills workers while a run goes on, in random rounds and at a random moment of each."""

    def __init__(self, pool: Any, seed: int, times: int, rounds: int) -> None:
        super().__init__(daemon=True)
        self.pool, self.rng, self.rows = pool, np.random.default_rng(seed), 0
        self.when = sorted(self.rng.integers(1, rounds, times).tolist())
        self.killed: list[Any] = []
        self.processes: dict[Any, int] = {}

    def met(self, worker: Any, process: int) -> None:
        self.processes[worker] = process

    def run(self) -> None:
        for at in self.when:
            wait_for(lambda at=at: self.rows >= at, 900.0)
            time.sleep(self.rng.uniform(0.0, 0.3))
            while not (alive := self._alive()):
                time.sleep(0.005)
            worker = alive[self.rng.integers(len(alive))]
            self.killed.append(worker)
            os.kill(self.processes[worker], signal.SIGKILL)

    def _alive(self) -> list[Any]:
        return [one for one in list(self.processes) if one in self.pool.workers.members and one not in self.killed]


def watch(monkeypatch: pytest.MonkeyPatch, met: Callable[[Any, int], None]) -> None:
    """Be told of every worker that comes up, and of its process."""
    meet = Workers.answered

    def watched(self: Workers, answer: Any) -> None:
        worker = self.starting[answer]
        meet(self, answer)
        if worker in self.members:
            met(worker, ray.get(answer)[0])

    monkeypatch.setattr(Workers, "answered", watched)


ROUNDS = 60
DIGITS = ["task.clients=6", "task.model=mlp", "fleet.stragglers=mild", "method.local_lr=0.3", "method.local_clip=1.0"]
DIGITS += ["method.lr={peak=1.0, rounds=60, floor=0.05}", "method.clip=0.04", "method.buffer=3"]
DIGITS += [f"run.rounds={ROUNDS}", "run.evaluate_every=0", *ON_RAY, "engine.workers=4", "engine.second=0.02"]


def test_4_killed_workers_cost_nothing_but_their_jobs(
    cluster: Any, tardygrad: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spec.load("digits", [*DIGITS, f"run.rounds={10**6}"])
    built = asked.build()
    with built.pool() as pool:
        killer = Killer(pool, seed=6, times=4, rounds=ROUNDS - 15)
        watch(monkeypatch, killer.met)
        for worker in pool.workers.free:
            killer.met(worker, ray.get(worker.actor.ping.remote())[0])
        undisturbed = tg.train(built.method, built.task, pool, rounds=ROUNDS, evaluate_every=0)
        assert (undisturbed.summary().lost, undisturbed.summary().refused) == (0, {})
        rest(pool)
        run = tg.begin(built.method, built.task, pool, spec=asked.resolved(), rounds=10**6, evaluate_every=0, out="run")
        killer.start()
        for row in run.go():
            killer.rows += 1
            if row["round"] >= ROUNDS and run.counts["loss"] >= 4:
                run.stop()
        killer.join()
    assert len(killer.killed) == 4
    rows = events(Path("run"))
    ends = Counter(fate for one in fates(rows).values() for fate in one)
    assert (ends["loss"], run.summary().lost, run.summary().refused) == (4, 4, {})  # one of each killed worker
    assert Counter(row["client"] for row in rows if row["event"] == "join") == Counter(
        row["client"] for row in rows if row["event"] == "loss"
    )
    scores = [built.task.evaluate(one.x, None)["accuracy"] for one in (undisturbed, run)]
    assert min(scores) > 0.85
    assert abs(scores[0] - scores[1]) < 0.05
    assert tardygrad("replay", "run")[:2] == (0, f"the same bits after {run.server.round} rounds\n")


def hands(name: str) -> list[int]:
    """The processes below this one whose title has a name in it."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [one.pid] if name in one.name() else []
    return found


# ---------------------------------------------------------------------------------------------------------- driver

SMALL = """
    [task]
    kind = "quadratic"
    clients = 3
    dimension = 300
    heterogeneity = 1.0
    noise = { kind = "student", tail = 1.5, scale = 0.1 }
    [fleet]
    kind = "paper"
    stragglers = "mild"
    [method]
    kind = "clip2"
    local_lr = 0.1
    local_clip = 1.0
    lr = 1.0
    clip = 0.5
    buffer = 2
    local_steps = 2
    mode = "client"
    compensate = true
    [engine]
    kind = "ray"
    workers = 1
    second = 0.005
    cpus_per_worker = 0.0
    [run]
    rounds = 120
    checkpoint_every = 6
    evaluate_every = 8
"""


@pytest.fixture(scope="module")
def small(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A pool of one worker that several tests share, and what it was made of."""
    file = tmp_path_factory.mktemp("spec") / "small.toml"
    file.write_text(SMALL)
    built = spec.load(file).build()
    with tg.RayPool(built.task, built.method, workers=1, cpus_per_worker=0.0, evaluate="between") as pool:
        yield SimpleNamespace(built=built, pool=pool, file=file)


Start = Callable[..., Program]


@pytest.fixture
def command() -> Iterator[Start]:
    """A command in a process of its own, which does not outlive the test."""
    started: list[Program] = []

    def start(*argv: str, before: str = "") -> Program:
        started.append(Program(f"{before}\nfrom tardygrad.cli.main import main; main()", *argv))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def made(path: Path) -> int:
    file = path / "events.jsonl"
    return len(read_metrics(file)) if file.exists() else 0


HALF_WRITTEN = """
import time
from pathlib import Path
from tardygrad.runs import checkpoint
write = checkpoint.save_file
checkpoint.save_file = lambda *given: (write(*given), Path("half-written").touch(), time.sleep(600))
"""


def test_a_driver_that_is_killed_3_times_loses_few_rounds_each_time_and_nothing_else(
    tardygrad: Command, command: Start, cluster: Any, small: Any
) -> None:
    rng, path = np.random.default_rng(5), Path("run")
    endless, others = f"run.rounds={10**6}", hands("WorkerProcess")
    process = command("run", str(small.file), f"engine.address={cluster.address}", endless, "--out", "run")
    for number in range(3):
        before, at = made(path), int(rng.integers(6, 25))
        if number == 1:  # while it starts
            assert process.stderr is not None
            assert process.stderr.readline() == "joining Ray\n"
            time.sleep(rng.uniform(0.0, 0.5))
        elif number == 2:  # while a checkpoint is written
            wait_for(Path("half-written").exists)
            assert (path / "checkpoints/draft/tensors.safetensors").exists()
        else:
            wait_for(lambda at=at, before=before: made(path) >= before + at)
            time.sleep(rng.uniform(0.0, 0.02))
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
        shutil.copytree(path, f"copy{number}")
        last = made(path) + 20
        again = tg.resume(f"copy{number}", small.built.method, small.built.task, small.pool, rounds=last)
        begins = again.server.round
        assert made(path) - begins <= 6
        assert go(again).summary().rounds == last
        rest(small.pool)
        assert torch.equal(tg.replay(again).x, again.x)
        fates(events(Path(f"copy{number}")))
        length = endless if number < 2 else f"run.rounds={last}"
        process = command("resume", "run", length, "--trust", before=HALF_WRITTEN if number == 1 else "")
        if number != 0:  # the next is killed before it can say anything
            says(process, f", from round {begins}, recording in run")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    wait_for(lambda: {*hands("WorkerProcess")} <= {*others})  # of all those drivers nobody is left
    fates(events(path))
    assert [row["round"] for row in read_metrics(path / "events.jsonl")] == list(range(1, last + 1))
    assert tardygrad("replay", "run")[:2] == (0, f"the same bits after {last} rounds\n")


def rest(pool: Any) -> None:
    """Let what is under way arrive."""
    pool.interrupt(False)
    while pool.next() is not None:
        pass


LONG = """
    [task]
    kind = "quadratic"
    clients = 2
    dimension = 9000
    [fleet]
    kind = "groups"
    [[fleet.groups]]
    name = "one"
    clients = 2
    runtime = { kind = "trace", seconds = [0.02, 0.02, 0.02, 600.0, 0.02, 0.02] }
    [method]
    kind = "clip2"
    local_lr = 0.1
    local_clip = 1.0
    lr = 1.0
    clip = 0.5
    buffer = 1
    local_steps = 1
    mode = "client"
    [engine]
    kind = "ray"
    workers = 2
    second = 1.0
    patience = inf
    [run]
    rounds = 9
    evaluate_every = 0
    checkpoint_every = 100
"""


FLUSHED = """
from tardygrad.runs.record import Record
write = Record.write_event
Record.write_event = lambda record, row, **how: (write(record, row, **how), record._file.flush())
"""


def test_sigterm_in_the_middle_of_a_long_job_is_a_checkpoint_and_an_exit(
    cluster: Any, tardygrad: Command, command: Start
) -> None:
    """In a process of its own, which starts Ray itself."""
    Path("long.toml").write_text(LONG)
    process = command("run", "long.toml", "--out", "run", before=FLUSHED)
    says(process, "recording in run")
    wait_for(lambda: made(Path("run")) == 6 or process.poll() is not None)  # then both are at work for ten minutes
    process.terminate()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == "stopped at round 6; continue with: tardygrad resume run"
    assert tardygrad("replay", "run")[:2] == (0, "the same bits after 6 rounds\n")
    code, _, said = tardygrad("resume", "run")
    assert (code, ", from round 6, " in said) == (0, True)
    lost = [name for name, fate in fates(events(Path("run"))).items() if fate == ["loss"]]
    assert sorted(lost) == [(0, 3), (1, 3)]
    assert tardygrad("replay", "run")[:2] == (0, "the same bits after 9 rounds\n")


def test_sigterm_while_an_evaluation_beside_the_training_takes_long(cluster: Any, tmp_path: Path) -> None:
    class Slow(type(tg.tasks.quadratic(clients=2))):  # type: ignore[misc]
        def evaluate(self, x: Any, module_buffers: Any) -> Any:
            (tmp_path / "begun").touch()
            while not (tmp_path / "quick").exists():
                time.sleep(0.01)
            return super().evaluate(x, module_buffers)

    plain = tg.tasks.quadratic(clients=2, dimension=10)
    task, method = Slow(plain.h, plain.c, None), tg.fedbuff(local_lr=0.1, lr=1.0, buffer=1, local_steps=1)
    settings: Any = {"rounds": 5, "evaluate_every": 5, "out": tmp_path / "run"}

    def tell() -> None:
        wait_for((tmp_path / "begun").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    with tg.RayPool(task, method, workers=1, cpus_per_worker=0.0) as pool:
        run = tg.begin(method, task, pool, **settings)
        with Signals(run.stop) as signals:
            threading.Thread(target=tell).start()
            go(run)
        assert (signals.received, run.status, run.server.round) == (signal.SIGTERM, "stopped", 5)
        assert "test_loss" not in read_metrics(tmp_path / "run/events.jsonl")[-1]  # the last has no scores yet
        (tmp_path / "quick").touch()
        pool.workers.kill(pool.evaluator.actor)  # with what it is at; another is asked
        rest(pool)
        again = go(tg.resume(tmp_path / "run", method, task, pool))
    assert (again.status, again.summary().score_round, made(tmp_path / "run")) == ("finished", 5, 5)


# ----------------------------------------------------------------------------------------------------------- nodes


def test_a_node_may_go_and_another_come(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has room for one worker, the other node for two; updates are too large to travel with their facts."""
    task = tg.tasks.quadratic(clients=4, dimension=50_000, noise=tg.Noise(kind="student", tail=1.5, scale=0.1))
    method = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client")
    node = add_node(cluster)
    with tg.RayPool(task, method, workers=3, cpus_per_worker=4.0, evaluate="between") as pool:
        wait_for(lambda: pool._collect(0.1) or not away(pool))
        hire, hired = pool.workers._new_actor, list[Any]()
        monkeypatch.setattr(pool.workers, "_new_actor", lambda place: hired.append(place) or hire(place))
        run = tg.begin(method, task, pool, rounds=10**6, evaluate_every=0)
        since = None
        for row in run.go():
            time.sleep(0.01)  # while workers start, few rounds are enough
            if row["round"] == 20:
                assert len(pool.workers.members) - len(away(pool)) == 3
                cluster.remove_node(node)
            if since is None and len(away(pool)) == 2:
                since = row["round"]
            if since is not None and row["round"] == since + 50:
                assert len(away(pool)) == 2
                node = add_node(cluster)
            if since is not None and row["round"] > since + 50 and not away(pool):
                run.stop()
        assert 2 <= run.summary().lost <= len(hired)  # a job for each worker that had to be replaced, at most
        assert torch.equal(tg.replay(run).x, run.x)
    cluster.remove_node(node)


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=8, node_ip_address="127.0.0.1")


def away(pool: Any) -> list[Worker]:
    return list(pool.workers.starting.values())


# ---------------------------------------------------------------------------------------------------------- replay


def test_slices_a_narrow_wire_compensation_and_a_resume_replay_to_the_same_bits(
    cluster: Any, tardygrad: Command, small: Any
) -> None:
    engine = ["engine.server_shards=2", "engine.wire=int8", "engine.evaluate=between"]
    asked = spec.load(small.file, ["task.dimension=9000", "method.concurrency=2", "method.dispatch=random", *engine])
    built, settings = asked.build(), asked.run.settings()
    with built.pool() as pool:
        run = tg.begin(built.method, built.task, pool, spec=asked.resolved(), **settings, out="run")
        for row in run.go():
            if row["round"] == 13:
                run.stop()
    code, _, said = tardygrad("resume", "run", "run.rounds=30")
    assert (code, ", from round 13, " in said) == (0, True)
    rows = events(Path("run"))
    assert [row["round"] for row in rows if row["event"] == "resume"] == [13]
    blocks = -(-9000 // BLOCK)
    assert {(row["down"], row["up"]) for row in rows if row["event"] == "arrival"} == {
        (36_000, 2 * (9000 + 4 * blocks))
    }
    assert tardygrad("replay", "run")[:2] == (0, "the same bits after 30 rounds\n")
    lines = (without_checks("run") / "events.jsonl").read_text().splitlines(keepends=True)
    Path("run/events.jsonl").write_text("".join(line for line in lines if '"event":"resume"' not in line))
    assert tardygrad("replay", "run")[0] == 1  # it had nothing to feed back to who was idle then


def test_statistics_of_batchnorm_and_the_state_that_clients_keep_replay_to_the_same_bits(
    cluster: Any, tmp_path: Path
) -> None:
    task, method = normed(), tg.fedavg(**KEEP)
    with tg.RayPool(task, method, workers=2, cpus_per_worker=0.0, evaluate="between") as pool:
        run = tg.begin(method, task, pool, rounds=24, out=tmp_path / "run")
        for row in run.go():
            if row["round"] == 11:
                run.stop()
        rest(pool)
        run = go(tg.resume(tmp_path / "run", method, task, pool))
    again = tg.replay(run)
    assert run.summary().delay_max > 1
    assert torch.equal(again.x, run.x)
    for mine, theirs in zip(again.server.module_buffers or (), run.server.module_buffers or (), strict=True):
        assert torch.equal(mine, theirs)
    assert again.server.client_states.keys() == run.server.client_states.keys() == set(range(4))
    for client, state in run.server.client_states.items():
        assert all(torch.equal(again.server.client_states[client][name], value) for name, value in state.items())


def test_states_on_workers_begin_anew_after_a_death_and_a_resume_and_replay_to_the_same_bits(
    cluster: Any, tmp_path: Path
) -> None:
    task = tg.tasks.quadratic(clients=4, dimension=9000)
    method = tg.diloco(**KEEP | {"keep": "worker"})
    engine: Any = {"workers": 2, "cpus_per_worker": 0.0, "evaluate": "between", "server_shards": 2}
    with tg.RayPool(task, method, **engine) as pool:
        run, killed = tg.begin(method, task, pool, rounds=10**6, evaluate_every=0, out=tmp_path / "run"), ""
        for _ in run.go():
            time.sleep(0.01)  # while a worker starts, few rounds are enough
            holders = [state.worker for state in run.server.client_states.values()]
            if len(holders) == 4 and not killed:
                killed = holders[0]
                ray.kill(pool.transport.holders[killed].actor)
            elif killed and killed not in holders:
                run.stop()
    before = [row for row in events(tmp_path / "run") if row["event"] == "arrival"]
    lost = [row for row in before if row.get("state_lost")]
    assert 1 <= len(lost) == len({row["client"] for row in lost}) <= 4  # those of one worker, once each
    assert {(row["down"], row["up"]) for row in before} == {(4 * 9000, 4 * 9000)}
    with tg.RayPool(task, method, **engine) as pool:
        run = go(tg.resume(tmp_path / "run", method, task, pool, rounds=run.server.round + 10))
    after = [row for row in events(tmp_path / "run") if row["event"] == "arrival"][len(before) :]
    firsts = {row["client"]: row.get("state_lost") for row in reversed(after)}
    assert set(firsts.values()) == {True}
    assert sum("state_lost" in row for row in after) == len(firsts)
    assert torch.equal(tg.replay(run).x, run.x)
    run.path, run._script = (
        None,
        [line._replace(state_lost=None) if hasattr(line, "state_lost") else line for line in run.script],
    )
    assert not torch.equal(tg.replay(run).x, run.x)


KEEP: Any = {
    "local_lr": 0.01, "optimizer": "AdamW", "keep": True, "mode": "client", "buffer": 2, "local_steps": 2
}  # fmt: skip


def normed() -> tg.TorchTask:
    def module() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))

    x = torch.from_numpy(np.random.default_rng(0).normal(size=(120, 3))).float()
    data = (x, (x.sum(1) > 0).long())
    return tg.TorchTask(module, loss=torch.nn.functional.cross_entropy, data=tg.shard(data, clients=4), test=data)


# ----------------------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("wire", "each", "scaled", "compensate"),
    [("float32", 4, False, False), ("bfloat16", 2, False, True), ("int8", 1, True, True)],
)
def test_the_bytes_of_an_update_are_those_that_travel(wire: Any, each: int, scaled: bool, compensate: bool) -> None:
    d = 9000
    task = tg.tasks.quadratic(clients=1, dimension=d)
    method = tg.clip2(
        local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=1, local_steps=1, mode="client", compensate=compensate
    )
    facts, first, second = hand(task, method, wire, [0, 2 * BLOCK, d])(task.init(0))[:3]
    assert facts.down == 4 * d
    assert facts.up == (2 if compensate else 1) * (each * d + (4 * 3 if scaled else 0))
    assert facts.up == sum(array.nbytes for part in (first, second) for arrays in part.values() for array in arrays)


def test_buffers_and_kept_state_are_bytes_too() -> None:
    task = normed()
    facts, part = hand(task, tg.fedavg(**KEEP), "float32", [0, task.parameters])(
        task.init(0), task.init_module_buffers()
    )
    module_buffers = sum(one.nbytes for one in task.init_module_buffers() or ())
    assert module_buffers > 0
    assert facts.down == 4 * task.parameters + module_buffers
    assert facts.up == 3 * 4 * task.parameters + 4 + module_buffers  # AdamW has two vectors and a count
    assert set(part["state"]) == {"inner.1.exp_avg", "inner.1.exp_avg_sq", "inner.1.step"}


def test_a_state_that_stays_on_its_worker_is_not_sent_and_outlives_a_refused_update() -> None:
    task = tg.tasks.quadratic(clients=1, dimension=50)
    method = tg.diloco(**KEEP | {"keep": "worker"})
    worker = WorkerProcess(ray.cloudpickle.dumps((task, method)), ray.cloudpickle.loads, 1, None, "float32", [0, 50])
    worker.ping()
    name, x = worker.name, task.init(0)

    def work(serial: int, state: Any) -> tuple[tg.Update, torch.Tensor]:
        header, part = worker.work(Job(0, serial, 0, NOTHING, 2, None, 0, None, state), None, x.numpy())
        return header, received(header, part).delta

    def expected(serial: int, state: Any) -> tg.Update:
        return tg.work(Job(0, serial, 0, x, 2, None, 0, None, state), task, method)

    first, _ = work(0, None)
    assert (first.state, first.state_lost, first.down, first.up) == (StateReference(name, 0), False, 200, 200)
    second, delta = work(1, first.state)
    ours = expected(0, None)
    assert torch.equal(delta, expected(1, ours.state).delta)
    assert (second.state, second.state_lost, second.down, second.up) == (StateReference(name, 1), False, 200, 200)
    third, delta = work(2, first.state)  # the server has refused the second
    assert torch.equal(delta, expected(2, ours.state).delta)
    assert not third.state_lost
    for gone in (second.state, StateReference("another", 2)):
        fourth, delta = work(3, gone)
        assert torch.equal(delta, expected(3, None).delta)
        assert fourth.state_lost


def test_a_state_that_is_not_finite_is_sent_so_that_the_server_refuses_it() -> None:
    task, method = tg.tasks.quadratic(clients=1, dimension=50), tg.diloco(**KEEP | {"keep": "worker"})
    header, part = hand(task, method, "float32", [0, 50])(torch.full((50,), 1e30))
    assert header.state is None
    assert not part["state"]["inner.1.exp_avg_sq"].max() < math.inf


def test_an_update_that_will_be_refused_feeds_nothing_back() -> None:
    """A replay does not compute it."""
    v, bad = torch.tensor([1.0, 0.3]), torch.tensor([1.0, torch.nan])
    update = tg.Update(0, 0, 0, v, v, tg.ModuleBuffers(v, torch.tensor([1])), state={"inner.m": v})
    _, errors = pack(update, {}, "int8")
    assert set(errors) == {"delta", "curvature"}
    buffers = tg.ModuleBuffers(bad, torch.tensor([1]))
    wrong: dict[str, Any] = {"delta": bad, "curvature": bad, "module_buffers": buffers, "state": {"inner.m": bad}}
    for name, value in wrong.items():
        spoilt = update._replace(**{name: value})
        assert pack(spoilt, errors, "int8")[1] is errors
        assert pack(spoilt, {}, "int8")[1] == {}
    assert pack(update, errors, "int8")[1]["delta"] is not errors["delta"]


def hand(task: Any, method: tg.Method, wire: Any, cuts: list[int]) -> Callable[..., Any]:
    """A worker in this process, at its first job."""
    worker = WorkerProcess(ray.cloudpickle.dumps((task, method)), ray.cloudpickle.loads, 1, None, wire, cuts)
    worker.ping()

    def work(x: torch.Tensor, module_buffers: Any = None) -> Any:
        arrays: Any = module_buffers and tg.ModuleBuffers(*(b.numpy() for b in module_buffers))
        return worker.work(Job(0, 0, 0, NOTHING, method.local_steps, None, 0, arrays), None, x.numpy())

    return work


# ---------------------------------------------------------------------------------------------------------- slices


def test_a_slice_that_dies_ends_the_run_which_goes_on_from_its_checkpoint_in_two_slices_or_one(
    cluster: Any, tmp_path: Path
) -> None:
    """That slices have the bits of the whole is in tests/engines/test_shards.py."""
    task = tg.tasks.quadratic(clients=3, dimension=9000)
    method = tg.clip2(
        local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=3, local_steps=2, mode="client", compensate=True
    )
    engine: Any = {"workers": 1, "cpus_per_worker": 0.0, "evaluate": "between"}
    settings: Any = {"rounds": 10**6, "evaluate_every": 0, "checkpoint_every": 4}
    others = hands("ServerShard")  # which are about to end
    with tg.RayPool(task, method, **engine, server_shards=2) as pool:
        run = tg.begin(method, task, pool, **settings, out=tmp_path / "two")
        rows = run.go()
        for _ in range(20):
            next(rows)
        os.kill(next(one for one in hands("ServerShard") if one not in others), signal.SIGKILL)
        with pytest.raises(tg.WorkFailed, match=r"a server shard has died\. Resume the run"):
            deque(rows)
        assert run.status == "failed"
        shutil.copytree(tmp_path / "two", tmp_path / "one")
        rest(pool)
        again = tg.resume(tmp_path / "two", method, task, pool, rounds=run.server.round + 5)
        assert run.server.round - 4 <= again.server.round <= run.server.round
        go(again)
    with tg.RayPool(task, method, **engine) as pool:
        other = go(tg.resume(tmp_path / "one", method, task, pool, rounds=run.server.round + 5))
    for one in (again, other):
        assert (one.status, one.server.round) == ("finished", run.server.round + 5)
        assert torch.equal(tg.replay(one).x, one.x)


def test_a_pool_with_slices_serves_a_loop_of_ones_own_and_a_second_run_leaves_the_first_its_model(cluster: Any) -> None:
    task = tg.tasks.quadratic(clients=2, dimension=9000)
    method = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=1, local_steps=2, mode="client")
    engine: Any = {"workers": 1, "cpus_per_worker": 0.0, "evaluate": "between", "server_shards": 2}
    with tg.RayPool(task, method, **engine) as pool:
        server = tg.serve(method, task.init(0), clients=2, seed=0, vectors=pool.vectors)
        deque(tg.drive(server, pool, 4))
        assert isinstance(server.vectors, ShardedVectors)
        assert (server.round, server.vectors.finite()) == (4, True)
        runs = [tg.train(method, task, pool, rounds=3, evaluate_every=0, seed=seed) for seed in (0, 1)]
        assert not torch.equal(runs[0].x, runs[1].x)
        own = tg.serve(method, task.init(0), clients=2, seed=0)
        with pytest.raises(tg.Invalid, match=r"not created with this pool's shards\. Pass it vectors=pool\.vectors"):
            next(tg.drive(own, pool))
        with pytest.raises(tg.Invalid, match=r"`tail_every` needs whole updates.*Use server_shards=1"):
            tg.begin(method, task, pool, rounds=2, tail_every=1)
    for run in runs:
        assert torch.equal(tg.replay(run).x, run.x)
