"""A worker may be several processes: DDP inside each of two workers on Ray, two gloo ranks each (nccl on GPUs)."""

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tardygrad as tg

inputs = torch.randn(800, 10, generator=torch.Generator().manual_seed(0))
labels = (inputs[:, :5].sum(1) > inputs[:, 5:].sum(1)).long()


def train(module: nn.Module, job: tg.Job) -> float:
    """One job of a client. Every rank of the worker gets it and calls this; rank 0's module is the worker's answer."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    mine = range(160 * job.client + rank, 160 * (job.client + 1), ranks)  # this rank's share of the client's rows
    model = DistributedDataParallel(module)
    optimizer, total = torch.optim.AdamW(model.parameters(), lr=0.02), 0.0
    for step in range(job.steps or 0):
        batch = list(mine)[step * 8 : step * 8 + 8]
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()  # DDP averages the gradients of the ranks
        optimizer.step()
        total += loss.item() / (job.steps or 1)
    return total


task = tg.TrainerTask(lambda: nn.Linear(10, 2), train=train, clients=4, loss=cross_entropy, test=(inputs, labels))
method = tg.fedbuff(lr=1.0, buffer=2, local_steps=10, mode="client")  # without local_lr: the loop has its own
with tg.RayPool(task, method, workers=2, processes_per_worker=2, evaluate="between") as pool:
    run = tg.train(method, task, pool, rounds=10, evaluate_every=10)
print(f"{run.status} after {run.summary().rounds} rounds, {run.summary().updates} updates")
print("test accuracy above 90 %:", run.metrics[-1]["test_accuracy"] > 0.9)

# It prints:
#
# finished after 10 rounds, 20 updates
# test accuracy above 90 %: True
