"""The paper's Figure 1, simulated: who works when, server- and client-centric, with N = 3, M = 2 and K = 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

import tardygrad as tg
from experiments import lib
from experiments.lib import Mode
from tardygrad.results import theme

MODES = {mode: lib.MODE_TEXTS[mode] for mode in lib.ASYNCHRONOUS}
BUFFER, STEPS, END = 2, 3, 16.0
SECONDS = (2.0, 3.0, 7.0)
"""The duration of a job of each of the three clients."""


class Bar(NamedTuple):
    """A period in which a client worked from x_s, or waited for the end of the round."""

    client: int
    begin: float
    end: float
    round: int | None  # s; None: the client waited
    delay: int | None = None  # p of the update, if it was used


class Moment(NamedTuple):
    """The moment when the server made x_t from the updates of these clients."""

    time: float
    round: int
    clients: tuple[int, ...]
    delays: tuple[int, ...]


class Timeline(NamedTuple):
    """The periods of one mode, and the moments when the server made a model."""

    mode: Mode
    bars: list[Bar]
    models: list[Moment]
    seconds: tuple[float, ...]  # of a job of each client


def timeline(mode: Mode, seconds: tuple[float, ...] = SECONDS) -> Timeline:
    """Simulate the clock of a few clients; the task has no parameters.

    Args:
        seconds: the duration of a job of each client.
    """
    method = tg.sgdclip(local_lr=0.0, local_clip=0.0, lr=0.0, buffer=BUFFER, local_steps=STEPS, mode=mode)
    fleet = tg.Fleet(tuple(tg.Group(f"client {i}", 1, tg.Trace((each,))) for i, each in enumerate(seconds, 1)))
    bars: list[Bar] = []
    models: list[Moment] = []
    begun: dict[int, tuple[float, int]] = {}
    waits = dict.fromkeys(range(len(seconds)), 0.0)
    for now, message, happened, jobs in tg.plan(method, fleet, rounds=100):
        if now >= END:
            break
        if isinstance(message, tg.Update):
            since, s = begun.pop(message.client)
            delay = happened.delays[-1] if isinstance(happened, tg.Advanced) else getattr(happened, "delay", None)
            bars.append(Bar(message.client, since, now, s, delay))
            waits[message.client] = now
        if isinstance(happened, tg.Advanced):
            models.append(Moment(now, happened.round, happened.clients, happened.delays))
        for job in jobs:
            if (since := waits.pop(job.client, now)) < now:
                bars.append(Bar(job.client, since, now, None))
            begun[job.client] = now, job.round
    bars += [Bar(client, since, END, s) for client, (since, s) in begun.items()]
    bars += [Bar(client, since, END, None) for client, since in waits.items() if since < END]
    return Timeline(mode, bars, models, seconds)


def text() -> str:
    """The section of a page: the picture and its numbers."""
    models = "; ".join(f"{MODES[mode]} {len(timeline(mode).models)} models in {END:g} s" for mode in MODES)
    return (
        "![Bars of three clients at work, server- and client-centric](images/timeline.svg)\n\n"
        f"Jobs take the three clients {', '.join(f'{seconds:g}' for seconds in SECONDS)} s: "
        f"{models}. Server-centric clients wait for the round to end and start from its model; client-centric ones "
        "start at once from the current model, so one round may use two updates of the same client."
    )


def figure() -> Any:
    """Both modes side by side."""
    caption = (
        "A bar is a job of K steps from the model named in it, p its delay; dashed: the server makes the next model."
    )
    title = alt.TitleParams(caption, anchor="start", fontSize=12, fontWeight="normal", offset=14)
    sides = alt.hconcat(*(panel(timeline(mode)) for mode in MODES), title=title, padding=12)
    return theme.image_style(sides, frame=None)


def panel(side: Timeline, title: str = "") -> Any:
    """The bars of one mode."""
    names = [f"client {i}" for i in range(1, len(side.seconds) + 1)]
    bars = [
        {"client": names[client], "begin": begin, "end": end, "does": "waits" if s is None else "works"}
        | {"from": "" if s is None else f"x{below(s)}", "delay": "" if p is None else f"p = {p}"}
        for client, begin, end, s, p in side.bars
    ]
    steps = [
        {"client": names[client], "time": at}
        for client, begin, end, s, _ in side.bars
        for k in range(1, STEPS)
        if s is not None and (at := begin + k * side.seconds[client] / STEPS) < end
    ]
    models = [{"time": moment.time, "model": f"x{below(moment.round)}"} for moment in side.models]
    time = alt.X("begin:Q", title="time (seconds)", scale=alt.Scale(domain=[0, END], nice=False))
    client = alt.Y("client:N", title=None, sort=names, scale=alt.Scale(paddingInner=0.45))
    colour = alt.Color(
        "does:N",
        title=None,
        scale=alt.Scale(domain=["works", "waits"], range=["#56B4E9", "#dddddd"]),
        legend=alt.Legend(orient="bottom"),
    )
    work = alt.Chart({"values": bars}).mark_bar(stroke="#0072B2", strokeWidth=1.2)
    work = work.encode(x=time, x2="end:Q", y=client, color=colour)
    ticks = alt.Chart({"values": steps}).mark_tick(color="white", thickness=2, height=26).encode(x="time:Q", y=client)
    text = alt.Chart({"values": bars})
    start = text.mark_text(fontSize=12, align="left", dx=4).encode(x="begin:Q", y=client, text="from:N")
    late = text.mark_text(fontSize=10, align="right", dx=-2, dy=27, color="#444444")
    late = late.encode(x="end:Q", y=client, text="delay:N")
    moments = alt.Chart({"values": models}).encode(x="time:Q")
    rules = moments.mark_rule(color="#D55E00", strokeDash=[4, 3], strokeWidth=1.5)
    labels = moments.mark_text(y=-9, color="#D55E00", fontSize=12, fontWeight="bold").encode(text="model:N")
    layers = alt.layer(work, ticks, rules, start, late, labels)
    return layers.properties(
        width=460,
        height=200 * len(names) / 3,
        title=alt.TitleParams(
            title or f"{MODES[side.mode]}: N = {len(names)}, M = {BUFFER}, K = {STEPS}", anchor="start", offset=22
        ),
    )


def below(number: int) -> str:
    """A number as a subscript.

    >>> below(12)
    '₁₂'
    """
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def main(argv: list[str] | None = None) -> None:
    """Draw Figure 1."""
    path = {"metavar": "FILE", "default": "figure1.svg", "help": "the picture, without --page; figure1.svg"}
    given = lib.options(__doc__, argv, "--page", out=path)
    lib.check_page(given.page, "figure1")
    lib.publish(given.page, {"figure1": text()}, lambda folder: theme.write(figure(), folder / "images/timeline.svg"))
    if not given.page:
        theme.write(figure(), Path(given.out))


if __name__ == "__main__":
    lib.run_script(main)
