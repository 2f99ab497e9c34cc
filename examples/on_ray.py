"""The same method on a Ray cluster, here one of this machine's own, and once more from its record (extra `ray`)."""

import torch

import tardygrad as tg

task = tg.tasks.digits(clients=8)
method = tg.clip2(local_lr=0.3, local_clip=0.03, lr=1.0, clip=0.003, buffer=2, local_steps=5, mode="client")
with tg.RayPool(task, method, workers=2) as pool:
    run = tg.train(method, task, pool, rounds=10)
print(f"{run.status} after {run.summary().rounds} rounds, {run.summary().updates} updates")

again = tg.replay(run)  # the same arrivals, computed in this process
print("the same bits:", torch.equal(run.x, again.x))

# It prints:
#
# finished after 10 rounds, 20 updates
# the same bits: True
