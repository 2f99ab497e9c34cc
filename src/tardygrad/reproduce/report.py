"""The accuracy tables as Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

from tardygrad.reproduce.curves import svg
from tardygrad.reproduce.experiments import FLEETS, LABELS
from tardygrad.reproduce.page import marks, put, table
from tardygrad.reproduce.tables import Line, Study
from tardygrad.runs.record import replace

HEADINGS = ("stragglers", "mode", "method", "ours", "paper", "ours (s)", "paper (s)", "η", "η_ℓ", "clipped: Δ, g")


def write(page: Path, studies: list[Study]) -> None:
    """Put the tables into a page; one that is not there becomes the tables.

    What a page says of an experiment of which nothing is here stays. A picture of every experiment that is done goes
    into the folder `images` beside the page.
    """

    def tables(standing: str) -> str:
        stays = {part.split("`")[1]: part.rstrip() + "\n" for part in re.split(r"(?m)^(?=## `)", standing)[1:]}
        return "\n".join(_section(study) or stays.get(study.name) or _nothing(study) for study in studies)

    begin, end = marks("tables")
    put(page, "tables", tables, new=f"# Results\n\n{begin}\n{end}\n")
    for study in studies:
        if all(line.best for line in study.lines()):
            picture = page.parent / _picture(study)
            picture.parent.mkdir(exist_ok=True)
            replace(picture, svg(study))


def row(line: Line, grid: int) -> tuple[str, ...]:
    """A cell's line of the table."""
    stragglers, mode, _ = line.cell
    paper = (f"{line.paper:.1f}", f"{line.paper_time:.0f}")
    if line.best is None:
        state = f"{line.trials} of {grid} trials" if line.trials else "not run"
        return (stragglers, mode, line.label, state, paper[0], "", paper[1], "", "", "")
    score = _score(line.score) + ("" if line.spread is None else f" ± {line.spread:.1f}")
    outer = "–" if line.best.clip is None else f"{line.clipped:.0%}"
    rates = (f"{line.best.lr:g}", f"{line.best.local_lr:g}", f"{outer}, {line.local_clipped:.0%}")
    return (stragglers, mode, line.label, score, paper[0], f"{line.time:.0f}", paper[1], *rates)


def verdicts(lines: list[Line]) -> list[str]:
    """Waiting or not, ours beside the paper's: the best of either kind, in points and in simulated time."""
    found = []
    for fleet in FLEETS:
        of = [line for line in lines if line.cell.stragglers == fleet]
        if any(line.score is None for line in of):
            continue
        sync = [line for line in of if line.cell.mode == "sync"]
        rest = [line for line in of if line.cell.mode != "sync"]
        ours = max(line.score or 0.0 for line in rest) - max(line.score or 0.0 for line in sync)
        paper = max(line.paper for line in rest) - max(line.paper for line in sync)
        faster = mean(line.time for line in sync) / mean(line.time for line in rest)
        theirs = mean(line.paper_time for line in sync) / mean(line.paper_time for line in rest)
        found.append(
            f"{fleet}: best asynchronous − best synchronous = {ours:+.1f} points (paper {paper:+.1f}), "
            f"in {faster:.0f} times less time (paper {theirs:.0f})"
        )
    return found


def _nothing(study: Study) -> str:
    return f"## `{study.name}`\n\n{study.experiment.title}.\n\nNot run.\n"


def _section(study: Study) -> str:
    one, lines, clips = study.experiment, study.lines(), study.clips()
    if not any(line.trials for line in lines):
        return ""
    most = max(line.seeds for line in lines)
    seeds = f", mean ± standard deviation of {most} seeds" if most > 1 else ""
    thresholds = f"u = {clips[0]:g} and ũ = {clips[1]:g}" if clips else "not chosen yet"
    pairs = ", ".join(f"({u:g}, {outer:g})" for u, outer in one.clips)
    settings = ", ".join(f"{key}={value!r}" for key, value in one.settings.items())
    steps = ", ".join(f"{key}={value}" for key, value in one.how.items())
    text = [
        f"## `{study.name}`",
        f"{one.title}.",
        f"N = {one.clients}, T = {one.rounds}, {steps}; the task: {settings}. "
        f"Shown: test {one.score} in per cent after the last round{seeds}. "
        f"Grid: η in {_set(one.lrs)}, η_ℓ in {_set(one.local_lrs)}, (u, ũ) in {{{pairs}}}; "
        f"chosen by the best synchronous Clip²: {thresholds}.",
        table(HEADINGS, (row(line, len(one.rates)) for line in lines)),
        "\n".join(f"- {verdict}" for verdict in verdicts(lines)),
        f"![Test {one.score} against simulated time]({_picture(study)})\n\n"
        "In the picture the first seed of the synchronous and of the client-centric cells, with their best settings."
        if all(line.best for line in lines)
        else "",
        f"Every trial with large stragglers, by (η, η_ℓ), first seed:\n\n{_trials(study, clips)}" if clips else "",
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def _trials(study: Study, clips: tuple[float, float]) -> str:
    """The scores with every pair of rates: how wide the range is in which a method works."""
    rows = []
    for cell in study.experiment.cells:
        if cell.stragglers == "large":
            found = [study.look(trial) for trial in study.experiment.grid(cell, clips)]
            scores = ("" if one is None else _score(one["score"] and 100 * one["score"]) for one in found)
            rows.append((cell.mode, LABELS[cell.method], *scores))
    return table(("mode", "method", *(f"{lr:g}, {local_lr:g}" for lr, local_lr in study.experiment.rates)), rows)


def _score(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.1f}"


def _picture(study: Study) -> str:
    return f"images/tables-{study.name}.svg"


def _set(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(f"{value:g}" for value in values) + "}"
