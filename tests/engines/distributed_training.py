"""A training loop under `torch.distributed`. Every rank of a worker imports this file, so it imports little."""

from __future__ import annotations

import os
import signal
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import tardygrad as tg

ROWS = torch.arange(24.0).reshape(12, 2) / 10


def train(folder: Path, module: nn.Module, job: tg.Job) -> float:
    """Least squares, half of the rows on each rank; a file in the folder says which rank fails, and how.

    The model is in DDP, or that of client 1 in FSDP2, if there is a file `fsdp`. Without a group it is plain torch.
    """
    parallel = distributed.is_initialized()
    sharded = parallel and job.client == 1 and (folder / "fsdp").exists()
    rank, size = (distributed.get_rank(), distributed.get_world_size()) if parallel else (0, 1)
    if parallel:
        (folder / f"rank-{rank}").write_text(str(os.getpid()))
    for fault in folder.glob(f"*-on-{rank}"):
        fault.unlink()
        if fault.name.startswith("raise"):
            raise ValueError("no luck")
        os.kill(os.getpid(), signal.SIGKILL)
    model = module
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(deepcopy(module), mesh=init_device_mesh("cpu", (size,)))
    elif parallel:
        model = DistributedDataParallel(module)
    optimizer, mine, loss = torch.optim.SGD(model.parameters(), 0.1), ROWS[rank::size], torch.zeros(())
    for _ in range(job.steps or 0):
        optimizer.zero_grad()
        loss = mse_loss(model(mine), mine.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    if sharded:
        with torch.no_grad():
            for ours, shard in zip(module.parameters(), model.parameters(), strict=True):
                ours.copy_(shard.full_tensor())  # type: ignore[operator]
    return float(loss.detach())


def make_task(folder: Path) -> tg.TrainerTask:
    return tg.TrainerTask(nn.Linear(2, 1), train=partial(train, folder), clients=2)
