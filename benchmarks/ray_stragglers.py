"""Do real stragglers cost what the simulator says, and how much does not waiting for them save?

Eight workers on Ray, slowed down for real: the paper's fleets of eight clients, a tenth of a second for each of its
seconds (1 to 8 tenths with mild stragglers, 1 to 40 with large ones). Real seconds until the test loss of a small
perceptron on digits is at the target, synchronous, server- and client-centric; beside each what the simulator says of
the same fleet and seed. Medians over the seeds 0, 1, 2; "range" is what predicted/real is over them.

- The clock is that of training: Ray and the workers are up and have computed before it starts, and a worker of its own
  evaluates beside them, after every round.
- A round waits for M = 2 updates in every mode. Synchronous ones sample two clients each: on both fleets that was their
  best in simulation; with M = 4 and with M = 8, all, they took 1.05 to 1.4 times as long. Their rates are their own.
- The paper's runtimes are whole seconds, so arrivals tie; the first decides who works next. The simulator takes the
  lowest client, reality any: the same seed is another run after a few rounds, and single seeds differ from prediction.
- In synchronous rounds every delay is 1 and nothing drifts: Clip², SD-Clip² and DC-Clip² are one method there.

    python benchmarks/ray_stragglers.py [--fleets mild large] [--repeats 3] [--second 0.1] [--rounds 80] [--page FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.engines.contract import Pending
from tardygrad.engines.ray.connection import MIN_OBJECT_STORE, ray_module, start
from tardygrad.fleet import Stragglers

CLIENTS, TARGET = 8, 0.3
LIMITS = {"mild": 2.5, "large": 6.0}  # times faster than waiting
WITHIN = 0.25  # of the real seconds

SETTINGS: dict[str, Any] = {"local_lr": 1.0, "local_clip": 0.1, "local_steps": 5, "buffer": 2}
WAITING, NOT = {"lr": 1.5, "clip": 0.05}, {"lr": 1.0, "clip": 0.03}
"""Both chosen by simulation, with seeds from 10 on: by the median time of synchronous rounds, and so that all that do
not wait arrive."""

KINDS: dict[str, dict[str, bool]] = {"Clip²": {}, "SD-Clip²": {"downplay": True}, "DC-Clip²": {"compensate": True}}
ARMS = [("sync", "Clip²"), *((mode, kind) for mode in ("server", "client") for kind in KINDS)]


@dataclass(frozen=True)
class Times:
    """Seconds to the target, by seed; inf where it was not reached."""

    mode: str
    kind: str
    by_seed: tuple[list[float], list[float]]  # predicted, real

    @property
    def predicted(self) -> float:
        return median(self.by_seed[0])

    @property
    def real(self) -> float:
        return median(self.by_seed[1])

    @property
    def ratios(self) -> list[float]:
        return [said / real for said, real in zip(*self.by_seed, strict=True)]


def method(mode: str, kind: str) -> tg.Method:
    return tg.clip2(**SETTINGS, **(WAITING if mode == "sync" else NOT), **KINDS[kind], mode=mode)  # type: ignore[arg-type]


def reached(run: tg.Run, target: float) -> float:
    """When the first model at or below the target was made; inf if none was. Ends the run there."""
    return next((row["time"] for row in run.go() if row["test_loss"] <= target), math.inf)


def predict(task: tg.Task, how: tg.Method, fleet: tg.Fleet, target: float, **settings: Any) -> float:
    """The fleet's seconds to the target."""
    with tg.SimPool(task, how, fleet, rounds=settings["rounds"]) as pool:
        return reached(tg.begin(how, task, pool, evaluate_every=1, **settings), target)


def measure(pool: tg.RayPool, target: float, **settings: Any) -> float:
    """Real seconds to the target, from an idle pool and back to one."""
    run = tg.begin(pool.method, pool.task, pool, evaluate_every=1, **settings)
    pool.restore(Pending(0.0, [], []))  # the clock to 0
    seconds = reached(run, target)
    drain(pool)
    return seconds


def drain(pool: tg.RayPool) -> None:
    """Let all that is under way arrive."""
    while pool.next() is not None:
        pass


def warm(pool: tg.RayPool) -> None:
    """Have every worker, and the one that evaluates, compute once: the first time is slower."""
    x, all_here = pool.task.init(0), False
    while not all_here:
        all_here = len(pool.workers.free) == pool.workers.wanted
        for client in range(pool.task.clients):
            pool.submit(Job(client, 0, 0, x, 1, None, 0))
        drain(pool)
    assert pool.evaluator is not None
    pool.evaluator.answer(pool.evaluator.ask(x, None), wait=True)


@contextmanager
def cluster() -> Iterator[None]:
    """One Ray for all pools."""
    ray = ray_module()
    folder = start(ray, cpus=CLIENTS, gpus=False, store=2 * MIN_OBJECT_STORE)
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def compare(
    stragglers: Stragglers,
    arms: Sequence[tuple[str, str]] = ARMS,
    *,
    clients: int = CLIENTS,
    repeats: int = 3,
    second: float = 0.1,
    rounds: int = 80,
    target: float = TARGET,
) -> Iterator[Times]:
    """Every arm on one fleet, in the simulator and for real; Ray must be up."""
    task = tg.tasks.digits(clients=clients, model="mlp", depth=1)
    fleet = tg.Fleet.paper(clients=clients, stragglers=stragglers)
    for mode, kind in arms:
        how = method(mode, kind)
        said = [second * predict(task, how, fleet, target, rounds=rounds, seed=seed) for seed in range(repeats)]
        with tg.RayPool(
            task, how, workers=clients, cpus_per_worker=0, fleet=fleet, second=second, patience=math.inf
        ) as pool:
            warm(pool)
            real = [measure(pool, target, rounds=rounds, seed=seed) for seed in range(repeats)]
        yield Times(mode, kind, (said, real))


def table(rows: Sequence[Times]) -> list[str]:
    """The rows in Markdown; the first is what the others are compared with."""
    lines = [
        "| mode | method | predicted (s) | real (s) | predicted/real | range | faster than sync | predicted |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        ratio, low, high = median(row.ratios), min(row.ratios), max(row.ratios)
        gains = [f"{getattr(rows[0], name) / getattr(row, name):.1f}x" for name in ("real", "predicted")]
        seconds = f"{row.predicted:.2f} | {row.real:.2f}"
        cells = f"{seconds} | {ratio:.2f} | {low:.2f} to {high:.2f} | {' | '.join(gains)}"
        lines.append(f"| {row.mode} | {row.kind} | {cells} |")
    return lines


def verdict(stragglers: str, rows: Sequence[Times]) -> str:
    """Whether not waiting is as much faster as it should be, and whether the simulator said so."""
    if missed := [f"{row.mode} {row.kind}" for row in rows if math.inf in row.by_seed[0] + row.by_seed[1]]:
        return f"{stragglers}: NO, the target was missed by {', '.join(missed)}. Use more rounds."
    sync, *others = rows
    best = min(others, key=lambda row: row.real)
    gain, said, limit = sync.real / best.real, sync.predicted / best.predicted, LIMITS[stragglers]
    ratios = [median(row.ratios) for row in rows]
    fine = all(abs(ratio - 1) <= WITHIN for ratio in [*ratios, said / gain])
    return (
        f"{stragglers}: the best that does not wait ({best.mode}, {best.kind}) is {gain:.1f} times faster than sync; "
        f"at least {limit:g}: {'yes' if gain >= limit else 'NO'}. The simulator said {said:.1f}; predicted/real is "
        f"{min(ratios):.2f} to {max(ratios):.2f}; all within {WITHIN:.0%}: {'yes' if fine else 'NO'}."
    )


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--fleets", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    ask.add_argument("--repeats", type=int, default=3)
    ask.add_argument("--second", type=float, default=0.1)
    ask.add_argument("--rounds", type=int, default=80, help="after which a run has missed the target")
    ask.add_argument("--page", type=Path, help="a Markdown file for the same")
    asked = ask.parse_args()
    torch.set_num_threads(1)
    began, load, told, verdicts = time.monotonic(), os.getloadavg()[0], [], []
    with cluster():
        for stragglers in asked.fleets:
            rows = []
            for row in compare(stragglers, repeats=asked.repeats, second=asked.second, rounds=asked.rounds):
                rows.append(row)
                said, real = ([round(seconds, 2) for seconds in one] for one in row.by_seed)
                print(f"{stragglers} {row.mode} {row.kind}: predicted {said}, real {real}", flush=True)
            told += [f"## {stragglers.capitalize()} stragglers", "", *table(rows), ""]
            verdicts.append(f"- {verdict(stragglers, rows)}")
    minutes = (time.monotonic() - began) / 60
    told += [*verdicts, ""]
    loads = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    about = (
        f"{CLIENTS} workers on {len(os.sched_getaffinity(0))} cores, {loads}; medians of {asked.repeats}, test loss "
        f"{TARGET:g}, {asked.second:g} s for each of the fleet's seconds; {minutes:.0f} minutes."
    )
    page = "\n".join(["# Real stragglers", "", "Made by `python benchmarks/ray_stragglers.py`.", about, "", *told])
    print(page)
    if asked.page:
        asked.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
