"""How many bytes does an update of DiLoCo take if AdamW's states stay on the workers, and what does it cost?

Three arms on Ray, with the same task, method and seeds: states that travel with the jobs (keep=True), states that stay
on the workers (keep="worker"), and the latter with one worker killed in the middle, whose states begin anew. Of each:
the bytes of a job and of an update per parameter, the accuracy, and whether a replay of the record has the same bits.

    python benchmarks/ray_states.py [--rounds 30] [--seeds 3] [--page FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

import tardygrad as tg
from tardygrad.runs.events import Arrival, read_events

CLIENTS = 4
ARMS: dict[str, tuple[Any, bool]] = {
    "`keep=True`": (True, False),
    '`keep="worker"`': ("worker", False),
    '`keep="worker"`, one worker killed': ("worker", True),
}


class Result(NamedTuple):
    """One run."""

    down: float  # bytes per parameter, the median of the jobs that are not their client's first
    up: float
    states_lost: int
    accuracy: float
    same_bits: bool  # of a replay


def measure(keep: Any, kill: bool, *, rounds: int, seed: int) -> Result:
    """Run DiLoCo on Ray; optionally kill a worker half-way."""
    task = tg.tasks.digits(clients=CLIENTS, model="mlp")
    method = tg.diloco(local_lr=3e-3, local_steps=20, buffer=CLIENTS, keep=keep)
    with TemporaryDirectory() as folder:
        with tg.RayPool(task, method, workers=2, evaluate="between") as pool:
            run = tg.begin(method, task, pool, rounds=rounds, seed=seed, evaluate_every=0, out=Path(folder) / "run")
            for row in run.go():
                if kill and row["round"] == rounds // 2:
                    pool.workers.kill(pool.workers.members[0].actor)
        arrivals = [event for event in read_events(Path(folder) / "run/events.jsonl") if isinstance(event, Arrival)]
    later = [event for event in arrivals if event.serial]
    down, up = (median(getattr(event, name) for event in later) / task.parameters for name in ("down", "up"))
    lost, accuracy = sum(bool(event.state_lost) for event in arrivals), task.evaluate(run.x, None)["accuracy"]
    return Result(down, up, lost, accuracy, torch.equal(tg.replay(run).x, run.x))


def table(results: dict[str, list[Result]]) -> list[str]:
    """The arms in Markdown, means over the seeds."""
    lines = [
        "| | bytes per parameter, job + update | accuracy | over the seeds | states lost | replays to the same bits |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, runs in results.items():
        scores = [run.accuracy for run in runs]
        bytes_ = f"{mean(run.down for run in runs):.2f} + {mean(run.up for run in runs):.2f}"
        lost, same = sum(run.states_lost for run in runs), all(run.same_bits for run in runs)
        spread = f"{min(scores):.1%} to {max(scores):.1%}"
        lines.append(f"| {name} | {bytes_} | {mean(scores):.1%} | {spread} | {lost} | {'yes' if same else 'NO'} |")
    return lines


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--rounds", type=int, default=30)
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--page", type=Path, help="a Markdown file for the same")
    asked = ask.parse_args()
    torch.set_num_threads(1)
    results: dict[str, list[Result]] = {}
    for name, (keep, kill) in ARMS.items():
        results[name] = [measure(keep, kill, rounds=asked.rounds, seed=seed) for seed in range(asked.seeds)]
    about = (
        f"DiLoCo with AdamW on digits: {CLIENTS} clients on 2 workers, synchronous, 20 local steps, "
        f"{asked.rounds} rounds, {asked.seeds} seeds. A client's first job carries no state, and is not counted."
    )
    head = ["# Optimizer states on workers", "", "Made by `python benchmarks/ray_states.py`.", about, ""]
    page = "\n".join([*head, *table(results), ""])
    print(page)
    if asked.page:
        asked.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
