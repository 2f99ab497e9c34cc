"""Reading data files whose content cannot be trusted: parquet columns, and one error for everything unforeseen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tardygrad.errors import Invalid, TardygradError


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn any error that is not our own into `Invalid`: files can be broken in many ways."""
    try:
        yield
    except TardygradError:
        raise
    except Exception as error:
        raise Invalid(f"{what} cannot be read ({type(error).__name__}: {error}). Download it again.") from error


def parquet(path: Path, *columns: str) -> Iterator[list[list[Any]]]:
    """A parquet file's columns, up to 1,000 rows at a time. "img|image" is whichever of the two the file has."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        fix = "Use pip install -c constraints.txt -e '.[data]'."
        raise Invalid(f"parquet files need pyarrow, which is not installed. {fix}") from error
    try:
        file = ParquetFile(path)
        names = file.schema_arrow.names
        wanted = [next((name for name in column.split("|") if name in names), "") for column in columns]
        if not all(wanted):
            rule = f"{short(path)} must have the columns {', '.join(columns).replace('|', ' or ')}"
            raise Invalid(f"{rule}, got {', '.join(names)}.")
        for batch in file.iter_batches(1000, columns=wanted):
            yield [batch.column(name).to_pylist() for name in wanted]
    except (ArrowException, OSError) as error:
        raise Invalid(f"{short(path)} is not a readable parquet file ({error}). Download it again.") from error


def short(path: Path) -> str:
    """A file's name with its folder's: "rte/train.parquet"."""
    return f"{path.parent.name}/{path.name}"
