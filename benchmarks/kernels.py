"""How close are a local step, the server's work and the wire to the speed of memory, and to the same in plain torch?

`algorithm.local_step` (clip, rate, A accumulated: DC) and the server's fold and finish (SD and DC, outer clip), with
numba's
kernels and as plain torch operations. The limit is the time in which this machine, in the same run, with the same
number of threads and over vectors of the same size, streams the bytes that must move: per coordinate 20 for the inner
step (x and A read and written, g read). "fold" is one arrival added to the running sum of a round: 12 bytes for SD (δ
read, the sum read and written), 24 for DC (and A, x_s and x read); the first of a round writes the sum into new memory
and reads none: 8 and 20. "finish" ends the round: 12 (the sum and x read, x_t written).

Three streams are measured: reading (torch.dot), copying, and changing in place (neg_). The limit is the faster of
reading and copying. Changing in place is faster per byte, because nothing is fetched only to be overwritten. The
streams go over twelve vectors: where the few of a fold or a finish fit into the last cache, these can be faster than
the limit.

"finish" writes into memory that is in use; "in new memory" is as runs do it, who take fresh pages from the system and
wait for them to be cleared.

The second table is of `wire.py`, everything in new memory, in copies of the float32 vector by `np.copy`, also into new
memory: `pack`, `send` with an error to feed back, `unpack`. Where a format has no kernel both columns are plain torch.

    python benchmarks/kernels.py [--sizes 1e6 1e7 8.6e7] [--repeats 9] [--threads 1]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import get_args
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tardygrad.core import kernels
from tardygrad.core.algorithm import local_step, weighted_delta
from tardygrad.core.kernels import ClipAndRate, Contribution
from tardygrad.core.schedules import Constant
from tardygrad.core.transforms import Chain, Clip, Scale, Step
from tardygrad.engines.threads import use_threads
from tardygrad.engines.wire import Packed, Wire, send, unpack

UPDATES = 4  # so many different ones
BYTES = {
    "inner": 20, "fold SD, first": 8, "fold SD": 12, "fold DC, first": 20, "fold DC": 24,
    "finish": 12, "finish in new memory": 12,
}  # fmt: skip
STEP = Chain(Clip(Constant(0.5)), Scale(Constant(0.01)))


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
        with patch.object(kernels, "MIN_LENGTH", math.inf):
            return function()

    return run


def fold(total: Tensor, contribution: Contribution, x: Tensor) -> None:
    """`kernels.fold` in plain torch."""
    total += weighted_delta(contribution, x)


def finish(x: Tensor, total: Tensor) -> tuple[Tensor, float, float]:
    """`kernels.finish` in plain torch; over 1, as the sum is used again."""
    total /= 1.0
    move, _ = STEP.update(total, {}, Step(1))
    return x + move, float(torch.linalg.vector_norm(total)), float(torch.linalg.vector_norm(move))


def measure(n: int, repeats: int) -> dict[str, float]:
    """Seconds of every function at a size."""
    x, g, curvature = torch.randn(n), torch.randn(n), torch.rand(n)
    deltas, curvatures, pasts = ([torch.randn(n) for _ in range(UPDATES)] for _ in range(3))
    sd = [Contribution(delta, 0.5) for delta in deltas]
    dc = [Contribution(*each) for each in zip(deltas, [1.0] * UPDATES, curvatures, pasts, strict=True)]
    every = [*deltas, *curvatures, *pasts]

    def pairs(function: Callable[[Tensor, Tensor], object]) -> None:
        for a, b in zip(every[::2], every[1::2], strict=True):
            function(a, b)

    called: dict[str, Callable[[], object]] = {
        "inner": lambda: local_step(x, g, curvature, STEP, {}, Step(1)),
    }
    out, total, form = torch.empty(n), torch.zeros(n), STEP.form(1) or ClipAndRate()
    ours = called | {
        "fold SD, first": lambda: kernels.fold(None, sd[0], x),
        "fold SD": lambda: kernels.fold(total, sd[1], x),
        "fold DC, first": lambda: kernels.fold(None, dc[2], x),
        "fold DC": lambda: kernels.fold(total, dc[3], x),
        "finish": lambda: kernels.finish(x, total, 1.0, form, out),
        "finish in new memory": lambda: kernels.finish(x, total, 1.0, form),
    }
    theirs = {f"plain {name}": plain(function) for name, function in called.items()} | {
        "plain fold SD, first": lambda: fold(torch.zeros_like(x), sd[0], x),
        "plain fold SD": lambda: fold(total, sd[1], x),
        "plain fold DC, first": lambda: fold(torch.zeros_like(x), dc[2], x),
        "plain fold DC": lambda: fold(total, dc[3], x),
        "plain finish in new memory": lambda: finish(x, total),
    }
    streams: dict[str, Callable[[], object]] = {
        "read": lambda: pairs(torch.dot),
        "copy": lambda: pairs(lambda a, b: a.copy_(b)),
        "in place": lambda: [v.neg_() for v in every],
    }
    return seconds(ours | theirs | streams, repeats)


def wired(n: int, repeats: int) -> dict[str, float]:
    """Seconds of a copy and of everything a narrow wire does, at a size."""
    v, error = torch.randn(n), torch.randn(n) / 100

    def calls(wire: Wire, packed: Packed) -> dict[str, Callable[[], object]]:
        return {
            f"{wire} pack": lambda: send(v, None, wire),
            f"{wire} send": lambda: send(v, error, wire),
            f"{wire} unpack": lambda: unpack(packed),
        }

    ours = {name: call for wire in get_args(Wire)[1:] for name, call in calls(wire, send(v, None, wire)[0]).items()}
    theirs = {f"plain {name}": plain(call) for name, call in ours.items()}
    return seconds({"copy": lambda: np.copy(v.numpy())} | ours | theirs, repeats)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e6, 1e7, 8.6e7])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    use_threads()
    if not kernels.fits(torch.zeros(kernels.MIN_LENGTH)):
        raise SystemExit("the kernels need numba, which is not installed. Use pip install -e '.[fast]'.")
    table = Table("parameters", "pass", title=f"{args.threads} thread(s)", title_justify="left")
    for heading in ("ours (GB/s)", "x limit", "x in place", "plain torch (GB/s)", "speed-up"):
        table.add_column(heading, justify="right")
    wires = Table("parameters", "wire", title="copies", title_justify="left")
    for heading in ("ours", "plain torch", "speed-up"):
        wires.add_column(heading, justify="right")
    for n in map(int, args.sizes):
        took = measure(n, args.repeats)
        rate = {name: 4 * n * 3 * UPDATES / took[name] for name in ("read", "copy")}
        rate["in place"] = 8 * n * 3 * UPDATES / took["in place"]
        print(f"{n:,} parameters: " + ", ".join(f"{name} {each / 1e9:.1f} GB/s" for name, each in rate.items()))
        limit = max(rate["read"], rate["copy"])
        for name, size in BYTES.items():
            ours = size * n / took[name]
            theirs = size * n / took.get(f"plain {name}", took.get(f"plain {name} in new memory", math.nan))
            ratios = (f"{limit / ours:.2f}", f"{rate['in place'] / ours:.2f}")
            table.add_row(f"{n:,}", name, f"{ours / 1e9:.1f}", *ratios, f"{theirs / 1e9:.1f}", f"{ours / theirs:.1f}")
        took = wired(n, args.repeats)
        copy = took.pop("copy")
        print(f"{n:,} parameters: one copy {1000 * copy:.1f} ms")
        for name in (one for one in took if f"plain {one}" in took):
            mine, theirs = took[name] / copy, took[f"plain {name}"] / copy
            wires.add_row(f"{n:,}", name, f"{mine:.2f}", f"{theirs:.2f}", f"{theirs / mine:.1f}")
    Console(width=110).print(table, wires)


if __name__ == "__main__":
    main()
