"""Tables of results as text, as HTML for notebooks, and as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

from tardygrad.errors import Invalid
from tardygrad.runs.record import Row

Cells = Sequence[Sequence[str]]


def text_table(headings: Sequence[str], rows: Cells) -> str:
    """A table in plain text; columns of numbers are aligned right.

    >>> print(text_table(["method", "score"], [["Clip²", "9.5"], ["FedAvg", "10.25"]]))
    method  score
    Clip²     9.5
    FedAvg  10.25
    """
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    numeric = [all(row[i][:1] in "0123456789<+-−–" for row in rows) for i in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def html_table(headings: Sequence[str], rows: Cells, notes: Sequence[str] = ()) -> str:
    """A table for a notebook, with notes below it."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def data_frame(rows: Sequence[Row]) -> Any:
    """A pandas data frame; raise `Invalid` if pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise Invalid("`to_pandas` needs pandas, which is not installed. Install it: pip install pandas") from error
    return pandas.DataFrame(list(rows))
