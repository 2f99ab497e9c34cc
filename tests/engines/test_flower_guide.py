"""The guide in docs/flower.md, followed literally on an app like Flower's template; and apps that do not fit."""

from __future__ import annotations

import importlib
import json
import math
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tardygrad as tg
from tardygrad.engines.flower import pool as flower_pool
from tardygrad.engines.flower.records import array_record
from tardygrad.engines.flower.weights import WeightMessages, WeightsTask
from tardygrad.runs.record import read_lines
from tests.cli.conftest import Command

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.engines.flower_grid import Grid, arrays_are_read_one_at_a_time  # noqa: F401

TEMPLATE = Path(__file__).parent / "flower_template"
GUIDE = Path(__file__).parents[2] / "docs/flower.md"


def changes() -> list[tuple[str, list[str]]]:
    """The guide's changes: a file, and the lines of a difference."""
    text = GUIDE.read_text("utf-8").partition("## Make your Flower app asynchronous")[2]
    blocks = re.findall(r"```diff\n--- (\S+)\n(.*?)```", text, re.DOTALL)
    return [(name, lines.splitlines()) for name, lines in blocks]


def follow(folder: Path, name: str, lines: list[str]) -> int:
    """Make a change; returns how many lines it adds or removes."""
    old, new = ("".join(f"{line[1:]}\n" for line in lines if line[:1] != sign) for sign in "+-")
    text = (folder / name).read_text()
    assert text.count(old) == 1, f"{name} does not have these lines once:\n{old}"
    (folder / name).write_text(text.replace(old, new))
    return sum(line[:1] in "+-" for line in lines)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "app"
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    forget_app()  # another test may have imported the template
    yield folder
    forget_app()


def forget_app() -> None:
    for name in ("task", "client_app", "server_app"):
        sys.modules.pop(name, None)


def run_app(rounds: int) -> Grid:
    client, server = (importlib.import_module(name) for name in ("client_app", "server_app"))
    grid, context = Grid(client.app), SimpleNamespace(run_config={"num-server-rounds": rounds})
    try:
        server.app(grid, context)
    finally:
        grid.close()
    return grid


def test_the_guide_makes_an_app_asynchronous_in_fewer_than_25_lines(app: Path) -> None:
    torch.manual_seed(0)
    every = changes()
    assert len(every) == 8
    plain = sum(follow(app, *change) for change in every[:2])
    run_app(rounds=20)
    out = app.parent / "runs/async"
    assert accuracy(out) > 0.8
    shutil.rmtree(out)
    forget_app()
    compensated = sum(follow(app, *change) for change in every[2:])
    grid = run_app(rounds=20)
    assert accuracy(out) > 0.8
    assert plain + compensated < 25
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    weights = torch.load(app.parent / "final_model.pt")
    assert int(weights["norm.num_batches_tracked"]) > 0


def accuracy(folder: Path) -> float:
    return float(json.loads((folder / "summary.json").read_text())["accuracy"])


def client_of(reply: Callable[[dict[str, np.ndarray]], dict[str, Any]]) -> Any:
    """A ClientApp whose reply is made of the arrays that it got."""
    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        return Message(RecordDict(reply(arrays)), reply_to=message)

    return app


def record(arrays: dict[str, np.ndarray]) -> Any:
    return array_record(arrays)


START = {"w": np.ones((2, 2), np.float64), "count": np.array([3]), "running_mean": np.zeros(2, np.float32)}


def moved(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    arrays = {name: np.asarray(array + 1) for name, array in arrays.items()}
    return {"arrays": record(arrays), "metrics": MetricRecord({"loss": 0.5, "num-examples": 4})}


def raising(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    raise ValueError("out of cheese\nand wine.")


def returning(squares: dict[str, Any] | None = None, **changed: Any) -> Callable[[dict[str, np.ndarray]], Any]:
    """A train function whose reply has other arrays, and squares."""
    return lambda arrays: {"arrays": record(arrays | changed)} | ({"squares": record(squares)} if squares else {})


def with_metrics(**metrics: Any) -> Callable[[dict[str, np.ndarray]], Any]:
    return lambda arrays: {"arrays": record(arrays), "metrics": MetricRecord(metrics)}


def start(client: Any, method: tg.Method, *, start: dict[str, Any] | None = None, **options: Any) -> Any:
    grid = Grid(client, range(3), of=3)
    arguments = {"initial_arrays": record(START), "num_rounds": 4} | (start or {})
    try:
        return tg.flower.AsyncStrategy(method, **options).start(grid, **arguments)
    finally:
        grid.close()


FEDAVG = tg.fedavg(buffer=2, local_epochs=1, mode="client")
SAMPLES = tg.fedavg(buffer=2, local_epochs=1, weight_by="samples")
DC = tg.clip2(lr=1.0, clip=0.1, buffer=2, local_epochs=1, compensate=True)


def test_only_the_difference_of_weights_is_needed(tmp_path: Path) -> None:
    result = start(client_of(moved), FEDAVG, out=tmp_path / "run", clients=3)
    weights = {name: array.numpy() for name, array in result.arrays.items()}
    assert {name: (array.shape, array.dtype) for name, array in weights.items()} == {
        name: (array.shape, array.dtype) for name, array in START.items()
    }
    assert np.array_equal(weights["w"], np.full((2, 2), 5.0))  # every round moves all by one
    assert weights["count"] > 3
    assert result.run.metrics[-1]["loss"] == 0.5
    assert repr(result) == f"AsyncResult(arrays={list(START)}, run={result.run})"  # not the bytes
    with pytest.raises(tg.Invalid, match="the run cannot be replayed: only the clients' own ClientApp can do the jobs"):
        tg.replay(result.run)


@pytest.mark.parametrize(
    ("reply", "options", "text"),
    [
        (lambda arrays: {}, {}, "it must have one ArrayRecord with the trained weights, got none."),
        (raising, {}, r"failed: the ClientApp raised an error: ValueError: out of cheese and wine\.$"),
        (returning(w=np.ones(3)), {}, r"got shape \[3\] for 'w' in place of shape"),
        (returning(w=np.ones((2, 2), int)), {}, "of type int64 for 'w' in place of float64"),
        (returning({"module.w": np.ones((2, 2))}), {"method": DC}, "squares .* for 'module.w' in place of none"),
        (moved, {"method": DC}, r'Add {"squares": tg.flower.squares\(moves\)} to the reply, or leave out'),
        (moved, {"method": SAMPLES, "samples": [1, 1, 2.5]}, "`samples of client 2` must be .* got 2.5"),
        (moved, {"method": tg.fedavg(local_lr=0.1, buffer=2, local_epochs=1)}, "Leave out `local_lr`"),
        (moved, {"module_buffers": "("}, r"`module_buffers` must be a regular expression, got '\(': missing"),
        (moved, {"start": {"train_config": {"lr": None}}}, "`train_config` cannot be sent: TypeError"),
        (moved, {"start": {"evaluate_config": {"lr": 1}}}, "`evaluate_config` must be empty, because clients are not"),
        (moved, {"method": SAMPLES, "samples": [1, 1, 1, 1]}, "rows of each of the 3 clients, got 4. Pass them:"),
        (ClientApp(), {}, r"No train function .* Write its train function with @app.train\(\)\.$"),
        (ClientApp(client_fn=lambda context: None), {}, "It has a client_fn, as in older versions of Flower: write"),
        (with_metrics(loss=[1, 2]), {}, "the training loss in its metrics must be a number, got .1, 2."),
        (with_metrics(steps=math.inf), {}, r"`steps` must be a whole number, 0 or more, got inf\."),
        (with_metrics(steps=-3), {}, r"`steps` must be a whole number, 0 or more, got -3\."),
        (moved, {"start": {"initial_arrays": [1]}}, "an ArrayRecord, got list. Use ArrayRecord"),
        (moved, {"start": {"initial_arrays": record({"w": np.array([math.nan])})}}, "initial weights must be finite"),
        (moved, {"start": {"initial_arrays": record({"n": np.array([1])})}}, "have floating-point arrays, got .'n'."),
        (moved, {"start": {"evaluate_fn": 3}}, "`evaluate_fn` must be a function of a round and an ArrayRecord, got 3"),
        (moved, {"start": {"evaluate_fn": lambda t, x: 0.5}}, "must return a MetricRecord of numbers, got 0.5"),
        (moved, {"engine": {"grid": 3}}, "`engine` must have only settings of a FlowerPool, such as .*, got `grid`."),
        (
            moved,
            {"start": {"initial_arrays": record({"w": np.array([1j])})}},
            "be real numbers, got complex128 for 'w'",
        ),
        (moved, {"start": {"timeout": 0}}, "`timeout` must be a finite number, above 0, got 0."),
        (moved, {"start": {"resume": True}}, "`resume` needs `out`, the directory of the run's record, got 'none'."),
        (moved, {"engine": {"wire": "int8"}}, "`wire` must be float32 for a ClientApp of your own, got 'int8'."),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(reply: Any, options: dict[str, Any], text: str) -> None:
    given = {"method": FEDAVG, "clients": 3} | options
    with pytest.raises(tg.TardygradError, match=text):
        start(reply if isinstance(reply, ClientApp) else client_of(reply), **given)


@pytest.mark.parametrize("kind", ["float16", "float64", ">f4"])
def test_weights_may_have_another_precision_and_byte_order(kind: str) -> None:
    def as_kind(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"arrays": record(arrays | {"w": (arrays["w"] + 1).astype(kind)})}

    result = start(client_of(as_kind), FEDAVG, clients=3, start={"timeout": 60})
    assert np.array_equal(result.arrays["w"].numpy(), np.full((2, 2), 5.0))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f4"])
def test_what_the_weights_lose_on_their_way_is_no_part_of_the_move(kind: str) -> None:
    initial = {"w": np.zeros((2, 2), kind), "count": np.array([3]), "running_mean": np.zeros(2, np.float32)}
    task = WeightsTask(initial, clients=3, config={})
    messages, x = WeightMessages(task, FEDAVG), torch.tensor([0.1, 0.2, 0.3, 1e-9])
    job = tg.Job(0, 0, 0, x, None, 1, 0, task.init_module_buffers())
    arrays = {name: array.numpy() for name, array in messages.content(job, -1)["arrays"].items()}
    update = messages.update(job, RecordDict({"arrays": record(arrays)}), "7")
    assert isinstance(update, tg.Update)
    assert torch.equal(update.delta, torch.zeros(4))
    assert torch.equal(task.sent(x), x) == (kind != "float16")


def by_partition(*, identified: bool = True) -> Any:
    """A ClientApp that moves the weights by 10 to the power of its node's partition."""
    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        move = 10.0 ** context.node_config.get("partition-id", 0)
        arrays = {name: array.numpy() + move for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": record(arrays)}), reply_to=message)

    if identified:
        tg.flower.identify(app)
    return app


def other_query() -> Any:
    """A ClientApp that answers the server's question with something else."""
    app = by_partition(identified=False)
    app.query("tardygrad")(lambda message, context: Message(RecordDict(), reply_to=message))
    return app


PRIVACY = tg.Privacy(clip=1.0, noise_multiplier=1.0)
SYNC = tg.fedavg(buffer=3, local_epochs=1, mode="sync", weight_by="samples")
PRIVATE = tg.fedavg(buffer=2, local_epochs=1, mode="client", privacy=PRIVACY)
PLAIN = {"w": np.zeros(2, np.float32)}


def test_clients_are_those_of_the_partitions_in_any_order_of_nodes_and_after_a_resume(tmp_path: Path) -> None:
    strategy = tg.flower.AsyncStrategy(SYNC, samples=[1, 2, 3])
    grid = Grid(by_partition(), [2, 0, 1], of=3)
    found = strategy.start(grid, record(PLAIN), num_rounds=1)
    grid.close()
    assert np.allclose(found.arrays["w"].numpy(), (1 * 1 + 2 * 10 + 3 * 100) / 6)
    strategy = tg.flower.AsyncStrategy(PRIVATE, clients=3, out=tmp_path / "run", checkpoint_every=1)
    done = 0
    for rounds, order in ((4, [2, 0, 1]), (8, [1, 2, 0])):
        grid = Grid(by_partition(), order, of=3)
        partitions = {str(node): one.node_config["partition-id"] for node, one in grid.contexts.items()}
        strategy.start(grid, record(PLAIN), num_rounds=rounds, resume=rounds > 4)
        with pytest.raises(tg.Invalid, match=r"the task must be that of the run in .*, which is .* 1 arrays"):
            strategy.start(grid, record({"v": PLAIN["w"]}), num_rounds=9, resume=True)
        grid.close()
        arrivals = [row for row in read_lines(tmp_path / "run/events.jsonl") if row["event"] == "arrival"]
        assert {(row["client"], partitions[row["worker"]]) for row in arrivals[done:]} == {(0, 0), (1, 1), (2, 2)}
        done = len(arrivals)


@pytest.mark.parametrize(
    ("app", "partitions", "of", "text"),
    [
        (
            by_partition(identified=False),
            [0, 1, 2],
            3,
            r"1007 cannot .*: `privacy` needs .* Call tg.flower.identify\(app\) in its ClientApp.",
        ),
        (
            by_partition(),
            [None],
            3,
            "node 1007 cannot take part: `privacy` needs to know whose data it has. Start it with",
        ),
        (
            by_partition(),
            [1.5],
            3,
            r"1007 cannot take part: .*`partition-id` of a node must be a whole number, got 1\.5\.$",
        ),
        (other_query(), [0], 3, r"1007 cannot take part: `privacy` needs .* Call tg.flower.identify\(app\)"),
        (by_partition(), [0], 6, r"the number of clients, 3, got 6. Start it with num-partitions=3, or pass clients=6"),
    ],
)
def test_nodes_whose_data_is_unknown_are_refused_if_that_matters(
    app: Any, partitions: list[Any], of: int, text: str
) -> None:
    grid = Grid(app, partitions, of=of)
    with pytest.raises(tg.WorkFailed, match=text):
        tg.flower.AsyncStrategy(PRIVATE, clients=3).start(grid, record(PLAIN), num_rounds=1)
    grid.close()


def test_a_nodes_own_task_needs_its_partition_if_the_method_treats_clients_differently() -> None:
    task = tg.tasks.quadratic(clients=2, dimension=2)
    method = tg.fedavg(local_lr=0.1, buffer=2, local_steps=1, privacy=PRIVACY)
    grid = Grid(tg.flower.client_app(lambda context: (method, task)), [None, None])
    with pytest.raises(tg.WorkFailed, match=r"part: `privacy` needs to know whose data it has\. Start it"):
        tg.flower.FlowerPool(task, method, grid=grid).__enter__()
    grid.close()
    grid = Grid(tg.flower.client_app("quadratic"), [None, None])  # a spec's task is the same on every node
    with tg.flower.FlowerPool(task, method, grid=grid) as pool:
        assert pool.status() == ""
    grid.close()


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("raises", "the ClientApp raised an error: OSError: disk is full"),
        ("sends no weights", "cannot be used: it must have one ArrayRecord with the trained weights, got none"),
        ("sends nonsense", "its reply is not as expected: "),
    ],
)
def test_an_error_on_a_node_that_has_worked_loses_the_job_only(
    failure: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs: Counter[int] = Counter()
    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        jobs[partition := int(context.node_config["partition-id"])] += 1
        arrays = message.content["arrays"]
        if partition == 1 and (jobs[1] % 2 == 0 or jobs[1] > 6):  # every second time, then always
            if failure == "raises":
                raise OSError("disk is full")
            nonsense = ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"no array")})
            return Message(RecordDict({} if failure == "sends no weights" else {"a": nonsense}), reply_to=message)
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    grid = Grid(app, [0, 1, 2], of=3)
    method = tg.fedavg(buffer=1, local_epochs=1, mode="client")
    with pytest.raises(tg.WorkFailed, match=f"lost 10 times in a row, .*{text}"):
        tg.flower.AsyncStrategy(method, clients=3).start(grid, record(PLAIN), num_rounds=10_000)
    grid.close()
    output = capsys.readouterr()
    assert len(re.findall(f"warning: a job is lost: the .* node 1014.*{text}.* Later ones", output.err)) == 1
    assert output.out.startswith("FedAvg (client-centric, M=1, K=1 epoch) on 3 clients\n")


def test_a_run_that_begins_without_some_clients_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid(by_partition(), [0, 1, 1], of=3)
    strategy = tg.flower.AsyncStrategy(PRIVATE, clients=3, engine={"wait": 0.0, "drain": 0.0})
    result = strategy.start(grid, record(PLAIN), num_rounds=2)
    grid.close()
    assert result.run.status == "finished"
    # without waiting, node 1 may not have answered yet
    warning = r"warning: the run begins without some clients\. (1|2) of 3 clients have no node: (1, )?2\. "
    assert re.search(warning, capsys.readouterr().err)


def test_a_node_that_does_not_reply_or_returns_nan_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flower_pool, "SILENCE", 0.2)
    app, silent = ClientApp(), threading.Event()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        if context.node_config["partition-id"] == 0:
            silent.wait(30)
        spoilt = math.nan if context.node_config["partition-id"] == 1 else 0.0
        arrays = {name: array.numpy() + spoilt for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": record(arrays)}), reply_to=message)

    grid = Grid(app, range(3), of=3)
    method = tg.fedavg(buffer=1, local_epochs=1, mode="client")
    strategy, printed = tg.flower.AsyncStrategy(method, clients=3, until=30.0), ""

    def evaluate(t: int, arrays: Any) -> None:
        nonlocal printed
        printed += capsys.readouterr().err
        if "no reply" in printed:
            strategy.stop()
            silent.set()

    strategy._settings["evaluate_every"] = 1
    strategy.start(grid, record(PLAIN), evaluate_fn=evaluate)
    grid.close()
    assert printed.count("no reply from node 1007 for 0.2 s. If jobs are shorter, the train function returns no") == 1
    assert "client 1 returned NaN" in str(strategy.run.summary())


def test_the_recorded_model_loads_into_the_users_module(tmp_path: Path, tardygrad: Command) -> None:
    def net() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1).double())

    result = start(
        client_of(moved),
        FEDAVG,
        clients=3,
        out=tmp_path / "run",
        start={"initial_arrays": ArrayRecord(net().state_dict())},
    )
    module, weights = net(), load_file(tmp_path / "run/model.safetensors")
    module.load_state_dict(weights)
    assert weights.keys() == result.arrays.keys()
    assert all(np.array_equal(weights[name].numpy(), result.arrays[name].numpy()) for name in weights)
    assert int(module[1].num_batches_tracked) > 0
    for command in (["replay"], ["resume"], ["export", "--hf", str(tmp_path / "hf")]):
        assert "only the clients' own ClientApp can do the jobs" in tardygrad(*command, str(tmp_path / "run")).err
    assert tardygrad("export", str(tmp_path / "run")).code == 0
