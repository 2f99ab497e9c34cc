"""Clients with ids: records keep them, and reports, the doctor and exports show them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import tardygrad as tg
from tardygrad.doctor.delay_checks import client_list
from tardygrad.report.build import build
from tardygrad.runs.export import export
from tardygrad.runs.history import read_history
from tardygrad.runs.record import read_json, write_json

IDS = ("site-a", "site-b", "<script>alert(1)</script>" + "x" * 40, "=1+1")
METHOD = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=1.0, buffer=2, local_steps=1)
FLEET = tg.Fleet.paper(clients=4)


def task(ids: tuple[str, ...] = IDS) -> tg.TorchTask:
    data = {name: torch.utils.data.TensorDataset(torch.ones(4, 1), torch.ones(4, 1)) for name in ids}
    return tg.TorchTask(torch.nn.Linear(1, 1), data=data, loss=torch.nn.functional.mse_loss)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tg.simulate(METHOD, task(), FLEET, rounds=6, evaluate_every=0, out=tmp_path / "run")
    return tmp_path / "run"


def test_ids_are_shown_where_clients_are_named(run: Path) -> None:
    history = read_history(run)
    assert history.ids == IDS
    assert history.names[:2] == ("site-a", "site-b")
    assert len(history.names[2]) == 32
    assert client_list(history, [1]).startswith("client site-b (")
    assert client_list(history, [0, 1]).startswith("clients site-a, site-b")
    page = build([str(run)]).html()
    assert "site-b" in page
    assert "<script>alert" not in page


def test_an_export_has_the_ids_as_a_column(run: Path, tmp_path: Path) -> None:
    export([run], tmp_path / "out", ["csv"])
    for name in ("updates", "events"):
        with (tmp_path / f"out/{name}.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["client"]]
        assert {row["id"] for row in rows if row["client"] == "1"} == {"site-b"}
        assert all(row["id"] == "'=1+1" for row in rows if row["client"] == "3")


def test_a_resumed_run_needs_the_same_clients(run: Path) -> None:
    other = task(("site-b", "site-a", *IDS[2:]))
    with pytest.raises(tg.Invalid, match="in the same order, got 'site-b' as client 0 in place of 'site-a'"):
        tg.resume(run, METHOD, other, tg.SimPool(other, METHOD, FLEET), rounds=8)
    same = task()
    again = tg.resume(run, METHOD, same, tg.SimPool(same, METHOD, FLEET), rounds=8)
    assert len(list(again.go())) == 2


def test_ids_with_the_same_beginning_are_told_apart(run: Path) -> None:
    write_json(run / "spec.json", read_json(run / "spec.json") | {"ids": ["a" * 50 + str(i) for i in range(4)]})
    assert len(set(read_history(run).names)) == 4


def test_ids_must_be_unicode(tmp_path: Path) -> None:
    with pytest.raises(tg.Invalid, match=r"must be Unicode text, got 'a\\ud800' with a lone surrogate"):
        tg.simulate(METHOD, task(("a\ud800", "b", "c", "d")), FLEET, rounds=2, evaluate_every=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
