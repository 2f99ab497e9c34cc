"""Tables in HTML, for notebooks (`_repr_html_`). All text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


def html_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", right: Sequence[bool] = ()
) -> str:
    """A table.

    Args:
        headings: none, or one for each column.
        right: whether each column is aligned right; by default none is.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        styles = [f" style='text-align: {side}'" for side in ("right" if each else "left" for each in right)]
        pairs = zip(cells, styles or [""] * len(cells), strict=True)
        return f"<tr>{''.join(f'<{tag}{style}>{escape(cell)}</{tag}>' for cell, style in pairs)}</tr>"

    head = f"<thead>{line('th', headings)}</thead>" if headings else ""
    above = f"<p><b>{escape(title)}</b></p>" if title else ""
    return f"{above}<table>{head}<tbody>{''.join(line('td', cells) for cells in rows)}</tbody></table>"


def fact_table(title: str, facts: Mapping[str, object]) -> str:
    """A table of names and values below a title."""
    return html_table([], [(name, str(value)) for name, value in facts.items()], title=title, right=(False, False))
