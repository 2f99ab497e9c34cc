"""Checkpoints: the whole state of a run between two messages, as safetensors and JSON.

A checkpoint is a directory that appears complete or not at all (written aside, then renamed); the previous one is
removed only when the new one is there. Check sums tell a damaged one, and then the one before is taken. Each distinct
vector is written once: jobs in flight share their round's x.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save_file
from torch import Tensor

from tardygrad.algorithm import Server
from tardygrad.errors import RecordError
from tardygrad.messages import Buffers, Job, Taken, Update
from tardygrad.pools.pool import Pending
from tardygrad.record import plain, unwritable

KEEP = 2
FORMAT = 1


class Checkpoint(NamedTuple):
    """The state of a run."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def capture(server: Server, pending: Pending) -> Checkpoint:
    """The state of a server and its pool."""
    tensors: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor | None, buffers: Buffers | None = None) -> None:
        if x is not None:
            tensors[name] = x
        if buffers is not None:
            tensors[f"{name}.floats"], tensors[f"{name}.ints"] = buffers

    keep(f"model.{server.round}", server.x, server.buffers)
    for s, x in server.past.models.items():
        keep(f"model.{s}", x)
    for job in pending.jobs:
        keep(f"model.{job.round}", job.x, job.buffers)
    for name, value in server.state.items():
        keep(f"state.{name}", value)
    for name, update in _updates(server.buffer, pending.done):
        keep(f"{name}.delta", update.delta, update.buffers)
        keep(f"{name}.curvature", update.curvature)

    return Checkpoint(
        tensors,
        {
            "format": FORMAT, "method": _named(server), "clients": server.clients, "seed": server.seed,
            "round": server.round, "sent": server.sent, "serials": server.serials,
            "idle": server.idle, "waiting": server.waiting,
            "jobs": list(server.jobs.items()),
            "speeds": list(server.speeds.items()),
            "given": [[client, *given] for client, given in server.given.items()],
            "buffer": [[*_facts(one.update), one.delay, one.norm] for one in server.buffer],
            "pending": {
                "now": pending.now, "due": pending.due,
                "jobs": [[job.client, job.serial, job.round, job.steps, job.epochs] for job in pending.jobs],
                "done": [_facts(update) for update in pending.done],
            },
        },
    )  # fmt: skip


def apply(checkpoint: Checkpoint, server: Server) -> Pending:
    """Put a freshly made server into the checkpoint's state; what its pool must go on with."""
    tensors, facts = checkpoint
    if facts.get("format") != FORMAT:
        raise RecordError(f"the checkpoint has the format {facts.get('format')}, and this tardygrad reads {FORMAT}.")
    for name, ours in (("method", _named(server)), ("clients", server.clients), ("seed", server.seed)):
        if facts[name] != ours:
            raise RecordError(f"the checkpoint belongs to another run: its {name} is {facts[name]}, not {ours}.")
    x = tensors[f"model.{facts['round']}"]
    if x.shape != server.x.shape:
        sizes = f"{x.numel()} parameters, not {server.x.numel()}"
        raise RecordError(f"the checkpoint belongs to another model: it has {sizes}.")

    def buffers(name: str) -> Buffers | None:
        return Buffers(tensors[f"{name}.floats"], tensors[f"{name}.ints"]) if f"{name}.floats" in tensors else None

    server.x, server.buffers = x, buffers(f"model.{facts['round']}")
    server.state = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    server.round, server.sent, server.serials = facts["round"], facts["sent"], facts["serials"]
    server.idle, server.waiting = facts["idle"], facts["waiting"]
    server.jobs = dict(facts["jobs"])
    server.speeds = dict(facts.get("speeds", []))
    server.given = {client: (share, sent) for client, share, sent in facts.get("given", [])}

    def update(name: str, client: int, serial: int, s: int, steps: int, loss: float | None, clipped: float) -> Update:
        vectors = tensors[f"{name}.delta"], tensors.get(f"{name}.curvature"), buffers(f"{name}.delta")
        return Update(client, serial, s, *vectors, steps, float("nan") if loss is None else loss, clipped)

    server.buffer = [
        Taken(update(f"buffer.{i}", *fields), delay, norm) for i, (*fields, delay, norm) in enumerate(facts["buffer"])
    ]
    if server.method.compensate:
        for s in [*server.jobs.values()] + [one.update.round for one in server.buffer]:
            server.past.hold(s, tensors[f"model.{s}"])
    pending = facts["pending"]
    jobs = [
        Job(client, serial, s, tensors[f"model.{s}"], steps, epochs, server.seed, buffers(f"model.{s}"))
        for client, serial, s, steps, epochs in pending["jobs"]
    ]
    done = tuple(update(f"done.{i}", *fields) for i, fields in enumerate(pending.get("done", [])))
    return Pending(pending["now"], jobs, [(time, client, serial) for time, client, serial in pending["due"]], done)


def _updates(buffer: list[Taken], done: Sequence[Update]) -> Iterator[tuple[str, Update]]:
    yield from ((f"buffer.{i}", one.update) for i, one in enumerate(buffer))
    yield from ((f"done.{i}", update) for i, update in enumerate(done))


def _facts(update: Update) -> list[Any]:
    """What of an update is no vector."""
    return [update.client, update.serial, update.round, update.steps, update.loss, update.clipped]


def save(folder: Path, checkpoint: Checkpoint, **also: Any) -> None:
    """Write a checkpoint; the previous ones but one are removed when it is complete."""
    number = 1 + max((int(path.name) for path in _complete(folder)), default=0)
    draft, final = folder / "draft", folder / f"{number:08d}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        tensors = _apart({name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()})
        save_file(tensors, draft / "tensors.safetensors")
        facts = json.dumps(plain(checkpoint.facts | also), allow_nan=False)
        sums = {"facts": _sum(facts.encode()), "tensors": _sum((draft / "tensors.safetensors").read_bytes())}
        (draft / "state.json").write_text(json.dumps(sums) + "\n" + facts)
        for file in (*draft.iterdir(), draft):
            _fsync(file)
        draft.rename(final)
        _fsync(folder)
        for old in _complete(folder)[:-KEEP]:
            shutil.rmtree(old)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise unwritable(folder.parent, error) from error
    except Exception as error:  # safetensors reports a full disk in its own words
        shutil.rmtree(draft, ignore_errors=True)
        raise unwritable(folder.parent, OSError(str(error))) from error


def read(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; None if the run was stopped before its first."""
    broken = []
    for path in reversed(_complete(folder)):
        try:
            sums, facts = (path / "state.json").read_text().split("\n")
            content = (path / "tensors.safetensors").read_bytes()
            if json.loads(sums) != {"facts": _sum(facts.encode()), "tensors": _sum(content)}:
                raise ValueError("its check sum is wrong")
            return Checkpoint(load(content), json.loads(facts) | {"number": path.name})
        except Exception as error:
            broken.append(f"{path.name}: {error}")
    if broken:
        raise RecordError(f"no checkpoint in {str(folder)!r} can be read ({'; '.join(broken)}).")
    return None


def newest(folder: Path) -> str | None:
    """The number of the newest checkpoint."""
    return max((path.name for path in _complete(folder)), default=None)


def _sum(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy of each tensor that shares memory with one before it: safetensors refuses them."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        if pointer in seen:
            tensors[name] = tensor.clone()
        seen.add(pointer)
    return tensors


def _named(server: Server) -> str:
    """The method with its settings; functions by name, without their address."""
    method = server.method
    parts = [method.inner, method.outer, *([method.pace] if method.pace else [])]
    return re.sub(r" at 0x[0-9a-f]+", "", f"{method}: {', '.join(map(repr, parts))}")


def _complete(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]" * 8))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
