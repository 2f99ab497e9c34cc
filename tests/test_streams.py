"""Keyed random streams: the same name gives the same numbers, two names give independent ones, and both for ever."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tardygrad import streams
from tardygrad.errors import Invalid

LIGHT = settings(deadline=None, max_examples=60, derandomize=True)
names = st.tuples(
    st.integers(0, 2**40),
    st.sampled_from(["runtime", "noise", "batches"]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)


@LIGHT
@given(names, names)
def test_two_names_give_two_keys(a: tuple[int, str, int, int], b: tuple[int, str, int, int]) -> None:
    assert (a == b) == (streams.key(*a) == streams.key(*b))


def test_no_two_jobs_of_a_large_run_share_a_key() -> None:
    keys = {streams.key(s, p, c, j) for s, p, c, j in product(range(3), ("runtime", "noise"), range(60), range(300))}
    assert len(keys) == 3 * 2 * 60 * 300


@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_a_seed_is_a_whole_number_not_negative(seed: Any) -> None:
    for draw in (streams.key, streams.uniform, streams.generator):
        with pytest.raises(Invalid, match=f"`seed` must be a whole number, 0 or more, got {seed!r}"):
            draw(seed, "runtime")


def test_another_process_draws_the_same(tmp_path) -> None:
    """Python's own hash of a string is salted per process; the streams must not depend on it."""
    line = "from tardygrad import streams; print(repr(streams.uniform(7, 'runtime', 3, 5)))"
    out = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert float(out.stdout) == streams.uniform(7, "runtime", 3, 5)


@pytest.mark.parametrize(
    ("name", "key", "uniform"),
    [
        # Pinned: a change here changes every run that anybody has recorded.
        ((0, "runtime", 0, 0), 0xE51221CC17A21270, 0.894807922675348),
        ((0, "runtime", 39, 140), 0xAF50950D35E1B847, 0.684823337292875),
        ((1, "dispatch", 12), 0x02E4480A7B0252E5, 0.011295797880856329),
        ((2026, "init"), 0xB03F832EC8B2800C, 0.6884691228121458),
        ((0, "noise", -1), 0xCE237E2D82211E38, 0.80522907839816),
    ],
)
def test_a_few_values_are_pinned(name: tuple[int, str], key: int, uniform: float) -> None:
    assert streams.key(*name) == key
    assert streams.uniform(*name) == uniform


def test_a_generator_is_pinned() -> None:
    rng = streams.generator(0, "noise", 1, 2)
    assert type(rng.bit_generator).__name__ == "Philox"
    assert rng.integers(0, 2**32, 3).tolist() == [2775526404, 1171409162, 2546903554]


def draws(axis: str, n: int = 4000) -> np.ndarray:
    """Uniform numbers along one axis of the name, all else fixed."""
    ways = {
        "seed": lambda i: (i, "runtime", 0, 0),
        "purpose": lambda i: (0, f"purpose {i}", 0, 0),
        "client": lambda i: (0, "runtime", i, 0),
        "serial": lambda i: (0, "runtime", 0, i),
        "dispatch": lambda i: (0, "dispatch", i),
    }
    return np.array([streams.uniform(*ways[axis](i)) for i in range(n)])


AXES = ["seed", "purpose", "client", "serial", "dispatch"]


@pytest.mark.parametrize("axis", AXES)
def test_uniform_numbers_are_uniform_along_every_axis(axis: str) -> None:
    u = draws(axis)
    assert ((u >= 0) & (u < 1)).all()
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    for bits in (2, 16, 1024):  # the leading bits and the middle ones
        counts = np.bincount((u * bits * 16).astype(int) % 16, minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("axis", AXES)
def test_neighbours_are_independent_along_every_axis(axis: str) -> None:
    """Serial correlation at a few lags, and pairs of neighbours spread evenly over the square."""
    u = draws(axis)
    for lag in (1, 2, 3, 7):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 4 / math.sqrt(len(u))
    cells = (u[0::2] * 8).astype(int) * 8 + (u[1::2] * 8).astype(int)
    assert stats.chisquare(np.bincount(cells, minlength=64)).pvalue > 1e-3


def test_streams_of_different_purpose_client_seed_are_uncorrelated() -> None:
    n = 4000
    rows = [
        [streams.uniform(seed, purpose, client, i) for i in range(n)]
        for seed, purpose, client in [(0, "runtime", 0), (0, "noise", 0), (0, "runtime", 1), (1, "runtime", 0)]
    ]
    for a, b in combinations(rows, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(n)
