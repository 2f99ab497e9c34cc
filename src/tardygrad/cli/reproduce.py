"""`reproduce`: the paper's results, made again."""

from __future__ import annotations

from typing import Annotated

import typer

from tardygrad.cli.screen import Json, counted, show_json, show_table

app = typer.Typer(name="reproduce", help="Make the paper's results again.", no_args_is_help=True)


@app.callback()
def reproduce() -> None:
    """Make the paper's results again."""


@app.command()
def clock(
    seeds: Annotated[int, typer.Option(min=1, help="Runs per cell.")] = 20,
    json: Json = False,
) -> None:
    """The simulated runtimes of the paper's CIFAR-10 tables: every mode, straggler class and buffer."""
    from tardygrad.reproduce.clock import clock, published

    cells = list(counted(clock(seeds), total=len(published()), what="cells"))
    if json:
        show_json({"seeds": seeds, "cells": [cell._asdict() for cell in cells]})
        return
    from rich.table import Table

    table = Table("mode", "stragglers", box=None, pad_edge=False)
    for heading in ("M", "ours (s)", "paper (s)", "ratio"):
        table.add_column(heading, justify="right")
    for cell in cells:
        numbers = (str(cell.buffer), f"{cell.ours:.1f}", f"{cell.paper:.1f}", f"{cell.ratio:.3f}")
        table.add_row(cell.mode, cell.stragglers, *numbers)
    show_table(table)
