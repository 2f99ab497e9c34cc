"""The results in the paper's own regime as Markdown, with a picture of accuracies against simulated time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from tardygrad.report import theme
from tardygrad.reproduce import regime_tails as tails
from tardygrad.reproduce.page import table
from tardygrad.reproduce.paper import published_cells
from tardygrad.reproduce.progress import progress_table, progress_text
from tardygrad.reproduce.regime import Line, Part, Plan, Regime, key, merit
from tardygrad.reproduce.regime_beside import paper_numbers, small_numbers
from tardygrad.reproduce.regime_claims import judge
from tardygrad.reproduce.regime_progress import progress
from tardygrad.sweeps.statistics import estimate
from tardygrad.sweeps.store import Result

HEADINGS = (
    "stragglers",
    "mode",
    "method",
    "settings",
    "seeds",
    "score (%)",
    "paper (%)",
    "simulated time (s)",
    "clipped: Δ, g",
)
CURVES = ("SGDClip", "Clip²")
"""The methods of the picture, synchronous and client-centric."""


def picture(lesson: str) -> str:
    """The path of a lesson's picture, from the page."""
    return f"images/regime-{lesson}.svg"


def verdicts(regime: Regime, folder: Path) -> str:
    """The section with the verdicts; what small networks show is read from other pages in its folder."""
    plan = regime.plan
    paper, small = paper_numbers(plan.parts["cells"].lessons), small_numbers(folder)
    rows = [
        (
            f"{number}. {plan.claims[number]['says']}",
            f"**{found.verdict}**",
            found.numbers,
            small.get(number, ""),
            paper.get(number, ""),
        )
        for number, found in judge(regime).items()
    ]
    parts = [
        progress_text(progress(regime), "A verdict needs all runs that its rule names."),
        table(("claim", "verdict", "here", "small networks", "the paper"), rows),
        "Columns: the verdict by its [rule](#the-rules-and-what-decides-them), and the numbers that decide it; a "
        "similar comparison in networks from scratch and heads on frozen features, with settings chosen on test rows "
        "([tables](results.md), [claims](reproduction.md)); and in the paper's own tables.",
        *(_figure(lesson) for lesson in _pictured(regime)[:1]),
    ]
    return "\n\n".join(parts)


def tables(regime: Regime, command: str) -> str:
    """The section with everything that was run."""
    plan = regime.plan
    lessons = [
        name for name, lesson in plan.lessons.items() if any(name in part.lessons for part in plan.parts.values())
    ]
    parts = [
        "## What was run",
        f"Made by `{command}`. Every client trains all parameters of a pretrained model.",
        table(("lesson", "task and model", "N", "T", "rounds of trials"), (_lesson(plan, name) for name in lessons)),
        f"M = 4. Each method has six settings to choose from, tried with seed {plan.tuning_seed} on validation rows "
        "that no client trains on. The better half of the first trials is run again for more rounds, and the best of "
        "these is taken. Settings are chosen on the fleet with large stragglers, once for synchronous rounds and once "
        "for both asynchronous modes (in client-centric runs). The tables show the score on test rows after the last "
        "round: mean ± 95 % confidence interval (Student's t) over the seeds. It is the accuracy; for STS-B, Pearson's "
        "correlation.",
        progress_table(progress(regime)),
        *_rules(regime),
        *(_figure(lesson) for lesson in _pictured(regime)[1:]),
        *(_part(regime, part) for part in plan.parts.values()),
        *_trials(regime),
    ]
    return "\n\n".join(parts)


def _figure(lesson: str) -> str:
    return f"![Test score against simulated time, {lesson}]({picture(lesson)})"


def _rules(regime: Regime) -> list[str]:
    """The rule of each claim, the numbers of each cell, and the verdicts of each lesson alone."""
    plan, lessons = regime.plan, regime.plan.parts["cells"].lessons
    alone = {lesson: judge(regime.with_plan(plan.only_lesson(lesson))) for lesson in lessons}
    compared = [number for number in plan.claims if number in ("1", "2", "3", "4")]
    details = [
        "\n".join((f"Claim {number}:\n", *(f"- {line}" for line in found.details)))
        for number, found in judge(regime).items()
        if found.details
    ]
    return [
        "## The rules, and what decides them",
        "\n".join(f"{number}. {plan.claims[number]['rule']}" for number in plan.claims),
        *details,
        "The verdicts if a rule is applied to one lesson alone:",
        table(("claim", *alone), ((number, *(each[number].verdict for each in alone.values())) for number in compared)),
    ]


def _trials(regime: Regime) -> list[str]:
    """The finished trials; those of a method in the order of their rounds, the best first."""
    rows = []
    for name, line in {key(line): line for line in regime.plan.lines()}.items():
        done = [(run, result) for run in regime.trials(line) if (result := regime.store.result(run))]
        done.sort(key=lambda trial: merit(trial[1]), reverse=True)
        for run, result in sorted(done, key=lambda trial: int(trial[0].spec["run"]["rounds"])):
            tried = ", ".join(f"{each} {run.spec['method'][each]:g}" for each in regime.plan.method(line).grid)
            score = "" if result.accuracy is None else f"{result.accuracy:.1f}"
            loss = "" if result.loss is None else f"{result.loss:.3f}"
            rows.append((name, tried, str(run.spec["run"]["rounds"]), score or result.status, loss))
    headings = ("lesson, mode, method", "settings", "rounds", "validation score (%)", "loss")
    return ["## Trials", table(headings, rows)] if rows else []


def _lesson(plan: Plan, name: str) -> tuple[str, ...]:
    lesson = plan.lessons[name]
    rungs = ", ".join(map(str, lesson.rungs or plan.rungs))
    return name, lesson.title, str(lesson.clients), str(lesson.rounds), rungs


def write_pictures(regime: Regime, folder: Path) -> None:
    """Draw the lessons whose lines are done with every seed, and the tails of gradients."""
    for lesson in _pictured(regime):
        theme.write(_curves(regime, lesson), folder / picture(lesson))
    for part in regime.plan.parts.values():
        for lesson in part.lessons:
            if points := tails.points(regime, part, lesson):
                theme.write(tails.chart(points), folder / tails.picture(lesson))


def _pictured(regime: Regime) -> list[str]:
    cells = regime.plan.parts["cells"]
    return [
        lesson
        for lesson in cells.lessons
        if all(len(regime.results(line)) == len(cells.seeds) for line in _shown(regime, lesson))
    ]


def _shown(regime: Regime, lesson: str) -> list[Line]:
    lines = regime.plan.parts["cells"].lines()
    return [line for line in lines if line.lesson == lesson and line.mode != "server" and line.method in CURVES]


def _part(regime: Regime, part: Part) -> str:
    found = [f"## {part.title}"]
    for lesson in part.lessons:
        rows = [row(regime, line) for line in with_unchanged(part) if line.lesson == lesson]
        found += [f"### {regime.plan.lessons[lesson].title}", table(HEADINGS, rows)]
        found += tails.section(regime, part, lesson)
    return "\n\n".join(found)


def with_unchanged(part: Part) -> list[Line]:
    """The lines of a part; before those with changes to a line of the part `cells`, that line."""
    lines = [(line, line._replace(part="cells", change="") if line.change else line) for line in part.lines()]
    return list(dict.fromkeys(each for line, unchanged in lines for each in (unchanged, line)))


def row(regime: Regime, line: Line) -> tuple[str, ...]:
    """The row of a line."""
    method = f"{line.method}, {line.change}" if line.change else line.method
    theirs = "" if line.change else _published(line)
    fleet = "own fleet" if "fleet" in regime.plan.parts[line.part].changes.get(line.change, {}) else line.stragglers
    results = list(regime.results(line).values())
    if not results:
        return fleet, line.mode, method, "", "", "not run", theirs, "", ""
    used = regime.runs(line)[0].spec["method"]
    settings = ", ".join(f"{name} {used[name]:g}" for name in regime.plan.method(line).grid)
    failed = sum(result.accuracy is None for result in results)
    found = estimate([result.accuracy or 0.0 for result in results])
    width = "" if found.half_width is None else f" ± {found.half_width:.1f}"
    width = f"{width} ({failed} did not finish)" if failed else width
    times, outer, local = (
        sum(getattr(result, name) for result in results) / len(results) for name in ("time", "clipped", "local_clipped")
    )
    return (
        fleet,
        line.mode,
        method,
        settings,
        str(len(results)),
        f"{found.mean:.1f}{width}",
        theirs,
        f"{times:,.0f}",
        f"{outer:.0%}, {local:.0%}",
    )


def _published(line: Line) -> str:
    """The paper's accuracy of the same cell."""
    wanted = (line.lesson, line.stragglers, line.mode, line.method)
    return next((f"{cell.score:.1f}" for cell in published_cells() if cell[:4] == wanted), "")


def _mean_curve(results: Iterable[Result]) -> list[tuple[float, float]]:
    """Simulated time and score after each evaluated round, means over the seeds that reached it."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    for result in results:
        for number, time, _, score in result.curve:
            if score is not None:
                rounds.setdefault(number, []).append((time, score))
    return [(mean(time for time, _ in seeds), mean(score for _, score in seeds)) for _, seeds in sorted(rounds.items())]


def _curves(regime: Regime, lesson: str) -> Any:
    points = [
        {"method": line.method, "mode": line.mode, "fleet": line.stragglers, "time": time, "score": score}
        for line in _shown(regime, lesson)
        for time, score in _mean_curve(regime.results(line).values())
    ]
    dashes = alt.Scale(domain=["client", "sync"], range=[[1, 0], [4, 2]])
    chart = theme.method_lines(points, list(CURVES)).encode(
        x=alt.X("time:Q", title="simulated time (seconds)", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("score:Q", title="test score (%), mean over seeds", scale=alt.Scale(zero=False)),
        strokeDash=alt.StrokeDash("mode:N", scale=dashes, legend=None),
    )
    panels = [
        chart.transform_filter(alt.datum.fleet == fleet).properties(
            title=f"{lesson}, {fleet} stragglers, client-centric (dashed: synchronous)"
        )
        for fleet in regime.plan.parts["cells"].fleets
    ]
    return theme.image_style(alt.hconcat(*panels))
