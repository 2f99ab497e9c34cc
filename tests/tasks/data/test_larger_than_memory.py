"""Data on disk that does not fit into memory: files that are mapped or read row by row work where loading fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import tardygrad as tg

path, rows, columns = sys.argv[1], 300_000, 250  # 300 MB
method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=2, local_steps=5)


class Mapped(Dataset):
    def __init__(self, client):
        self.rows = np.memmap(path, np.float32, "r", shape=(rows, columns))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return torch.from_numpy(self.rows[row].copy()), torch.ones(1)


class Loaded(Mapped):
    def __init__(self, client):
        self.rows = np.fromfile(path, np.float32).reshape(rows, columns)


def train(data):
    task = tg.TorchTask(nn.Linear(columns, 1), data=data, clients=3, loss=nn.functional.mse_loss, batch_size=64)
    tg.simulate(method, task, tg.Fleet.paper(clients=3), rounds=3, evaluate_every=0)


used = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line).split()[1])
resource.setrlimit(resource.RLIMIT_DATA, (1024 * used + 150_000_000, resource.RLIM_INFINITY))
train(Mapped)
print("mapped")
try:
    train(Loaded)
except tg.WorkFailed as error:
    print("loaded:", "MemoryError" in str(error))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux, to limit the memory of a process")
def test_mapped_files_may_be_larger_than_memory(tmp_path: Path) -> None:
    with (tmp_path / "data").open("wb") as file:
        file.truncate(300_000_000)  # zeros that take no space on the disk
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "data")], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["mapped", "loaded: True"], ran.stderr
