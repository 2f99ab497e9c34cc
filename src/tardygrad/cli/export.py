"""`export`: records as tables for other programs, and models for Hugging Face."""

from __future__ import annotations

from pathlib import Path

from tardygrad.cli import commands
from tardygrad.cli.output import show, show_json, waiting
from tardygrad.cli.run import ended_run, final_vectors, recorded_spec, run_dir
from tardygrad.cli.session import build
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Invalid
from tardygrad.report.loader import find
from tardygrad.runs import export as exports
from tardygrad.runs.describe import training_facts
from tardygrad.runs.record import reading_record
from tardygrad.runs.run import plural
from tardygrad.runs.summary import read_summary
from tardygrad.tasks.module_task import ModuleTask


def export(options: commands.Export) -> None:
    """Write the tables of runs, or the model of one."""
    if options.hf is not None:
        _export_model(options, options.hf)
        return
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


def _export_model(options: commands.Export, out: str) -> None:
    """Write the final model of a run."""
    if options.csv or options.parquet or options.out:
        raise Invalid("--hf writes a model and no tables. Leave out --csv, --parquet and --out.")
    if len(options.folders) > 1:
        raise Invalid(f"--hf writes the model of one run, got {len(options.folders)}. Name one of them.")
    (folder,) = options.folders
    path, recorded = ended_run(folder, "--hf")
    loaded = recorded_spec(folder, recorded, [], trust=options.trust)
    task = build(loaded).task
    if not isinstance(task, ModuleTask):
        raise Invalid(f"--hf needs a task with a network, got {loaded.task.kind!r}, which has none.")
    with waiting("exporting"), torch_threads(loaded.run.threads):
        x, module_buffers, _ = final_vectors(path, task)
        with reading_record(path):
            facts = training_facts(recorded, read_summary(path))
        files = task.save_pretrained(x, out, module_buffers, facts=facts, overwrite=options.force)
    if options.json:
        show_json({"folder": out, "files": [str(file) for file in files]})
    else:
        show("\n".join(map(str, files)))
