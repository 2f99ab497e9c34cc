"""Draw the pictures of docs/glossary.md from simulated clocks: `make pictures`.

With the folder of a demo (`python -m tools.pictures runs/demo-1`) also the picture of README.md, from its records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt

from experiments.figure1 import BUFFER, panel, timeline
from tardygrad.core.method import Mode
from tardygrad.results.theme import BLACK, COLOURS, image_style, write
from tardygrad.runs.events import Arrival, Dispatch, read_events, read_metrics

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


def waiting(demo: Path) -> Any:
    """Who worked in the demo's first minute, synchronously and not; and the accuracy against time."""
    runs = {"synchronous": demo / "sync-clip2", "asynchronous": demo / "sd-clip2"}
    titles = {"synchronous": "synchronous: rounds wait for their slowest", "asynchronous": "asynchronous: nobody waits"}
    colours = alt.Scale(domain=list(runs), range=[BLACK, COLOURS["SD-Clip²"]])
    bars = [{"run": name} | bar for name, path in runs.items() for bar in _jobs(path)]
    work = (
        alt.Chart({"values": bars})
        .mark_bar(height=4, stroke="white", strokeWidth=0.7)
        .encode(
            x=alt.X(
                "begin:Q",
                title="jobs of 40 clients in the first 60 simulated seconds",
                scale=alt.Scale(domain=[0, 60], nice=False),
            ),
            x2="end:Q",
            y=alt.Y("client:Q", title="40 clients", axis=None, scale=alt.Scale(domain=[-1, 40], nice=False)),
            color=alt.Color("run:N", title=None, scale=colours, legend=None),
        )
    )
    left = alt.vconcat(
        *(
            work.transform_filter(alt.datum.run == name).properties(width=300, height=165, title=title)
            for name, title in titles.items()
        ),
        spacing=8,
    )
    points = [
        {"run": name, "time": row["time"], "accuracy": row["test_accuracy"]}
        for name, path in runs.items()
        for row in read_metrics(path / "events.jsonl")
        if "test_accuracy" in row
    ]
    ends = [[point for point in points if point["run"] == name][-1] for name in runs]
    labels = [end | {"text": f"{end['accuracy']:.1%} after {end['time']:,.0f} s"} for end in ends]
    decades = alt.Axis(values=[1, 10, 100, 1000, 10_000], format=",d")
    time = alt.X("time:Q", title="simulated seconds", scale=alt.Scale(type="log", domain=[1, 10_000]), axis=decades)
    shares = [0, 0.2, 0.4, 0.6, 0.8, 1]
    score = alt.Y(
        "accuracy:Q", title="test accuracy", axis=alt.Axis(format="%", values=shares), scale=alt.Scale(domain=[0, 1.1])
    )
    legend = alt.Legend(orient="top", symbolType="stroke", symbolStrokeWidth=4)
    colour = alt.Color("run:N", title=None, scale=colours, legend=legend)
    lines = alt.Chart({"values": points}).mark_line(strokeWidth=3).encode(x=time, y=score, color=colour)
    words = alt.Chart({"values": labels}).mark_text(fontSize=13, align="right", dy=-14, dx=14)
    right = alt.layer(lines, words.encode(x=time, y=score, text="text:N", color=colour))
    return alt.hconcat(left, right.properties(width=380, height=360)).resolve_scale(color="independent")


def _jobs(run: Path) -> Iterator[dict[str, float]]:
    """The jobs that began in the first minute of a run."""
    begun: dict[int, float] = {}
    for event in read_events(run / "events.jsonl"):
        if isinstance(event, Dispatch) and event.time < 60:
            begun[event.client] = event.time
        elif isinstance(event, Arrival) and event.client in begun:
            yield {"client": event.client, "begin": begun.pop(event.client), "end": min(event.time, 60.0)}
    for client, since in begun.items():
        yield {"client": client, "begin": since, "end": 60.0}


if __name__ == "__main__":
    for demo in map(Path, sys.argv[1:]):
        print(write(image_style(waiting(demo), frame=None), IMAGES / "waiting.png"))
    for draw in (delay, buffer, modes):
        print(write(image_style(draw(), frame=None), IMAGES / f"{draw.__name__}.svg"))
