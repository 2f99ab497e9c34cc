"""Data larger than memory: each client streams its own file, and the process is refused more memory (on Linux)."""

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset

import tardygrad as tg

CLIENTS, ROWS, COLUMNS = 4, 10_000, 1_000  # 40 MB for each client
LIMIT = 100_000_000  # bytes that the process may use besides what it uses before the run
temporary = tempfile.TemporaryDirectory()
truth = torch.linspace(-1, 1, COLUMNS)


class Sensor(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The rows of a file, one after the other."""

    def __init__(self, client: int) -> None:
        self.path = Path(temporary.name, f"sensor-{client}.bin")

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        with self.path.open("rb") as file:
            while row := file.read(4 * COLUMNS):
                x = torch.frombuffer(bytearray(row), dtype=torch.float32)
                yield x, (x @ truth).unsqueeze(0)


def limit_memory(more: int) -> None:
    """Let the system refuse memory beyond what this process has, plus `more` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))


for client in range(CLIENTS):
    np.random.default_rng(client).standard_normal((ROWS, COLUMNS), dtype=np.float32).tofile(Sensor(client).path)
x = torch.randn(200, COLUMNS, generator=torch.Generator().manual_seed(0))
task = tg.TorchTask(
    lambda: torch.nn.Linear(COLUMNS, 1), data=Sensor, clients=CLIENTS, loss=torch.nn.functional.mse_loss,
    test=(x, (x @ truth).unsqueeze(1)), batch_size=32,
)  # fmt: skip
method = tg.clip2(local_lr=0.001, local_clip=20.0, lr=1.0, clip=0.2, buffer=2, local_steps=20, mode="client")
limit_memory(LIMIT)
run = tg.simulate(method, task, tg.Fleet.paper(clients=CLIENTS), rounds=60)
read = 60 * 2 * 20 * 32 * 4 * COLUMNS  # rounds · M · K · batch size · bytes of a row
print(f"{CLIENTS * ROWS * 4 * COLUMNS / 1e6:.0f} MB of data, {LIMIT / 1e6:.0f} MB of memory, {read / 1e6:.0f} MB read")
print(run.summary())
temporary.cleanup()

# It prints:
#
# 160 MB of data, 100 MB of memory, 307 MB read
# Clip² (client-centric, M=2, K=20)
# finished after 60 rounds, 75 s on the clock
# test loss 2.804
# delay mean 2.5, largest 28; 120 updates, 0 lost
