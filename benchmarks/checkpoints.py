"""What do a checkpoint and a resume cost with very many clients? CPU seconds and bytes, on the clock alone.

python benchmarks/checkpoints.py [--clients 1000000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import tardygrad as tg

BUFFER, ROUNDS = 10, 10


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--clients", type=int, default=1_000_000)
    clients = ask.parse_args().clients
    method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=BUFFER, local_steps=1, mode="client")
    fleet = tg.Fleet.paper(clients=clients, stragglers="large", continuous=True)
    task = tg.tasks.clock(clients=clients)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "run")
        run = tg.begin(method, task, fleet, rounds=ROUNDS, out=out, evaluate_every=0, checkpoint_every=2 * ROUNDS)
        for _ in run.go():
            last = time.process_time()
        saved = time.process_time() - last  # the only checkpoint is that of the end
        size = sum(path.stat().st_size for path in out.glob("checkpoints/*/*"))
        began = time.process_time()
        tg.resume(out, method, task, fleet)
        resumed = time.process_time() - began
        lines = sum(path.stat().st_size for path in out.glob("*.jsonl"))
    print(f"{clients:,} clients, round {ROUNDS}: a checkpoint takes {saved:.1f} s and {size / 1e6:.0f} MB;")
    print(f"a resume takes {resumed:.1f} s, with a record of {lines / 1e6:.0f} MB to read and check")


if __name__ == "__main__":
    main()
