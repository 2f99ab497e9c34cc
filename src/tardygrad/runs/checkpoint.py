"""Checkpoints: the whole state of a run between two messages, as safetensors and JSON.

A checkpoint is a directory that appears complete or not at all: it is written under another name and then renamed. The
last two are kept. Checksums detect damage; if the newest checkpoint is damaged, the one before is read. A run on a real
clock does not wait for the disk: `Saver` writes the captured state in the background.

The server and the engine define their own state; `packing` turns it into JSON and tensors.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save_file
from torch import Tensor

from tardygrad.core.hierarchy import ServerLike
from tardygrad.core.messages import Job, as_vector
from tardygrad.core.method import without_addresses
from tardygrad.engines.contract import Pending
from tardygrad.errors import Invalid, RecordError, is_out_of_memory
from tardygrad.runs.checks import RESTORE, checksum, go_back, start_again, with_check
from tardygrad.runs.evaluation import Model
from tardygrad.runs.packing import pack, unpack
from tardygrad.runs.record import EVENTS, End, check_id, read_json, to_json_value, verify_lines, write_error

KEEP = 2  # checkpoints


class Checkpoint(NamedTuple):
    """The state of a run, packed (see `pack`)."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    damaged: tuple[str, ...] = ()  # why newer ones could not be read

    def part(self, name: str) -> Any:
        """A part of the state, unpacked."""
        return unpack(self.state[name], self.tensors)


def capture(
    server: ServerLike, pending: Pending, tail: Sequence[Tensor] = (), unscored: Mapping[int, Model] | None = None
) -> Checkpoint:
    """The state of a server and its engine, the samples of the round's updates, and the models that wait for scores."""
    if not isinstance(pending, Pending) or not all(isinstance(job, Job) for job in pending.jobs):
        raise Invalid(f"`pending` of an engine must return a Pending with its jobs, got {pending!r}.")
    tensors: dict[str, Tensor] = {}
    state = {
        **_rules(server), "round": server.round, "server": server.snapshot(), "pending": pending,
        "tail": list(tail), "unscored": dict(unscored or {}),
    }  # fmt: skip
    return Checkpoint(tensors, pack(state, tensors))


def apply(checkpoint: Checkpoint, server: ServerLike) -> Pending:
    """Restore the state of a new server; returns the state of its engine."""
    for name, ours in _rules(server).items():
        if (theirs := checkpoint.state[name]) != ours:
            theirs, ours = _differences(str(theirs), str(ours))
            fix = f"Resume with the {name} of that run, or start a new one."
            raise RecordError(f"the checkpoint belongs to another run: its {name} is {theirs}, not {ours}. {fix}")
    state, pending = checkpoint.part("server"), checkpoint.part("pending")
    x: Tensor = levels_of(state, server)[0]["x"]
    if x.shape != server.x.shape:
        sizes = f"{x.numel()} parameters, not {server.x.numel()}"
        fix = "Resume with the task of that run, or start a new one."
        raise RecordError(f"the checkpoint belongs to another model: it has {sizes}. {fix}")
    server.restore(state, {job.round: as_vector(job.x) for job in pending.jobs})
    return pending  # type: ignore[no-any-return]


def levels_of(state: Any, server: ServerLike) -> list[Any]:
    """The saved state of each level of a server."""
    return state["levels"] if server.method.regions else [state]


class Saver:
    """Writes checkpoints in the background, one at a time. An error is raised by the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tardygrad-checkpoint")
        self._saving: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Start writing a checkpoint, after the previous one is written."""
        self.finish()
        self._saving = self._thread.submit(write)

    def finish(self) -> None:
        """Wait until everything is written."""
        saving, self._saving = self._saving, None
        if saving:
            saving.result()


def save(folder: Path, checkpoint: Checkpoint, **also: Any) -> None:
    """Write a checkpoint, then remove all but the last `KEEP`."""
    number = 1 + max((int(path.name) for path in _complete(folder)), default=0)
    draft, final = folder / "draft", folder / f"{number:08d}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()  # not its parents: a folder that was moved is not made again
        tensors = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()})
        save_file(tensors, draft / "tensors.safetensors")
        sums = {"tensors": checksum((draft / "tensors.safetensors").read_bytes())}
        (draft / "state.json").write_text(json.dumps(with_check(checkpoint.state | to_json_value(also) | sums)))
        for file in (*draft.iterdir(), draft):
            _fsync(file)
        draft.rename(final)
        _fsync(folder)
        for old in _complete(folder)[:-KEEP]:
            shutil.rmtree(old)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise write_error(folder.parent, error) from error
    except Exception as error:  # safetensors has its own error for a full disk
        shutil.rmtree(draft, ignore_errors=True)
        if is_out_of_memory(error):
            raise
        raise write_error(folder.parent, OSError(str(error))) from error


def read(folder: Path, record: Path | None = None) -> Checkpoint | None:
    """The newest checkpoint that can be read; None if there is none yet.

    Args:
        record: the run's directory; skips checkpoints of other runs, and those whose part of its events is damaged.
    """
    listed, damaged = _complete(folder), list[str]()
    for path in reversed(listed):
        try:
            saved = _read(path)
            if record:
                check_id(saved.state["id"], path, record)
                verify_lines(record / EVENTS, End(*saved.state["end"]))
            return saved._replace(damaged=tuple(damaged))
        except Exception as error:
            if (reason := _reason(path, error)) not in damaged:
                damaged.append(reason)
    if damaged and listed != _complete(folder):  # a run that is going on has replaced them
        return read(folder, record)
    if damaged:
        reasons = "; ".join(damaged)
        raise RecordError(f"no checkpoint in {str(folder)!r} can be used: {reasons}. {start_again(folder.parent)}")
    return None


def _reason(path: Path, error: Exception) -> str:
    """Why a checkpoint cannot be used, with the name of the file."""
    if isinstance(error, RecordError):
        return str(error).partition(f". {go_back(path.parents[1])}")[0].partition(f". {RESTORE}")[0].rstrip(".")
    if isinstance(error, OSError):
        return f"{str(error.filename or path)!r} cannot be read ({error.strerror})"
    return f"{str(path / 'state.json')!r} is damaged"


def _read(path: Path) -> Checkpoint:
    state = read_json(path / "state.json")
    content = (path / "tensors.safetensors").read_bytes()
    if state["tensors"] != checksum(content):
        raise RecordError(f"{str(path / 'tensors.safetensors')!r} is damaged: its checksum is wrong.")
    return Checkpoint(load(content), state)


def newest(folder: Path) -> str | None:
    """The name of the newest checkpoint; None if there is none."""
    return max((path.name for path in _complete(folder)), default=None)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy each tensor that shares memory with an earlier one, because safetensors cannot store shared memory."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        if pointer in seen:
            tensors[name] = tensor.clone()
        seen.add(pointer)
    return tensors


def _rules(server: ServerLike) -> dict[str, Any]:
    """What must be the same in a run that is resumed: the method with all its settings, and the numbers of the run."""
    method = server.method
    optional = (method.weight, method.curvature, method.pace, method.regions, method.weight_by, method.privacy)
    rest = [part for part in optional if part is not None]
    parts = [method.inner, method.outer, *rest, method.denominator, method.pull, method.keep]
    text = without_addresses(f"{method}: {', '.join(map(repr, parts))}")  # functions by name
    rules = {"max_delay": method.max_delay, "concurrency": method.concurrency, "dispatch": method.dispatch}
    return {"method": text, **rules, "clients": server.clients, "seed": server.seed}


def _differences(first: str, second: str) -> tuple[str, str]:
    """The parts of two methods' texts that differ; their titles, if one of them only has more parts."""
    parts, others = (dict.fromkeys(re.findall(r"\w+\([^()]*\)|[^\s(),:]+", text)) for text in (first, second))
    missing, added = [part for part in parts if part not in others], [part for part in others if part not in parts]
    if missing and added:
        return ", ".join(missing), ", ".join(added)
    return first.partition(": ")[0], second.partition(": ")[0]


def _complete(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]" * 8))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
