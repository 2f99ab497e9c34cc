"""The paper's simulated runtimes on CIFAR-10: N = 40, T = 140, every (mode, stragglers, M) of its tables.

Only the clock runs. The paper gives one run per method; their runtimes differ only by chance, so a cell compares our
mean over seeds with the paper's mean over methods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple, cast

import tardygrad as tg
from experiments import lib
from experiments.lib import Mode, Stragglers

CLIENTS, ROUNDS = 40, 140


class ClockCell(NamedTuple):
    """One cell of the paper's tables."""

    mode: Mode
    stragglers: Stragglers
    buffer: int
    ours: float  # simulated seconds, mean over seeds
    paper: float  # mean over the paper's methods

    @property
    def ratio(self) -> float:
        """Ours divided by the paper's."""
        return self.ours / self.paper


def published() -> dict[tuple[Mode, Stragglers, int], list[float]]:
    """The paper's runtimes, by (mode, stragglers, buffer)."""
    cells = defaultdict(list)
    for row in lib.published_rows("clock"):
        place = (cast(Mode, row["mode"]), cast(Stragglers, row["stragglers"]), int(row["buffer"]))
        cells[place].append(float(row["runtime"]))
    return dict(cells)


def runtime(mode: Mode, stragglers: Stragglers, buffer: int, seed: int) -> float:
    """The simulated seconds of one run."""
    method = tg.sgdclip(local_lr=0.0, local_clip=0.0, lr=0.0, buffer=buffer, local_steps=1, mode=mode)
    fleet = tg.Fleet.paper(clients=CLIENTS, stragglers=stragglers)
    return max(event.time for event in tg.plan(method, fleet, rounds=ROUNDS, seed=seed))


def clock(seeds: int = 20) -> Iterator[ClockCell]:
    """Compute every cell."""
    for place, runtimes in published().items():
        yield ClockCell(*place, mean(runtime(*place, seed) for seed in range(seeds)), mean(runtimes))


def text(cells: list[ClockCell], seeds: int) -> str:
    """The section of a page."""
    off = max(abs(cell.ratio - 1) for cell in cells)
    near = sum(abs(cell.ratio - 1) <= 0.04 for cell in cells)
    summary = (
        f"N = {CLIENTS}, T = {ROUNDS}; ours is the mean of {seeds} seed{'s' * (seeds > 1)}, the paper's that of its "
        f"methods. Of {len(cells)} cells {near} are within 4 %; the largest difference is {100 * off:.0f} %."
    )
    rows = (
        (cell.mode, cell.stragglers, str(cell.buffer), f"{cell.ours:.1f}", f"{cell.paper:.1f}", f"{cell.ratio:.3f}")
        for cell in cells
    )
    return f"{summary}\n\n{lib.table(('mode', 'stragglers', 'M', 'ours (s)', 'paper (s)', 'ratio'), rows)}"


def main(argv: list[str] | None = None) -> None:
    """Set the clock's times beside the paper's."""
    given = lib.options(__doc__, argv, "--page", seeds={"type": int, "default": 20, "help": "runs of each cell; 20"})
    lib.check_page(given.page, "clock")
    lib.publish(given.page, {"clock": text(list(clock(given.seeds)), given.seeds)})


if __name__ == "__main__":
    lib.run_script(main)
