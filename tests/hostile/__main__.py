"""`make hostile`: many attacks of every kind, and a table of what came of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.hostile import arguments, commands, damage, kills, workers
from tests.hostile.verdicts import FAULTS, HEAD, Tally


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--corruptions", type=int, default=1000)
    ask.add_argument("--kills", type=int, default=100)
    ask.add_argument("--commands", type=int, default=1000)
    ask.add_argument("--calls", type=int, default=300)
    ask.add_argument("--worker-kills", type=int, default=30)
    ask.add_argument("--worker-stops", type=int, default=10)
    ask.add_argument("--seed", type=int, default=0)
    given = ask.parse_args()
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(HEAD, flush=True)
        for attack, tries in ((damage.attack, given.corruptions), (kills.attack, given.kills),
                              (commands.attack, given.commands), (arguments.attack, given.calls)):  # fmt: skip
            if tries:
                tallies.append(attack(folder / attack.__module__, tries, given.seed))
                print(tallies[-1], flush=True)
        if given.worker_kills or given.worker_stops:
            for tally in workers.attack(folder / "workers", given.worker_kills, given.worker_stops, given.seed):
                tallies.append(tally)
                print(tally, flush=True)
    for tally in tallies:
        for fault in tally.faults:
            print(f"\n{tally.name}: {fault}", file=sys.stderr)
    return int(any(tally.counts[fault] for tally in tallies for fault in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
