"""What does reading a client's own dataset cost, beside a bare loop over a DataLoader, and beside tensors in memory?

Client updates per second of processor time (K = 5 clipped steps, batch 32, a small CNN on 28 × 28 images, one process,
one thread):

- datasets: `simulate` with a `TorchTask` whose clients have a `Dataset` each, with rows as dicts;
- bare: the same steps on an endless `DataLoader` of each client in a plain PyTorch loop, and nothing else;
- tensors: `simulate` with the same rows as tensors in memory, split by `tg.Shards`;
- bare tensors: the same steps on these tensors in a plain loop.

Each has a process of its own, since a task changes how glibc returns memory (`tasks/views.py`). They run in turn, and
the medians are compared. The first two are the promise: at least 90 % of the bare loop.

    python benchmarks/data_loading.py [--seconds 3] [--repeats 5]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import tardygrad as tg
from tardygrad.tasks.nets import CNN

CLIENTS, ROWS, STEPS, BATCH, LR, CLIP = 10, 320, 5, 32, 0.1, 0.5
METHOD = tg.clip2(local_lr=LR, local_clip=CLIP, lr=1.0, clip=0.01, buffer=4, local_steps=STEPS, mode="client")
IMAGES = torch.randn(CLIENTS * ROWS, 1, 28, 28, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(CLIENTS * ROWS) % 10


class Album(Dataset[dict[str, Tensor]]):
    """A client's rows, as dicts."""

    def __init__(self, client: int) -> None:
        self.images, self.labels = (each[client * ROWS : (client + 1) * ROWS] for each in (IMAGES, LABELS))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"image": self.images[row], "label": self.labels[row]}


def network() -> nn.Module:
    return CNN(dim=16, normalize=nn.Identity())


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(module(batch["image"]), batch["label"])


def rate(updates: Iterator[Any], seconds: float) -> float:
    """Updates per second of processor time, without the first few."""
    for _ in range(5):
        next(updates)
    began, number = time.process_time(), 0
    while time.process_time() - began < seconds:
        next(updates)
        number += 1
    return number / (time.process_time() - began)


def simulated(task: tg.TorchTask) -> Iterator[None]:
    """The updates of a run."""
    server = tg.Server(METHOD, task.init(0), clients=CLIENTS, seed=0)
    pool = tg.SimPool(task, METHOD, tg.Fleet.paper(clients=CLIENTS), rounds=10**6)
    return (None for event in tg.drive(server, pool, 10**6) if isinstance(event.message, tg.Update))


def bare(batches: Callable[[int], Iterator[dict[str, Tensor]]]) -> Iterator[None]:
    """The updates of a plain loop, client by client."""
    module, streams = network(), [batches(client) for client in range(CLIENTS)]
    parameters = list(module.parameters())
    for number in count():
        for _ in range(STEPS):
            module.zero_grad(set_to_none=True)
            loss(module, next(streams[number % CLIENTS])).backward()
            gradients = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_clamp_min_(gradients, -CLIP)
            torch._foreach_clamp_max_(gradients, CLIP)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-LR)
        yield


def loaded(client: int) -> Iterator[dict[str, Tensor]]:
    loader = DataLoader(Album(client), batch_size=BATCH, shuffle=True)
    while True:
        yield from loader


def sliced(client: int) -> Iterator[dict[str, Tensor]]:
    own = Album(client)
    while True:
        for rows in torch.randperm(ROWS).split(BATCH):
            yield {"image": own.images[rows], "label": own.labels[rows]}


def datasets() -> Iterator[None]:
    own = [Album(client) for client in range(CLIENTS)]
    return simulated(tg.TorchTask(network, data=own, loss=loss, batch_size=BATCH))


def tensors() -> Iterator[None]:
    shards = tg.Shards((IMAGES, LABELS), torch.arange(CLIENTS * ROWS).split(ROWS))
    return simulated(tg.TorchTask(network, data=shards, loss=cross_entropy, batch_size=BATCH))


WAYS: dict[str, Callable[[], Iterator[None]]] = {
    "datasets": datasets, "bare": lambda: bare(loaded), "tensors": tensors, "bare tensors": lambda: bare(sliced),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=WAYS, help="measure one way, in this process")
    args = parser.parse_args()
    if args.only:
        torch.set_num_threads(1)
        print(rate(WAYS[args.only](), args.seconds))
        return
    measured: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(args.repeats):
        for name in WAYS:
            command = [sys.executable, __file__, "--only", name, "--seconds", str(args.seconds)]
            measured[name].append(float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    found = {name: median(rates) for name, rates in measured.items()}
    for name, value in found.items():
        print(f"{name:14}{value:8.1f} updates/s")
    print(f"datasets / bare loop over DataLoaders   {found['datasets'] / found['bare']:.2f}")
    print(f"tensors / bare loop over tensors        {found['tensors'] / found['bare tensors']:.2f}")


if __name__ == "__main__":
    main()
