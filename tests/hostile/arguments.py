"""Calls in Python with strange arguments: a result, or `Invalid`."""

from __future__ import annotations

import math
import traceback
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import tardygrad as tg
from tests.hostile.verdicts import Hung, Tally, limited
from tests.test_constructors import GOOD

FLEET = tg.Fleet.paper(clients=4)
TASK = tg.tasks.quadratic(clients=4, dimension=3)
METHOD: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 2, "local_steps": 2}
RUN: dict[str, Any] = {"rounds": 2, "seed": 0, "evaluate_every": 1, "until": 9.0, "workers": 1, "batch": 1, "out": None}
STRANGE: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**53 + 1, 10**30, math.nan, math.inf, -math.inf, "", "x", "\0", "\ud800",
    b"x", (), [], {}, [1, "x"], {"a": 1}, {1: 2}, object(), int, len, lambda *_: 1.0, 1j, np.float32("nan"),
    np.int64(3), np.zeros(2), np.array("x"), torch.zeros(3), torch.tensor(math.nan), Path("x"), range(3),
    iter([]), tg.Uniform(1, 2), tg.Uniform, FLEET, TASK, Exception("x"),
]  # fmt: skip


def simulate(**settings: Any) -> Any:
    return tg.simulate(tg.clip2(**METHOD), TASK, FLEET, **settings)


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Call a constructor or a run with one argument that is strange."""
    random, tally = Random(seed), Tally("calls in Python")
    calls = [*GOOD, (tg.clip2, METHOD), (tg.sgdclip, {k: v for k, v in METHOD.items() if k != "clip"}), (simulate, RUN)]
    for _ in range(tries):
        make, good = random.choice(calls)
        name = random.choice(sorted(good))
        value = random.choice(STRANGE)
        what = f"{getattr(make, '__qualname__', make)}({name}={value!r:.80})"
        try:
            with limited():
                result = make(**good | {name: value})
                str(result), repr(result)
        except tg.TardygradError as error:
            tally.add("refused" if len(str(error).splitlines()) == 1 else "wrong", what, str(error))
        except Hung:
            tally.add("hung", what)
        except Exception:
            tally.add("traceback", what, traceback.format_exc()[-600:])
        else:
            tally.add("right", what)
    return tally
