"""Comparisons on a page: the library's `Comparison`, of recorded runs or stored by `tg.compare`, and their results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from tardygrad.errors import Invalid, nearest
from tardygrad.report.groups import SeedGroup, directions_of, score_names, seconds_of, tasks
from tardygrad.report.loader import RunView
from tardygrad.report.paper_figures import PaperFigure
from tardygrad.report.sweeps import short
from tardygrad.results.blocks import Block, Note, Section, Table, with_suffix
from tardygrad.results.comparison import Comparison, Contender, SeedResult, first_time, listed, reachable_target
from tardygrad.results.comparison_figure import mean_chart, mean_curves, paper_chart
from tardygrad.results.figure import WIDTH, WIDTHS, figure
from tardygrad.results.table import score_text
from tardygrad.results.theme import method_legend
from tardygrad.runs.history import UNFINISHED
from tardygrad.runs.record_values import printable, rounded

USELESS = ("diverged", "starved", "failed")  # statuses of runs whose last score is no result


def compare(groups: list[SeedGroup], *, baseline: str | None = None, target: float | None = None) -> Comparison:
    """Compare groups of runs.

    Args:
        baseline: name or label of the group that the others are compared with; by default the first synchronous one.
        target: the score to reach; by default most of the way to the best one.
    """
    base, directions = baseline_of(groups, baseline), directions_of(groups)
    score, *others = score_names(groups) or ["loss"]
    higher = not directions.prefers_lower(score)
    if target is not None:
        _check_target(target, score)
    numbers = iter(range(-1, -1 - sum(len(group.runs) for group in groups), -1))
    details = _details(groups)
    contenders = [
        Contender(
            group.name,
            [_seed_result(run, score, others, next(numbers)) for run in group.runs],
            more=details[group.name],
        )
        for group in groups
    ]
    origin = ""
    if target is None:
        target = reachable_target(contenders, base.name, higher=higher)
        origin = f", 90% of the way from the first score of {base.name} to the best that all runs of a method reached"
    timed = [
        method._replace(
            runs=[run._replace(to_target=first_time(run.curve, target, higher=higher)) for run in method.runs]
        )
        for method in contenders
    ]
    notes = list(filter(None, [directions.note(score)]))
    how = {"higher": higher, "reference": base.name, "target": target, "confidence": 0.95}
    return Comparison(timed, score=score, notes=notes, origin=origin, **how)  # type: ignore[arg-type]


def baseline_of(groups: list[SeedGroup], given: str | None) -> SeedGroup:
    """The group to compare with: by name or label, or else the first synchronous one, or else the first."""
    if given is not None:
        for group in groups:
            if given in (group.name, group.label):
                return group
        known = [group.name for group in groups]
        raise Invalid(f"--baseline must be one of {', '.join(map(repr, known))}, got {given!r}.{nearest(given, known)}")
    return next((group for group in groups if group.synchronous), groups[0])


def _check_target(target: float, score: str) -> None:
    if score == "accuracy" and not 0 < target <= 1:
        fix = f"Did you mean {target / 100:g}?" if 1 < target <= 100 else "Use for example 0.9."
        raise Invalid(f"--target is an accuracy, above 0 and at most 1, got {target:g}. {fix}")
    if not math.isfinite(target):
        raise Invalid(f"--target must be a finite {score}, got {target:g}. Use for example 0.5.")


def _seed_result(run: RunView, score: str, others: list[str], number: int) -> SeedResult:
    """What a comparison needs of a run.

    Args:
        number: stands for the seed of a run that has none, so that it pairs with no other.
    """
    history = run.history
    useless, times = history.status in USELESS, history.rounds.time
    curve = [
        (float(times[each.round - 1]), value)
        for each in history.evaluations
        if (value := each.scores.get(score)) is not None and math.isfinite(value)
    ]
    last = {} if useless or not run.scores.items else run.scores.items[-1]["scores"]
    facts = {
        "random_fleet": history.random_fleet,
        "settings": {key: value for key, value in run.settings.items() if key.startswith(("task.", "fleet."))},
    } | ({} if history.simulated is None else {"simulated": history.simulated})
    return SeedResult(
        seed=number if run.seed is None else run.seed,
        status=history.state,
        score=last.get(score),
        to_target=None,
        time=history.time,
        curve=curve,
        facts=facts,
        scores={name: last.get(name) for name in others},
        rounds=len(history.rounds),
    )


def _details(groups: list[SeedGroup]) -> dict[str, dict[str, str]]:
    """Further facts of each group, without those that say nothing."""
    found = {}
    for group in groups:
        histories = [run.history for run in group.runs]
        delays = np.concatenate([history.rounds.delays.ravel() for history in histories])
        found[group.name] = {
            "status": ", ".join(dict.fromkeys(history.state for history in histories)),
            "rounds": ", ".join([*dict.fromkeys(f"{len(history.rounds):,}" for history in histories)][:4]),
            "mean delay": f"{delays.mean():.1f}" if delays.size else "–",
            "largest delay": f"{delays.max(initial=0):,}",
            "privacy": ", ".join(dict.fromkeys(run.privacy or "none" for run in group.runs)),
        }
    columns = {name: {row[name] for row in found.values()} for name in next(iter(found.values()))}
    lengths = {len(run.history.rounds) for group in groups for run in group.runs}
    useless = {name for name, cells in columns.items() if cells <= {"finished", "none"}}
    useless |= {"rounds"} if len(lengths) == 1 else set()
    return {group: {name: cell for name, cell in row.items() if name not in useless} for group, row in found.items()}


def headline(groups: list[SeedGroup], compared: Comparison) -> str:
    """The result of runs in one sentence."""
    runs = [run for group in groups for run in group.runs]
    if len(runs) == 1:
        return _single(runs[0])
    if len(learned := tasks(groups)) > 1:
        return f"{len(runs)} runs on different tasks ({listed(learned)}), whose scores cannot be compared."
    if not score_names(groups):
        return f"{len(runs)} runs of which none has a test score yet."
    so_far = "" if all(run.history.ended for run in runs) else "So far: "
    rivals = " (no run is synchronous)" if len(groups) > 1 and not any(group.synchronous for group in groups) else ""
    return f"{so_far}{printable(compared.result(), 600)}{rivals}."


def _single(run: RunView) -> str:
    """The result of a single run."""
    history, rounds = run.history, len(run.history.rounds)
    wanted = f" of {history.requested:,}" if history.requested and history.status != "finished" else ""
    when = (
        f"after {rounds:,}{wanted} {'round' if rounds == 1 else 'rounds'}, {rounded(history.time)} {seconds_of([run])}"
    )
    score = _last_score(run)
    rest = "a single run, so there is nothing to compare it with"
    if history.status == "finished":
        what = f"ends with a test {score}" if score else "ends without a test score"
        return f"{history.label} {what} {when}; {rest}."
    verbs = {"running": "is running", "killed": "was killed", UNFINISHED: "has not ended"}
    status = verbs.get(history.state, history.state)
    what = f"the last evaluation found a test {score}" if score else "it has no test score yet"
    return f"{history.label} {status} {when}; {what}."


def _last_score(run: RunView) -> str | None:
    """The first score of the last evaluation: "accuracy of 95.1%", for example."""
    if not run.scores.items:
        return None
    scores = {name: value for name, value in run.scores.items[-1]["scores"].items() if value is not None}
    name = run.history.directions.main(scores)
    if name is None:
        return None
    return f"{name} of {score_text(name, scores[name])}"


def comparison_blocks(compared: Comparison, *, key: str = "") -> Iterator[Block]:
    """Warnings, the table, what its numbers are, and the mean curves.

    Args:
        key: of the figure; empty: the page has figures of the runs.
    """
    yield from (Note(_sentence(note)) for note in compared.caveats())
    table = compared.page_table() if not key else compared.table()
    rows = [[printable(name), *(cell.replace("± ", "±\u00a0") for cell in cells)] for name, *cells in table.rows]
    yield Table(table.headings, rows)
    yield " ".join(map(_sentence, compared.explanations()))
    names = _names(compared)
    if not key or not (data := mean_curves(compared, names))["rows"]:
        return
    caption = (
        f"The mean test {compared.score} of each method at every time, with its {100 * compared.confidence:g}% "
        "confidence interval at that time. Between evaluations a run has the score of the last one, and a run that "
        "has finished keeps it. A curve ends where one of its runs diverges or starves."
    )
    if compared.target is not None:
        caption += " The dashed line is the target."
    chart = mean_chart(compared, names).properties(width=WIDTH, height=280)
    legend = method_legend([contender.name for contender in compared.contenders], names)
    yield figure(key, f"Mean test {compared.score}", caption, chart, data, legend=legend)


def stored_section(compared: Comparison, name: str, number: int) -> Section:
    """The section of a stored comparison, finished or not.

    Args:
        name: the name of its folder; empty if the page has it as its title.
        number: its number among several, from 1.
    """
    suffix = "" if number == 1 else f"-{number}"
    blocks = [*comparison_blocks(compared, key="compared"), *_best_settings(compared)]
    return Section(f"compared{suffix}", f"Comparison {name}" if name else "Results", with_suffix(blocks, suffix))


def stored_headline(compared: Comparison) -> str:
    """The result of a stored comparison in one sentence."""
    runs = [run.status for contender in compared.contenders for run in contender.runs]
    done = len(runs) - runs.count("waiting")
    so_far = "" if done == len(runs) else f"So far, after {done} of {len(runs)} runs, "
    return f"{so_far}{printable(compared.result(), 400)}."


def stored_figures(compared: Comparison, number: int) -> Iterator[PaperFigure]:
    """The figure of a stored comparison, one column and two columns wide."""
    for columns, width in WIDTHS.items():
        yield PaperFigure(f"compared{'' if number == 1 else f'-{number}'}-{columns}", paper_chart(compared, width))


def _best_settings(compared: Comparison) -> Iterator[Block]:
    if tuned := [contender for contender in compared.contenders if contender.settings]:
        yield "The settings that tuning found best:"
        yield Table(("method", "settings"), [(printable(each.name), _shown(each.settings)) for each in tuned])


def _shown(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{printable(key)}={short(value)}" for key, value in settings.items())


def _sentence(note: str) -> str:
    return f"{printable(note[:1].upper() + note[1:], 400)}."


def _names(compared: Comparison) -> list[str]:
    """The names of the methods, printable and different."""
    names = [printable(contender.name, 60) for contender in compared.contenders]
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
