"""Jobs as messages of a Flower app: the contract, and nodes that die, hang, forget and return, on a grid of threads."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import cloudpickle
import pytest
import torch
from torch import nn

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.engines import real_time
from tardygrad.engines.flower import nodes as node_list
from tardygrad.engines.flower import pool as flower_pool
from tardygrad.engines.flower import records
from tardygrad.engines.flower.connection import NodeReply, parent_has_ended
from tardygrad.engines.wire import send
from tests.engines.contract import CLIENTS, PoolContract

pytest.importorskip("flwr")
from tests.engines.flower_grid import CRASHED, Grid, arrays_are_read_one_at_a_time  # noqa: F401

NOISE = tg.Noise(kind="student", tail=1.5, scale=0.1)


METHOD = tg.clip2(
    local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client", compensate=True
)


@contextmanager
def opened(task: Any, method: tg.Method, grid: Grid | None = None, **options: Any) -> Iterator[Any]:
    grid = grid or Grid(tg.flower.client_app(lambda context: (method, task)))
    try:
        with tg.flower.FlowerPool(task, method, grid=grid, **({"wait": 30.0} | options)) as pool:
            yield pool
    finally:
        grid.close()


class TestFlowerPool(PoolContract):
    """Six clients, six nodes."""

    def pool(self, task: Any, method: tg.Method) -> Any:
        return opened(task, method)


class TestFlowerPoolWithInt8(PoolContract):
    @pytest.fixture
    def method(self) -> tg.Method:
        return METHOD

    def pool(self, task: Any, method: tg.Method) -> Any:
        return opened(task, method, wire="int8")


@pytest.fixture(autouse=True)
def _nodes_are_listed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_list, "NODES_EVERY", 0.05)


def both(context: Any) -> Any:
    """Method and task of a node."""
    return METHOD, tg.tasks.quadratic(clients=CLIENTS, dimension=4, heterogeneity=1.0, noise=NOISE)


@pytest.fixture
def task() -> Any:
    return both(None)[1]


def jobs(task: Any, clients: Any = range(CLIENTS)) -> list[Job]:
    x = task.init(0)
    return [Job(client, 0, 0, x, 2, None, 0) for client in clients]


def kinds(messages: list[Any]) -> list[tuple[str, int]]:
    return [(type(one).__name__, one.client) for one in messages]


def message_of(pool: Any, client: int) -> str:
    """The id of the message with a client's job."""
    return next(name for name, one in pool.running.items() if one.job.client == client)


def test_a_client_whose_node_is_gone_joins_again_with_another_node(task: Any) -> None:
    grid = Grid(tg.flower.client_app(both))
    node = grid.node_of(4)
    grid.held[node] = threading.Event()
    with opened(task, METHOD, grid) as pool:
        for job in jobs(task):
            pool.submit(job)
        grid.kill(node)
        first = [pool.next() for _ in range(CLIENTS)]
        assert sorted(kinds(first)) == sorted(
            [("Lost", 4), *(("Update", client) for client in range(6) if client != 4)]
        )
        assert pool.status().startswith("1 of 6 clients have no node: 4.")
        grid.add(4)
        assert kinds([pool.next()]) == [("Joined", 4)]
        assert pool.status() == ""
        pool.submit(jobs(task, [4])[0])
        assert kinds([pool.next()]) == [("Update", 4)]
        assert pool.next() is None


def test_a_crash_loses_the_job_only(task: Any) -> None:
    grid = Grid(tg.flower.client_app(both))
    grid.held[grid.node_of(1)] = threading.Event()
    with opened(task, METHOD, grid) as pool:
        pool.submit(jobs(task, [1])[0])
        grid.fail(message_of(pool, 1), CRASHED)
        assert kinds([pool.next(), pool.next()]) == [("Lost", 1), ("Joined", 1)]


def test_a_hung_job_is_lost_and_its_client_joins_again_when_the_late_update_is_there(task: Any) -> None:
    grid = Grid(tg.flower.client_app(both))
    with opened(task, METHOD, grid, grace=0.3, patience=0.0) as pool:
        for client in range(CLIENTS):
            pool.deadlines.took(client, 0.01)
        grid.held[grid.node_of(3)] = threading.Event()
        pool.submit(jobs(task, [3])[0])
        assert kinds([pool.next()]) == [("Lost", 3)]
        assert "clients have no node: 3." in pool.status()
        assert pool.pending().due == [(pytest.approx(pool.now, abs=5), 3, 0)]
        grid.held[grid.node_of(3)].set()
        assert kinds([pool.next(), pool.next()]) == [("Update", 3), ("Joined", 3)]


def test_without_any_answer_the_run_fails(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_pool, "TIMEOUT", 0.2)
    monkeypatch.setattr(real_time, "TIMEOUT", 0.2)
    grid = Grid(tg.flower.client_app(both), [0, 1], of=2)
    with opened(task, METHOD, grid) as pool:
        grid.online.clear()
        pool.submit(jobs(task)[0])
        assert kinds([pool.next()]) == [("Lost", 0)]
        with pytest.raises(tg.WorkFailed, match=r"no worker has answered for 0\.2 s\. 6 of 6 clients have no node"):
            pool.next()
    with pytest.raises(tg.WorkFailed, match=r"no node has answered for \d s\. 6 of 6 .* Start SuperNodes with these"):
        tg.flower.FlowerPool(task, METHOD, grid=Grid(None, []), wait=0.1).__enter__()


def run_until_all_are_served(task: Any, pool: Any) -> tg.Run:
    """A run that stops as soon as every client has contributed."""
    run, served = tg.begin(METHOD, task, pool, rounds=300), set[int]()
    for row in run.go():
        served |= set(row["clients"])
        if served == set(range(6)):
            run.stop()
    assert served == set(range(6))
    return run


@pytest.mark.parametrize("partitions", [[0, 1], [5, None, 3, 0, None, None]])
def test_any_federation_can_serve_all_clients(task: Any, partitions: list[int | None]) -> None:
    of = 2 if len(partitions) == 2 else 6
    with opened(task, METHOD, Grid(tg.flower.client_app(both), partitions, of=of)) as pool:
        assert pool.parallel == len(partitions)
        run = run_until_all_are_served(task, pool)
    assert torch.equal(tg.replay(run).x, run.x)


def test_a_node_without_a_partition_makes_way_for_one_with_it(task: Any) -> None:
    grid = Grid(tg.flower.client_app(both), [None] * 3)
    with opened(task, METHOD, grid, wait=0.1) as pool:  # they work for clients 0, 1 and 2
        for partition in (0, 3, 5):
            grid.add(partition)
        run_until_all_are_served(task, pool)


def test_a_start_vector_is_written_once_for_all_jobs_of_a_round(task: Any) -> None:
    grid = Grid(tg.flower.client_app(both))
    with opened(task, METHOD, grid) as pool:
        for job in jobs(task):
            pool.submit(job)
        starts = [one.content["start"] for one in grid.sent if "start" in one.content]
        assert len(starts) == CLIENTS
        assert len({id(one) for one in starts}) == 1
        list(iter(pool.next, None))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x: Any) -> Any:
        return self.norm(self.layer(x))


def normed_task() -> Any:
    rows = torch.randn(48, 3, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 2
    data = torch.utils.data.TensorDataset(*rows)
    parts = [torch.utils.data.Subset(data, range(client, 48, CLIENTS)) for client in range(CLIENTS)]
    return tg.TorchTask(Normed, data=parts, loss=nn.functional.cross_entropy, test=data, batch_size=4)


@pytest.mark.parametrize(("wire", "keep"), [("float32", True), ("int8", "worker")])
def test_states_buffers_and_wires_replay_to_the_same_bits(tmp_path: Path, wire: Any, keep: Any) -> None:
    own = normed_task()
    method = tg.diloco(local_lr=0.01, lr=0.7, buffer=2, local_steps=3, mode="client", keep=keep)
    grid = Grid(tg.flower.client_app(lambda context: (method, own)))
    with opened(own, method, grid, wire=wire) as pool:
        run = tg.begin(method, own, pool, rounds=12, checkpoint_every=1, out=tmp_path / "run")
        for row in run.go():
            if row["round"] == 6:
                break
            grid.forget(grid.node_of(row["round"]))
    assert torch.equal(tg.replay(run).x, run.x)
    grid = Grid(tg.flower.client_app(lambda context: (method, own)), reversed(range(6)))  # other node ids
    with opened(own, method, grid, wire=wire) as pool:
        resumed = tg.resume(tmp_path / "run", method, own, pool)
        list(resumed.go())
    again = tg.replay(resumed)
    assert torch.equal(again.x, resumed.x)
    assert torch.equal(again.module_buffers.floats, resumed.module_buffers.floats)  # type: ignore[union-attr]
    arrivals = [line for line in (tmp_path / "run/events.jsonl").read_text().splitlines() if '"arrival"' in line]
    assert ("state_lost" in "".join(arrivals)) == (keep == "worker")


def app_with(handlers: dict[str, Callable[[Any, Any], Any]]) -> Any:
    from tardygrad.engines.flower import connection

    return connection.client_app(handlers, [])


def differing(**changed: Any) -> Any:
    """A ClientApp with a task or a method of other settings."""
    size = {"dimension": 4, "heterogeneity": 1.0, "noise": NOISE} | changed
    method = replace(METHOD, local_steps=size.pop("local_steps", 2))
    return tg.flower.client_app(lambda context: (method, tg.tasks.quadratic(clients=CLIENTS, **size)))


@pytest.mark.parametrize(
    ("app", "text"),
    [
        (
            lambda: differing(dimension=5),
            r"and task as the server, and its `parameters` differs\.",
        ),
        (lambda: differing(heterogeneity=0.5), "and its `task.heterogeneity` differs. Give client_app the same"),
        (lambda: differing(local_steps=3), r"its `method.local_steps` differs\. .* and the same files\.$"),
        (lambda: tg.flower.client_app("quadratic"), "and its `clients` differs"),
        (lambda: tg.flower.client_app(lambda context: (METHOD, 3)), "a task must be a tardygrad.Task"),
        (
            lambda: tg.flower.client_app(lambda context: METHOD),
            "must return a method and a task, got Method",
        ),
        (
            lambda: app_with({}),
            r"cannot take part: its ClientApp is not one of tardygrad. Use tardygrad.flower.client_app, or",
        ),
    ],
)
def test_an_unsuitable_client_app_ends_the_run(task: Any, app: Callable[[], Any], text: str) -> None:
    with pytest.raises(tg.WorkFailed, match=text), opened(task, METHOD, Grid(app())) as pool:
        tg.train(METHOD, task, pool, rounds=2)


def test_settings_that_a_machine_chooses_or_nothing_says_may_differ(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"clients": 2, "context": 4, "dim": 4, "depth": 1, "heads": 1}
    (tmp_path / "text.txt").write_text("now is the time for all good men " * 20)
    here, elsewhere = (tg.tasks.lm(text=text, **sizes) for text in (str(tmp_path / "text.txt"), "python"))
    nameless = replace(METHOD)  # as no constructor made it
    records.check_settings(records.settings_of(METHOD, here), records.settings_of(nameless, elsewhere))
    rows = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.zeros(4, 2))
    own, other = (tg.TorchTask(nn.Linear(3, 2), data=[rows] * 2, loss=nn.functional.mse_loss) for _ in "ab")
    records.check_settings(records.settings_of(METHOD, own), records.settings_of(METHOD, other))


@pytest.mark.parametrize(("code", "text"), [(0, "does not know"), (99, "99")])
def test_an_error_of_flower_ends_the_run(task: Any, code: int, text: str) -> None:
    grid = Grid(tg.flower.client_app(both))
    with opened(task, METHOD, grid) as pool:
        grid.held[grid.node_of(0)] = threading.Event()
        pool.submit(jobs(task)[0])
        grid.fail(message_of(pool, 0), code)
        with pytest.raises(
            tg.WorkFailed, match=rf"the work of client 0, job 0, from round 0 on node \d+ failed: .*{text}.*: reason"
        ):
            pool.next()


class Copies:
    """A ClientApp of which every message gets a copy, as in a simulation."""

    def __init__(self, app: Any) -> None:
        self.pickled = cloudpickle.dumps(app)

    def __call__(self, message: Any, context: Any) -> Any:
        return cloudpickle.loads(self.pickled)(message, context)


NODES_OF_TASKS: list[int] = []


def counted(context: Any) -> Any:
    NODES_OF_TASKS.append(context.node_id)
    return both(context)


def test_a_process_makes_method_and_task_of_a_node_once(task: Any) -> None:
    NODES_OF_TASKS.clear()
    with opened(task, METHOD, Grid(Copies(tg.flower.client_app(counted)))) as pool:
        tg.train(METHOD, task, pool, rounds=9)
    assert sorted(NODES_OF_TASKS) == sorted(set(NODES_OF_TASKS))


def test_the_run_config_overrides_the_spec_on_the_server_and_on_nodes(tmp_path: Path) -> None:
    method = {"kind": "clip2", "local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 2}
    spec = {"task": {"kind": "quadratic", "clients": CLIENTS}, "method": method | {"local_steps": 2}}
    config: dict[str, Any] = {"out": str(tmp_path / "run"), "task.dimension": 5, "method.local_steps": 3}
    for nodes in (config, {}):
        grid = Grid(tg.flower.client_app(spec))
        for context in grid.contexts.values():
            context.run_config = nodes
        with nullcontext() if nodes else pytest.raises(tg.WorkFailed, match="its `parameters` differs"):
            tg.flower.server_app(spec, rounds=2)(grid, SimpleNamespace(run_config=config))  # type: ignore[arg-type]
        grid.close()
        config["out"] += "2"
    recorded = json.loads((tmp_path / "run/spec.json").read_text())["spec"]
    assert (recorded["task"]["dimension"], recorded["method"]["local_steps"], recorded["run"]["rounds"]) == (5, 3, 2)


def test_a_job_names_no_code_and_no_file(task: Any) -> None:
    grid = Grid(tg.flower.client_app(both))
    with opened(task, METHOD, grid) as pool:
        pool.submit(jobs(task)[0])
        pool.next()
    (job,) = (dict(one.content["job"]) for one in grid.sent if "job" in one.content)
    texts = {name: value for name, value in job.items() if isinstance(value, str)}
    assert texts.keys() == {"settings", "wire", "seed"}
    assert all(type(value) is int for value in json.loads(texts["settings"]).values())


def test_a_node_says_why_its_update_is_not_finite(task: Any) -> None:
    wild = tg.sgdclip(local_lr=1e38, local_clip=float("inf"), lr=1.0, buffer=2, local_steps=3)
    with opened(task, wild) as pool:
        pool.submit(jobs(task)[2]._replace(steps=3))
        assert pool.next().fault.startswith("the loss of client 2 overflows in step 2: use a smaller local_lr")


def test_a_node_answers_only_for_the_client_that_it_was_asked_for(task: Any) -> None:
    with opened(task, METHOD) as pool:
        first, second, *_ = jobs(task)
        pool.submit(first)
        update = pool.next()
        content = records.reply_content(update, {"delta": send(update.delta, None, "float32")[0]}, down=0, host="here")
        with pytest.raises(ValueError, match=r"it names client, job and round \(0, 0, 0\)"):
            pool.messages.update(second, content, "1")


@pytest.mark.parametrize("answer", [{"num-partitions": 2.5}, {"host": None}, {"partition-id": True}])
def test_a_node_whose_answer_makes_no_sense_cannot_take_part(answer: dict[str, Any]) -> None:
    facts = {"host": "here", "own-data": False, "partition-id": 0, "num-partitions": 6} | answer
    facts = {name: value for name, value in facts.items() if value is not None}
    messages, no_link = records.JobMessages(tg.tasks.quadratic(clients=6), METHOD, "float32"), Mock()
    some = node_list.Nodes(no_link, 6, messages)
    some.asked["question"] = 7
    with pytest.raises(tg.WorkFailed, match="node 7 cannot take part: its answer is not as expected: "):
        some.answered(NodeReply("question", {"node": facts}))
    assert some.available == []


def test_a_node_that_joins_late_and_cannot_take_part_does_not_end_the_run(
    task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Grid(tg.flower.client_app(both), range(5))
    with opened(task, METHOD, grid, wait=0.1) as pool:
        grid.add(6)  # of six
        run = tg.begin(METHOD, task, pool, rounds=10**6)
        for row in run.go():
            if "got 6 and 6 from node" in capsys.readouterr().err:
                grid.add(5)
            if 5 in row["clients"]:
                break
    assert len([one for one in grid.sent if one.metadata.message_type.startswith("query")]) == 7


def test_ctrl_c_and_the_end_of_flower_stop_runs_and_those_that_wait_for_nodes(
    task: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with opened(task, METHOD) as pool:
        run = tg.begin(METHOD, task, pool, rounds=10**6, out=tmp_path / "run")
        with flower_pool.stopping_on_interrupt():
            signal.raise_signal(signal.SIGINT)
        list(run.go())
        assert (run.status, signal.getsignal(signal.SIGINT)) == ("stopped", before)
    with pytest.raises(KeyboardInterrupt), flower_pool.stopping_on_interrupt():
        signal.raise_signal(signal.SIGINT)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    monkeypatch.setattr("sys.argv", ["flwr-simulation", "--parent-pid", str(ended.pid)])
    with pytest.raises(tg.Interrupted):
        tg.flower.FlowerPool(task, METHOD, grid=Grid(None, [])).__enter__()
    monkeypatch.setattr("os.kill", Mock(side_effect=PermissionError))
    assert not parent_has_ended(), "it runs as another user"


def test_telemetry_is_off_even_if_flower_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore import telemetry

    from tardygrad.engines.flower.connection import flwr

    monkeypatch.setattr(telemetry, "FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    flwr.cache_clear()
    flwr()
    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"


def simulate(**changed: Any) -> None:
    apps = {"server": tg.flower.server_app("digits"), "client": tg.flower.client_app("digits")}
    tg.flower.simulate(**(apps | {"nodes": 2} | changed))


def serve(config: dict[str, Any], source: Any = "digits") -> None:
    tg.flower.server_app(source)(Grid(None, []), SimpleNamespace(run_config=config))  # type: ignore[arg-type]


def test_wrong_uses_are_refused_in_one_sentence(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, pool = Grid(None, []), tg.flower.FlowerPool
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: pool(task, METHOD), "needs the grid of a running Flower app, got none. Start the app with flwr run"),
        (lambda: pool(task, METHOD, grid=grid).submit(jobs(task)[0]), "use a FlowerPool inside its `with` block."),
        (lambda: pool(task, METHOD, grid=grid, ttl=0.0), "`ttl` must be a finite number, above 0, got 0.0."),
        (
            lambda: tg.flower.client_app(3),
            "`client_app` needs a spec or a function that returns method and",
        ),
        (lambda: tg.flower.client_app("digits", mods=["a"]), "`mods` must be a list of functions, got 'a'."),
        (lambda: simulate(cpus=2, cpus_per_node=4.0), "must be at most the CPUs that Ray has, 2, got 4. Set `cpus`."),
        (lambda: simulate(server=3), "`server` must be a ServerApp of Flower, got int."),
        (
            lambda: tg.flower.identify(tg.flower.client_app(both)),
            "not identified before, got one that refuses",
        ),
        (lambda: tg.flower.squares(3), "`squares` needs the tg.SquaredMoves(model) of a train function, got int."),
        (lambda: serve({"engine.kind": "ray"}), "`engine.kind` of a Flower app must be flower, got 'ray'."),
        (lambda: serve({"resume": "false"}), "`resume` in the run config must be true or false, got 'false'."),
        (lambda: serve({}, lambda context: (task, METHOD)), "return a method and a task, got Quadratic, Method."),
    ]
    for call, text in calls:
        with pytest.raises(tg.Invalid, match=re.escape(text)):
            call()
    with pytest.raises(
        tg.Invalid, match="`partition-id` of a node must be at least 0 and below `num-partitions`, got 6 "
    ):
        pool(task, METHOD, grid=Grid(tg.flower.client_app(both), [6])).__enter__()
    monkeypatch.setattr(grid, "get_node_ids", lambda: 1 / 0)
    with pytest.raises(tg.WorkFailed, match="Flower's SuperLink could not list its nodes: ZeroDivisionError: division"):
        pool(task, METHOD, grid=grid).__enter__()
