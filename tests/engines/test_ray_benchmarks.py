"""The benchmark of real stragglers, with tiny numbers."""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.usefixtures("forked_ray_workers"),
    pytest.mark.timeout(900),  # a busy machine may take a minute to start a worker
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    path = Path(__file__).parents[2] / "benchmarks" / "ray_stragglers.py"
    found = importlib.util.spec_from_file_location("ray_stragglers", path)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules["ray_stragglers"] = module  # a dataclass looks its module up
    found.loader.exec_module(module)
    yield module
    del sys.modules["ray_stragglers"]


def test_real_seconds_stand_beside_those_predicted(bench: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with bench.cluster():
            arms, small = [("client", "DC-Clip²")], {"clients": 3, "repeats": 1, "second": 0.01, "rounds": 6}
            (row,) = bench.compare("mild", arms, **small, target=2.1)
    assert (row.mode, row.kind) == arms[0]
    assert 0 < row.predicted < 1
    assert 0 < row.ratios[0] < 2  # it was reached, and not before its time


def test_a_target_that_one_seed_misses_is_no_success(bench: Any) -> None:
    late = bench.Times("sync", "Clip²", ([1.0, 1.0, 1.0], [1.0, 1.0, math.inf]))
    rows = [late, bench.Times("server", "Clip²", ([0.1] * 3, [0.1] * 3))]
    assert bench.verdict("mild", rows) == "mild: NO, the target was missed by sync Clip². Use more rounds."
    assert "0.00 to 1.00" in bench.table(rows)[2]
