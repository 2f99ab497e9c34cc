"""Build a report of runs and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tardygrad.errors import Invalid
from tardygrad.report.blocks import Section
from tardygrad.report.comparison import Comparison, compare
from tardygrad.report.discover import find
from tardygrad.report.groups import grouped
from tardygrad.report.headline import headline, sweep_headline
from tardygrad.report.loader import RunView, read
from tardygrad.report.page import Live, html
from tardygrad.report.sections import run_sections
from tardygrad.report.sweeps import sweep_sections
from tardygrad.runs.history import printable
from tardygrad.runs.run import plural
from tardygrad.sweeps import read as read_sweep


class Report(NamedTuple):
    """The content of a report."""

    title: str
    results: list[str]  # a sentence about the runs, and one about each sweep
    sections: list[Section]
    runs: list[RunView]
    compared: Comparison | None  # None: there are only sweeps
    sweeps: list[Section]  # the sections that are about sweeps

    def html(self, live: Live | None = None) -> str:
        """The report as a page."""
        return html(self.title, self.sections, results=self.results, live=live)


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
    compared = compare(grouped(runs), baseline=baseline, target=target) if runs else None
    sections = run_sections(compared) if compared else []
    results, sweeps = [headline(compared)] if compared else [], list[Section]()
    for number, path in enumerate(sweep_dirs, 1):
        sweep, name = read_sweep(path), printable(path.resolve().name)
        sweeps += sweep_sections(sweep, name, number)
        results.append(sweep_headline(sweep, name))
    heading = printable(title, 200) if title else _title(runs, sweep_dirs)
    return Report(heading, results, [*sections, *sweeps], runs, compared, sweeps)


def _title(runs: list[RunView], sweep_dirs: list[Path]) -> str:
    if len(runs) == 1 and not sweep_dirs:
        return f"{runs[0].history.label}: {printable(runs[0].history.path.resolve().name)}"
    sweeps = [f"sweep {printable(path.resolve().name)}" for path in sweep_dirs]
    if len(sweeps) > 2:
        sweeps = [f"{len(sweeps)} sweeps"]
    return " and ".join([plural(len(runs), "run")] * bool(runs) + sweeps)
