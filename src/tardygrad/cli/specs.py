"""`specs`: what comes with the package."""

from __future__ import annotations

from tardygrad.cli.output import Json, show_json, show_table
from tardygrad.spec import spec


def specs(json: Json = False) -> None:
    """List the specs that come with tardygrad."""
    found = spec.shipped()
    if json:
        show_json([{"name": name, "description": text} for name, text in found.items()])
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("spec", "what it is", box=None, pad_edge=False)
    for name, text in found.items():
        table.add_row(escape(name), escape(text))
    show_table(table)
