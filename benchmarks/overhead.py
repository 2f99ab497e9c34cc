"""What does the simulator cost beside the training it simulates?

Client updates per second on the digits transformer (K = 5 steps, batch 16, 40 clients, M = 4) against a bare PyTorch
loop that takes the same gradient steps and does nothing else: no server, no clock, no vectors, no record. One torch
thread each, and CPU seconds, since other work on the machine takes wall-clock time from either side at random.

    python benchmarks/overhead.py [--rounds 60] [--repeats 7]
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median

import torch
from torch.nn.functional import cross_entropy

import tardygrad as tg
from tardygrad.tasks.digits import ViT

STEPS, BATCH, LR, CLIP = 5, 16, 0.1, 0.5


def bare(task: tg.TorchTask, updates: int) -> float:
    """Updates per second of a plain loop: forward, backward, clip, step."""
    module = partial(ViT, dim=32, depth=2, heads=4, patch=2)()
    parameters = list(module.parameters())
    images, labels = task.data.data
    rows = [shard.split(BATCH) for shard in task.data.rows]
    began = time.process_time()
    for number in range(updates):
        mine = rows[number % len(rows)]
        for step in range(STEPS):
            batch = mine[step % len(mine)]
            module.zero_grad(set_to_none=True)
            cross_entropy(module(images[batch]), labels[batch]).backward()
            gradients = [p.grad for p in parameters]
            torch._foreach_clamp_min_(gradients, -CLIP)
            torch._foreach_clamp_max_(gradients, CLIP)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-LR)
    return updates / (time.process_time() - began)


def simulated(task: tg.TorchTask, rounds: int, **how: bool) -> float:
    method = tg.clip2(
        local_lr=LR, local_clip=CLIP, lr=1.0, clip=0.01, buffer=4, local_steps=STEPS, mode="client", **how
    )
    began = time.process_time()
    run = tg.simulate(method, task, tg.Fleet.paper(clients=40), rounds=rounds, evaluate_every=0)
    return run.summary().updates / (time.process_time() - began)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--rounds", type=int, default=60)
    ask.add_argument("--repeats", type=int, default=7)
    ask = ask.parse_args()
    torch.set_num_threads(1)
    task = tg.tasks.digits(clients=40, batch_size=BATCH)
    engines = {
        "bare loop": lambda: bare(task, 4 * ask.rounds),
        "Clip²": lambda: simulated(task, ask.rounds),
        "DC-Clip²": lambda: simulated(task, ask.rounds, compensate=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ask.repeats):  # in alternation, since the machine drifts
        for name, engine in engines.items():
            speeds[name].append(engine())
    for name, speed in speeds.items():
        kept = median(s / b for s, b in zip(speed, speeds["bare loop"], strict=True))
        print(f"{name:10} {median(speed):7.1f} client updates/s   {kept:6.1%} of the bare loop")


if __name__ == "__main__":
    main()
