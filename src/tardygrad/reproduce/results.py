"""Finished runs of the claims' experiments: one file each, named after a hash of its spec, written whole or not at all.

So finished runs are never repeated, several claims share them, and a changed experiment never takes an old one's
results. A file holds the whole spec: `tardygrad run FILE` does the run again.
"""

from __future__ import annotations

import json
import multiprocessing as mp
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from pydantic import TypeAdapter

from tardygrad.engines.sim.process_pool import serve_parent
from tardygrad.errors import Diverged, RecordError, Starved
from tardygrad.reproduce.trials import Result, Runnable
from tardygrad.runs.record import Row, exclusive, read_json, write_json
from tardygrad.runs.run import begin, versions
from tardygrad.spec import spec


class Results:
    """A folder of finished runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, Result] = {}

    def look(self, arm: Runnable, seed: int) -> Result | None:
        """A run's result, if it is there; a file that is broken is not."""
        path = self.path(arm, seed)
        if path not in self._known:
            with suppress(ValueError, RecordError, KeyError):
                self._known[path] = _read(read_json(path)["result"])
        return self._known.get(path)

    def path(self, arm: Runnable, seed: int) -> Path:
        """Where a run's result is, or will be."""
        text = json.dumps(_decisive(json.dumps(arm.spec(seed))), sort_keys=True)
        name = "-".join((arm.label, arm.stragglers, blake2b(text.encode(), digest_size=6).hexdigest()))
        return self.folder / f"{name.replace('²', '2').replace(', ', '-').lower()}.json"

    def make(self, asked: Sequence[tuple[Runnable, int]], jobs: int) -> Iterator[Path]:
        """The runs that are not there yet, in so many processes; every file as it is written."""
        missing = {self.path(*one): one[0].spec(one[1]) for one in asked if self.look(*one) is None}
        with exclusive(self.folder), ProcessPoolExecutor(jobs, mp.get_context("fork"), _begin) as pool:
            try:
                for made in as_completed([pool.submit(_run, *one) for one in missing.items()]):
                    yield made.result()
            except BrokenProcessPool as error:
                raise RecordError("a process died; is there enough memory? Go on with the same command.") from error
            finally:
                pool.shutdown(cancel_futures=True)  # runs under way are finished and kept


@cache
def _decisive(text: str) -> dict[str, Any]:
    """What a run's result depends on, defaults filled in; where data lie is no part of it."""
    tables = spec.parse(json.loads(text)).resolved()
    tables["task"] = {key: value for key, value in tables["task"].items() if key not in ("data", "cache")}
    run = {key: tables["run"][key] for key in ("rounds", "seed", "evaluate_every")}
    return {**{name: tables[name] for name in ("task", "fleet", "method", "engine")}, "run": run}


def _read(row: Row) -> Result:
    """A result whose every part is of its type."""
    return _adapter().validate_python(row)


@cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def _begin() -> None:
    serve_parent()
    torch.set_num_threads(1)


def _run(path: Path, tables: dict[str, Any]) -> Path:
    """Run it, to its end or to where it diverges, and write down what came of it."""
    read = spec.parse(tables, path.stem)
    built = read.build()
    with built.pool() as pool:
        run = begin(built.method, built.task, pool, **read.run.settings())
        with suppress(Diverged, Starved):
            for _ in run.go():
                pass
    curve = [
        (row["round"], row["time"], row["test_loss"], 100 * row["test_accuracy"])
        for row in run.metrics
        if "test_loss" in row
    ]
    result = Result(
        status=run.status,
        accuracy=curve[-1][3] if run.status == "finished" else None,
        time=run.metrics[-1]["time"] if run.metrics else 0.0,
        curve=curve,
        clipped=mean(row["clipped"] for row in run.metrics) if run.metrics else 0.0,
        local_clipped=mean(row["local_clipped"] for row in run.metrics) if run.metrics else 0.0,
    )
    write_json(
        path,
        {"spec": read.resolved(), "run": read.run.settings(), "versions": versions(), "result": result._asdict()},
    )
    return path
