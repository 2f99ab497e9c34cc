"""`export`: records as tables for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tardygrad.cli.output import Json, show, show_json, waiting
from tardygrad.cli.run import there
from tardygrad.errors import Invalid
from tardygrad.report.loader import find
from tardygrad.runs import export as exports
from tardygrad.runs.run import plural


def export(
    folders: Annotated[list[str], typer.Argument(metavar="RUN...")],
    csv: Annotated[bool, typer.Option("--csv", help="As CSV, which is the default.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="As Parquet.")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to write; the default for a single run is RUN/export.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files of an earlier export.")] = False,
    json: Json = False,
) -> None:
    """Write the metrics, updates and events of runs as flat tables.

    RUN is a run's directory, or a folder with runs somewhere below it. The tables of several have a column with its
    name.
    """
    paths = find([folder if Path(folder).is_dir() else str(there(folder)) for folder in folders]).runs
    if not paths:
        raise Invalid("an export needs runs, got only sweeps. Use `tardygrad report` for those.")
    if out is None and len(paths) > 1:
        raise Invalid(f"the tables of several runs need a directory, got {len(paths)} runs and none. Add --out DIR.")
    formats = [name for name, wanted in (("csv", csv or not parquet), ("parquet", parquet)) if wanted]
    with waiting("exporting"):
        made = exports.export(paths, Path(out) if out else paths[0] / "export", formats, force=force)
    if json:
        show_json({"files": [{"path": str(path), "rows": rows} for path, rows in made]})
    else:
        show("\n".join(f"{path}  {plural(rows, 'row')}" for path, rows in made))
