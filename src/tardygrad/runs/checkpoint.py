"""Checkpoints: the whole state of a run between two messages, as safetensors and JSON.

A checkpoint is a directory that appears complete or not at all (written aside, then renamed); the previous one is
removed only when the new one is there. Check sums tell a damaged one, and then the one before is taken. Each distinct
vector is written once: jobs in flight share their round's x. A real clock does not wait for it: what was captured
between two messages is written in the background (`Saver`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save_file
from torch import Tensor

from tardygrad.core.algorithm import Server
from tardygrad.core.dylu import Speeds
from tardygrad.core.hierarchy import HierarchicalServer, RegionMessage, ServerLike
from tardygrad.core.messages import Job, ModuleBuffers, Taken, Update
from tardygrad.core.transforms import State, below
from tardygrad.engines.pool import Pending
from tardygrad.errors import RecordError
from tardygrad.runs.evaluation import Model, Scores
from tardygrad.runs.record import Row, plain, unwritable

KEEP = 2
FORMAT = 3


class Checkpoint(NamedTuple):
    """The state of a run."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class _Tensors:
    """Tensors by name; each model is written once, however many jobs share it."""

    def __init__(self, named: dict[str, Tensor] | None = None) -> None:
        self.named: dict[str, Tensor] = named or {}
        self._models: dict[int, str] = {}

    def put(self, name: str, x: Tensor | None, module_buffers: ModuleBuffers | None = None) -> None:
        if x is not None:
            self.named[name] = x
        if module_buffers is not None:
            self.named[f"{name}.floats"], self.named[f"{name}.ints"] = module_buffers

    def put_model(self, x: Tensor, module_buffers: ModuleBuffers | None = None) -> str:
        """The name of a model."""
        name = self._models.setdefault(id(x), f"model.{len(self._models)}")
        self.put(name, x, module_buffers)
        return name

    def put_update(self, name: str, update: Update) -> list[Any]:
        """What of an update is no vector."""
        self.put(f"{name}.delta", update.delta, update.module_buffers)
        self.put(f"{name}.curvature", update.curvature)
        return [update.client, update.serial, update.round, update.steps, update.loss, update.clipped]

    def put_state(self, name: str, state: State | None) -> None:
        for key, value in (state or {}).items():
            self.put(f"{name}.{key}", value)

    def module_buffers(self, name: str) -> ModuleBuffers | None:
        if f"{name}.floats" not in self.named:
            return None
        return ModuleBuffers(self.named[f"{name}.floats"], self.named[f"{name}.ints"])

    def update(self, name: str, facts: list[Any]) -> Update:
        client, serial, s, steps, loss, clipped = facts
        vectors = self.named[f"{name}.delta"], self.named.get(f"{name}.curvature"), self.module_buffers(f"{name}.delta")
        return Update(client, serial, s, *vectors, steps, float("nan") if loss is None else loss, clipped)

    def state(self, name: str) -> State:
        return below(self.named, f"{name}.")


def capture(
    server: ServerLike, pending: Pending, tail: Sequence[Tensor] = (), scores: Scores | None = None
) -> Checkpoint:
    """The state of a server and its pool; with what was sampled of the round's updates, and rows without scores."""
    tensors = _Tensors()
    for i, sample in enumerate(tail):
        tensors.put(f"tail.{i}", sample)
    rows, models = (list(scores.rows), scores.models) if scores else ([], {})
    servers = [_capture(one, tensors, str(i)) for i, one in enumerate(server.levels)]
    for i, update in enumerate(pending.done):
        tensors.put_state(f"done.{i}.state", update.state)
    return Checkpoint(
        tensors.named,
        plain({  # a copy: it may be written while the run goes on
            "format": FORMAT, "method": _named(server), "clients": server.clients, "seed": server.seed,
            "round": server.round, "servers": servers,
            "rows": rows, "unscored": [[t, tensors.put_model(*model)] for t, model in models.items()],
            "regions": _letters(server, tensors) if isinstance(server, HierarchicalServer) else None,
            "pending": {
                "now": pending.now, "due": pending.due,
                "jobs": [
                    [*job[:3], tensors.put_model(job.x, job.module_buffers), job.steps, job.epochs]
                    for job in pending.jobs
                ],
                "done": [tensors.put_update(f"done.{i}", update) for i, update in enumerate(pending.done)],
            },
        }),
    )  # fmt: skip


def _capture(server: Server, tensors: _Tensors, name: str) -> dict[str, Any]:
    """What of a server is no tensor."""
    tensors.put_state(f"{name}.state", server.vectors.state)
    for client, state in server.client_states.items():
        tensors.put_state(f"{name}.kept.{client}", state)
    total = server.vectors.sum
    tensors.put(f"{name}.sum", None if total is None else total.clone())  # the server will go on adding to it
    buffer = [
        [tensors.put_update(f"{name}.buffer.{i}", one.update), *one[1:]]  # no vectors: they are in the sum
        for i, one in enumerate(server.buffer)
    ]
    return {
        "round": server.round, "x": tensors.put_model(server.x, server.module_buffers), "sent": server.roster.sent,
        "serials": server.roster.serials, "idle": server.roster.idle, "waiting": server.roster.waiting,
        "jobs": list(server.roster.jobs.items()), "buffer": buffer, "kept": list(server.client_states),
        "speeds": list(server.speeds.of.items()) if server.speeds else [],
        "given": [[client, *given] for client, given in server.speeds.given.items()] if server.speeds else [],
    }  # fmt: skip


def _letters(server: HierarchicalServer, tensors: _Tensors) -> dict[str, Any]:
    letters = [
        [letter.due, letter.region, number, letter.up, tensors.put_model(letter.vector, letter.module_buffers)]
        for _, _, number, letter in server.transit
    ]
    starts = [tensors.put_model(x) for x in server.references]
    return {"starts": starts, "heard": server.synced, "written": server.posted, "letters": letters}


def apply(checkpoint: Checkpoint, server: ServerLike) -> Pending:
    """Put a freshly made server into the checkpoint's state; what its pool must go on with."""
    tensors, facts = _Tensors(checkpoint.tensors), checkpoint.facts
    if facts.get("format") != FORMAT:
        raise RecordError(f"the checkpoint has the format {facts.get('format')}, and this tardygrad reads {FORMAT}.")
    for name, ours in (("method", _named(server)), ("clients", server.clients), ("seed", server.seed)):
        if facts[name] != ours:
            raise RecordError(f"the checkpoint belongs to another run: its {name} is {facts[name]}, not {ours}.")
    x = tensors.named[facts["servers"][0]["x"]]
    if x.shape != server.x.shape:
        sizes = f"{x.numel()} parameters, not {server.x.numel()}"
        raise RecordError(f"the checkpoint belongs to another model: it has {sizes}.")
    pending = facts["pending"]
    regions = server.members if isinstance(server, HierarchicalServer) else [list(range(server.clients))]
    starts = {s: tensors.named[x] for _, _, s, x, *_ in pending["jobs"]}
    for i, (one, its) in enumerate(zip(server.levels, facts["servers"], strict=True)):
        _apply(one, its, tensors, str(i), starts)
    if isinstance(server, HierarchicalServer):
        its = facts["regions"]
        server.references = [tensors.named[name] for name in its["starts"]]
        server.synced, server.posted = its["heard"], its["written"]
        server.transit = [
            (due, r, number, RegionMessage(due, r, up, tensors.named[name], tensors.module_buffers(name)))
            for due, r, number, up, name in its["letters"]
        ]
    states: dict[int, State] = {}
    for level, members in zip(server.levels[-len(regions) :], regions, strict=True):
        states |= {members[client]: state for client, state in level.client_states.items()}
    jobs = [
        Job(
            *(client, serial, s, tensors.named[x], steps, epochs, server.seed),
            tensors.module_buffers(x),
            states.get(client),
        )
        for client, serial, s, x, steps, epochs in pending["jobs"]
    ]
    done = [tensors.update(f"done.{i}", its) for i, its in enumerate(pending["done"])]
    if server.method.keep:
        done = [update._replace(state=tensors.state(f"done.{i}.state")) for i, update in enumerate(done)]
    return Pending(
        pending["now"], jobs, [(time, client, serial) for time, client, serial in pending["due"]], tuple(done)
    )


def sampled(checkpoint: Checkpoint) -> list[Tensor]:
    """What was sampled of the updates in the buffer."""
    held = below(checkpoint.tensors, "tail.")
    return [held[str(i)] for i in range(len(held))]


def unscored(checkpoint: Checkpoint) -> tuple[list[Row], dict[int, Model]]:
    """The rows that were not yet told, and the models of those that were to be evaluated, by round."""
    tensors, facts = _Tensors(checkpoint.tensors), checkpoint.facts
    return facts["rows"], {t: (tensors.named[name], tensors.module_buffers(name)) for t, name in facts["unscored"]}


def _apply(server: Server, facts: dict[str, Any], tensors: _Tensors, name: str, starts: dict[int, Tensor]) -> None:
    """Put one server into its state; `starts` are the models that the jobs in flight started from, by round."""
    x, server.module_buffers = tensors.named[facts["x"]], tensors.module_buffers(facts["x"])
    server.round, server.roster.sent, server.roster.serials = facts["round"], facts["sent"], facts["serials"]
    server.roster.idle, server.roster.waiting = facts["idle"], facts["waiting"]
    server.roster.jobs = dict(facts["jobs"])
    server.client_states = {client: tensors.state(f"{name}.kept.{client}") for client in facts["kept"]}
    if server.method.pace:
        server.speeds = Speeds(server.method.pace, facts["speeds"])
        server.speeds.given = {client: (share, sent) for client, share, sent in facts["given"]}
    server.buffer = [
        Taken(tensors.update(f"{name}.buffer.{i}", its), *rest) for i, (its, *rest) in enumerate(facts["buffer"])
    ]
    server.roster.holders = Counter(server.roster.jobs.values())
    past = {
        s: starts.get(s, x) for s in server.roster.holders if server.drifts
    }  # jobs without a model were lost with their engine
    server.vectors.put(x, tensors.named.get(f"{name}.sum"), tensors.state(f"{name}.state"), past)


class Saver:
    """Writes checkpoints while the run goes on, one at a time; what went wrong is raised by the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tardygrad-checkpoint")
        self._saving: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Begin to write one, when the last is written."""
        self.finish()
        self._saving = self._thread.submit(write)

    def finish(self) -> None:
        """Wait until all is written."""
        saving, self._saving = self._saving, None
        if saving:
            saving.result()


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


def _named(server: ServerLike) -> str:
    """The method with its settings; functions by name, without their address."""
    method = server.method
    rest = [part for part in (method.weight, method.curvature, method.pace, method.regions) if part is not None]
    parts = [method.inner, method.outer, *rest, method.denominator, method.pull, method.keep]
    return re.sub(r" at 0x[0-9a-f]+", "", f"{method}: {', '.join(map(repr, parts))}")


def _complete(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]" * 8))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
