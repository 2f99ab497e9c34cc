"""A report on whatever stands in some directories: runs, folders of runs, sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tardygrad import sweep
from tardygrad.errors import Invalid
from tardygrad.report.blocks import Part
from tardygrad.report.loader import RunView, find, read, text
from tardygrad.report.page import Live, html
from tardygrad.report.sections import parts
from tardygrad.report.sweeps import sweep_parts
from tardygrad.runs.run import plural


class Report(NamedTuple):
    """A report that has not been written yet."""

    title: str
    parts: list[Part]
    stories: list[RunView]

    def html(self, live: Live | None = None) -> str:
        """The page."""
        return html(self.title, self.parts, live=live)


def tell(
    places: Sequence[str], *, title: str | None = None, baseline: str | None = None, target: float | None = None
) -> Report:
    """Read the runs and sweeps, and say what there is to say.

    Args:
        places: directories of runs or sweeps, or folders with some somewhere below them.
        baseline: the name or the label of what speed-ups are over.
        target: the test accuracy to be reached, or the test loss where there is no accuracy.
    """
    runs, swept = find(places)
    stories = [read(path) for path in runs]
    for option, given in (("--baseline", baseline), ("--target", target)):
        if given is not None and not stories:
            raise Invalid(f"{option} is for runs, got {given!r} and only sweeps. Leave it out.")
    told = parts(stories, baseline=baseline, target=target) if stories else []
    for number, path in enumerate(swept, 1):
        told += sweep_parts(sweep.read(path), text(path.resolve().name), number)
    return Report(text(title, 200) if title else _title(stories, swept), told, stories)


def _title(stories: list[RunView], swept: list[Path]) -> str:
    if len(stories) == 1 and not swept:
        return f"{stories[0].label}: {text(stories[0].path.resolve().name)}"
    named = [f"sweep {text(path.resolve().name)}" for path in swept]
    return " and ".join(
        [plural(len(stories), "run")] * bool(stories) + (named if len(named) < 3 else [f"{len(named)} sweeps"])
    )
