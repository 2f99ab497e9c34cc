"""`make hostile`: many attacks of every kind, and a table of their results.

If any count is given, attacks without one are left out. With --page, the row of each attack that was run is
written into that page; the other rows stay.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests.hostile import arguments, commands, damage, disks, kills, modules, pages, workers
from tests.hostile.verdicts import COLUMNS, FAULTS, HEAD, Tally

TRIES = {
    "corruptions": 1000, "kills": 100, "commands": 1000, "calls": 300, "disks": 50,
    "requests": 1000, "swaps": 100, "moves": 50, "modules": 2000, "worker_kills": 30, "worker_stops": 10,
}  # fmt: skip
ATTACKS: dict[str, Callable[[Path, int, int], Tally]] = {
    "corruptions": damage.attack, "kills": kills.attack, "commands": commands.attack,
    "calls": arguments.attack, "disks": disks.attack, "requests": pages.attack,
    "swaps": damage.swap, "moves": disks.move, "modules": modules.attack,
}  # fmt: skip
PAGE = f"""# Attacks

`make hostile` writes this page; `python -m tests.hostile --kills 100 --page docs/benchmarks/hostile.md` writes one row.
A try is *refused* if it ends with one sentence (a request: without a page), and *right* if it ends without an error.
After damage, kills and full disks the result must also be that of a run that was not attacked or, where the clock is
real, that of a replay of its record. A run that a full disk has ended must then continue to that result. The columns
*wrong*, *hung* and *traceback* count faults.

- corruptions: records with changed, cut or missing files
- kills: runs that are killed and resumed
- worker kills, worker stops: workers on Ray that are killed, or stopped (SIGSTOP)
- full disks: runs whose files cannot grow beyond some size
- swapped parts: records of which one file or folder is another run's
- moved folders: runs whose folder is renamed while they run
- command lines: commands with strange values
- calls in Python: calls with a strange argument
- requests: HTTP requests to `tardygrad watch`
- own modules: modules of random parts, trained as a plain loop trains them

| attack | {" | ".join(COLUMNS)} | seed | made |
| --- | {" | ".join(["---:"] * (len(COLUMNS) + 1))} | --- |
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, tries in TRIES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"tries ({tries})")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (0)")
    parser.add_argument("--page", type=Path, help="a Markdown page to write the rows into")
    options = parser.parse_args()
    counts = {name: getattr(options, name) for name in TRIES}
    counts = TRIES if set(counts.values()) == {None} else {name: tries or 0 for name, tries in counts.items()}
    parts = [
        partial(_in_a_list, attack, counts[name], options.seed) for name, attack in ATTACKS.items() if counts[name]
    ]
    if counts["worker_kills"] or counts["worker_stops"]:
        parts.append(
            lambda folder: workers.attack(folder, counts["worker_kills"], counts["worker_stops"], options.seed)
        )
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory() as name:
        print(HEAD, flush=True)
        for number, part in enumerate(parts):
            for tally in part(Path(name, str(number))):
                tallies.append(tally)
                print(tally, flush=True)
                if options.page:
                    _write(options.page, tally, options.seed)
    for tally in tallies:
        for fault in tally.faults:
            print(f"\n{tally.name}: {fault}", file=sys.stderr)
    return int(any(tally.counts[fault] for tally in tallies for fault in FAULTS))


def _in_a_list(attack: Callable[[Path, int, int], Tally], tries: int, seed: int, folder: Path) -> list[Tally]:
    return [attack(folder, tries, seed)]


def _write(page: Path, tally: Tally, seed: int) -> None:
    """Put a row into a page, in place of an earlier one of the same attack."""
    text = page.read_text("utf-8") if page.exists() else PAGE
    when = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores"
    row = f"| {tally.name} | {' | '.join(f'{number:,}' for number in tally.numbers)} | {seed} | {when} |\n"
    old = re.compile(rf"^\| {re.escape(tally.name)} \|.*\n", re.MULTILINE)
    page.write_text(old.sub(lambda _: row, text) if old.search(text) else text + row, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
