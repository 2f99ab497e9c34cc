"""The guide in docs/flower.md, followed literally on an app like Flower's template; and apps that do not fit."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.engines.flower.records import array_record

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.engines.flower_grid import Grid

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
    arrays = {name: array + 1 for name, array in arrays.items()}
    return {"arrays": record(arrays), "metrics": MetricRecord({"loss": 0.5, "num-examples": 4})}


def start(client: Any, method: tg.Method, **options: Any) -> Any:
    grid = Grid(client, range(3))
    try:
        return tg.flower.AsyncStrategy(method, **options).start(grid, record(START), 4)
    finally:
        grid.close()


FEDAVG = tg.fedavg(buffer=2, local_epochs=1, mode="client")


def test_only_the_difference_of_weights_is_needed(tmp_path: Path) -> None:
    result = start(client_of(moved), FEDAVG, out=tmp_path / "run", clients=3)
    weights = {name: array.numpy() for name, array in result.arrays.items()}
    assert {name: (array.shape, array.dtype) for name, array in weights.items()} == {
        name: (array.shape, array.dtype) for name, array in START.items()
    }
    assert np.array_equal(weights["w"], np.full((2, 2), 5.0))  # every round moves all by one
    assert weights["count"] > 3
    assert result.run.metrics[-1]["loss"] == 0.5
    with pytest.raises(tg.Invalid, match="the run cannot be replayed: only the clients' own ClientApp can do the jobs"):
        tg.replay(result.run)


@pytest.mark.parametrize(
    ("reply", "options", "text"),
    [
        (lambda arrays: {}, {}, "it must have one ArrayRecord with the trained weights, got none."),
        (lambda arrays: {"arrays": record({"w": arrays["w"]})}, {}, "got none for 'count' in place of shape"),
        (
            lambda arrays: {"arrays": record(arrays | {"w": np.ones(3)})},
            {},
            r"got shape \[3\] for 'w' in place of shape",
        ),
        (moved, {"method": tg.clip2(lr=1.0, clip=0.1, buffer=2, local_epochs=1, compensate=True)}, "tg.flower.squares"),
        (
            moved,
            {"method": tg.fedavg(buffer=2, local_epochs=1, weight_by="samples")},
            r"AsyncStrategy\(samples=\[...\]\)",
        ),
        (moved, {"method": tg.fedavg(local_lr=0.1, buffer=2, local_epochs=1)}, "Leave out `local_lr`"),
        (moved, {"engine": {"wire": "int8"}}, "`wire` must be float32 for a ClientApp of your own, got 'int8'."),
        (moved, {"engine": {"patients": 3}}, "has no argument `patients`. Did you mean 'patience'"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(reply: Any, options: dict[str, Any], text: str) -> None:
    given = {"method": FEDAVG, "clients": 3} | options
    with pytest.raises(tg.TardygradError, match=text):
        start(client_of(reply), **given)


def test_samples_weight_the_updates() -> None:
    method = tg.fedavg(buffer=3, local_epochs=1, mode="sync", weight_by="samples")
    result = start(client_of(moved), method, samples=[1, 2, 3])
    assert np.allclose(result.arrays["w"].numpy(), 5.0)


def test_array_records_of_flower_are_read(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    weights = ArrayRecord(net.state_dict())
    grid = Grid(client_of(lambda arrays: {"arrays": record(arrays)}), range(2))
    result = tg.flower.AsyncStrategy(FEDAVG, rounds=2).start(grid, weights)
    grid.close()
    assert all(np.array_equal(result.arrays[name].numpy(), weights[name].numpy()) for name in weights)
