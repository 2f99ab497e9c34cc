"""How much of a plan is done, and how many CPU hours the rest takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from experiments.page import table


class Progress(NamedTuple):
    """How many runs of a workload are done, in a group of them."""

    workload: str
    group: str  # a part of the plan, or a fleet
    runs: int
    done: int
    seconds: float  # CPU seconds of all runs, by the times that were measured for the plan
    left: float  # CPU seconds of those that are not done

    def row(self) -> tuple[str, ...]:
        """The row of a table."""
        hours = (f"{seconds / 3600:.1f}" for seconds in (self.seconds, self.left))
        return self.workload, self.group, str(self.runs), str(self.done), *hours


def with_total(rows: Iterable[Progress]) -> list[Progress]:
    """The rows, and one of everything at the end."""
    every = list(rows)
    numbers = (sum(column) for column in zip(*(row[2:] for row in every), strict=True))
    return [*every, Progress("all", "", *numbers)]


def progress_text(rows: list[Progress], note: str) -> str:
    """How much of a plan is done, in a sentence or two.

    Args:
        rows: those of `with_total`.
        note: what to say of results while runs are missing.
    """
    whole = rows[-1]
    if whole.done == whole.runs:
        return f"All {whole.runs} runs of the plan are done."
    left = f"the rest takes about {whole.left / 3600:.0f} hours of one core"
    return f"**{whole.done} of {whole.runs} runs of the plan are done**, and {left}. {note}"


def headings(group: str) -> tuple[str, ...]:
    """The headings of a table of progress.

    Args:
        group: what the groups are, "part" or "fleet".
    """
    return "workload", group, "runs", "done", "CPU hours in all", "CPU hours left"


def progress_table(rows: list[Progress], group: str) -> str:
    """How much of each group of runs is done, as Markdown."""
    return table(headings(group), (row.row() for row in rows))
