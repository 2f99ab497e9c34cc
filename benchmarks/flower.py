"""How much sooner does an asynchronous Flower app reach an accuracy than Flower's FedAvg, if some nodes are slow?

Both run in Flower's simulation on this machine, with the same ClientApp (that of tests/engines/flower_template), model,
data, start and nodes: the digits, split over six nodes, one epoch for each job. A job of five nodes takes 0.5 s, one of
the sixth 20 s: 40 times as long, as in the paper's fleet with large stragglers. A mod of the ClientApp sleeps for the
rest of the time. FedAvg samples all nodes in every round, its default. Ours is FedBuff, client-centric, with M = 2. The
clock starts when every process has done a job. Prints a table and the ratio of the times.

    python benchmarks/flower.py [repeats]
"""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import tardygrad as tg

APP = Path(__file__).parents[1] / "tests/engines/flower_template"
NODES, TARGET = 6, 0.95  # as many nodes as a machine with two CPUs simulates at once: its CPUs + 4
SECONDS = [20.0] + [0.5] * (NODES - 1)


def straggle(message: Any, context: Any, call: Any) -> Any:
    """A mod: a job takes its node's seconds."""
    began = time.monotonic()
    reply = call(message, context)
    seconds = SECONDS[context.node_config["partition-id"]]
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    return reply


def client_app() -> Any:
    """The train function of Flower's template, on nodes of different speeds."""
    from client_app import train

    app = ClientApp(mods=[straggle])
    app.train()(train)
    return app


class Clock:
    """When a run reached the target, in seconds after its first job was sent."""

    def __init__(self) -> None:
        self.began, self.reached, self.rounds = 0.0, float("inf"), 0

    def evaluate(self, server_round: int, arrays: Any) -> Any:
        from server_app import global_evaluate

        scores = global_evaluate(server_round, arrays)
        if server_round == 0:
            self.began = time.monotonic()
        elif scores["accuracy"] >= TARGET and self.reached == float("inf"):
            self.reached, self.rounds = time.monotonic() - self.began, server_round
        return scores


def fedavg(grid: Any, arrays: Any, config: Any) -> Clock:
    """Flower's strategy, one round at a time, until the target is reached."""
    clock, strategy = Clock(), FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    clock.evaluate(0, arrays)
    for round in range(1, 200):
        arrays = strategy.start(grid, arrays, num_rounds=1, train_config=config).arrays
        clock.evaluate(round, arrays)
        if clock.rounds:
            break
    return clock


def fedbuff(grid: Any, arrays: Any, config: Any) -> Clock:
    """Ours, until the target is reached."""
    method, clock = tg.fedbuff(lr=0.4, buffer=2, local_epochs=1, mode="client"), Clock()
    strategy = tg.flower.AsyncStrategy(method, clients=NODES, rounds=400, evaluate_every=1)

    def evaluate(server_round: int, arrays: Any) -> Any:
        scores = clock.evaluate(server_round, arrays)
        if clock.rounds:
            strategy.stop()
        return scores

    clock.evaluate(0, arrays)
    strategy.start(grid, arrays, train_config=config, evaluate_fn=evaluate)
    return clock


def compare(grid: Any, repeats: int) -> None:
    """Run both, one after the other, and print a line for each repeat."""
    from task import Net

    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    arrays, config = ArrayRecord(Net().state_dict()), ConfigRecord({"lr": 0.05})
    FedAvg(fraction_evaluate=0.0).start(grid, arrays, num_rounds=1, train_config=config)  # the first job imports torch
    print("\n| repeat | Flower's FedAvg (s) | its rounds | FedBuff, M = 2 (s) | its rounds | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    ratios = []
    for repeat in range(1, repeats + 1):
        torch.manual_seed(repeat)
        arrays = ArrayRecord(Net().state_dict())
        with redirect_stdout(io.StringIO()):
            theirs, ours = fedavg(grid, arrays, config), fedbuff(grid, arrays, config)
        ratios.append(theirs.reached / ours.reached)
        times = f"{theirs.reached:.1f} | {theirs.rounds} | {ours.reached:.1f} | {ours.rounds}"
        print(f"| {repeat} | {times} | {ratios[-1]:.1f} |", flush=True)
    print(f"\nseconds to {TARGET:.0%} test accuracy; median ratio {median(ratios):.1f}", flush=True)


def main() -> None:
    sys.path.insert(0, str(APP))  # also for Ray's workers
    os.environ.update(RAY_worker_niceness="0")  # as quick as this process if the machine is busy
    repeats, app = int(sys.argv[1]) if len(sys.argv) > 1 else 3, ServerApp()
    app.main()(lambda grid, context: compare(grid, repeats))
    tg.flower.simulate(app, client_app(), nodes=NODES, cpus=2, cpus_per_node=2 / NODES)


if __name__ == "__main__":
    main()
