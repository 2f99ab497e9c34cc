"""How close are a local step and a round of the server to the speed of memory, and to the same in plain torch?

`algorithm.walk` (clip, rate, A accumulated: DC) and the server's round (SD and DC, M = 4, outer clip), with numba's
kernels and as plain torch operations. The limit is the time in which this machine, in the same run, with the same
number of threads and over vectors of the same size, streams the bytes that must move: per coordinate 20 for the inner
step (x and A read and written, g read), 24 for SD (four δ and x read, x_t written), 56 for DC (and four A and x_s).
Three streams are measured: reading (torch.dot), copying, and changing in place (neg_). The limit is the faster of
reading and copying. Changing in place is faster per byte, because nothing is fetched only to be overwritten; a round
cannot do that, since it keeps x_{t-1}.

SD and DC write into memory that is in use; "in new memory" is `algorithm.aggregate` as runs call it, which takes fresh
pages from the system and waits for them to be cleared.

    python benchmarks/kernels.py [--sizes 1e6 1e7 8.6e7] [--repeats 9] [--threads 1]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tardygrad import kernels
from tardygrad.algorithm import aggregate, walk
from tardygrad.kernels import Form, Late
from tardygrad.schedules import Constant
from tardygrad.transforms import Step, chain, clip, scale

BUFFER = 4
SD, DC = 4 * (BUFFER + 2), 4 * (3 * BUFFER + 2)
BYTES = {"inner": 20, "SD": SD, "DC": DC, "SD in new memory": SD, "DC in new memory": DC}
STEP = chain(clip(Constant(0.5)), scale(Constant(0.01)))


def seconds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The best of several turns of each, taken in alternation."""
    best = dict.fromkeys(functions, math.inf)
    for _ in range(repeats + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def plain(function: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with patch.object(kernels, "LEAST", math.inf):
            return function()

    return run


def measure(n: int, repeats: int) -> dict[str, float]:
    """Seconds of every function at a size."""
    x, g, curvature = torch.randn(n), torch.randn(n), torch.rand(n)
    deltas, curvatures, pasts = ([torch.randn(n) for _ in range(BUFFER)] for _ in range(3))
    sd = [Late(delta, 0.5) for delta in deltas]
    dc = [Late(*each) for each in zip(deltas, [1.0] * BUFFER, curvatures, pasts, strict=True)]
    every = [*deltas, *curvatures, *pasts]

    def pairs(function: Callable[[Tensor, Tensor], object]) -> None:
        for a, b in zip(every[::2], every[1::2], strict=True):
            function(a, b)

    called: dict[str, Callable[[], object]] = {
        "inner": lambda: walk(x, g, curvature, STEP, {}, Step(1)),
        "SD in new memory": lambda: aggregate(x, sd, STEP, {}, Step(1)),
        "DC in new memory": lambda: aggregate(x, dc, STEP, {}, Step(1)),
    }
    out, form = torch.empty(n), STEP.form(1) or Form()
    ours = called | {
        "SD": lambda: kernels.aggregate(x, sd, form, out),
        "DC": lambda: kernels.aggregate(x, dc, form, out),
    }
    streams: dict[str, Callable[[], object]] = {
        "read": lambda: pairs(torch.dot),
        "copy": lambda: pairs(lambda a, b: a.copy_(b)),
        "in place": lambda: [v.neg_() for v in every],
    }
    return seconds(ours | {f"plain {name}": plain(f) for name, f in called.items()} | streams, repeats)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--sizes", type=float, nargs="+", default=[1e6, 1e7, 8.6e7])
    ask.add_argument("--repeats", type=int, default=9)
    ask.add_argument("--threads", type=int, default=1)
    asked = ask.parse_args()
    torch.set_num_threads(asked.threads)
    if not kernels.fits(torch.zeros(kernels.LEAST)):
        raise SystemExit("the kernels need numba, which is not installed. Use pip install -e '.[fast]'.")
    table = Table("parameters", "pass", title=f"{asked.threads} thread(s), M = {BUFFER}", title_justify="left")
    for heading in ("ours (GB/s)", "x limit", "x in place", "plain torch (GB/s)", "speed-up"):
        table.add_column(heading, justify="right")
    for n in map(int, asked.sizes):
        took = measure(n, asked.repeats)
        rate = {name: 4 * n * 3 * BUFFER / took[name] for name in ("read", "copy")}
        rate["in place"] = 8 * n * 3 * BUFFER / took["in place"]
        print(f"{n:,} parameters: " + ", ".join(f"{name} {each / 1e9:.1f} GB/s" for name, each in rate.items()))
        limit = max(rate["read"], rate["copy"])
        for name, size in BYTES.items():
            ours = size * n / took[name]
            theirs = size * n / took["plain inner" if name == "inner" else f"plain {name[:2]} in new memory"]
            ratios = (f"{limit / ours:.2f}", f"{rate['in place'] / ours:.2f}")
            table.add_row(f"{n:,}", name, f"{ours / 1e9:.1f}", *ratios, f"{theirs / 1e9:.1f}", f"{ours / theirs:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
