"""Reading data files whose content cannot be trusted, and importing packages that may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tardygrad.errors import Invalid, TardygradError


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any error that is not our own into `Invalid` in one line: files can be broken in many ways."""
    try:
        yield
    except TardygradError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise Invalid(f"{what} cannot be read ({reason}). Download it again.") from error


def optional(module: str, rule: str, extra: str) -> Any:
    """Import a module of an optional package; `rule` begins the error text, `extra` is the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise not_installed(rule, extra) from error


def not_installed(rule: str, extra: str) -> Invalid:
    return Invalid(f"{rule}, which is not installed. Use pip install -c constraints.txt -e '.[{extra}]'.")


def parquet(path: Path, *columns: str) -> Iterator[list[list[Any]]]:
    """A parquet file's columns, up to 1,000 rows at a time. "img|image" is whichever of the two the file has."""
    optional("pyarrow", "parquet files need pyarrow", "data")
    from pyarrow.parquet import ParquetFile

    with reading(short(path)):
        file = ParquetFile(regular(path))
        wanted = _wanted(path, file.schema_arrow.names, columns)
        for batch in file.iter_batches(1000, columns=wanted):
            yield [batch.column(name).to_pylist() for name in wanted]


def arrow(path: Path, *columns: str) -> Iterator[list[list[Any]]]:
    """The same for a file that `save_to_disk` of datasets has written."""
    datasets = optional("datasets", "Arrow files need datasets", "hf")
    with reading(short(path)):
        rows = datasets.Dataset.from_file(str(path))
        wanted = _wanted(path, rows.column_names, columns)
        for batch in rows.iter(1000):
            yield [batch[name] for name in wanted]


def _wanted(path: Path, names: list[str], columns: Iterable[str]) -> list[str]:
    """Those of a file's columns that are wanted."""
    wanted = [next((name for name in column.split("|") if name in names), "") for column in columns]
    if not all(wanted):
        rule = f"{short(path)} must have the columns {', '.join(columns).replace('|', ' or ')}"
        raise Invalid(f"{rule}, got {', '.join(names)}.")
    return wanted


def regular(path: Path) -> Path:
    """The path; raises `Invalid` unless it is a file: a pipe or a device could be read without end."""
    if not path.is_file():
        what = "which is a folder, a pipe, a device or a broken link"
        raise Invalid(f"data must be in files, got {str(path)!r}, {what}.")
    return path


def short(path: Path) -> str:
    """A file's name with its folder's: "rte/train.parquet"."""
    return f"{path.parent.name}/{path.name}"
