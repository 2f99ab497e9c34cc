"""Workers on Ray that are killed or stopped: the run goes on, and its record repeats it to the bit."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path
from random import Random

import torch

import tardygrad as tg
from tests.hostile.verdicts import Tally

METHOD = tg.clip2(
    local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client", compensate=True
)
ROUNDS = 12  # between two attacks


def attack(folder: Path, kills: int, stops: int, seed: int = 0) -> list[Tally]:
    """Kill or stop a worker every few rounds of one run, then replay it."""
    random = Random(seed)
    tallies = {signal.SIGKILL: Tally("worker kills"), signal.SIGSTOP: Tally("worker stops")}
    task = tg.tasks.quadratic(clients=6, dimension=300, heterogeneity=1.0, noise=tg.Noise("student", 1.5, 0.1))
    left = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    random.shuffle(left)
    attacks, lost = list(left), 0
    try:
        with tg.RayPool(task, METHOD, workers=3, grace=1.0) as pool:
            run = tg.begin(METHOD, task, pool, rounds=10**6, out=folder / "run", evaluate_every=0)
            for row in run.go():
                if row["round"] % ROUNDS == 0:
                    if not left:
                        run.stop()
                        continue
                    known = [worker.process for worker in pool.workers.members if worker.process is not None]
                    if known:
                        os.kill(random.choice(known), left.pop())
            lost = run.counts["loss"]
        same = torch.equal(tg.replay(run).x, run.x)
        verdict, detail = ("right", "") if same else ("wrong", "a replay has other bits")
    except BaseException:
        verdict, detail = "traceback", traceback.format_exc()[-900:]
    for number in attacks:
        tallies[number].add(verdict, f"{signal.Signals(number).name}, {lost} jobs lost", detail)
    return list(tallies.values())
