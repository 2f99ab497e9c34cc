"""Tables of results as text, as HTML for notebooks, in LaTeX, and as data frames."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from importlib import import_module
from typing import Any, NamedTuple

from tardygrad.errors import Invalid
from tardygrad.html_tables import html_table
from tardygrad.results.blocks import numeric_columns
from tardygrad.results.latex import latex_table
from tardygrad.runs.record import Row


class ResultTable(NamedTuple):
    """A table with notes below it; columns of numbers are aligned right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()  # the best cells (row, column), in LaTeX

    def text(self) -> str:
        """The table in plain text.

        >>> print(ResultTable(["method", "score"], [["Clip²", "9.5"], ["FedAvg", "10.25"]], ["over 5 seeds"]).text())
        method  score
        Clip²     9.5
        FedAvg  10.25
        over 5 seeds
        """
        lines = [self.headings, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headings))]
        numeric = numeric_columns(self.rows, len(self.headings))
        aligned = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*aligned, *self.notes])

    def html(self) -> str:
        """The table for a notebook."""
        right = numeric_columns(self.rows, len(self.headings))
        below = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return html_table(self.headings, self.rows, right=right) + below

    def latex(self, caption: str | None, label: str) -> str:
        """The table in LaTeX; without a caption, the notes are its caption."""
        notes = ". ".join(note[:1].upper() + note[1:] for note in self.notes)
        text = (notes + ". " + "The best mean is bold." * bool(self.bold)).strip() if caption is None else caption
        return latex_table(self.headings, self.rows, caption=text, label=label, bold=self.bold)


def score_text(name: str, value: float | None) -> str:
    """A score in few characters; an accuracy in per cent.

    >>> score_text("accuracy", 0.9512), score_text("loss", 0.0123456), score_text("loss", None)
    ('95.1%', '0.01235', '–')
    """
    return "–" if value is None else f"{value:.1%}" if name == "accuracy" else f"{value:.4g}"


def data_frame(rows: Sequence[Row]) -> Any:
    """A pandas data frame; raise `Invalid` if pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise Invalid("`to_pandas` needs pandas, which is not installed. Install it: pip install pandas") from error
    return pandas.DataFrame(list(rows))
