"""Your own engine: subclass `Pool`. This one has a single worker, which takes the waiting jobs in random order."""

import numpy as np

import tardygrad as tg


class RandomOrder(tg.Pool):
    def __init__(self, task: tg.Task, method: tg.Method) -> None:
        self.task, self.method = task, method
        self.jobs: list[tg.Job] = []
        self.rng, self.seconds = np.random.default_rng(0), 0.0

    @property
    def now(self) -> float:
        return self.seconds

    def submit(self, job: tg.Job) -> None:
        self.jobs.insert(self.rng.integers(len(self.jobs) + 1), job)

    def next(self) -> tg.Update | None:
        if not self.jobs:
            return None
        self.seconds += 1.0  # every job takes one second
        return tg.work(self.jobs.pop(), self.task, self.method)


task = tg.tasks.quadratic(clients=8, heterogeneity=0.1, noise=tg.Noise("student", tail=1.5, scale=0.5))
method = tg.clip2(
    local_lr=0.1, local_clip=1.0, lr=tg.Power(3.0, -0.5), clip=0.1, buffer=2, local_steps=5, mode="client"
)
with RandomOrder(task, method) as pool:
    run = tg.train(method, task, pool, rounds=200)
print(run.summary())

# It prints:
#
# Clip² (client-centric, M=2, K=5)
# finished after 200 rounds, 400 s on the clock
# test loss 0.1456, distance 1.126
# delay mean 4.4, largest 29; 400 updates, 0 lost
