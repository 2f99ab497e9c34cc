"""The paper's Figure 1."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from experiments.figure1 import BUFFER, END, MODES, figure, timeline
from experiments.tests.conftest import Command


@pytest.mark.parametrize("mode", MODES)
def test_clients_are_never_in_two_places(mode: str) -> None:
    one = timeline(mode)  # type: ignore[arg-type]
    for client in range(3):
        bars = sorted((bar.begin, bar.end) for bar in one.bars if bar.client == client)
        assert bars[0][0] == 0.0
        assert bars[-1][1] == END
        assert all(end == begin for (_, end), (begin, _) in pairwise(bars)), "no gap, no overlap"
    assert all(len(moment.clients) == BUFFER for moment in one.models)


def test_server_centric_clients_wait_and_client_centric_ones_do_not() -> None:
    waits = {mode: sum(bar.end - bar.begin for bar in timeline(mode).bars if bar.round is None) for mode in MODES}
    assert waits["server"] > 0 == waits["client"]
    made = {mode: timeline(mode).models for mode in MODES}
    assert len(made["client"]) > len(made["server"])
    assert [moment.time for moment in made["server"]][:3] == [3.0, 6.0, 8.0]
    assert made["client"][1].clients == (0, 0), "one client twice in a round"
    assert made["client"][1].delays == (2, 1)


def test_the_command_draws_and_says_it(experiment: Command) -> None:
    done = experiment("figure1")
    assert (done.code, done.err) == (0, "")
    assert "client-centric      2       6  1, 1     2, 1" in done.out
    assert Path("figure1.svg").read_bytes().startswith(b"<svg")
    told = experiment("figure1", "--json", "--out", "here.svg").json
    assert told["figure"] == "here.svg"
    assert [one["mode"] for one in told["modes"]] == ["server", "client"]
    assert experiment("figure1", "--page", "docs/page.md").code == 0
    assert "](images/timeline.svg)" in Path("docs/page.md").read_text("utf-8")
    assert Path("docs/images/timeline.svg").exists()
    assert len(figure().to_dict()["hconcat"]) == 2
