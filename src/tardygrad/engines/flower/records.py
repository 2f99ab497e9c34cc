"""Jobs and updates as Flower's records: arrays in ArrayRecords, and the rest in a ConfigRecord.

Nothing is pickled. Task and method do not travel: a node makes its own, and a job has checksums of all settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torch.utils.weak import WeakTensorKeyDictionary

from tardygrad.constructors import call_of, parameters, written
from tardygrad.core.messages import Job, ModuleBuffers, StateReference, Update, as_vector
from tardygrad.core.method import Method, without_addresses
from tardygrad.core.task import Task
from tardygrad.engines.flower.connection import flwr
from tardygrad.engines.same_task import facts
from tardygrad.engines.wire import Packed, Wire, unpack
from tardygrad.errors import Invalid, shortened

Arrays = Mapping[str, np.ndarray]

SOURCES = ("cache", "data", "model", "pretrained", "text", "tokenizer")
"""Arguments of tasks that say where a machine has its data, and so may differ from node to node."""


def array_record(arrays: Arrays) -> Any:
    """Named arrays as Flower sends them."""
    return flwr().ArrayRecord({name: flwr().Array(array) for name, array in arrays.items()})


def arrays_of(record: Any) -> dict[str, np.ndarray]:
    """The arrays of an ArrayRecord by name; empty if there is no record."""
    return {name: array.numpy() for name, array in record.items()} if record is not None else {}


def tensors_of(record: Any) -> dict[str, Tensor]:
    """The arrays of an ArrayRecord as tensors."""
    return {name: from_dlpack(array) for name, array in arrays_of(record).items()}


def numpy_of(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Tensors as arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def count_bytes(records: Iterable[Any]) -> int:
    """The bytes of the numbers in ArrayRecords."""
    arrays = [array for record in records for array in record.values()]
    return sum(np.dtype(array.dtype).itemsize * math.prod(array.shape) for array in arrays)


def packed_arrays(packed: Mapping[str, Packed]) -> dict[str, np.ndarray]:
    """The arrays of packed vectors, each with its scales, if it has any."""
    return {
        f"{name}.{part}": array
        for name, vector in packed.items()
        for part, array in zip(("numbers", "scales"), vector.arrays(), strict=False)
    }


def unpacked(arrays: Arrays) -> dict[str, Tensor]:
    """The inverse of `packed_arrays`, as the vectors themselves."""
    names = dict.fromkeys(name.partition(".")[0] for name in arrays)
    parts = {name: [arrays[f"{name}.{p}"] for p in ("numbers", "scales") if f"{name}.{p}" in arrays] for name in names}
    return {name: unpack(Packed.of(pieces)) for name, pieces in parts.items()}


def settings_of(method: Method, task: Task) -> dict[str, int]:
    """Checksums of the settings of a method and a task by their names, and the facts of the task."""
    settings = {f"method.{name}": value for name, value in vars(method).items() if name in parameters(Method)}
    if recipe := call_of(task):
        known = parameters(recipe.function)
        defaults = {key: each.default for key, each in known.items() if each.default is not each.empty}
        settings["task.kind"] = getattr(recipe.function, "__qualname__", "")
        for key, value in (defaults | recipe.arguments).items():
            with suppress(Invalid, KeyError):  # what JSON cannot hold, such as data
                if key not in SOURCES and (plain := written(known[key].annotation, value, key)) is not None:
                    settings[f"task.{key}"] = plain
    return facts(task) | {key: crc32(without_addresses(repr(value)).encode()) for key, value in settings.items()}


def check_settings(ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    """Raise `Invalid` if settings of a node differ from those of the server; of a task, as far as both are known."""
    for name in [*theirs, *ours]:
        known = (name in ours and name in theirs) or not name.startswith("task.")
        if known and ours.get(name) != theirs.get(name):
            rule = f"a node must make the same method and task as the server, and its `{name}` differs"
            raise Invalid(f"{rule}. Give client_app the same spec or function as server_app, and the same files")


GIVE_PARTITION = "Start it with --node-config 'partition-id=0 num-partitions=3', each node with another partition-id."
HANDSHAKE = "query.tardygrad"
"""The type of the message that asks a node which clients it serves."""


def needs_identity(method: Method) -> str:
    """The setting of a method for which it matters whose data a node has; empty if there is none."""
    settings = {"weight_by": method.weight_by, "privacy": method.privacy, "regions": method.regions}
    return next((f"`{name}`" for name, value in settings.items() if value), "")


class JobMessages:
    """The messages between a server and the ClientApps of `tardygrad.flower.client_app`."""

    kind = "train.tardygrad"
    handshake = HANDSHAKE
    no_answer = (
        "its ClientApp is not one of tardygrad. "
        "Use tardygrad.flower.client_app, or AsyncStrategy for a ClientApp of your own."
    )
    no_replay = ""
    no_reply = ""  # these ClientApps always reply

    def __init__(self, task: Task, method: Method, wire: Wire) -> None:
        self._identity = needs_identity(method)
        self.wire, self._starts = wire, WeakTensorKeyDictionary()  # x_s → its record, which all jobs of a round share
        self._common = {
            "settings": json.dumps(settings_of(method, task)),
            "wire": wire,
            "threads": torch.get_num_threads(),
        }

    def unfit(self, facts: Mapping[str, Any]) -> str:
        """Why a node cannot take part; empty if it can."""
        if not self._identity or not facts["own-data"] or "partition-id" in facts:
            return ""
        return f"{self._identity} needs to know whose data it has. {GIVE_PARTITION}"

    def content(self, job: Job, last: int) -> Any:
        """The message of a job.

        Args:
            last: the client's last job whose compression errors count; −1: none.
        """
        x = as_vector(job.x)
        if x not in self._starts:
            self._starts[x] = array_record({"x": x.cpu().numpy()})
        numbers = {"client": job.client, "serial": job.serial, "round": job.round, "seed": str(job.seed), "last": last}
        work = {"steps": job.steps or 0, "epochs": job.epochs or 0}
        records, held = _client_memory(job)
        config = flwr().ConfigRecord(self._common | numbers | work | held)
        return flwr().RecordDict({"start": self._starts[x]} | records | {"job": config})

    def update(self, job: Job, content: Any, worker: str) -> Update | str:
        """The update in a reply, or an error message."""
        config = content["update"]
        if config["error"]:
            return str(config["error"])
        if (claimed := tuple(int(config[name]) for name in ("client", "serial", "round"))) != job[:3]:
            raise ValueError(f"it names client, job and round {claimed}")
        vectors, (buffers, state) = unpacked(arrays_of(content["vectors"])), _memory_of(content, config)
        return Update(
            *job[:3], vectors["delta"], vectors.get("curvature"), buffers,
            int(config["steps"]), float(config["loss"]), float(config["clipped"]), state,
            int(config["down"]), int(config["up"]), worker, str(config["host"]), bool(config["state_lost"]),
            shortened(str(config["fault"]), 500),
        )  # fmt: skip


def _client_memory(message: Job | Update) -> tuple[dict[str, Any], dict[str, Any]]:
    """The buffers and the optimizer's state in a message as records, and where a state is that stays on its node."""
    records, state = {}, message.state
    if message.module_buffers:
        records["buffers"] = array_record(numpy_of(message.module_buffers._asdict()))
    if isinstance(state, StateReference):
        return records, {"holder": state.worker, "held": state.serial}
    if state is not None:
        records["state"] = array_record(numpy_of(state))
    return records, {}


def _memory_of(content: Any, config: Any) -> tuple[ModuleBuffers | None, Any]:
    """The inverse of `_client_memory`."""
    buffers = tensors_of(content.get("buffers"))
    held = StateReference(str(config["holder"]), int(config["held"])) if "holder" in config else None
    state = tensors_of(content["state"]) if "state" in content else held
    return ModuleBuffers(**buffers) if buffers else None, state


def job_of(content: Any) -> Job:
    """The job in a message; its state may be a reference."""
    config, (buffers, state) = content["job"], _memory_of(content, content["job"])
    return Job(
        int(config["client"]), int(config["serial"]), int(config["round"]), tensors_of(content["start"])["x"],
        int(config["steps"]) or None, int(config["epochs"]) or None, int(config["seed"]), buffers, state,
    )  # fmt: skip


def reply_content(update: Update, packed: Mapping[str, Packed], *, down: int, host: str) -> Any:
    """The reply with an update, whose vectors are packed."""
    memory, held = _client_memory(update)
    records = {"vectors": array_record(packed_arrays(packed))} | memory
    names = ("client", "serial", "round", "steps", "loss", "clipped", "state_lost", "fault")
    config = {name: getattr(update, name) for name in names} | held
    config |= {"host": host, "down": down, "up": count_bytes(records.values()), "error": ""}
    return flwr().RecordDict(records | {"update": flwr().ConfigRecord(config)})


def error_content(text: str) -> Any:
    """The reply with an error message in place of an update."""
    return flwr().RecordDict({"update": flwr().ConfigRecord({"error": text})})
