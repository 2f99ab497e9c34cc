"""The memory that a run takes in a process of its own, with vectors of 12 MB."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import tardygrad as tg
from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.runs import memory


class Wide(tg.Task):
    """F(x) = ½ Σ_j x_j² on a long vector."""

    def __init__(self, parameters: int, clients: int = 12) -> None:
        self.parameters, self.clients = parameters, clients

    def init(self, seed: int) -> Vector:
        return torch.ones(self.parameters)

    def batches(self, job: Job) -> Iterator[int]:
        return iter(range(job.steps or 0))

    def gradient(self, x: Vector, batch: int, module_buffers: ModuleBuffers | None) -> tuple[torch.Tensor, Vector]:
        return torch.dot(x, x) / 2, x.clone()

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        return {}


def status(key: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return 1024 * int(line.split()[1])


def measure(how: dict[str, object], out: str | None) -> None:
    torch.set_num_threads(1)
    task, fleet = Wide(3_000_000), tg.Fleet.paper(clients=12)
    method = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=1.0, buffer=4, local_steps=2, **how)  # type: ignore
    forecast = memory.Meter(method, task, checkpoint_every=3 if out else 0).forecast(fleet, rounds=5)
    tg.simulate(method, Wide(1_000_000), fleet, rounds=2, evaluate_every=0)  # what is loaded when it is first needed
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = status("VmRSS")
    tg.simulate(method, task, fleet, rounds=5, evaluate_every=0, checkpoint_every=3, out=out)
    print(json.dumps({"forecast": forecast.peak, "real": status("VmHWM") - before, "text": str(forecast)}))


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]), *sys.argv[2:] or [None])
