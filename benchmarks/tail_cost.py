"""What does the estimate of the updates' tail index add to a run?

A run of the digits transformer (K = 5 steps, batch 16, 40 clients, M = 4) with `tail_every`: CPU seconds spent on
sampling updates and on estimates, relative to everything else in the same run. Then one estimate alone, for vectors of
up to millions of coordinates: its time does not grow with them.

    python benchmarks/tail_cost.py [--every 20] [--rounds 60] [--repeats 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import tardygrad as tg
from tardygrad.tail.updates import Updates

BUFFER = 4


def share(task: tg.TorchTask, rounds: int, every: int) -> float:
    """Seconds on tails over all others."""
    method = tg.clip2(local_lr=0.1, local_clip=0.5, lr=1.0, clip=0.01, buffer=BUFFER, local_steps=5, mode="client")
    pool = tg.SimPool(task, method, tg.Fleet.paper(clients=40))
    run = tg.begin(method, task, pool, rounds=rounds, evaluate_every=0, tail_every=every)
    spent = 0.0

    def timed(act: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*given: Any) -> Any:
            nonlocal spent
            began = time.process_time()
            done = act(*given)
            spent += time.process_time() - began
            return done

        return timing

    run._sample_tail = timed(run._sample_tail)  # type: ignore[method-assign]
    began = time.process_time()
    for _ in run.go():
        pass
    return spent / (time.process_time() - began - spent)


def estimate(parameters: int, repeats: int) -> float:
    """Seconds for one estimate."""
    deltas = [torch.randn(parameters) for _ in range(BUFFER)]
    tail = Updates(every=1, seed=0, parameters=parameters, buffer=BUFFER)
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        for delta in deltas:
            tail.take(delta)
        tail.estimate()
        spent.append(time.process_time() - began)
    return median(spent)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    task = tg.tasks.digits(clients=40)
    share(task, 2, 1)
    added = median(share(task, args.rounds, args.every) for _ in range(args.repeats))
    print(f"tail_every={args.every} adds {added:.2%} to a run")
    for parameters in (10**4, 10**5, 10**6, 10**7):
        print(f"an estimate of {parameters:,} coordinates: {1e3 * estimate(parameters, 20):.2f} ms")


if __name__ == "__main__":
    main()
