"""The paper's Figure 1, and its clock."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from experiments.clock import clock
from experiments.figure1 import BUFFER, END, MODES, timeline
from experiments.tests.conftest import Script


def test_clients_are_never_in_two_places_and_only_server_centric_ones_wait() -> None:
    made = {mode: timeline(mode) for mode in MODES}
    for found in made.values():
        for client in range(3):
            bars = sorted((bar.begin, bar.end) for bar in found.bars if bar.client == client)
            assert bars[0][0] == 0.0
            assert bars[-1][1] == END
            assert all(end == begin for (_, end), (begin, _) in pairwise(bars)), "no gap, no overlap"
        assert all(len(moment.clients) == BUFFER for moment in found.models)
    waits = {mode: sum(bar.end - bar.begin for bar in found.bars if bar.round is None) for mode, found in made.items()}
    assert waits["server"] > 0 == waits["client"]
    assert len(made["client"].models) > len(made["server"].models)
    assert [moment.time for moment in made["server"].models][:3] == [3.0, 6.0, 8.0]
    assert made["client"].models[1].clients == (0, 0), "one client twice in a round"
    assert made["client"].models[1].delays == (2, 1)


def test_the_script_draws_it(script: Script) -> None:
    done = script("figure1", "--out", "here.svg")
    assert (done.code, done.err) == (0, "")
    assert "client-centric 7 models in 16 s" in done.out
    assert Path("here.svg").read_bytes().startswith(b"<svg")


def test_the_clock_stands_beside_the_papers() -> None:
    cells = list(clock(seeds=1))
    assert len(cells) == 22
    assert all(0.8 < cell.ratio < 1.2 for cell in cells)
