"""What do the checksums of a record cost? A recorded run on the clock alone, with and without them.

Runs alternate, and the smallest CPU time of each kind counts, since other work on the machine only adds to it.

    python benchmarks/checksums.py [--updates 100000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import tardygrad as tg
from tardygrad.runs import record

CLIENTS, BUFFER = 1000, 10


def seconds(updates: int, folder: Path) -> float:
    """CPU seconds of a recorded run."""
    method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=BUFFER, local_steps=1, mode="client")
    fleet = tg.Fleet.paper(clients=CLIENTS, stragglers="large", continuous=True)
    settings: dict[str, int] = {"rounds": updates // BUFFER, "evaluate_every": 0, "checkpoint_every": updates}
    began = time.process_time()
    tg.simulate(method, tg.tasks.clock(clients=CLIENTS), fleet, out=folder, **settings)  # type: ignore[arg-type]
    return time.process_time() - began


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--updates", type=int, default=100_000)
    ask.add_argument("--repeats", type=int, default=5)
    given = ask.parse_args()
    times: dict[str, list[float]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.repeats):
            times["with"].append(seconds(given.updates, Path(folder, f"with-{number}")))
            with patch.object(record, "checked_line", lambda line, before: (line + "\n", 0)):
                times["without"].append(seconds(given.updates, Path(folder, f"without-{number}")))
    best = {name: min(each) for name, each in times.items()}
    cost = (best["with"] / best["without"] - 1) * 100
    print(f"{given.updates:,} updates, recorded: {best['with']:.2f} s with checksums, {best['without']:.2f} s without")
    print(f"checksums cost {cost:.1f} %")


if __name__ == "__main__":
    main()
