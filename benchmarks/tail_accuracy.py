"""How accurate are the estimators of the tail index on distributions with a known index?

For each distribution and number of samples: the median and range over seeds of the index that `estimate` reports, how
often its verdict is right, and the median of block sums, which assume a stable law.

    python benchmarks/tail_accuracy.py [--samples 100000 10000] [--seeds 20]
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from tardygrad.tail import estimate
from tardygrad.tasks import Noise

INFINITE, FINITE, LIGHT = "heavy-tailed, infinite variance", "heavy-tailed, finite variance", "light-tailed"
LAWS = {
    "stable 1.2": (Noise("stable", 1.2), INFINITE),
    "stable 1.5": (Noise("stable", 1.5), INFINITE),
    "stable 1.8": (Noise("stable", 1.8), INFINITE),
    "stable 1.9": (Noise("stable", 1.9), INFINITE),
    "Gaussian": (Noise("stable", 2.0), LIGHT),
    "Pareto 1.2": (Noise("pareto", 1.2), INFINITE),
    "Pareto 1.5": (Noise("pareto", 1.5), INFINITE),
    "Pareto 2.5": (Noise("pareto", 2.5), FINITE),
    "Pareto 3.5": (Noise("pareto", 3.5), FINITE),
    "Student 1.5": (Noise("student", 1.5), INFINITE),
    "Student 3": (Noise("student", 3.0), FINITE),
    "Student 5": (Noise("student", 5.0), FINITE),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, nargs="+", default=[100_000, 10_000])
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    table = Table("law", "samples", "index", "range", "by stable", "block sum", "right verdict", box=None)
    for samples in args.samples:
        for name, (noise, verdict) in LAWS.items():
            drawn = (noise.draw(np.random.default_rng(seed), samples).double() for seed in range(args.seeds))
            found = [estimate(each.numpy()) for each in drawn]
            indices = [tail.index or 0.0 for tail in found]
            table.add_row(
                name,
                f"{samples:,}",
                f"{median(indices):.2f}",
                f"{min(indices):.2f} – {max(indices):.2f}",
                f"{sum(tail.by == 'stable' for tail in found)}/{args.seeds}",
                f"{median(tail.block_sum or 0.0 for tail in found):.2f}",
                f"{sum(tail.verdict == verdict for tail in found)}/{args.seeds}",
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
