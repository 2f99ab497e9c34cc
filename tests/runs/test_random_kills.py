"""Random fleets that sleep, crash, drop and slow down: a run that is killed anywhere is resumed to the same end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tardygrad as tg
from tardygrad.fleet import SlowSpells
from tardygrad.runs.record import read_lines

Rng = np.random.Generator
ROUNDS = 25


def pick(rng: Rng, *options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def random_fleet(rng: Rng) -> tg.Fleet:
    """A fleet of 2 to 7 clients, most of which have windows."""
    runtimes = tg.Trace((0.0, 1.0)), tg.Uniform(0.5, 2.0), tg.Exponential(3.0), tg.Pareto(0.5, 1.2), tg.Integer(1, 3)
    links = tg.Link(), tg.Link(latency=0.3), tg.Link(up=20.0, sigma=1.0)
    groups = [
        tg.Group(f"group {i}", int(rng.integers(1, 4)), pick(rng, *runtimes), pick(rng, *links)) for i in range(2)
    ]
    at_end = pick(rng, "suspend", "cancel")
    server_time, dropout = pick(rng, 0.0, 0.2), pick(rng, 0.0, 0.1)
    fleet = tg.Fleet(tuple(groups), server_time=server_time, dropout=dropout, at_window_end=at_end)
    for client in range(fleet.clients):
        period = pick(rng, 1.0, 7.0, 50.0)
        edges = np.sort(rng.uniform(0, period, size=pick(rng, 0, 2, 4))).tolist()
        windows = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > 0.01]
        if windows:
            fleet = fleet.during(windows, client=client, period=period)
        if rng.random() < 0.3:
            at = float(rng.uniform(0, 30))
            fleet = fleet.crash(client=client, at=at, back=at + float(rng.uniform(0.1, 20)))
        if rng.random() < 0.2:
            fleet = fleet.slowed(
                client=client, at=float(rng.uniform(0, 9)), until=40.0, factor=float(rng.uniform(1, 9))
            )
        if rng.random() < 0.2:
            fleet = fleet.faulty(client=client, job=int(rng.integers(4)), sends=pick(rng, "nan", "twice"))
    if rng.random() < 0.3:
        fleet = fleet.plus(SlowSpells("group 0", every=5.0, lasts=3.0, factor=4.0))
    return fleet


def random_method(rng: Rng, clients: int) -> tg.Method:
    mode = pick(rng, "sync", "server", "client")
    buffer = int(rng.integers(1, clients + 1))
    few = (
        {} if mode == "sync" or rng.random() < 0.6 else {"concurrency": max(int(rng.integers(1, clients + 1)), buffer)}
    )
    late = {"max_delay": int(rng.integers(2, 9))} if rng.random() < 0.2 else {}
    how: Any = {"mode": mode, "buffer": buffer, "compensate": bool(rng.integers(2)), **few, **late}
    return tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=0.5, local_steps=2, dispatch=pick(rng, "same", "random"), **how)


def run_to_end(run: tg.Run, copies: dict[int, Path] | None = None) -> str:
    """Run, and copy the record after some rounds, as a kill would leave it; returns how the run ended."""
    try:
        for row in run.go():
            if copies and row["round"] in copies and run.path:
                shutil.copytree(run.path, copies[row["round"]])
    except (tg.Starved, tg.Diverged) as error:
        return str(error)
    return run.status


def check_kills(seed: int, folder: Path, kills: int = 2) -> str:
    """Run a random case, kill it at random rounds, resume it each time, and compare; returns how the run ended."""
    rng = np.random.default_rng(seed)
    fleet = random_fleet(rng)
    method = random_method(rng, fleet.clients)
    task = tg.tasks.quadratic(clients=fleet.clients, dimension=3, noise=tg.Noise("student", 1.5, 0.1))
    whole = tg.begin(
        method, task, fleet, rounds=ROUNDS, seed=seed, out=folder / "whole", evaluate_every=0,
        checkpoint_every=int(rng.integers(1, 8)),
    )  # fmt: skip
    places = {int(number): folder / f"killed-{number}" for number in rng.integers(1, ROUNDS, size=kills)}
    ended = run_to_end(whole, places)
    for place in places.values():
        if not place.exists():  # the run did not come so far
            continue
        again = tg.resume(place, method, task, tg.SimPool(task, method, fleet))
        assert run_to_end(again) == ended
        assert again.x.equal(whole.x)
        lines = [
            [row | {"seconds": 0} for row in read_lines(path / "events.jsonl")] for path in (folder / "whole", place)
        ]
        assert lines[0] == lines[1]
    return ended


@pytest.mark.parametrize("seed", [7, *range(20, 26)])
def test_a_run_that_is_killed_anywhere_is_resumed_to_the_same_end(seed: int, tmp_path: Path) -> None:
    check_kills(seed, tmp_path)
