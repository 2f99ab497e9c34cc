"""The tables of the baselines as Markdown, and their chart."""

from __future__ import annotations

from typing import Any

import altair as alt

from tardygrad.report.theme import image_style
from tardygrad.reproduce.accuracy_plot import AccuracyPlot, accuracy_row
from tardygrad.reproduce.baseline_specs import BASELINES, CLIPPED, LESSONS
from tardygrad.reproduce.baselines import BATCH, RANDOM, BaselineLine, Comparison
from tardygrad.reproduce.page import table
from tardygrad.reproduce.trials import BUFFER, LOCAL_STEPS, ROUNDS, TASK, TASK_TEXT, TUNING
from tardygrad.runs.run import plural

PICTURE = "images/baselines.svg"


def headings(line: BaselineLine) -> tuple[str, ...]:
    """The headings of a table, given one of its lines."""
    to = f"to {LESSONS[line.trial.lesson].target:g} % (s)"
    return ("method", "accuracy (%)", "", "to the end (s)", to, "settings", "near an end of its range")


def row(line: BaselineLine, seeds: int) -> tuple[str, ...]:
    """The row of a line."""
    partly = f"{line.reached} of {seeds} seeds" if line.reached else "never"
    return (
        line.trial.label,
        score(line),
        line.mark,
        f"{line.time:,.0f}",
        partly if line.reach is None else f"{line.reach:,.0f}",
        ", ".join(f"{key} {value:g}" for key, value in line.trial.given),
        ", ".join(line.trial.edges()),
    )


def score(line: BaselineLine) -> str:
    """The accuracy with its spread, if it has one."""
    return f"{line.accuracy:.1f}" + ("" if line.spread is None else f" ± {line.spread:.1f}")


def name(line: BaselineLine) -> str:
    """The title of a table, given one of its lines."""
    return f"{line.trial.lesson}, {line.trial.stragglers} stragglers"


def verdicts(lines: list[BaselineLine]) -> list[str]:
    """The best methods, and what local clipping does for those published without it."""
    top = next(line for line in lines if line.mark == "best")
    tied = ", ".join(f"{line.trial.label} ({score(line)})" for line in lines if line.mark == "tied")
    by = {line.trial.name: line for line in lines}
    pairs = [(by[plain], by[clipped]) for clipped, plain in CLIPPED.items() if plain in by and clipped in by]
    helped = ", ".join(f"{a.trial.label} {a.accuracy:.1f} → {b.accuracy:.1f}" for a, b in pairs)
    return [
        f"best: {top.trial.label} ({score(top)})"
        + (f"; within its spread: {tied or 'none'}" if top.spread is not None else ""),
        *([f"with local clipping: {helped}"] if helped else []),
    ]


def text(comparison: Comparison, tables: list[list[BaselineLine]], command: str, skipped: str = "") -> str:
    """The section of a page."""
    seeds = comparison.seeds
    parts = [
        f"Made by `{command}`. {TASK_TEXT}, and the paper's fleets of {TASK['clients']} clients. "
        f"Every method gets {ROUNDS * BUFFER:,} client updates of K = {LOCAL_STEPS} local "
        f"steps each: {ROUNDS} rounds with M = {BUFFER}, or one round per update for methods without a buffer.",
        f"Every method is tuned with {plural(comparison.trials, 'trial')} on each fleet: {RANDOM} random ones, then "
        f"Optuna's TPE in batches of {BATCH}. A trial is scored by the test accuracy after the last round on seed "
        f"{TUNING}, or 0 if it diverged. {_shown(seeds)}",
        "The search spaces; rates have the same ranges for all methods, and ranges are logarithmic except those of "
        "momenta, blends and exponents:",
        table(
            ("method", "searched", "given"),
            (
                (
                    baseline.label,
                    ", ".join(f"{key} {range.low:g} to {range.high:g}" for key, range in baseline.space.items()),
                    ", ".join(f"{key}={value!r}" for key, value in baseline.method.items()),
                )
                for baseline in BASELINES.values()
            ),
        ),
        f"![Test accuracies, mean and standard deviation]({PICTURE})",
    ]
    for lines in filter(None, tables):
        parts += [
            f"## {name(lines[0]).capitalize()}",
            *([_transferred()] if lines[0].trial.lesson == "fashion" else []),
            "\n".join(f"- {sentence}" for sentence in verdicts(lines)),
            table(headings(lines[0]), (row(line, len(seeds)) for line in lines)),
        ]
    return "\n\n".join([*parts, *([f"Fashion-MNIST was not run: {skipped}"] if skipped else [])])


def _shown(seeds: range) -> str:
    if len(seeds) == 1:
        return (
            f"The tables show the best setting with seed {seeds[0]} only, so there is no spread, and simulated seconds."
        )
    return (
        f"The tables show the best setting's mean ± standard deviation over the seeds {seeds[0]} to {seeds[-1]}, and "
        "simulated seconds. A method is *tied* if it is behind the best by no more than the best's spread."
    )


def _transferred() -> str:
    task = LESSONS["fashion"].task
    return (
        f"Each method uses its best setting for digits and large stragglers, without tuning: {task['model']} of width "
        f"{task['dim']}, batches of {task['batch_size']}, the same noise, {task['test_rows']:,} test images."
    )


def picture(tables: list[list[BaselineLine]]) -> Any:
    """Accuracies with their spread; hollow dots mark added local clipping."""
    full = list(filter(None, tables))
    least = 10 * int(max(min(line.accuracy - (line.spread or 0.0) for lines in full for line in lines), 0.0) / 10)
    sides = alt.hconcat(*(_side(lines, least, first=not i) for i, lines in enumerate(full)))
    return image_style(sides)


def _side(lines: list[BaselineLine], least: int, *, first: bool) -> Any:
    rows = [
        accuracy_row(line.trial.label, _own(line).label, line.accuracy, line.spread)
        | {"fill": "as published" if _own(line).label == line.trial.label else "clipped"}
        for line in lines
    ]
    plot = AccuracyPlot(rows, "test accuracy (%)", least, names=first)
    hollow = alt.condition(alt.datum.fill == "clipped", alt.value("white"), plot.colour)
    dots = plot.base.mark_point(size=80, strokeWidth=2, opacity=1)
    dots = dots.encode(x=plot.x("accuracy"), fill=hollow, color=plot.colour)
    return (plot.bars + dots).properties(width=260, height=24 * len(rows), title=name(lines[0]))


def _own(line: BaselineLine) -> Any:
    """The baseline without added local clipping."""
    return BASELINES[CLIPPED.get(line.trial.name, line.trial.name)]
