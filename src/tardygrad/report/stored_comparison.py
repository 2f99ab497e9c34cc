"""A stored comparison (`tg.compare`) in a report: its result in a sentence, its table, and its figures."""

from __future__ import annotations

from collections.abc import Iterator

from tardygrad.report.paper_figures import PaperFigure
from tardygrad.report.sweep_charts import short
from tardygrad.results.blocks import Block, Section, Table, with_suffix
from tardygrad.results.comparison import Comparison
from tardygrad.results.comparison_figure import mean_chart, mean_curves, paper_chart
from tardygrad.results.figure import WIDTH, WIDTHS, figure
from tardygrad.results.theme import method_legend
from tardygrad.runs.record_values import printable


def stored_headline(compared: Comparison) -> str:
    """The result of a comparison in one sentence."""
    return f"{_so_far(compared)}{printable(compared.result(), 400)}."


def stored_section(compared: Comparison, name: str, number: int) -> Section:
    """The section of a comparison, finished or not.

    Args:
        name: the name of its folder; empty if the page has it as its title.
        number: its number among several, from 1.
    """
    suffix = "" if number == 1 else f"-{number}"
    blocks = with_suffix(list(_blocks(compared)), suffix)
    return Section(f"compared{suffix}", f"Comparison {name}" if name else "Results", blocks)


def _blocks(compared: Comparison) -> Iterator[Block]:
    table = compared.table()
    rows = [[printable(name), *(cell.replace("± ", "±\u00a0") for cell in cells)] for name, *cells in table.rows]
    yield Table(table.headings, rows)
    yield " ".join(f"{printable(note[:1].upper() + note[1:], 400)}." for note in table.notes)
    names = _names(compared)
    if (data := mean_curves(compared, names))["rows"]:
        caption = (
            f"The mean test {compared.score} of each method at every time, with its {100 * compared.confidence:g}% "
            "confidence interval at that time. Between evaluations a run has the score of the last one, and a run that "
            "has finished keeps it. A curve ends where one of its runs diverges or starves."
        )
        if compared.target is not None:
            caption += " The dashed line is the target."
        chart = mean_chart(compared, names).properties(width=WIDTH, height=280)
        legend = method_legend([contender.name for contender in compared.contenders], names)
        yield figure("compared", f"Mean test {compared.score}", caption, chart, data, legend=legend)
    if tuned := [contender for contender in compared.contenders if contender.settings]:
        yield "The settings that tuning found best:"
        settings = [
            ", ".join(f"{printable(key)}={short(value)}" for key, value in contender.settings.items())
            for contender in tuned
        ]
        methods = [printable(contender.name) for contender in tuned]
        yield Table(("method", "settings"), list(zip(methods, settings, strict=True)))


def stored_figures(compared: Comparison, number: int) -> Iterator[PaperFigure]:
    """The figure of a comparison, one column and two columns wide."""
    for columns, width in WIDTHS.items():
        yield PaperFigure(f"compared{'' if number == 1 else f'-{number}'}-{columns}", paper_chart(compared, width))


def _names(compared: Comparison) -> list[str]:
    """The names of the methods, printable and different."""
    names = [printable(contender.name, 60) for contender in compared.contenders]
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]


def _so_far(compared: Comparison) -> str:
    runs = [run.status for contender in compared.contenders for run in contender.runs]
    done = len(runs) - runs.count("waiting")
    return "" if done == len(runs) else f"So far, after {done} of {len(runs)} runs, "
