"""The library against the oracle: random fleets for every method and mode, and stored trajectories.

Delays, clients and times must agree exactly. x is float32 in the library and float64 in the oracle: each coordinate may
differ by TOLERANCE times the largest coordinate seen so far (or times 1, if that is larger).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.cases import METHODS, Knobs, Seconds, library, modes, oracle, setting
from tests.golden.oracle import DN, Law, Round, Setting, run
from tests.golden.problem import Problem
from tests.golden.relative_cases import RELATIVES
from tests.golden.relatives import DCASGD, Halos, Relative, Weight, halos, rules
from tests.golden.rewrite import FOLDER, SEED, STORED, T, described, rounds_of

TOLERANCE = 5e-6  # 40 units of float32's last place; 12,000 random runs stayed below 1.8e-6
CASES = [(name, mode) for name in METHODS for mode in modes(name)]
OWN = [(name, mode) for name, mode in CASES if name not in RELATIVES]


def agree(ours: list[Round], theirs: list[Round]) -> None:
    assert [one.time for one in ours] == [one.time for one in theirs]
    assert [one.clients for one in ours] == [one.clients for one in theirs]
    assert [one.delays for one in ours] == [one.delays for one in theirs]
    scale = 1.0
    for t, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        scale = max(scale, float(abs(b.x).max()))
        np.testing.assert_allclose(a.x, b.x, rtol=0, atol=TOLERANCE * scale, err_msg=f"x_{t}")


def laws(low: float, high: float, *exponents: float) -> st.SearchStrategy[Law]:
    return st.builds(Law, st.floats(low, high), st.sampled_from(exponents))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Knobs, Problem, Seconds]:
    N = draw(st.integers(1, 8))
    knobs = Knobs(
        N=N,
        M=draw(st.integers(1, N)),
        K=draw(st.integers(1, 4)),
        local_lr=draw(laws(0.02, 0.4, 0.0, -0.5, -0.25)),
        local_clip=draw(laws(0.1, 3.0, 0.0, 0.25)),
        lr=draw(laws(0.3, 1.5, 0.0, -0.5)),
        clip=draw(laws(0.02, 1.0, 0.0, 0.125)),
        share=draw(st.sampled_from([0.1, 0.5, 1.0])),
    )
    times = st.lists(st.integers(0, 4), min_size=1, max_size=4)  # few values: many exact ties
    return (
        knobs,
        Problem(draw(st.integers(0, 10**6)), N, draw(st.integers(1, 6))),
        draw(st.lists(times, min_size=N, max_size=N)),
    )


def compare(name: str, mode: str, fleet: tuple[Knobs, Problem, Seconds], rounds: int, seed: int) -> None:
    knobs, problem, seconds = fleet
    m = setting(name, mode, knobs)
    ours, sampled = library(m, problem, seconds, rounds, seed)
    if mode == "sync":
        assert all(len(set(clients)) == len(clients) == m.M for clients in sampled[:rounds])
    agree(ours, oracle(m, problem, seconds, rounds, sampled))


@pytest.mark.parametrize(("name", "mode"), OWN)
def test_the_library_walks_the_oracles_trajectory(name: str, mode: str) -> None:
    @settings(deadline=None, max_examples=20, derandomize=True)
    @given(fleets(), st.integers(1, 9), st.integers(0, 5))
    def check(fleet: tuple[Knobs, Problem, Seconds], rounds: int, seed: int) -> None:
        compare(name, mode, fleet, rounds, seed)

    check()


@pytest.mark.parametrize("name", RELATIVES)
def test_a_relative_walks_the_oracles_trajectory_in_any_mode(name: str) -> None:
    @settings(deadline=None, max_examples=12, derandomize=True)
    @given(fleets(), st.integers(1, 9), st.integers(0, 5), st.sampled_from(modes(name)))
    def check(fleet: tuple[Knobs, Problem, Seconds], rounds: int, seed: int, mode: str) -> None:
        compare(name, mode, fleet, rounds, seed)

    check()


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_the_stored_trajectory_is_walked_again(name: str, mode: str) -> None:
    stored = json.loads((FOLDER / f"{name}.json").read_text())[mode]
    theirs = rounds_of(stored)
    m, problem, seconds = STORED[name](mode)
    assert stored["setting"] == described(m), "the setting has changed: rewrite the file (tests/golden/rewrite.py)"
    ours, sampled = library(m, problem, seconds, T, SEED)
    if mode == "sync":
        assert sampled[:T] == stored["sampled"]
    agree(ours, theirs)


def test_every_method_has_a_stored_trajectory_and_every_file_a_method() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(STORED) == set(METHODS)


def test_the_stored_trajectories_exercise_what_they_are_meant_to() -> None:
    """A golden run without delays, or whose clips never bind, would notice little."""
    for name in STORED:
        stored = json.loads((FOLDER / f"{name}.json").read_text())
        for mode in stored.keys() - {"sync"}:
            delays = {p for one in stored[mode]["rounds"] for p in one["delays"]}
            assert max(delays) >= 3, (name, mode)
    seen = {
        name: json.loads((FOLDER / f"{name}.json").read_text())["client"]["rounds"][-1]["x"][-4:] for name in STORED
    }
    for a, b in combinations(seen, 2):
        assert not np.allclose(seen[a], seen[b], atol=1e-4), f"{a} and {b} end at the same x"


def test_sync_samples_every_set_of_clients_equally_often() -> None:
    """N = 5, M = 2: ten sets, 40 seeds × 25 rounds = 1000 samples, 100 expected of each."""
    m = setting("sgdclip", "sync", Knobs(5, 2, 1, Law(0.1), Law(1.0), Law(1.0), Law(1.0), 0.5))
    counts: Counter[frozenset[int]] = Counter()
    firsts: Counter[frozenset[int]] = Counter()
    for seed in range(40):
        _, sampled = library(m, Problem(0, 5, 1), [[1.0]] * 5, 25, seed)
        counts.update(frozenset(clients) for clients in sampled[:25])
        firsts.update([frozenset(sampled[0])])
    assert set(counts) == {frozenset(pair) for pair in combinations(range(5), 2)}
    chi2 = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi2 < 27.9  # the 99.9 % quantile with 9 degrees of freedom
    assert len(firsts) >= 8  # the first round differs between seeds too


def test_the_oracle_is_right_about_a_run_worked_out_by_hand() -> None:
    """Two clients, M = 1, K = 1, d = 1, g = x, η_ℓ = 1/2, η = 1, no clipping; client 0 takes 1 s and client 1 takes 2.

    x_0 = 8. Time 1: client 0, s = 0, p = 1, δ = −4: x_1 = 4. Time 2, a tie: client 0 first, s = 1, p = 1, δ = −2:
    x_2 = 2; then client 1, s = 0, p = 3, δ = −4, A = (8/2)² = 16, drift = 2 − 8 = −6.
    """

    def last(**switches: Any) -> tuple[list[float], list[list[int]], float]:
        m = Setting(mode="client", N=2, M=1, K=1, local_lr=Law(0.5), lr=Law(1.0), **switches)
        out = run(m, np.array([8.0]), lambda i, serial: i + 1.0, lambda i, serial, k, x: x, 3, None)
        return [one.time for one in out], [one.delays for one in out], float(out[-1].x[0])

    assert last() == ([1.0, 2.0, 2.0], [[1], [1], [3]], 2.0 - 4.0)
    assert last(sd=True)[2] == pytest.approx(2.0 - 4.0 / 3)
    assert last(dc=True)[2] == 2.0 - 4.0 + 16 * 6
    assert last(sd=True, dc=True)[2] == pytest.approx(2.0 + 92 / 3)


def test_the_oracle_is_right_about_relatives_worked_out_by_hand() -> None:
    """The run above: x_1 and x_2 are made by fresh updates, x_3 by client 1's, which missed two rounds."""

    def path(relative: Relative, eta: float = 1.0) -> list[float]:
        m = Setting(mode="client", N=2, M=1, K=1, local_lr=Law(0.5), lr=Law(eta))
        out = run(m, np.array([8.0]), lambda i, serial: i + 1.0, lambda i, serial, k, x: x, 3, None, rules(relative))
        return [float(one.x[0]) for one in out]

    assert path(Relative("", weight=Weight("poly"))) == pytest.approx([4, 2, 2 - 4 / math.sqrt(3)])
    assert path(Relative("", weight=Weight("root", fresh=1)))[:2] == [8 - 2, 6 - 1.5]  # a fresh one counts a half
    assert path(Relative("", weight=Weight("poly", a=1.0), model=True), 0.5) == pytest.approx([6, 4.5, 4.5 - 0.5 / 6])
    assert path(Relative("", dcasgd=DCASGD(0.5))) == [4, 2, 2 - (8 + 0.5 * 64 * (2 - 8)) / 2]
    hinges = [Weight(kind, a=10.0, b=4.0) for kind in ("hinge", "fedlab")]
    assert [[one.of(s) for s in (4, 5)] for one in hinges] == [[1.0, 1 / 11], [1.0, 1 / 20]]


@pytest.mark.parametrize(
    ("exchange", "path"), [(0.0, [[6, 5], [5, 4], [4.25, 3.375]]), (0.75, [[8, 4], [6, 2], [6, 3]])]
)  # fmt: skip
def test_the_oracle_is_right_about_halos_worked_out_by_hand(exchange: float, path: list[list[float]]) -> None:
    """One worker of one LPS, a second for each job, g = x, η_ℓ = 1/2, plain steps of rates 1 and 1/2, E = 1, α = 1/2.

    x = θ = 8. Second 1: θ = 4, and U = −4 is sent. Without delay the GPS is at 6 and θ at 5 at once; the job from 4
    adds its −2: θ = 3, U = −2. The GPS goes to 5, θ to 4; the job from 3 makes it 2.5, and so on. With 3/4 of a second
    each way the GPS is at 6 in second 2 and θ = 4 − 2; at 2.5 θ becomes (2 + 6)/2, and the job from 2 adds −1.
    """
    plain = DN(N=1, beta=0.0, c=0.0, dylu=False)
    h = Halos("", ((0,),), Relative(""), plain, Law(1.0), plain, 1, 0.5, exchange)
    m = Setting(mode="client", N=1, M=1, K=1, local_lr=Law(0.5), lr=Law(0.5), relative=h)
    out = halos(m, h, np.array([8.0]), lambda i, serial: 1.0, lambda i, serial, k, x: x, 3)
    assert [one.x.tolist() for one in out] == path


def test_a_clients_schedule_is_read_at_the_round_it_pulled_and_the_servers_at_its_own() -> None:
    """Client 1 pulls x_0 and arrives in round 3: its rate is that of round max(0, 1), the server's that of round 3."""
    m = Setting(mode="client", N=2, M=1, K=1, local_lr=Law(0.5, 1.0), lr=Law(1.0, 1.0))
    out = run(m, np.array([8.0]), lambda i, serial: i + 1.0, lambda i, serial, k, x: x, 3, None)
    assert [float(one.x[0]) for one in out] == [4.0, 4.0 - 2 * 0.5 * 4.0, 0.0 - 3 * 0.5 * 8.0]
