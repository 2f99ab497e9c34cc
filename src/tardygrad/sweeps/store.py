"""Finished runs: one JSON file each, named after a hash of its spec, written whole or not at all.

A finished run is never repeated, several experiments can share it, and a changed experiment never takes the results of
the old one. A file holds the whole spec, so `tardygrad run FILE` repeats the run.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, FiniteFloat, TypeAdapter

from tardygrad.engines.child_process import set_up_child_process
from tardygrad.errors import RecordError
from tardygrad.runs.record import Row, exclusive, read_json, require_file, write_json
from tardygrad.runs.run import Run, versions
from tardygrad.runs.summary import remove_model
from tardygrad.spec.spec import parse
from tardygrad.sweeps.trial import TaskCache, ignore, run_seed
from tardygrad.tail.probe import probe

# settings of tasks that were added after results were stored, whose hash lacks them
_LATER = (("channels_last", False), ("compile", False), ("attention", None))
_PLACES = ("data", "cache", "pretrained")  # keys of a task that say where files are, which changes no result


class PlannedRun(NamedTuple):
    """A run to do: a name for its file, the tables of its spec, and the test score to store as its accuracy."""

    name: str
    spec: dict[str, Any]
    score: str = "accuracy"
    tails: Sequence[int] = ()  # rounds after which the tails of its gradients are measured; `name` must mention it


Number = FiniteFloat  # no run has written NaN or infinity
Time = Annotated[FiniteFloat, Field(ge=0)]
Score = Annotated[float, Field(ge=-1, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class LayerTail(NamedTuple):
    """The tail of a layer's gradients after a round."""

    round: int
    layer: str  # "all": of the whole model
    alpha: Number | None  # the tail index
    low: Number | None
    high: Number | None
    verdict: str
    scaled: Number | None  # that of each coordinate's noise divided by its own scale
    scaled_verdict: str | None


class StoredResult(NamedTuple):
    """The outcome of a run. Scores are in per cent here, and shares of 1 in the file."""

    status: Literal["finished", "diverged", "starved"]
    accuracy: Score | None  # the score that `PlannedRun.score` names, after the last round; None: did not finish
    loss: Number | None
    time: Time  # simulated seconds
    curve: list[tuple[int, Time, Number | None, Score | None]]  # round, time, test loss, accuracy
    clipped: Share  # of the coordinates of Δ_t, mean over rounds
    local_clipped: Share  # of the coordinates of gradients
    tails: Sequence[LayerTail] = ()  # at `PlannedRun.tails`

    @property
    def merit(self) -> tuple[float, float]:
        """What trials are ranked by: the score, then the loss; those that did not finish come last."""
        if self.accuracy is None:
            return -inf, -inf
        return self.accuracy, -inf if self.loss is None else -self.loss


class Store:
    """A folder of finished runs.

    Args:
        records: also keep the record of each run, without its model, in a folder of the same name, for `report`.
        summaries: runs that were finished elsewhere, as `summary` returns them.
    """

    def __init__(self, folder: Path, *, records: bool = False, summaries: Iterable[Row] = ()) -> None:
        self.folder, self.records = folder, records
        self.tasks = TaskCache()
        self._summaries = {row["name"]: row for row in summaries}
        self._known: dict[Path, StoredResult] = {}

    def result(self, run: PlannedRun) -> StoredResult | None:
        """The result of a run; None if it is missing or its file is damaged."""
        return self._result(self.path(run))

    def _result(self, path: Path) -> StoredResult | None:
        if path not in self._known:
            with suppress(ValueError, RecordError, KeyError, TypeError):
                whole = self._read(path)
                row = whole["result"]
                if not isinstance(whole["versions"], dict) or not whole["versions"]:
                    raise ValueError("versions")
                json.dumps(whole, ensure_ascii=False).encode()  # no run has written half a surrogate pair
                result = _adapter().validate_python({key: row[key] for key in StoredResult._fields if key in row})
                _check(result)
                curve = [(*point[:3], _percent(point[3])) for point in result.curve if point[0] > 0]
                self._known[path] = result._replace(accuracy=_percent(result.accuracy), curve=curve)
        return self._known.get(path)

    def summary(self, run: PlannedRun) -> Row:
        """A finished run as a small JSON object: its name, settings without folders, versions and result."""
        path = self.path(run)
        row = self._read(path)
        task = {key: value for key, value in run.spec["task"].items() if key not in _PLACES}
        settings = {"spec": {**run.spec, "task": task}, "versions": row["versions"]}
        return {"name": path.stem, **settings, "result": row["result"]}

    def _read(self, path: Path) -> Row:
        return read_json(path) if path.exists() or path.stem not in self._summaries else self._summaries[path.stem]

    def path(self, run: PlannedRun) -> Path:
        """The file of a run's result."""
        name = f"{run.name}-{_hash(json.dumps(run.spec))}"
        return self.folder / f"{name.replace('²', '2').replace(', ', '-').lower()}.json"

    def missing(self, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
        """The runs that have no result yet, each once."""
        return [run for path, run in {self.path(run): run for run in runs}.items() if self._result(path) is None]

    def run_missing(self, wanted: Callable[[], Iterable[PlannedRun]], jobs: int) -> Iterator[Path]:
        """Run the missing ones in `jobs` processes and yield each file when it is written.

        Args:
            wanted: returns the runs known so far, done or not. It is called again after every run, whose result may add
                others; the first missing one starts next.
        """
        context = mp.get_context("fork")  # so that the processes share the task if it is built already
        with exclusive(self.folder), ProcessPoolExecutor(jobs, context, _begin, (self.tasks,)) as pool:
            running: dict[Future[Path], PlannedRun] = {}
            try:
                while True:
                    started = {self.path(run) for run in running.values()}
                    waiting = [run for run in self.missing(wanted()) if self.path(run) not in started]
                    for run in waiting[: jobs - len(running)]:
                        require_file(self.path(run))
                        running[pool.submit(_run, self.path(run), run, self.records)] = run
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        run, path = running.pop(future), future.result()
                        if self.result(run) is None:  # else it would be run again and again
                            rule = "a run that has ended must have a result that can be read"
                            raise RecordError(f"{rule}, got {str(path)!r}. Remove the file, or report it as a bug.")
                        yield path
            except BrokenProcessPool as error:
                raise RecordError("a process died; is there enough memory? Continue with the same command.") from error
            finally:
                pool.shutdown(cancel_futures=True)  # waits for the runs under way and keeps their results


@cache
def _hash(spec: str) -> str:
    """A hash of the part of a spec that decides the result, defaults filled in; the spec is JSON."""
    tables = parse(json.loads(spec)).resolved()
    task = {key: value for key, value in tables["task"].items() if key not in _PLACES and (key, value) not in _LATER}
    run = {key: tables["run"][key] for key in ("rounds", "seed", "evaluate_every")}
    if tables["run"]["until"] is not None:  # else the hash is that of earlier versions
        run["until"] = tables["run"]["until"]
    decisive = {**tables, "task": task, "engine": {**tables["engine"], "workers": 1}, "run": run}
    return blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=6).hexdigest()


@cache
def _adapter() -> TypeAdapter[StoredResult]:
    return TypeAdapter(StoredResult)


def _check(result: StoredResult) -> None:
    """Raise `ValueError` for a result that no run has."""
    if result.status == "finished" and not result.time:
        raise ValueError("a run takes time")
    if any(len({value is None for value in (tail.alpha, tail.low, tail.high)}) > 1 for tail in result.tails):
        raise ValueError("a tail index has an interval")


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


_tasks = TaskCache()  # of this process


def _begin(tasks: TaskCache) -> None:
    global _tasks
    _tasks = tasks
    set_up_child_process()
    torch.set_num_threads(1)


def _run(path: Path, run: PlannedRun, records: bool) -> Path:
    spec, record = parse(run.spec, path.stem), path.with_suffix("")
    if records:
        shutil.rmtree(record, ignore_errors=True)  # of a run that was stopped
    tails = list[LayerTail]()

    def measure(current: Run) -> None:
        if current.server.round in run.tails:
            tails.extend(layer_tails(current))

    settings: dict[str, Any] = {"score": run.score, "out": record if records else None}
    result = run_seed(spec, _tasks, spec.run.seed, **settings, watch=measure if run.tails else ignore)
    if run.tails:
        result["tails"] = [row._asdict() for row in tails]
    if records:
        shutil.rmtree(record / "checkpoints", ignore_errors=True)
        remove_model(record)
    del result["seconds"]  # the only part that differs when the run is repeated
    write_json(path, {"spec": spec.resolved(), "run": spec.run.settings(), "versions": versions(), "result": result})
    return path


def layer_tails(run: Run) -> list[LayerTail]:
    """The tails of the gradients at a run's model."""
    found = probe(run.task, run.x, module_buffers=run.module_buffers)
    rows = []
    for layer in (found.whole, *found.layers):
        if tail := layer.tail:
            scaled = (layer.scaled.index, layer.scaled.verdict) if layer.scaled else (None, None)
            rows.append(LayerTail(run.server.round, layer.name, tail.index, tail.low, tail.high, tail.verdict, *scaled))
    return rows
