"""Build a report of runs and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from altair.utils.schemapi import debug_mode

from tardygrad.errors import Invalid
from tardygrad.report.comparison import compare, headline, stored_figures, stored_headline, stored_section
from tardygrad.report.groups import grouped
from tardygrad.report.loader import RunView, find, read
from tardygrad.report.page import Live, html
from tardygrad.report.paper_figures import PaperFigure, paper_figures, sweep_figures
from tardygrad.report.sections import run_sections
from tardygrad.report.sweeps import sweep_headline, sweep_sections
from tardygrad.results.blocks import Section
from tardygrad.results.comparison import Comparison
from tardygrad.runs.record_values import printable
from tardygrad.runs.run import plural
from tardygrad.sweeps import read as read_sweep
from tardygrad.sweeps.compare import is_comparison, read_comparison
from tardygrad.sweeps.trials import sweep_table


class Report(NamedTuple):
    """The content of a report."""

    title: str
    results: list[str]  # a sentence about the runs, and one about each sweep and each stored comparison
    sections: list[Section]
    runs: list[RunView]
    tables: list[str]  # LaTeX
    paper_figures: Callable[[], Iterator[PaperFigure]]
    compared: Comparison | None  # the runs; None: there are none

    def html(self, live: Live | None = None) -> str:
        """The report as a page."""
        return html(self.title, self.sections, results=self.results, live=live)


@debug_mode(False)  # validating every part of every chart would take almost half of the time; a test does it
def build(
    paths: Sequence[str], *, title: str | None = None, baseline: str | None = None, target: float | None = None
) -> Report:
    """Read runs and sweeps and build their report.

    Args:
        paths: directories of runs or sweeps, or folders that contain some at any depth.
        baseline: name or label of the run that speed-ups are relative to.
        target: the test accuracy to reach, or the test loss if there is no accuracy.
    """
    run_dirs, sweep_dirs = find(paths)
    runs = [read(path) for path in run_dirs]
    for option, value in (("--baseline", baseline), ("--target", target)):
        if value is not None and not runs:
            raise Invalid(f"{option} applies to runs, got {value!r} and only sweeps. Leave it out.")
    results, sections, tables = list[str](), list[Section](), list[str]()
    draws, compared = list[Callable[[], Iterator[PaperFigure]]](), None
    if runs:
        groups = grouped(runs)
        compared = compare(groups, baseline=baseline, target=target)
        results.append(headline(groups, compared))
        sections += run_sections(groups, compared)
        tables.append(compared.to_latex())
        draws.append(partial(paper_figures, groups))
    comparisons = [path for path in sweep_dirs if is_comparison(path)]
    alone = len(sweep_dirs) == 1 and not runs and not title  # the title has its name
    for number, path in enumerate(comparisons, 1):
        stored, name = read_comparison(path), "" if alone else printable(path.resolve().name)
        results.append(f"Comparison {name}: {stored_headline(stored)}" if name else stored_headline(stored))
        sections.append(stored_section(stored, name, number))
        tables.append(stored.to_latex(label=f"tab:compared-{number}"))
        draws.append(partial(stored_figures, stored, number))
    sweeps = [path for path in sweep_dirs if path not in comparisons]
    for number, path in enumerate(sweeps, 1):
        sweep, name = read_sweep(path), "" if alone else printable(path.resolve().name)
        own = sweep_sections(sweep, name, number, path)
        results.append(f"Sweep {name}: {sweep_headline(sweep)}" if name else sweep_headline(sweep))
        sections += own
        tables.append(sweep_table(sweep).latex(None, f"tab:sweep-{number}"))
        draws.append(partial(sweep_figures, own))
    title = printable(title, 200) if title else _title(runs, {"comparison": comparisons, "sweep": sweeps})
    return Report(title, results, sections, runs, tables, lambda: (each for draw in draws for each in draw()), compared)


def _title(runs: list[RunView], others: Mapping[str, list[Path]]) -> str:
    if len(runs) == 1 and not any(others.values()):
        return f"{runs[0].history.label}: {printable(runs[0].history.path.resolve().name)}"
    names = [plural(len(runs), "run")] * bool(runs)
    for what, paths in others.items():
        few = [f"{what} {printable(path.resolve().name)}" for path in paths]
        names += few if len(few) <= 2 else [plural(len(few), what)]
    title = " and ".join(names)
    return title[:1].upper() + title[1:]
