"""The accuracy tables as Markdown, each with a picture of the scores against simulated time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from experiments.accuracy_plot import score_panels
from experiments.page import split_page, table, write_section
from experiments.paper import LABELS, PaperLine, not_waiting
from experiments.tables import CellLine, Table
from experiments.trials import FLEETS
from tardygrad.results import theme

HEADINGS = ("stragglers", "mode", "method", "ours", "paper", "ours (s)", "paper (s)", "η", "η_ℓ", "clipped: Δ, g")


def write(page: Path, tables: list[Table]) -> None:
    """Write the tables into a page, or a new page, and the pictures of complete ones into `images` beside it.

    The text of an experiment without any run here is kept.
    """
    _, text, _ = split_page(page, "tables")
    old = {part.split("`")[1]: part.rstrip() + "\n" for part in re.split(r"(?m)^(?=## `)", text)[1:]}
    write_section(page, "tables", "\n".join(_section(each, old.get(each.name)) for each in tables))
    for each in tables:
        if all(line.best for line in each.lines()):
            theme.write(_curves(each), page.parent / _picture(each))


def row(line: CellLine, grid: int) -> tuple[str, ...]:
    """The row of a cell."""
    stragglers, mode, _ = line.cell
    paper = (f"{line.paper:.1f}", f"{line.paper_time:.0f}")
    if line.best is None:
        state = f"{line.trials} of {grid} trials" if line.trials else "not run"
        return (stragglers, mode, line.label, state, paper[0], "", paper[1], "", "", "")
    score = _score(line.score) + ("" if line.spread is None else f" ± {line.spread:.1f}")
    outer = "–" if line.best.clip is None else f"{line.clipped:.0%}"
    rates = (f"{line.best.lr:g}", f"{line.best.local_lr:g}", f"{outer}, {line.local_clipped:.0%}")
    return (stragglers, mode, line.label, score, paper[0], f"{line.time:.0f}", paper[1], *rates)


def costs_of_not_waiting(lines: list[CellLine]) -> list[str]:
    """The best asynchronous against the best synchronous cell, in points and in time, ours and the paper's."""
    found = []
    for fleet in FLEETS:
        of_fleet = [line for line in lines if line.cell.stragglers == fleet]
        if any(line.score is None for line in of_fleet):
            continue
        ours = not_waiting([PaperLine("", *line.cell, line.score or 0.0, line.time) for line in of_fleet])
        paper = not_waiting([PaperLine("", *line.cell, line.paper, line.paper_time) for line in of_fleet])
        found.append(
            f"{fleet}: best asynchronous − best synchronous = {ours.points:+.1f} points (paper {paper.points:+.1f}), "
            f"in {ours.speedup:.0f} times less time (paper {paper.speedup:.0f})"
        )
    return found


def _section(runs: Table, old: str | None) -> str:
    experiment, lines, clips = runs.experiment, runs.lines(), runs.clips()
    if not any(line.trials for line in lines):
        return old or f"## `{runs.name}`\n\n{experiment.title}.\n\nNot run.\n"
    most = max(line.seeds for line in lines)
    seeds = f", mean ± standard deviation of {most} seeds" if most > 1 else ""
    thresholds = f"u = {clips[0]:g} and ũ = {clips[1]:g}" if clips else "not chosen yet"
    pairs = ", ".join(f"({u:g}, {outer:g})" for u, outer in experiment.clips)
    settings = ", ".join(f"{key}={value!r}" for key, value in experiment.settings.items())
    steps = ", ".join(f"{key}={value}" for key, value in experiment.method_settings.items())
    text = [
        f"## `{runs.name}`",
        f"{experiment.title}.",
        f"N = {experiment.clients}, T = {experiment.rounds}, {steps}; the task: {settings}. "
        f"Shown: test {experiment.score} in per cent after the last round{seeds}. "
        f"Grid: η in {_set(experiment.lrs)}, η_ℓ in {_set(experiment.local_lrs)}, (u, ũ) in {{{pairs}}}; "
        f"chosen by the best synchronous Clip²: {thresholds}.",
        table(HEADINGS, (row(line, len(experiment.rates)) for line in lines)),
        "\n".join(f"- {cost}" for cost in costs_of_not_waiting(lines)),
        f"![Test {experiment.score} against simulated time]({_picture(runs)})\n\n"
        "The picture shows the first seed of the synchronous and the client-centric cells, with their best settings."
        if all(line.best for line in lines)
        else "",
        f"Every trial with large stragglers, by (η, η_ℓ), first seed:\n\n{_trials(runs, clips)}" if clips else "",
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def _trials(runs: Table, clips: tuple[float, float]) -> str:
    """The scores with every pair of rates, which show how wide the range is in which a method works."""
    rows = []
    for cell in runs.experiment.cells:
        if cell.stragglers == "large":
            results = [runs.result(trial) for trial in runs.experiment.grid(cell, clips)]
            scores = ("" if result is None else _score(result.accuracy) for result in results)
            rows.append((cell.mode, LABELS[cell.method], *scores))
    return table(("mode", "method", *(f"{lr:g}, {local_lr:g}" for lr, local_lr in runs.experiment.rates)), rows)


def _score(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.1f}"


def _picture(runs: Table) -> str:
    return f"images/tables-{runs.name}.svg"


def _set(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(f"{value:g}" for value in values) + "}"


def _curves(runs: Table) -> Any:
    """The synchronous and client-centric cells with their best settings, first seed; the fleets side by side."""
    points = [
        {"method": line.label, "mode": line.cell.mode, "fleet": line.cell.stragglers, "time": time, "score": score}
        for line in runs.lines()
        if line.best and line.cell.mode != "server" and (result := runs.result(line.best))
        for _, time, _, score in result.curve
        if score is not None
    ]
    titles: dict[str, str] = {fleet: f"{fleet} stragglers, client-centric (dashed: synchronous)" for fleet in FLEETS}
    return theme.image_style(score_panels(points, list(LABELS.values()), f"test {runs.experiment.score} (%)", titles))
