"""Evaluation on each client's own data: recorded, summarized, drawn, and refused where data cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tardygrad as tg
from tardygrad.engines.ray.pool import RayPool
from tardygrad.report.build import build
from tardygrad.runs.evaluation import ClientEvaluations
from tardygrad.runs.history import read_history
from tardygrad.runs.record import read_json
from tests.report.records import check_charts

METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=1.0, buffer=2, local_steps=1)
FLEET = tg.Fleet.paper(clients=3)
IDS = ("anna", "ben", "cleo")


def rows(slope: float) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 4).unsqueeze(1)
    return x, slope * x


def task(**changes: Any) -> tg.TorchTask:
    data = {name: torch.utils.data.TensorDataset(*rows(slope)) for slope, name in enumerate(IDS)}
    given = {"data": data, "loss": torch.nn.functional.mse_loss} | changes
    return tg.TorchTask(lambda: torch.nn.Linear(1, 1), **given)


def simulated(task: tg.TorchTask, **settings: Any) -> tg.Run:
    return tg.simulate(METHOD, task, FLEET, **({"rounds": 5, "evaluate_every": 0, "evaluate_clients": 2} | settings))


def test_every_client_is_evaluated_on_its_own_training_data(tmp_path: Path) -> None:
    run = simulated(task(), out=tmp_path / "run")
    history = read_history(tmp_path / "run")
    assert [evaluation.round for evaluation in history.client_evaluations] == [2, 4, 5]
    last = history.client_evaluations[-1]
    module = task().module(run.x)
    expected = [float(torch.nn.functional.mse_loss(module(rows(i)[0]), rows(i)[1]).detach()) for i in range(3)]
    assert last.on == "training"
    assert last.by_client["loss"] == pytest.approx(expected)
    spread = read_json(tmp_path / "run/summary.json")["clients"]["loss"]
    assert spread["worst_tenth"] == pytest.approx(max(expected))
    assert spread["mean"] == pytest.approx(sum(expected) / 3)
    assert "clients' loss on their training data: mean " in str(run.summary())


def test_the_evaluation_changes_no_bit_of_the_run() -> None:
    assert torch.equal(simulated(task()).x, simulated(task(), evaluate_clients=0).x)


@pytest.mark.parametrize("form", ["mapping", "list", "function"])
def test_clients_may_have_test_sets_of_their_own(form: str) -> None:
    tests: dict[str, Any] = {name: rows(7.0) for name in IDS}
    client_test = {"mapping": {"ben": rows(7.0)}, "list": list(tests.values()), "function": tests.__getitem__}[form]
    event = simulated(task(client_test=client_test)).client_evaluation
    assert event is not None
    assert event.on == "test"
    found = event.by_client["loss"]
    assert found[1] is not None
    assert found[1] > 5.0
    assert [value is None for value in found] == [form == "mapping", False, form == "mapping"]


def test_a_resumed_run_goes_on_with_its_evaluations(tmp_path: Path) -> None:
    simulated(task(), out=tmp_path / "run")
    same = task()
    again = tg.resume(tmp_path / "run", METHOD, same, tg.SimPool(same, METHOD, FLEET), rounds=8)
    assert again.client_evaluation is not None
    assert again.client_evaluation.round == 5
    list(again.go())
    assert [one.round for one in read_history(tmp_path / "run").client_evaluations] == [2, 4, 5, 6, 8]


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(1), torch.ones(1))] * 4)


def batches_of(job: tg.Job) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield rows(1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": batches_of, "clients": 3}, "training data have none that can be read again. Give the task client_t"),
        ({"data": lambda client: iter(Stream()), "clients": 3}, "got .*iterator for client 0"),
        ({"client_test": [1, 2]}, "a test set for each of 3 clients, a mapping or a function, got 2 test sets"),
        ({"client_test": {"dora": rows(1.0)}}, "`client_test` must name clients of the task, got 'dora'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((tg.Invalid, tg.WorkFailed), match=message):
        simulated(task(**changes))


def test_on_ray_training_data_stay_with_the_workers() -> None:
    own = task()
    pool = RayPool(own, METHOD)
    with pytest.raises(tg.Invalid, match="cannot read training data: on this engine only workers do"):
        ClientEvaluations(own, 1, pool)
    assert ClientEvaluations(task(client_test=[rows(1.0)] * 3), 1, pool).on == "test"


def test_a_report_draws_the_distribution_and_names_the_worst_clients(tmp_path: Path) -> None:
    simulated(task(), out=tmp_path / "run")
    report = build([str(tmp_path / "run")])
    check_charts(report.sections)
    page = report.html()
    assert "Distribution over the clients: loss" in page
    assert "Clients over the rounds: loss" in page
    worst = page.index("worst clients")
    assert page.index("cleo", worst) < page.index("ben", worst)
