"""Results as Markdown, between two marks of a page; the rest of the page is left alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tardygrad.errors import Invalid
from tardygrad.runs.record import make_directory, replace, write_error


def write_section(page: Path, name: str, content: str) -> None:
    """Replace the text between the marks of a page; a file that does not exist is created.

    Args:
        name: of the section; its first word is the module of `experiments`.
        content: the new text.
    """
    before, _, after = split_page(page, name)
    begin, end = marks(name)
    try:
        make_directory(page.parent)
    except OSError as error:
        raise write_error(page.parent, error) from error
    replace(page, f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}".encode())


def split_page(page: Path, name: str) -> tuple[str, str, str]:
    """The text of a page before, between and after its marks; `Invalid` if it has none."""
    if page.exists() and not page.is_file():
        raise Invalid(f"--page must be a text file, got {str(page)!r}, which is a directory, a pipe or a device.")
    try:
        text = page.read_text(encoding="utf-8") if page.exists() else new_page(name)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"--page must be a text file, got {str(page)!r}: {error}.") from error
    begin, end = marks(name)
    before, begun, rest = text.partition(begin)
    between, ended, after = rest.partition(end)
    if not (begun and ended):
        rule = f"--page must be a new file or one with a place for the {name}"
        raise Invalid(f"{rule}, got {str(page)!r}. Put {begin} and {end} into it, each on a line of its own.")
    return before, between, after


def new_page(name: str) -> str:
    """A new page with marks for a section and for those that share its page, as clock, figure1 and claims do."""
    pages = {
        "# The paper's tables": ["tables"],
        "# Baselines": ["baselines"],
        "# Pretrained models": ["regime verdicts", "regime tables"],
    }
    for title, sections in pages.items():
        if name in sections:
            return "\n".join((title, "", *(f"{mark}\n" for section in sections for mark in marks(section))))
    return Path(__file__).with_name("page.md").read_text(encoding="utf-8")


def marks(name: str) -> tuple[str, str]:
    """The marks before and after the results on a page."""
    return f"<!-- {name}: made by `python -m experiments.{name.split()[0]}` -->", f"<!-- end of {name} -->"


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table.

    >>> print(table(("M", "time"), [("4", "39")]))
    | M | time |
    | --- | --- |
    | 4 | 39 |
    """
    head = list(headings)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
