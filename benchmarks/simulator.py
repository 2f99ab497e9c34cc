"""How fast is the simulator on all cores, beside loops that only train?

Client updates per second (K = 5 steps, batch 32) of a small CNN and a small ViT on images of Fashion-MNIST's shape:

- ours: `simulate(workers=P)`, Clip² on the paper's fleet of 40, M = 4, with server, clock, snapshots and gate;
- bare: the same gradient steps in a plain PyTorch loop and nothing else, in one process with one thread; in P
  processes of one thread each at once, which is the machine's own limit; and in one process with P threads;
- copies: a deep copy of the model for every client and torch.optim.SGD, in one process with P threads.

Everything runs for so many seconds of the wall clock, in alternation, and the medians are compared: other work on the
machine then takes from each alike. Starting processes is not counted, for nobody.

    python benchmarks/simulator.py [--seconds 4] [--repeats 5] [--workers P]
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tardygrad as tg
from tardygrad.tasks.data.images import Normalize
from tardygrad.tasks.nets import CNN, ViT

CLIENTS, BUFFER, STEPS, BATCH, LR, CLIP = 40, 4, 5, 32, 0.1, 0.5
METHOD = tg.clip2(local_lr=LR, local_clip=CLIP, lr=1.0, clip=0.01, buffer=BUFFER, local_steps=STEPS, mode="client")


def make(name: str) -> nn.Module:
    normalize = Normalize((0.286,), (0.353,))
    if name == "cnn":
        return CNN(dim=16, normalize=normalize)
    return ViT(dim=64, depth=2, heads=4, patch=7, shape=(1, 28, 28), normalize=normalize)


def steps(module: nn.Module, images: Tensor, labels: Tensor, rows: list[Tensor]) -> None:
    """A client's K clipped steps."""
    parameters = list(module.parameters())
    for batch in rows:
        module.zero_grad(set_to_none=True)
        cross_entropy(module(images[batch]), labels[batch]).backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_clamp_min_(gradients, -CLIP)
        torch._foreach_clamp_max_(gradients, CLIP)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-LR)


def counted(update: Callable[[int], object], seconds: float) -> float:
    """Updates per second."""
    update(0)  # the first is slower
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        update(number := number + 1)
    return number / (time.perf_counter() - began)


def bare(task: tg.TorchTask, name: str, seconds: float) -> float:
    module, rows = make(name), batches(task)
    return counted(lambda number: steps(module, *task.data.data, rows[number % CLIENTS]), seconds)


def copies(task: tg.TorchTask, name: str, seconds: float) -> float:
    module, (images, labels), rows = make(name), task.data.data, batches(task)

    def update(number: int) -> None:
        local = copy.deepcopy(module)
        optimizer = torch.optim.SGD(local.parameters(), lr=LR)
        for batch in rows[number % CLIENTS]:
            optimizer.zero_grad()
            cross_entropy(local(images[batch]), labels[batch]).backward()
            nn.utils.clip_grad_value_(local.parameters(), CLIP)
            optimizer.step()

    return counted(update, seconds)


def batches(task: tg.TorchTask) -> list[list[Tensor]]:
    return [list(shard.split(BATCH)) for shard in task.data.rows]


def together(task: tg.TorchTask, name: str, seconds: float, processes: int) -> float:
    """So many bare loops at once, one thread each; their rates added up."""
    context = multiprocessing.get_context("fork")
    ready, answers = context.Barrier(processes), context.SimpleQueue()

    def loop() -> None:
        torch.set_num_threads(1)
        ready.wait()
        answers.put(bare(task, name, seconds))

    crew = [context.Process(target=loop) for _ in range(processes)]
    for process in crew:
        process.start()
    total = sum(answers.get() for _ in crew)
    for process in crew:
        process.join()
    return total


def simulated(task: tg.TorchTask, seconds: float, workers: int) -> float:
    """Updates per second from the fifth round's end, when all processes are at work."""
    with tg.SimPool(task, METHOD, tg.Fleet.paper(clients=CLIENTS), workers=workers, rounds=2000) as pool:
        server = tg.Server(METHOD, task.init(0), clients=CLIENTS, seed=0)
        began = math.inf
        for _ in tg.drive(server, pool, 2000):
            if server.round == 5:
                began = min(began, time.perf_counter())
            elif time.perf_counter() - began > seconds:
                break
        return (server.round - 5) * BUFFER / (time.perf_counter() - began)


def threaded(function: Callable[[], float], threads: int) -> float:
    torch.set_num_threads(threads)
    try:
        return function()
    finally:
        torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(1)
    workers, seconds = args.workers, args.seconds
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (CLIENTS * BATCH * STEPS, 1, 28, 28), dtype=torch.uint8, generator=draw)
    labels = torch.randint(10, (len(images),), generator=draw)
    limit = f"bare, {workers} processes of 1 thread"
    table = Table("model", "loop", title=f"K={STEPS}, batch {BATCH}, medians of {args.repeats}", title_justify="left")
    for heading in ("updates/s", f"of {workers} bare processes", "ours is faster by"):
        table.add_column(heading, justify="right")
    for name in ("cnn", "vit"):
        task = tg.TorchTask(
            make(name), loss=cross_entropy, data=tg.shard((images, labels), clients=CLIENTS), batch_size=BATCH
        )
        loops: dict[str, Callable[[], float]] = {
            f"ours, {workers} workers": lambda t=task: simulated(t, seconds, workers),
            limit: lambda t=task, n=name: together(t, n, seconds, workers),
            "ours, 1 worker": lambda t=task: simulated(t, seconds, 1),
            "bare, 1 thread": lambda t=task, n=name: bare(t, n, seconds),
            f"bare, {workers} threads": lambda t=task, n=name: threaded(lambda: bare(t, n, seconds), workers),
            f"copies, {workers} threads": lambda t=task, n=name: threaded(lambda: copies(t, n, seconds), workers),
        }
        rates: dict[str, list[float]] = {loop: [] for loop in loops}
        for _ in range(args.repeats):
            for loop, function in loops.items():
                rates[loop].append(function())
        middle = {loop: median(each) for loop, each in rates.items()}
        ours = next(iter(middle.values()))
        for loop, rate in middle.items():
            table.add_row(name, loop, f"{rate:.1f}", f"{rate / middle[limit]:.0%}", f"{ours / rate:.2f}x")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
