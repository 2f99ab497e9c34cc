"""The paper's simulated runtimes on CIFAR-10: N = 40, T = 140, every (mode, stragglers, M) of its tables.

Only the clock runs, on a task without parameters. The paper gives one run per method; their runtimes differ only by
chance, so a cell compares our mean over seeds with the paper's mean over methods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple, cast

from experiments.page import table
from experiments.paper import published_rows
from tardygrad.core.method import Mode
from tardygrad.fleet import Fleet, Stragglers
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.runs.loop import clock_only, drive
from tardygrad.runs.run import plural

CLIENTS, ROUNDS = 40, 140
HEADINGS = ("mode", "stragglers", "M", "ours (s)", "paper (s)", "ratio")


class ClockCell(NamedTuple):
    """One cell of the paper's tables."""

    mode: Mode
    stragglers: Stragglers
    buffer: int
    ours: float  # simulated seconds, mean over seeds
    paper: float  # mean over the paper's methods
    ratio: float  # ours / paper


def published() -> dict[tuple[Mode, Stragglers, int], list[float]]:
    """The paper's runtimes, by (mode, stragglers, buffer)."""
    cells = defaultdict(list)
    for row in published_rows("paper/clock.csv"):
        place = (cast(Mode, row["mode"]), cast(Stragglers, row["stragglers"]), int(row["buffer"]))
        cells[place].append(float(row["runtime"]))
    return dict(cells)


def runtime(mode: Mode, stragglers: Stragglers, buffer: int, seed: int) -> float:
    """The simulated seconds of one run."""
    method = sgdclip(local_lr=0.0, local_clip=0.0, lr=0.0, buffer=buffer, local_steps=1, mode=mode)
    server, pool = clock_only(method, Fleet.paper(clients=CLIENTS, stragglers=stragglers), seed=seed)
    for _ in drive(server, pool, ROUNDS):
        pass
    return pool.now


def row(cell: ClockCell) -> tuple[str, ...]:
    """The row of a cell."""
    numbers = (f"{cell.ours:.1f}", f"{cell.paper:.1f}", f"{cell.ratio:.3f}")
    return (cell.mode, cell.stragglers, str(cell.buffer), *numbers)


def markdown(cells: list[ClockCell], seeds: int) -> str:
    """The section of a page."""
    off = max(abs(cell.ratio - 1) for cell in cells)
    near = sum(abs(cell.ratio - 1) <= 0.04 for cell in cells)
    summary = (
        f"N = {CLIENTS}, T = {ROUNDS}; ours is the mean of {plural(seeds, 'seed')}, the paper's that of its methods. "
        f"Of {len(cells)} cells {near} are within 4 %; the largest difference is {100 * off:.0f} %."
    )
    return f"{summary}\n\n{table(HEADINGS, map(row, cells))}"


def clock(seeds: int = 20) -> Iterator[ClockCell]:
    """Compute every cell."""
    for (mode, stragglers, buffer), runtimes in published().items():
        ours = mean(runtime(mode, stragglers, buffer, seed) for seed in range(seeds))
        yield ClockCell(mode, stragglers, buffer, ours, mean(runtimes), ours / mean(runtimes))


if __name__ == "__main__":
    from experiments.options import main

    main("clock")
