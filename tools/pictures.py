"""Draw the pictures of docs/glossary.md, from simulated clocks: `make pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

from tardygrad.core.method import Mode
from tardygrad.report.theme import image_style, write
from tardygrad.reproduce.timeline import BUFFER, panel, timeline

IMAGES = Path(__file__).parent.parent / "docs/images"
TITLES: dict[Mode, str] = {
    "sync": "synchronous: a round waits for its M clients",
    "server": "server-centric: a client waits for the end of the round",
    "client": "client-centric: a client starts again at once",
}


def delay() -> Any:
    """The delay of one late update."""
    side = timeline("client", (2.0, 3.0, 11.0))
    late = max(side.bars, key=lambda bar: bar.delay or 0)
    start = f"client {late.client + 1} starts from model {late.round}"
    return panel(side, f"{start}; its update goes into model {late.round + late.delay}: p = {late.delay}")


def buffer() -> Any:
    """Five clients, of which the first two to report make a round."""
    return panel(timeline("client", (2.0, 3.0, 4.0, 5.0, 13.0)), f"M = {BUFFER} of N = 5: two arrivals make a model")


def modes() -> Any:
    """Who works when in each of the three modes."""
    return alt.vconcat(*(panel(timeline(mode), title) for mode, title in TITLES.items()), spacing=30)


if __name__ == "__main__":
    for draw in (delay, buffer, modes):
        print(write(image_style(draw(), frame=None), IMAGES / f"{draw.__name__}.svg"))
