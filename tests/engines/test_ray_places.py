"""Where clients work: workers make the task themselves, and pinned clients work at their places only."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import tardygrad as tg
from tardygrad.constructors import call_of, make
from tardygrad.engines import real_time
from tardygrad.engines.ray import connection
from tardygrad.engines.ray.payload import pickled
from tardygrad.engines.ray.places import Places
from tardygrad.runs.events import Arrival, Dispatch, Join, Resume, kind_of, read_events
from tardygrad.runs.tables import table_of_call
from tardygrad.spec import spec
from tests.cli.conftest import Command

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.usefixtures("forked_ray_workers"),
    pytest.mark.timeout(900),  # a busy machine may take a minute to start a worker
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

METHOD = tg.clip2(local_lr=0.05, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client")


class LowRank(nn.Module):
    """A frozen matrix that is drawn at random, and a trained one of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(3, 1, bias=False), nn.Linear(1, 3, bias=False)
        self.register_buffer("scale", torch.rand(1), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.scale * self.up(self.down(x))


def own_task(folder: str, seeded: bool = True) -> tg.TorchTask:
    """Three clients, "c0" to "c2"; the folder shows which process has made the task, and which has read a client."""

    def read(client: str) -> Dataset[Any]:
        note("reads", client)
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(int(client[1:])))
        return TensorDataset(x, x.flip(1))

    def note(*words: Any) -> None:
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        (Path(folder) / "-".join([*words, str(os.getpid()), node])).touch()

    note("makes", "task")
    if not seeded:
        torch.seed()  # such as by the clock
    module = LowRank if seeded else LowRank()
    clients = ["c0", "c1", "c2"]
    return tg.TorchTask(module, data=read, clients=clients, loss=nn.functional.mse_loss, test=lambda: read("c3"))


def notes(folder: Path) -> set[tuple[str, str, int, str]]:
    """(what, of whom, process, node)"""
    found = (path.name.split("-") for path in folder.iterdir() if path.name.startswith(("reads", "makes")))
    return {(what, whom, int(process), node) for what, whom, process, node in found}


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=4, node_ip_address="127.0.0.1", resources={"site-a": 1})


def test_a_pinned_client_works_at_its_place_only_and_is_lost_for_as_long_as_that_is_gone(
    cluster: Any, tmp_path: Path
) -> None:
    """c0 is on a node of its own, whose worker is killed, and which then leaves and comes back; c1 at the head."""
    task = make(own_task, folder=str(tmp_path))
    nodes = [add_node(cluster)]
    place: Any = {"c0": "site-a", 1: "zone=b"}
    with tg.RayPool(task, METHOD, workers=1, place=place, cpus_per_worker=0.1, evaluate="between") as pool:
        assert pool.workers.shares == {"site-a": 1, "zone=b": 1, None: 1}
        run = tg.begin(METHOD, task, pool, rounds=10**6, evaluate_every=0, out=tmp_path / "run")

        def count(kind: type) -> int:
            return sum(isinstance(event, kind) and event.client == 0 for event in run.script)  # type: ignore[union-attr]

        def scenario() -> Iterator[Callable[[], bool]]:
            """Yields what to wait for, and then does the next thing."""
            yield lambda: count(Arrival) > 2
            (worker,) = (one for one in pool.workers.members if one.place == "site-a")
            os.kill(worker.process, signal.SIGKILL)
            yield lambda: count(Join) == 1
            arrivals = count(Arrival)
            yield lambda: count(Arrival) > arrivals
            cluster.remove_node(nodes[0])
            yield lambda: 0 in pool.absent
            round, joined, arrivals = run.server.round, count(Join), count(Arrival)
            yield lambda: run.server.round > round + 10
            assert "no machine of the cluster has the resource or label 'site-a'" in pool.status()
            assert (count(Join), count(Arrival)) == (joined, arrivals)
            assert 0 in {client for _, client, _ in pool.pending().due}  # a resumed run lets it join again
            nodes.append(add_node(cluster))
            yield lambda: count(Arrival) > arrivals
            run.stop()

        steps = scenario()
        holds = next(steps)
        for _ in run.go():
            time.sleep(0.005)
            if holds():
                holds = next(steps, bool)
    cluster.remove_node(nodes[1])
    faults = [(kind_of(event), event.client) for event in run.script if not isinstance(event, Arrival | Resume)]
    assert faults == [("loss", 0), ("join", 0)] * (len(faults) // 2)
    read = [note for note in notes(tmp_path) if note[0] == "reads"]
    assert {node for _, client, _, node in read if client == "c0"} == {node.node_id for node in nodes}
    assert {node for _, client, _, node in read if client == "c1"} == {cluster.head_node.node_id}
    assert os.getpid() not in {process for _, _, process, _ in read}
    arrivals = [event for event in read_events(tmp_path / "run/events.jsonl") if isinstance(event, Arrival)]
    workers = {str(event.worker) for event in arrivals if event.client == 0}
    assert {worker.partition(":")[0] for worker in workers} == {"site-a"}
    assert len(workers) == 3  # one after the other
    assert torch.equal(tg.replay(run).x, run.x)


def test_a_place_that_does_not_exist_ends_a_run_that_cannot_go_on(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, method = make(own_task, folder=str(tmp_path)), tg.clip2(
        local_lr=0.05, local_clip=1.0, lr=1.0, clip=0.5, buffer=3, local_steps=2, mode="sync"
    )  # fmt: skip
    said = r"no worker has answered for 4 s\. 2 of 3 workers have started: no machine .* or label 'nowhere'\.$"
    place: Any = {"c0": "nowhere", "c1": "zone=b"}
    pool = tg.RayPool(task, method, workers=2, place=place, cpus_per_worker=0.1, evaluate="between")
    with pool:
        monkeypatch.setattr(real_time, "TIMEOUT", 4.0)
        with pytest.raises(tg.WorkFailed, match=said):
            tg.train(method, task, pool, rounds=3, evaluate_every=0)
        workers = [*pool.workers.starting.values(), pool.workers.free[0]]
        assert [pool.session.loading([worker], 100.0) for worker in workers] == [False, True]  # if it has a process
        assert not pool.session.loading(workers, connection.LOAD_TIMEOUT)


def test_a_worker_makes_the_task_itself_and_refuses_one_that_is_not_the_drivers(cluster: Any, tmp_path: Path) -> None:
    task = make(own_task, folder=str(tmp_path), seeded=False)
    (tmp_path / "log").mkdir()
    said = "could not load the task: .*a worker must make the same task as the driver, and its `base.weight` differs"
    with pytest.raises(tg.WorkFailed, match=said), tg.RayPool(task, METHOD, workers=1, evaluate="between"):
        pass
    makers = {process for what, _, process, _ in notes(tmp_path) if what == "makes"}
    assert os.getpid() in makers
    assert len(makers) > 1


LORA = """
[task]
kind = "causal_lm"
data = "texts.jsonl"
by = "user"
config = {model_type = "llama", hidden_size = 16, intermediate_size = 9, num_hidden_layers = 1, num_attention_heads = 2}
lora = {r = 2, target = ["q_proj", "v_proj"]}

[method]
kind = "fedbuff"
local_lr = 0.03
optimizer = "AdamW"
buffer = 2
local_epochs = 1

[engine]
kind = "ray"
workers = 2
cpus_per_worker = 0.1
evaluate = "between"
place = {anna = "zone=b", ben = "zone=b"}

[run]
rounds = 8
evaluate_every = 4
"""


def test_lora_on_ray_replays_and_is_simulated_with_the_same_arrivals_to_the_same_bits(
    cluster: Any, tardygrad: Command
) -> None:
    pytest.importorskip("peft", reason="needs the extra hf")
    rows = [
        {"text": f"{user} says {i} " + "word " * (i % 4), "user": user} for user in ("anna", "ben") for i in range(9)
    ]
    Path("texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    Path("lora.toml").write_text(LORA)
    cache = f"task.cache={Path.cwd()}"  # workers have another working directory
    assert tardygrad("run", "lora.toml", cache, "--out", "run").code == 0
    assert tardygrad("replay", "run")[:2] == (0, "the same bits after 8 rounds\n")
    sent, seconds = dict[tuple[int, int], float](), {0: [], 1: []}
    for event in read_events(Path("run/events.jsonl")):
        if isinstance(event, Dispatch):
            sent[event.client, event.serial] = event.time
        elif isinstance(event, Arrival):
            seconds[event.client].append(event.time - sent[event.client, event.serial])
    groups = [tg.Group(f"client {c}", 1, tg.Trace((*times, 1e6))) for c, times in seconds.items()]
    built = spec.load("run").build()
    simulated = tg.simulate(built.method, built.task, tg.Fleet(tuple(groups)), rounds=8, evaluate_every=0)
    assert torch.equal(simulated.x, load_file("run/model.safetensors")["x"])


# Without Ray.


def big_task(rows: int) -> tg.TorchTask:
    x = torch.zeros(rows, 3)
    data = [TensorDataset(x, x)] * 3
    return tg.TorchTask(LowRank, data=data, loss=nn.functional.mse_loss)


def test_a_task_with_a_recipe_travels_without_its_data_and_one_without_it_with_them() -> None:
    task = make(big_task, rows=100_000)
    small, large = (len(pickled(one, METHOD, ray.cloudpickle.dumps)) for one in (task, big_task(100_000)))
    assert small < 20_000
    assert large > 1_000_000
    again, _ = ray.cloudpickle.loads(pickled(task, METHOD, ray.cloudpickle.dumps))
    assert torch.equal(again.init(3), task.init(3))
    assert {name: v.tolist() for name, v in again.frozen().items()} == {
        name: v.tolist() for name, v in task.frozen().items()
    }
    assert task.frozen().keys() == {"base.weight", "base.bias", "scale"}


def test_opened_data_of_a_function_stay_in_their_process() -> None:
    opened: list[int] = []

    def read(client: int) -> Dataset[Any]:
        opened.append(client)
        return TensorDataset(torch.zeros(100_000, 3), torch.zeros(100_000, 3))

    task = tg.TorchTask(LowRank, data=read, clients=2, loss=nn.functional.mse_loss)
    before = len(pickled(task, METHOD, ray.cloudpickle.dumps))
    assert not opened
    next(iter(task.batches(tg.Job(1, 0, 0, task.init(0), 1, None, 0))))
    assert opened == [1]
    assert abs(len(pickled(task, METHOD, ray.cloudpickle.dumps)) - before) < 1000


def test_workers_are_spread_over_places_by_their_clients() -> None:
    task = tg.Task()
    task.clients, task.ids = 7, tuple("abcdefg")
    places = Places(task, {"a": "x", 1: "x", "2": "x", "d": "y"})
    assert [places.of(client) for client in range(7)] == ["x", "x", "x", "y", None, None, None]
    assert places.spread(1) == {"x": 1, "y": 1, None: 1}
    assert places.spread(6) == {"x": 2, "y": 1, None: 3}
    assert Places(task, None).spread(4) == {None: 4}


def test_a_task_says_where_its_clients_are_and_the_engines_setting_has_the_last_word() -> None:
    class Somewhere(tg.Task):
        clients = 3

        def where(self, client: int) -> str | None:
            return None if client == 2 else f"site-{client}"

    places = Places(Somewhere(), {1: "other"})
    assert [places.of(client) for client in range(3)] == ["site-0", "other", None]


def test_places_are_recorded_by_the_texts_of_their_clients() -> None:
    pool = tg.RayPool(tg.tasks.quadratic(clients=5, dimension=4), METHOD, place={0: "x", "1": "y"})
    assert table_of_call("engine", call_of(pool))["place"] == {"0": "x", "1": "y"}
    clients = {name: TensorDataset(torch.ones(2, 3), torch.ones(2, 3)) for name in ("1", "0", "c")}
    task = tg.TorchTask(LowRank, data=clients, loss=nn.functional.mse_loss)
    pool = tg.RayPool(task, METHOD, place={0: "x", "c": "y"})
    recorded = table_of_call("engine", call_of(pool))["place"]
    assert recorded == {"1": "x", "c": "y"}  # as text, 0 would be the second client
    again = Places(task, recorded)
    assert [again.of(client) for client in range(3)] == [pool.places.of(client) for client in range(3)]


@pytest.mark.parametrize(
    ("place", "said"),
    {
        "an unknown client": ({"9": "x"}, "the keys of `place` must be numbers of clients, 0 to 4, got '9'"),
        "no text": ({0: 3}, r"`place\[0\]` must be a string, got 3"),
        "no name": ({0: "two words"}, "got 'two words' for client 0"),
        "all CPUs": ({0: "CPU"}, "got 'CPU' for client 0"),
    }.values(),
)  # fmt: skip
def test_wrong_places_are_refused(place: Any, said: str) -> None:
    with pytest.raises(tg.Invalid, match=said):
        tg.RayPool(tg.tasks.quadratic(clients=5, dimension=4), METHOD, place=place)
