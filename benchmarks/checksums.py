"""What do the checksums of a record cost? Their CPU time for the lines of a run on the clock alone, and the run's.

The smallest of several times counts, since other work on the machine only adds to it.

    python benchmarks/checksums.py [--updates 20000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import tardygrad as tg
from tardygrad.runs.checks import checked_line
from tardygrad.runs.record import LINES, read_lines

CLIENTS, BUFFER = 1000, 10


def seconds(updates: int, folder: Path) -> float:
    """CPU seconds of a recorded run."""
    method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=BUFFER, local_steps=1, mode="client")
    fleet = tg.Fleet.paper(clients=CLIENTS, stragglers="large", continuous=True)
    settings: dict[str, int] = {"rounds": updates // BUFFER, "evaluate_every": 0, "checkpoint_every": updates}
    began = time.process_time()
    tg.simulate(method, tg.tasks.clock(clients=CLIENTS), fleet, out=folder, **settings)  # type: ignore[arg-type]
    return time.process_time() - began


def checks(lines: list[str]) -> float:
    """CPU seconds for the checksums of these lines."""
    check, began = 0, time.process_time()
    for line in lines:
        _, check = checked_line(line, check)
    return time.process_time() - began


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--updates", type=int, default=20_000)
    ask.add_argument("--repeats", type=int, default=5)
    given = ask.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, str(number)) for number in range(given.repeats)]
        run = min(seconds(given.updates, folder) for folder in folders)
        lines = [json.dumps(row) for file in LINES for row in read_lines(folders[0] / file)]
    cost = min(checks(lines) for _ in folders)
    text = f"{given.updates:,} updates, {len(lines):,} lines: {run:.2f} s, checksums {cost:.3f} s of it"
    print(f"{text}: {cost / run:.1%}")


if __name__ == "__main__":
    main()
