"""Stop a run, go on from its record, and replay it: the same bits each time."""

import tempfile
from pathlib import Path

import torch

import tardygrad as tg

task = tg.tasks.logistic(clients=10)
fleet = tg.Fleet.paper(clients=10)
method = tg.clip2(
    local_lr=0.1, local_clip=0.5, lr=1.0, clip=0.1, buffer=3, local_steps=5, mode="client", compensate=True
)
whole = tg.simulate(method, task, fleet, rounds=60)

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "run"
    for row in tg.begin(method, task, tg.SimPool(task, method, fleet), rounds=60, out=out).go():
        if row["round"] == 25:
            break  # leaving the loop ends the run with a checkpoint, and so would `run.stop()`
    resumed = tg.resume(out, method, task, tg.SimPool(task, method, fleet))
    print("resumed after round", resumed.server.round)
    for _ in resumed.go():
        pass
    print("the record holds", *sorted(path.name for path in out.iterdir() if path.name != ".lock"))

print("resumed, the same bits:", torch.equal(resumed.x, whole.x))

with tg.ThreadPool(task, method, workers=2) as pool:  # the real clock: arrivals come as they finish
    real = tg.train(method, task, pool, rounds=60)
print("threads, replayed to the same bits:", torch.equal(tg.replay(real).x, real.x))

# It prints:
#
# resumed after round 25
# the record holds checkpoints events.jsonl model.safetensors spec.json summary.json
# resumed, the same bits: True
# threads, replayed to the same bits: True
