"""Your own module, loss and data in tensors: any `nn.Module` is a task."""

import torch
from torch import nn

import tardygrad as tg

torch.set_num_threads(1)  # so small a model is slower with more
draw = torch.Generator().manual_seed(0)
inputs = torch.randn(3000, 2, generator=draw)
labels = (inputs.norm(dim=1) > 1.18).long()  # inside or outside a circle: about half of the points each
train, test = (inputs[:2000], labels[:2000]), (inputs[2000:], labels[2000:])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))


task = tg.TorchTask(
    network,  # a function: x_0 depends on the run's seed; a module itself would start from its own weights
    loss=nn.functional.cross_entropy,
    data=tg.shard(train, clients=20, concentration=0.3),  # clients with markedly different mixes of labels
    test=test,
    batch_size=16,
)
method = tg.clip2(
    local_lr=0.1, local_clip=1.0, lr=2.0, clip=0.1, buffer=4, local_epochs=1, mode="client", downplay=True
)
run = tg.simulate(method, task, tg.Fleet.paper(clients=20, stragglers="mild"), rounds=150)
print(task)
print(run.summary())

# It prints:
#
# TorchTask(Sequential, parameters=162, clients=20)
# Clip² (client-centric, M=4, K=1 epoch, downplayed)
# finished after 150 rounds, 74 s on the clock
# test accuracy 96.1%, test loss 0.1615
# delay mean 5.6, largest 19; 600 updates, 0 lost
