"""Where specs come from: files, shipped specs, recorded runs."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path

from tardygrad.constructors import Table
from tardygrad.errors import Invalid, nearest, shown
from tardygrad.runs.checks import without_check
from tardygrad.runs.kinds import KINDS
from tardygrad.runs.tables import anchor, why_no_spec


def read_source(source: str | Path) -> tuple[str, Table, bool]:
    """The name and the tables of a spec, and whether it is a record's: a file, a shipped name, or a run's directory."""
    path, known = Path(source), shipped()
    if (path / "spec.json").is_file():
        path /= "spec.json"
    if path.is_file():
        tables = _parsed(path)
        if tables.keys() >= {"spec", "run", "versions"}:
            return *_recorded(path.parent, tables), True
        fleet = tables.get("fleet")
        for table in (fleet, fleet.get("availability")) if isinstance(fleet, dict) else ():
            if isinstance(table, dict) and isinstance(table.get("path"), str):
                table["path"] = str(path.parent / table["path"])  # relative to the spec
        anchor_task(tables, path.parent)
        return path.stem, tables, _of_record(path) or _of_record(path.resolve())
    if str(source) in known:
        text = files("tardygrad").joinpath(f"specs/{source}.toml").read_text("utf-8")
        return str(source), tomllib.loads(text), False
    if path.exists():  # a directory, or a pipe
        raise Invalid(f"a spec must be a file or the directory of a run, got {str(source)!r}. Name a file.")
    beside = [str(file) for suffix in ("toml", "json") for file in path.parent.glob(f"*.{suffix}")]
    fix = nearest(str(source), [*beside, *known]) or f" Shipped specs: {', '.join(known)}."
    if str(source) in KINDS["task"]:
        fix = f" It is a kind of task: write for example fashion task.kind={source} task.data=FOLDER."
    raise Invalid(f"a spec must be a file or the name of a shipped spec, got {str(source)!r}.{fix}")


def _of_record(path: Path) -> bool:
    """Whether a file is the spec of a record, or is in a record or a sweep: these may come from elsewhere."""
    marks = [path.parent / "checkpoints"]
    marks += (folder / name for folder in path.parents for name in ("events.jsonl", "sweep.json"))
    return path.name in ("spec.json", "sweep.json") or any(mark.exists() for mark in marks)


def _recorded(folder: Path, record: Table) -> tuple[str, Table]:
    """The spec of a recorded run; its name is the run's without the number."""
    record = without_check(record, folder / "spec.json")
    if not isinstance(record["spec"], dict):
        raise Invalid(f"a run must have a spec for this, and the one in {str(folder)!r} {why_no_spec(record)}")
    return re.sub(r"-\d+$", "", folder.resolve().name), record["spec"]


def anchor_task(tables: Table, folder: Path) -> None:
    """Make existing paths in [task] absolute, so that a run can be resumed from any directory."""
    if isinstance(task := tables.get("task"), dict):
        anchor(task, folder)


def _parsed(path: Path) -> Table:
    language, loads = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        tables = loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"the spec {str(path)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"a spec must be UTF-8 text, got {str(path)!r}, where byte {error.start} is not.") from error
    except (ValueError, RecursionError) as error:
        raise Invalid(f"a spec must be valid {language}, got {str(path)!r}: {error}.") from error
    if not isinstance(tables, dict):
        raise Invalid(f"a spec must consist of tables, got {shown(tables)} in {str(path)!r}.")
    return tables


def shipped() -> list[str]:
    """The names of the specs that come with the package."""
    names = [file.name for file in files("tardygrad").joinpath("specs").iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))
