"""`export`: records as tables for other programs."""

from __future__ import annotations

from pathlib import Path

from tardygrad.cli.output import show, show_json, waiting
from tardygrad.cli.run import run_dir
from tardygrad.errors import Invalid
from tardygrad.report.discover import find
from tardygrad.runs import export as exports
from tardygrad.runs.run import plural
from tardygrad_command import commands


def export(options: commands.Export) -> None:
    """Write the tables of runs."""
    paths = find([folder if Path(folder).is_dir() else str(run_dir(folder)) for folder in options.folders]).runs
    if not paths:
        raise Invalid("an export needs runs, got only sweeps. Use `tardygrad report` for sweeps.")
    if options.out is None and len(paths) > 1:
        raise Invalid(f"several runs need a directory for their tables, got {len(paths)} runs. Add --out DIR.")
    formats = [name for name in ("csv", "parquet") if getattr(options, name)] or ["csv"]
    with waiting("exporting"):
        out = Path(options.out) if options.out else paths[0] / "export"
        written = exports.export(paths, out, formats, force=options.force)
    if options.json:
        show_json({"files": [{"path": str(path), "rows": rows} for path, rows in written]})
    else:
        show("\n".join(f"{path}  {plural(rows, 'row')}" for path, rows in written))
