"""Flower apps for real: a simulation in this process, stopped and failing ones, and a deployment on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tardygrad as tg
from tardygrad.engines.flower.connection import requiring_replies
from tardygrad.engines.flower.records import array_record
from tardygrad.runs.record import read_lines
from tests.cli.conftest import Command
from tests.forkserver import Program

pytest.importorskip("flwr")
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from tests.engines.flower_deployment import ROOT, Federation, addresses_of, is_running, psutil, wait_for
from tests.engines.flower_grid import Grid

pytestmark = [
    pytest.mark.usefixtures("forked_ray_workers"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

SPEC: dict[str, Any] = {
    "task": {"kind": "quadratic", "clients": 6, "dimension": 8, "heterogeneity": 1.0},
    "method": {
        "kind": "clip2", "local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 2, "local_steps": 2,
        "mode": "client", "compensate": True,
    },
}  # fmt: skip


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True) if is_running(one.pid)}


def method_and_task() -> tuple[tg.Method, Any]:
    method, task = (dict(SPEC[name]) for name in ("method", "task"))
    del method["kind"], task["kind"]
    return tg.clip2(**method), tg.tasks.quadratic(**task)


def test_a_simulated_app_learns_as_in_the_simulator_and_leaves_nothing_behind_even_if_it_fails(
    tmp_path: Path, tardygrad: Command
) -> None:
    from flwr.serverapp import ServerApp

    addresses, out = list[str](), str(tmp_path / "run")
    inner, server, client = tg.flower.server_app(SPEC, rounds=40, out=out), ServerApp(), tg.flower.client_app(SPEC)
    before, variables = children(), dict(os.environ)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        inner(grid, context)
        addresses.extend(addresses_of([psutil.Process(), *psutil.Process().children(recursive=True)]))
        weights = array_record({"w": np.ones(1, np.float32)})
        tg.flower.AsyncStrategy(tg.fedavg(buffer=1, local_epochs=1)).start(grid, weights, num_rounds=1)

    client.train()(lambda message, context: None)
    text = (
        r"the ClientApp raised an error: the train function of a ClientApp must return a Message, got NoneType\. End it"
    )
    with pytest.raises(tg.WorkFailed, match=text):
        tg.flower.simulate(server, client, nodes=6, cpus=2, cpus_per_node=0.5)
    assert len(addresses) > 2
    assert set(addresses) == {"127.0.0.1"}
    wait_for(lambda: not children() - before)
    assert dict(os.environ) == variables
    loss = json.loads((tmp_path / "run/summary.json").read_text())["loss"]
    method, task = method_and_task()
    fleet = tg.Fleet(groups=(tg.Group("all", 6, tg.Uniform(0.5, 1.5)),))
    assert loss == pytest.approx(tg.simulate(method, task, fleet, rounds=40).summary().loss, abs=0.05)
    assert tardygrad("replay", out).out == "the same bits after 40 rounds\n"
    assert tardygrad("plan", out, "--fit", out).code == 0
    assert tardygrad("doctor", out).code == 0
    assert "Start the app with flwr run, and with resume=true" in tardygrad("resume", out, "run.rounds=30").err
    (tmp_path / "run/summary.json").unlink()
    assert f"flwr run APP --run-config 'out=\"{out}\" resume=true'" in tardygrad("replay", out).err


PROGRAM = """
import sys, time
import tardygrad as tg
from tests.engines.test_flower_apps import method_and_task

def make(context):
    return method_and_task()

def slow(message, context, call):
    time.sleep(0.2)
    return call(message, context)

server = tg.flower.server_app(make, rounds=500, out=sys.argv[1], checkpoint_every=2)
tg.flower.simulate(server, tg.flower.client_app(make, mods=[slow]), nodes=6, cpus=2, cpus_per_node=0.5)
"""


def running_with(variable: str) -> list[int]:
    """The processes that have an environment variable of a test."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found += [process.pid] if variable in process.environ() and is_running(process.pid) else []
    return found


def test_a_simulated_app_that_does_not_know_a_question_answers_without_a_traceback() -> None:
    grid = Grid(app := requiring_replies(ClientApp()), [0])
    reply = app(Message(RecordDict(), 1007, "query.tardygrad"), grid.contexts[1007])
    grid.close()
    assert (reply.error.code, "No query function" in reply.error.reason) == (2, True)


def test_a_simulation_that_is_stopped_leaves_no_process_behind(tmp_path: Path) -> None:
    out, mark = tmp_path / "run", f"TARDYGRAD_TEST_{os.getpid()}"
    with Program(PROGRAM, str(out), env=dict(os.environ) | {"PYTHONPATH": str(ROOT), mark: "1"}) as program:
        wait_for(lambda: list(out.glob("checkpoints/*")))
        assert len(running_with(mark)) > 2
        program.send_signal(signal.SIGINT)
        printed, errors = program.communicate(timeout=120)
    wait_for(lambda: not running_with(mark))
    assert program.returncode == 0, errors
    assert "stopped after" in printed
    assert "run_simulation" not in errors  # which Flower deprecates, and the user did not call
    assert any(row["event"] == "arrival" and row["worker"] for row in read_lines(out / "events.jsonl"))


def test_a_deployed_app_survives_the_death_of_a_node_and_replays_to_the_same_bits(
    tmp_path: Path, tardygrad: Command
) -> None:
    out = tmp_path / "run"

    def events(kind: str) -> list[dict[str, Any]]:
        rows = read_lines(path) if (path := out / "events.jsonl").exists() else []
        return [row for row in rows if row["event"] == kind]

    with Federation(tmp_path) as federation:
        for partition in range(3):
            federation.add(partition, of=3)
        config = {"clients": 3, "out": str(out), "run__rounds": 8, "engine__wire": "int8", "engine__grace": 8.0}
        run = federation.run(ROOT / "examples/flower_async", **config, engine__patience=2.0, engine__drain=5.0)
        wait_for(lambda: federation.log("node-1").count("Receiving: train") == 2)
        federation.kill("node-1")
        federation.add(1, of=3)
        wait_for((out / "summary.json").exists, 300)
        wait_for(lambda: federation.status(run) == "finished:completed")
        assert len(federation.listeners()) > 3
        assert set(federation.listeners()) == {"127.0.0.1"}
    assert not federation.strays
    assert (events("loss")[0]["client"], events("join")[0]["client"]) == (1, 1)
    assert {row["node"] for row in events("arrival")} == {socket.gethostname()}
    assert tardygrad("replay", str(out)).out == "the same bits after 8 rounds\n"
