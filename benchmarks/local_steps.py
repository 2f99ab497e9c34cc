"""What makes a local step faster? Gradients per second of processor time, by option, beside the plain loop.

- MiniLM on SST-2, batches of 16 sentences: plain pads every row to 64 tokens; then rows padded to the longest of their
  batch, as the task does; batches of rows of similar length (`group_by_length`); these in bfloat16 (`autocast`), and
  with attention by matrix products (`attention`); the last two layers on cached inputs (`train`); and all layers
  compiled (`compile`). The first steps include compiling.
- TinyViT on CIFAR-10, batches of 16 images of 32 × 32 pixels: plain trains all of it; then with `channels_last`, and
  the last stage on cached inputs.
- A CNN on the same images: plain, and with `channels_last`.

One process, one thread. Options are measured in turn, and medians compared. The first 20 steps of each are timed apart:
a network is compiled at the first one, and again for batches of other lengths.

    python -m benchmarks.local_steps FOLDER [--seconds 3] [--repeats 3] [--compile]

FOLDER contains glue/, cifar10/ and tinyvit5m_mobilesam/.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from experiments.tasks.cifar10 import cifar10
from experiments.tasks.glue import glue
from tardygrad import tasks
from tardygrad.core.messages import Job

Step = Callable[[], object]
WARM_UP = 20  # steps


def batches(task: tasks.TorchTask) -> Iterator[Any]:
    """Batches of one client after another, without end."""
    x = task.init(0)
    for serial in count():
        yield from task.batches(Job(serial % task.clients, serial, 0, x, None, 1, 0, task.init_module_buffers()))


def by_task(task: tasks.TorchTask) -> Step:
    """A gradient as a client computes it."""
    x, given, buffers = task.init(0), batches(task), task.init_module_buffers()
    return lambda: task.gradient(x, next(given), buffers)


def by_network(task: tasks.TorchTask, network: Callable[..., Any]) -> Step:
    """A gradient of a network in a plain loop, on the task's batches."""
    given = batches(task)

    def step() -> None:
        *inputs, target = next(given).data[0]
        output = network(*inputs)
        cross_entropy(getattr(output, "logits", output), target).backward()

    return step


def rate(step: Step, seconds: float) -> float:
    """Steps per second of processor time."""
    began, number = time.process_time(), 0
    while time.process_time() - began < seconds:
        step()
        number += 1
    return number / (time.process_time() - began)


def text(folder: Path, *, compiled: bool) -> dict[str, Step]:
    settings: Any = {"clients": 10, "name": "sst2", "data": str(folder / "glue"), "rows": 640, "test_rows": 10}
    task, grouped, cast, eager = (
        glue(**settings, max_length=64, **more)
        for more in (
            {},
            {"group_by_length": True},
            {"group_by_length": True, "autocast": True},
            {"group_by_length": True, "autocast": True, "attention": "eager"},
        )
    )
    network = task.module(task.init(0)).train()

    def padded(ids: torch.Tensor, mask: torch.Tensor, *rest: torch.Tensor) -> Any:
        wide = [nn.functional.pad(each, (0, 64 - each.shape[1])).long() for each in (ids, mask)]
        return network.model(input_ids=wide[0], attention_mask=wide[1])

    found = {
        "plain, padded to 64 tokens": by_network(task, padded),
        "padded to the batch's longest": by_task(task),
        "group_by_length": by_task(grouped),
        "group_by_length, autocast": by_task(cast),
        "these and attention = 'eager'": by_task(eager),
    }
    if compiled:
        found["group_by_length, compile"] = by_task(glue(**settings, max_length=64, group_by_length=True, compile=True))
    return found


def images(folder: Path, model: str) -> dict[str, Step]:
    settings: Any = {"clients": 10, "data": str(folder / "cifar10"), "train_rows": 640, "test_rows": 10}
    settings |= {"batch_size": 16}
    if model == "cnn":
        make = partial(tasks.cifar10, model="cnn", **settings)
        return {"plain": by_task(make()), "channels_last": by_task(make(channels_last=True))}
    make = partial(cifar10, **settings, pretrained=str(folder / "tinyvit5m_mobilesam"), resize=32)
    return {
        "plain": by_task(make(train="all")),
        "channels_last": by_task(make(train="all", channels_last=True)),
        'train = "last-1"': by_task(make(train="last-1")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="of processor time, for each option and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="also with `compile`, which takes a minute at first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    groups = {
        "MiniLM, SST-2": partial(text, options.folder, compiled=options.compile),
        "TinyViT, CIFAR-10": partial(images, options.folder, "tinyvit"),
        "CNN, CIFAR-10": partial(images, options.folder, "cnn"),
    }
    print(f"{'model':18} {'option':34} {'steps/s':>8} {'ratio':>6} {f'first {WARM_UP} (s)':>13}")
    for name, make in groups.items():
        steps, first, rates = make(), {}, dict[str, list[float]]()
        for option, step in steps.items():
            began = time.process_time()
            for _ in range(WARM_UP):
                step()
            first[option] = time.process_time() - began
        for _ in range(options.repeats):
            for option, step in steps.items():
                rates.setdefault(option, []).append(rate(step, options.seconds))
        plain = median(next(iter(rates.values())))
        for option, each in rates.items():
            speed = median(each)
            print(f"{name:18} {option:34} {speed:8.2f} {speed / plain:6.2f} {first[option]:13.1f}", flush=True)


if __name__ == "__main__":
    main()
