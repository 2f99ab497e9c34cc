"""Jobs and updates as Flower's records: arrays in an ArrayRecord, facts in a ConfigRecord, metrics in a MetricRecord.

Nothing is pickled. The task and the method travel as the names of their constructors and arguments in JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torch.utils.weak import WeakTensorKeyDictionary

from tardygrad import methods, own_code, tasks
from tardygrad.constructors import Call, arguments, call_of, parameters, remember, written_arguments
from tardygrad.constructors import call as call_constructor
from tardygrad.core.messages import Job, ModuleBuffers, StateReference, Update, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.flower.connection import flwr
from tardygrad.engines.same_task import facts
from tardygrad.engines.wire import Packed, Wire, unpack
from tardygrad.errors import Invalid, shortened
from tardygrad.tasks.trainer_task import TrainerTask

Arrays = Mapping[str, np.ndarray]

FILES = ("cache", "config", "data", "model", "pretrained", "text", "tokenizer")
"""Arguments of tasks that name what they open."""


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


def written_recipe(subject: object) -> str:
    """How an object was made, in JSON; empty if that is not known or cannot be written."""
    recipe = call_of(subject)
    if recipe is None:
        return ""
    try:
        table = written_arguments(parameters(recipe.function), recipe.arguments)
        return json.dumps({"kind": recipe.name, "arguments": table})
    except Invalid:
        return ""


def make_again(text: str, what: Literal["task", "method"], trusted: Collection[str] = (), files: bool = False) -> Any:
    """The object that `written_recipe` describes.

    Args:
        trusted: packages whose functions the recipe may name, besides the tasks and methods of tardygrad.
        files: whether it may name files, folders and models, which the task opens.
    """
    with _reading_recipe(what):
        table = json.loads(text)
        for call in own_code.calls(table):
            _check_trust(call["kind"], what, trusted)
            _check_files(call, files)
        function = own_code.find(table["kind"], what)
        given = arguments(parameters(function), table["arguments"], what)
    return remember(call_constructor(function, given, what), Call(function, given))


@contextmanager
def _reading_recipe(what: str) -> Iterator[None]:
    """Turn errors that a recipe of another form causes into `Invalid`."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid(f"the server's recipe for its {what} cannot be read ({type(error).__name__})") from error


def _check_trust(name: str, what: Literal["task", "method"], trusted: Collection[str]) -> None:
    """Raise `Invalid` unless a function may be called: one of tardygrad's, or one that a trusted package defines."""
    public = vars(methods).values() if what == "method" else (*vars(tasks).values(), TrainerTask)
    if name in {f"{each.__module__}:{each.__qualname__}" for each in public if isinstance(each, type | FunctionType)}:
        return
    package = re.split("[.:]", name)[0]
    if package not in trusted:
        rule = f"a node calls only {what}s of tardygrad, and functions of packages that its app trusts"
        fix = "" if package == "tardygrad" else f". Write client_app(trust=[{package!r}]) if it may call that package"
        raise Invalid(f"{rule}, got {name!r}{fix}")
    if (defined := Call(own_code.find(name, what), {}).name) != name:  # such as one that its module has imported
        rule = "a node calls a function by the name of the module that defines it"
        raise Invalid(f"{rule}, got {name!r}, not {defined!r}")


def _check_files(call: dict[str, Any], allowed: bool) -> None:
    """Raise `Invalid` if a call of a constructor of tardygrad opens a file, a folder or a model that it names."""
    known = parameters(own_code.find(call["kind"], "task")) if call["kind"].startswith("tardygrad.") else {}
    for key, value in (call | call.get("arguments", {})).items():
        named = key in FILES and key in known and value is not None and "Literal" not in str(known[key].annotation)
        if named and not allowed and (key, value) != ("text", "python"):
            rule = "a node opens files, folders and models that the server names only if its app allows it"
            raise Invalid(f"{rule}, got `{key}`. Write client_app(files=True), or client_app(make_task)")


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
            "task": written_recipe(task),
            "method": written_recipe(method),
            "facts": json.dumps(facts(task)),
            "wire": wire,
            "threads": torch.get_num_threads(),
        }
        if not self._common["method"]:
            fix = "Make it by one of tardygrad's constructors, or by tardygrad.make(FUNCTION, KEY=VALUE, ...)."
            raise Invalid(f"a method must say how it was made, so that nodes can make it too, got {method}. {fix}")

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
        records = {"start": self._starts[x]}
        if job.module_buffers:
            records["buffers"] = array_record(numpy_of(job.module_buffers._asdict()))
        held = {}
        if isinstance(job.state, StateReference):
            held = {"holder": job.state.worker, "held": job.state.serial}
        elif job.state is not None:
            records["state"] = array_record(numpy_of(job.state))
        return flwr().RecordDict(records | {"job": flwr().ConfigRecord(self._common | numbers | work | held)})

    def update(self, job: Job, content: Any, worker: str) -> Update | str:
        """The update in a reply, or an error message."""
        config = content["update"]
        if config["error"]:
            return str(config["error"])
        if (claimed := tuple(int(config[name]) for name in ("client", "serial", "round"))) != job[:3]:
            raise ValueError(f"it names client, job and round {claimed}")
        metrics, buffers = content["metrics"], tensors_of(content.get("buffers"))
        state: Any = StateReference(str(config["holder"]), job.serial) if config["holder"] else None
        vectors = unpacked(arrays_of(content["vectors"]))
        return Update(
            job.client, job.serial, job.round,
            vectors["delta"], vectors.get("curvature"), ModuleBuffers(**buffers) if buffers else None,
            int(metrics["steps"]), float(metrics["loss"]), float(metrics["clipped"]),
            tensors_of(content["state"]) if "state" in content else state,
            int(metrics["down"]), int(metrics["up"]), worker, str(config["host"]), bool(config["state_lost"]),
            shortened(str(config["fault"]), 500),
        )  # fmt: skip


def job_of(content: Any) -> Job:
    """The job in a message; its state may be a reference."""
    config, buffers = content["job"], tensors_of(content.get("buffers"))
    state: Any = StateReference(str(config["holder"]), int(config["held"])) if "holder" in config else None
    return Job(
        int(config["client"]), int(config["serial"]), int(config["round"]), tensors_of(content["start"])["x"],
        int(config["steps"]) or None, int(config["epochs"]) or None, int(config["seed"]),
        ModuleBuffers(**buffers) if buffers else None, tensors_of(content["state"]) if "state" in content else state,
    )  # fmt: skip


def reply_content(update: Update, packed: Mapping[str, Packed], *, down: int, host: str) -> Any:
    """The reply with an update, whose vectors are packed."""
    records = {"vectors": array_record(packed_arrays(packed))}
    if update.module_buffers:
        records["buffers"] = array_record(numpy_of(update.module_buffers._asdict()))
    if isinstance(update.state, dict):
        records["state"] = array_record(numpy_of(update.state))
    up = count_bytes(records.values())
    holder = update.state.worker if isinstance(update.state, StateReference) else ""
    config = {"client": update.client, "serial": update.serial, "round": update.round, "holder": holder, "host": host}
    config["fault"] = update.fault
    metrics = {"steps": update.steps, "loss": update.loss, "clipped": update.clipped, "down": down, "up": up}
    return flwr().RecordDict(
        records
        | {
            "update": flwr().ConfigRecord(config | {"state_lost": update.state_lost, "error": ""}),
            "metrics": flwr().MetricRecord(metrics),
        }
    )


def error_content(text: str) -> Any:
    """The reply with an error message in place of an update."""
    return flwr().RecordDict({"update": flwr().ConfigRecord({"error": text})})
