"""A report as one HTML file that needs no network.

Everything that comes from a record is escaped here. The page's content security policy allows only its own two scripts,
by their hashes, and no requests. Vega interprets its expressions, so `eval` stays forbidden.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import starmap
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from tardygrad.errors import RecordError
from tardygrad.results.blocks import Block, Code, Figure, Note, Section, Table, numeric_columns
from tardygrad.runs.record import replace

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:{connect}; base-uri 'none'; "
    "form-action 'none'"
)


class Live(NamedTuple):
    """What a served page says about its runs."""

    state: str  # a token that changes with the records
    text: str


def html(title: str, sections: list[Section], *, results: Sequence[str] = (), live: Live | None = None) -> str:
    """The page.

    Args:
        results: sentences that it opens with.
    """
    script, library = _asset("page.js"), _library()
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in (library, script))
    links = "".join(f'<li><a href="#{section.key}">{escape(section.title)}</a></li>' for section in sections)
    nav = f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n' if len(sections) > 1 else ""
    lead = "".join(f'<p class="result">{escape(sentence)}</p>\n' for sentence in results)
    body, status = "".join(map(_section, sections)), ""
    if live:
        status = f'<p id="live" class="note" role="status" data-state="{live.state}">{escape(live.text)}</p>\n'
    return Template(_asset("page.html")).substitute(
        policy=POLICY.format(scripts=hashes, connect="" if live is None else "; connect-src 'self'"),
        title=escape(title),
        style=_asset("page.css"),
        live=status,
        main=f'<main id="main" tabindex="-1">\n{lead}{nav}{body}</main>',
        library=library,
        script=script,
    )


def figures(sections: Iterable[Section]) -> Iterator[Figure]:
    """All figures of a report."""
    for block in (block for section in sections for block in section.blocks):
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Section):
            yield from figures([block])


def put(path: Path, content: bytes) -> None:
    """Write a page or an image, completely or not at all."""
    try:
        replace(path, content)
    except RecordError as error:
        why = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise RecordError(f"cannot write {str(path)!r}: {why}. Free some space, or choose another path.") from error


def _section(section: Section) -> str:
    key, title, blocks = section
    inner = "\n".join(map(_block, blocks))
    return f'<section aria-labelledby="{key}">\n<h2 id="{key}">{escape(title)}</h2>\n{inner}\n</section>\n'


def _block(block: Block) -> str:
    match block:
        case Figure():
            return _figure(block)
        case Table():
            return _table(block)
        case Code(intro, text):
            return f'<p>{escape(intro)}</p>\n<pre tabindex="0"><code>{escape(text)}</code></pre>'
        case Section(key, title, blocks):
            inner = "\n".join(map(_block, blocks))
            return f'<details class="run" id="{key}"><summary>{escape(title)}</summary>\n{inner}\n</details>'
        case Note(text):
            return f'<p class="note">{escape(text)}</p>'
        case str():
            return f"<p>{escape(block)}</p>"


def _figure(figure: Figure) -> str:
    table = ""
    if figure.table:
        key = f"data-{figure.key}"
        table = f'<details id="{key}"><summary>Data: {escape(figure.title)}</summary>{_table(figure.table)}</details>'
    return (
        f'<figure aria-labelledby="title-{figure.key}">\n<h3 id="title-{figure.key}">{escape(figure.title)}</h3>\n'
        f'{_legend(figure)}<div class="chart" id="chart-{figure.key}"></div>'
        f'<script type="application/json">{_json(figure.chart)}</script>\n'
        f"<figcaption>{escape(figure.caption)}</figcaption>\n{table}\n</figure>"
    )


def _legend(figure: Figure) -> str:
    """The names in a chart; where they are lines, buttons that highlight them."""

    def entry(name: str, colour: str, dash: tuple[int, ...] | None) -> str:
        if dash is None:
            mark = f'<svg viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" fill="{colour}"/></svg>'
            return f"<li>{mark}{escape(name)}</li>"
        dashes = " ".join(map(str, dash))
        line = f'<path d="M0 6H30" stroke="{colour}" stroke-width="3" stroke-dasharray="{dashes}"/>'
        mark = f'<svg class="line" viewBox="0 0 30 12" aria-hidden="true">{line}</svg>'
        return f'<li><button type="button" aria-pressed="false">{mark}<span>{escape(name)}</span></button></li>'

    entries = "".join(starmap(entry, figure.legend))
    return f'<ul class="legend" aria-label="Legend">{entries}</ul>\n' if entries else ""


def _table(table: Table) -> str:
    cells = [[_cell(value) for value in row] for row in table.rows]
    kinds = [' class="number"' * numeric for numeric in numeric_columns(cells, len(table.headings))]
    heads = "".join(
        f'<th scope="col"{kind}>{escape(head)}</th>' for head, kind in zip(table.headings, kinds, strict=True)
    )
    rows = "".join(f"<tr>{_row(row, kinds)}</tr>" for row in cells)
    head = f"<thead><tr>{heads}</tr></thead>" if any(table.headings) else ""
    whole = f"<table>{head}<tbody>{rows}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="Table">{whole}</div>'


def _row(row: list[str], kinds: list[str]) -> str:
    first, *rest = (f"{kind}>{escape(cell)}" for cell, kind in zip(row, kinds, strict=True))
    first = first.replace("=", "=<wbr>") if not kinds[0] else first  # where a long name may break
    return f'<th scope="row"{first}</th>' + "".join(f"<td{cell}</td>" for cell in rest)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _json(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII, and without <, > and &."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("tardygrad.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")
