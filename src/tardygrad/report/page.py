"""A report as one HTML file that needs no network.

The template escapes everything that comes from a record. The page's content security policy allows only its own two
scripts, by their hashes, and no requests. Vega interprets its expressions, so `eval` stays forbidden.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from tardygrad.errors import RecordError
from tardygrad.results.blocks import Figure, Section, Table, numeric_columns
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
    policy = POLICY.format(scripts=hashes, connect="" if live is None else "; connect-src 'self'")
    own = {name: Markup(text) for name, text in (("policy", policy), ("library", library), ("script", script))}
    style = Markup(_asset("page.css"))
    return _template().render(title=title, sections=sections, results=results, live=live, style=style, **own)


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


def _numeric(table: Table) -> list[Markup]:
    """The attribute of the cells of each column."""
    cells = [[_cell(value) for value in row] for row in table.rows]
    return [Markup(' class="number"') * numeric for numeric in numeric_columns(cells, len(table.headings))]


def _cell(value: Any, *, breaks: bool = False) -> str:
    """A cell as text; with `breaks`, a long name may break after an equals sign."""
    if value is None:
        return "–"
    text = f"{value:,.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return Markup(escape(text).replace("=", Markup("=<wbr>"))) if breaks else text


def _json(value: Any) -> Markup:
    """JSON that is safe inside a script element: ASCII, and without <, > and &."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def _template() -> Template:
    """The template of a page, which escapes every text that is no `Markup`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.globals |= {
        "kind": lambda block: type(block).__name__,
        "numeric": _numeric,
        "cell": _cell,
        "json": _json,
    }
    return environment.from_string(_asset("page.html"))


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("tardygrad.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")
