"""The tables of the baselines as Markdown, the sentences about them, and their pictures."""

from __future__ import annotations

from math import exp
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from experiments import lib
from experiments.baselines import BaselineCell, BaselineLine, BaselinePlan, Baselines, BaselineWorkload, difference
from experiments.lib import Values
from tardygrad.results import theme

DASHES = {"clipped": [6, 2], "AdamW": [2, 2]}  # of curves, by variant
_SCORES = {"accuracy": "test accuracy (%)", "loss": "test loss (nats per token)"}


class BaselineTable:
    """A table: the lines of a workload and a fleet, some of which may be missing."""

    def __init__(self, plan: BaselinePlan, lines: list[BaselineLine]) -> None:
        self.plan, self.lines = plan, lines
        self.workload: BaselineWorkload = plan.workloads[lines[0].cell.workload]
        self.name = f"{self.workload.heading}, {lines[0].cell.fleet}"
        complete = (line.times for line in lines if len(line.times) == len(line.scores))
        self.first_end = min(map(max, complete), default=0.0)  # when a method has ended with all seeds

    def headings(self) -> tuple[str, ...]:
        """The headings of the columns."""
        workload = self.workload
        to = f"to {workload.target:g}{' %' * (workload.score == 'accuracy')} (s)"
        score = (_SCORES[workload.score], *(["perplexity"] if workload.score == "loss" else []))
        early = f"at {self.first_end:,.0f} s"
        return ("method", *score, "mark", early, "to the end (s)", to, "settings", "near an end of its range")

    def row(self, line: BaselineLine) -> tuple[str, ...]:
        """The row of a line."""
        early = line.score_at(self.first_end)
        return (
            self.label(line.cell),
            self.score(line),
            *([f"{exp(line.score):.2f}"] if self.workload.score == "loss" else []),
            line.mark,
            "" if early is None else self.number(early),
            _times(line.times, len(line.scores)),
            _times(line.times_to_target, len(line.scores)),
            ", ".join(f"{key} {value:g}" for key, value in line.settings.items()),
            ", ".join(line.edges),
        )

    def label(self, cell: BaselineCell) -> str:
        """The name of a method."""
        return self.plan.methods[cell.method].label

    def number(self, score: float) -> str:
        """A score as text."""
        return f"{score:.3f}" if self.workload.score == "loss" else f"{score:.1f}"

    def score(self, line: BaselineLine) -> str:
        """The score with its spread, if it has one."""
        return self.number(line.score) + ("" if line.spread is None else f" ± {self.number(line.spread)}")

    def sentences(self) -> list[str]:
        """The best methods, and the comparisons of the plan."""
        best = next(line for line in self.lines if line.mark == "best")
        tied = ", ".join(f"{self.label(line.cell)} ({self.score(line)})" for line in self.lines if line.mark == "tied")
        found = [f"best: {self.label(best.cell)} ({self.score(best)})"]
        if best.spread is not None:
            found[0] += f"; tied with it: {tied or 'none'}"
        if source := self.workload.settings_from:
            found[0] = f"with the settings for {source}, {found[0]}"
        by = {line.cell.method: line for line in self.lines}
        for title, names in self.plan.comparisons.items():
            pairs = [(by[first], by[second]) for first, second in names if first in by and second in by]
            if pairs:
                found.append(f"{title}{self._count(pairs)}: {'; '.join(self._change(*pair) for pair in pairs)}")
        return found

    def _count(self, pairs: list[tuple[BaselineLine, BaselineLine]]) -> str:
        """How many of the second lines are better and worse, if there are several seeds to tell."""
        if len(self.plan.seeds) < 2:
            return ""
        found = [difference(self.workload, *pair) for pair in pairs]
        return f", {found.count('better')} of {len(pairs)} better and {found.count('worse')} worse"

    def _change(self, first: BaselineLine, second: BaselineLine) -> str:
        text = " → ".join(f"{self.label(line.cell)} {self.number(line.score)}" for line in (first, second))
        waits = [self.plan.methods[line.cell.method].is_synchronous for line in (first, second)]
        if waits[0] != waits[1] and first.time and second.time:
            text += f" ({first.time:,.0f} → {second.time:,.0f} s)"
        return text


def _times(times: list[float], seeds: int) -> str:
    """The mean time over all seeds, or how many have one."""
    if len(times) == seeds:
        return f"{mean(times):,.0f}"
    return f"{len(times)} of {seeds} seeds" if times else "never"


def text(baselines: Baselines, command: str) -> str:
    """The section of a page."""
    plan, costs = baselines.plan, baselines.costs()
    parts = [
        f"Made by `{command}`.",
        lib.table(
            ("workload", "", "client updates", "K", "trials", "CPU hours"),
            (
                _workload(plan, workload, [cost.seconds for cost in costs if cost.workload == workload.name])
                for workload in plan.workloads.values()
            ),
        ),
        plan.text.format(
            random=plan.random_trials,
            batch=plan.trials_per_batch,
            seed=plan.tuning_seed,
            seeds=", ".join(map(str, plan.seeds)),
        ),
        lib.all_done(costs),
        lib.cost_table(costs, "fleet"),
    ]
    for lines in baselines.tables():
        each = BaselineTable(plan, lines)
        parts += [
            f"## {each.name}",
            f"![{_SCORES[each.workload.score].capitalize()}: {each.name}]({picture_path(each)})",
            "\n".join(f"- {sentence}" for sentence in each.sentences()),
            lib.table(each.headings(), map(each.row, lines)),
        ]
    for workload in plan.workloads.values():
        if workload.trials:
            place = (workload.name, workload.fleets[0])
            rows = (_searched(plan, cell) for cell in plan.cells() if cell[:2] == place)
            parts += [f"## Searched: {workload.heading}", lib.table(("method", "searched", "given"), rows)]
    return "\n\n".join(parts)


def _workload(plan: BaselinePlan, workload: BaselineWorkload, seconds: list[float]) -> tuple[str, ...]:
    methods = reversed(plan.methods.values())
    labels = {method.settings["kind"]: method.label for method in methods}  # of the first of each kind
    trials = f"those of {workload.settings_from}" if workload.settings_from else f"{workload.trials} on each fleet"
    if workload.trial_length != 1:
        trials += f", {workload.trial_length:g} of the length"
    steps = f"{workload.method['local_steps']}"
    more = (f"{labels[kind]} {updates:,}" for kind, updates in workload.updates_of.items())
    updates = ", ".join([f"{workload.updates:,}", *more])
    return workload.name, workload.title, updates, steps, trials, f"{sum(seconds) / 3600:.1f}"


def _searched(plan: BaselinePlan, cell: BaselineCell) -> tuple[str, ...]:
    given = plan.run(cell, {}, plan.tuning_seed).spec["method"]
    ranges = ", ".join(f"{key} {range.low:g} to {range.high:g}" for key, range in plan.space(cell).items())
    return plan.methods[cell.method].label, ranges, ", ".join(f"{key}={value!r}" for key, value in given.items())


def picture_path(table: BaselineTable) -> str:
    """The path of a table's picture, from the page."""
    workload, fleet, _ = table.lines[0].cell
    return f"images/baselines-{workload}-{fleet}.svg"


def draw(baselines: Baselines, folder: Path) -> None:
    """Draw every table."""
    for lines in baselines.tables():
        each = BaselineTable(baselines.plan, lines)
        theme.write(picture(each), folder / picture_path(each))


def picture(table: BaselineTable) -> Any:
    """Accuracies with their spread, or losses against simulated time with the first seed."""
    if table.workload.score == "loss":
        title = f"{table.name}, seed {table.plan.seeds[0]} (dashed: clipped, dotted: AdamW)"
        chart = theme.image_style(_curves(table).properties(title=title))
        return chart.configure_legend(columns=4)  # in two rows, it is no wider than the plot
    return theme.image_style(_dots(table).properties(title=table.name))


def _dots(table: BaselineTable) -> Any:
    """A dot for each method; variants of a method have one colour, and those with added local clipping are hollow."""
    least = 10 * int(max(min(line.score - (line.spread or 0.0) for line in table.lines), 0.0) / 10)
    rows = [
        lib.accuracy_row(table.label(line.cell), table.label(line.cell).partition(",")[0], line.score, line.spread)
        | {"fill": "clipped" if "clipped" in line.cell.method else ""}
        for line in table.lines
    ]
    plot = lib.AccuracyPlot(rows, _SCORES["accuracy"], least)
    hollow = alt.condition(alt.datum.fill == "clipped", alt.value("white"), plot.colour)
    dots = plot.base.mark_point(size=80, strokeWidth=2, opacity=1)
    dots = dots.encode(x=plot.x("accuracy"), fill=hollow, color=plot.colour)
    return (plot.bars + dots).properties(width=380, height=24 * len(rows))


def _curves(table: BaselineTable) -> Any:
    """A line for each method; variants of a method have one colour and other dashes."""
    points: list[Values] = []
    for line in table.lines:
        method, _, variant = table.label(line.cell).partition(", ")
        place = {"line": table.label(line.cell), "method": method, "variant": variant}
        points += [place | {"time": time, "score": score} for time, score in line.curves[0]]
    dashes = alt.Scale(domain=["", *DASHES], range=[[1, 0], *DASHES.values()])
    return theme.method_lines(points, list(dict.fromkeys(point["method"] for point in points))).encode(
        x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("score:Q", title=_SCORES["loss"], scale=alt.Scale(zero=False)),
        strokeDash=alt.StrokeDash("variant:N", title=None, scale=dashes, legend=None),
        detail="line:N",
    )
