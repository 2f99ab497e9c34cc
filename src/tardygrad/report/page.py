"""A report as one HTML file that needs no network, and its figures as pictures.

Whatever comes from a record is escaped here. The page's policy lets nothing run but its own two scripts, which it
names by their hashes, and lets nothing be fetched; Vega interprets its expressions, so no `eval` has to be allowed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from tardygrad.errors import RecordError
from tardygrad.report.blocks import Block, Code, Figure, Fold, Note, Part, Table
from tardygrad.report.theme import rendered
from tardygrad.runs.record import replace

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:{connect}; base-uri 'none'; "
    "form-action 'none'"
)


class Live(NamedTuple):
    """What a page that is served says of its run."""

    state: str  # a token that changes when the record does
    said: str


def html(title: str, parts: list[Part], *, live: Live | None = None) -> str:
    """The page."""
    script, library = _asset("page.js"), _library()
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in (library, script))
    nav = "".join(f'<li><a href="#{part.key}">{escape(part.title)}</a></li>' for part in parts)
    body = "".join(map(_part, parts))
    said = (
        ""
        if live is None
        else f'<p id="live" class="note" role="status" data-state="{live.state}">{escape(live.said)}</p>\n'
    )
    return Template(_asset("page.html")).substitute(
        policy=POLICY.format(scripts=hashes, connect="" if live is None else "; connect-src 'self'"),
        title=escape(title),
        style=_asset("page.css"),
        live=said,
        main=f'<main id="main" tabindex="-1">\n<nav aria-label="Contents"><ul>{nav}</ul></nav>\n{body}</main>',
        library=library,
        script=script,
    )


def figures(parts: Iterable[Part]) -> Iterator[Figure]:
    """Every figure of a report."""

    def within(blocks: Iterable[Block]) -> Iterator[Figure]:
        for block in blocks:
            if isinstance(block, Figure):
                yield block
            elif isinstance(block, Fold):
                yield from within(block.blocks)

    for part in parts:
        yield from within(part.blocks)


def put(path: Path, content: bytes) -> None:
    """Write a page or a picture; of one that cannot be written nothing is left."""
    try:
        replace(path, content)
    except RecordError as error:
        why = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise RecordError(f"cannot write {str(path)!r}: {why}. Make room, or name another place.") from error


def pictures(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as PNG and as SVG."""
    spec = json.dumps({**figure.chart, "background": "white"})
    paths = [folder / f"{figure.key}{suffix}" for suffix in (".png", ".svg")]
    for path in paths:
        put(path, rendered(spec, path.suffix))
    return paths


def _part(part: Part) -> str:
    blocks = "\n".join(_block(block) for block in part.blocks)
    return (
        f'<section aria-labelledby="{part.key}">\n<h2 id="{part.key}">{escape(part.title)}</h2>\n{blocks}\n</section>\n'
    )


def _block(block: Block) -> str:
    match block:
        case Figure():
            return _figure(block)
        case Table():
            return _table(block)
        case Code(said, text):
            return f'<p>{escape(said)}</p>\n<pre tabindex="0"><code>{escape(text)}</code></pre>'
        case Fold(key, title, blocks):
            inner = "\n".join(map(_block, blocks))
            return f'<details class="run" id="{key}"><summary>{escape(title)}</summary>\n{inner}\n</details>'
        case Note(said):
            return f'<p class="note">{escape(said)}</p>'
        case str():
            return f"<p>{escape(block)}</p>"


def _figure(figure: Figure) -> str:
    table = ""
    if figure.table:
        key = f"data-{figure.key}"
        table = f'<details id="{key}"><summary>Data: {escape(figure.title)}</summary>{_table(figure.table)}</details>'
    return (
        f'<figure aria-labelledby="title-{figure.key}">\n<h3 id="title-{figure.key}">{escape(figure.title)}</h3>\n'
        f'<div class="chart" id="chart-{figure.key}"></div>'
        f'<script type="application/json">{_json(figure.chart)}</script>\n'
        f"<figcaption>{escape(figure.caption)}</figcaption>\n{table}\n</figure>"
    )


def _table(table: Table) -> str:
    numbers = [_is_number([row[i] for row in table.rows]) for i in range(len(table.headings))]
    heads = "".join(
        f'<th scope="col"{_class(n)}>{escape(head)}</th>' for head, n in zip(table.headings, numbers, strict=True)
    )
    rows = "".join(f"<tr>{_row(row, numbers)}</tr>" for row in table.rows)
    head = f"<thead><tr>{heads}</tr></thead>" if any(table.headings) else ""
    whole = f"<table>{head}<tbody>{rows}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="Table">{whole}</div>'


def _row(row: Iterable[Any], numbers: list[bool]) -> str:
    cells = [_cell(value) for value in row]
    rest = "".join(f"<td{_class(n)}>{cell}</td>" for cell, n in zip(cells[1:], numbers[1:], strict=True))
    return f'<th scope="row"{_class(numbers[0])}>{cells[0]}</th>{rest}'


def _class(number: bool) -> str:
    return ' class="number"' if number else ""


def _is_number(column: list[Any]) -> bool:
    return all(str(value)[:1] in "0123456789–-" for value in column)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return escape(
        f"{value:,.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in; ASCII, so that no character is a line's end to anybody."""
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
