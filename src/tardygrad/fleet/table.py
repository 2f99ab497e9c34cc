"""A fleet as a table in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tardygrad.errors import shortened
from tardygrad.html_tables import html_table

if TYPE_CHECKING:
    from tardygrad.fleet.fleet import Fleet

GROUPS = 20  # the most that are shown
EVENTS = ("crashes", "slow", "available", "faults", "slow_spells")


def fleet_table(fleet: Fleet) -> str:
    """The groups of a fleet in HTML, and how many events it has of each kind."""
    groups = fleet.groups[:GROUPS]
    linked = any(group.link != type(group.link)() for group in groups)
    rows = [
        (group.name, f"{group.clients:,}", shortened(str(group.runtime), 80), shortened(str(group.link), 80) * linked)
        for group in groups
    ]
    more = len(fleet.groups) - len(rows)
    rows += [(f"… and {more:,} more", "", "", "")] * bool(more)
    events = "".join(f", {name} {len(getattr(fleet, name))}" for name in EVENTS if getattr(fleet, name))
    title = f"Fleet of {fleet.clients:,} clients{events}"
    headings = ("group", "clients", "runtime", "link" * linked)
    return html_table(headings, rows, title=title, right=(False, True, False, False))
