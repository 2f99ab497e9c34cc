"""A ClientApp of your own, whose train function takes weights and returns weights, as Flower's strategies call it.

Only δ is needed: weights out minus weights in. The clients' data and training loop are unknown here, so such a run
cannot be replayed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from tardygrad.core.algorithm import with_fault
from tardygrad.core.messages import Job, ModuleBuffers, Update, Vector, as_vector
from tardygrad.core.method import Method
from tardygrad.core.own_loop import OwnLoop, Trained, own_update
from tardygrad.core.task import sample_counts
from tardygrad.engines.flower.connection import flwr
from tardygrad.engines.flower.records import (
    GIVE_PARTITION,
    HANDSHAKE,
    Arrays,
    array_record,
    arrays_of,
    count_bytes,
    needs_identity,
)
from tardygrad.errors import Invalid, check_integer, is_number, shortened, type_and_first_line
from tardygrad.tasks.trainer_task import SquaredMoves
from tardygrad.tasks.views import trainable

BUFFERS = r"running_mean$|running_var$|num_batches_tracked$"
"""Names of arrays that are statistics of a module, such as BatchNorm's."""

Evaluate = Callable[[int, Any], Any]
"""Flower's `evaluate_fn`: takes the round and an ArrayRecord; returns a MetricRecord or None."""


class WeightsTask(OwnLoop):
    """The weights of a Flower app as the vector and the module buffers of a task.

    Args:
        arrays: the initial weights by name.
        clients: their number.
        config: sent with every job, such as {"lr": 0.1}.
        evaluate: evaluates weights on the server; None: no evaluations.
        samples: number of training rows of each client, for `weight_by="samples"`.
        module_buffers: a regular expression for the names of arrays that are not optimized but averaged.
    """

    def __init__(
        self,
        arrays: Arrays,
        *,
        clients: int,
        config: Mapping[str, Any],
        evaluate: Evaluate | None = None,
        samples: Sequence[int] | None = None,
        module_buffers: str = BUFFERS,
    ) -> None:
        self.clients, self.config, self._evaluate, self._samples = clients, dict(config), evaluate, samples
        self._layout = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        try:
            flwr().ConfigRecord(self.config)
        except (TypeError, ValueError) as error:
            raise Invalid(f"`train_config` cannot be sent: {type_and_first_line(error)}.") from error
        try:
            is_buffer = re.compile(module_buffers).search
        except re.error as error:
            raise Invalid(f"`module_buffers` must be a regular expression, got {module_buffers!r}: {error}.") from error
        self._parts: dict[str, list[str]] = {"x": [], "floats": [], "ints": []}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise Invalid(f"the initial weights must be real numbers, got {array.dtype} for {name!r}.")
            part = "ints" if array.dtype.kind != "f" else "floats" if is_buffer(name) else "x"
            self._parts[part].append(name)
        self.round: Callable[[], int] = int  # of the run, for evaluations
        self._x, self._buffers = self.flattened(arrays)
        self.parameters = len(self._x)
        if not self.parameters:
            raise Invalid(f"the initial weights must have floating-point arrays, got {list(self._layout) or 'none'}.")
        if not self._x.isfinite().all():
            raise Invalid("the initial weights must be finite, got NaN or infinity.")

    def __repr__(self) -> str:
        arrays = f"{len(self._layout)} arrays {crc32(repr(self._layout).encode()):08x}"
        return f"WeightsTask(parameters={self.parameters} in {arrays}, clients={self.clients})"

    def flattened(self, arrays: Arrays) -> tuple[Vector, ModuleBuffers | None]:
        """Weights as a vector and the buffers that go with it; raises `Invalid` unless they are those of the model."""
        self._check(arrays, self._layout, "weights must have the arrays of the initial ones")
        names = self._parts
        floats, ints = _flat(arrays, names["floats"]), _flat(arrays, names["ints"], torch.int64)
        buffers = ModuleBuffers(floats, ints) if names["floats"] or names["ints"] else None
        return _flat(arrays, names["x"]), buffers

    def squares(self, arrays: Arrays) -> Vector:
        """The sums of squared moves in the order of the vector; parameters that did not move may be left out."""
        whole = {name: np.zeros(self._layout[name][0], np.float32) for name in self._parts["x"]} | dict(arrays)
        self._check(whole, self._parts["x"], "squares must be those of the weights")
        return _flat(whole, self._parts["x"])

    def _check(self, arrays: Arrays, names: Collection[str], rule: str) -> None:
        """Raise `Invalid` unless the arrays have these names, and the shapes of the initial weights."""
        for name in [*names, *arrays]:
            got = f"shape {list(arrays[name].shape)}" if name in arrays else "none"
            wanted = f"shape {list(self._layout[name][0])}" if name in names else "none"
            if got != wanted:
                raise Invalid(f"{rule}, got {got} for {name!r} in place of {wanted}.")
            dtype, like = arrays[name].dtype, self._layout[name][1]
            if dtype.kind not in ("f" if like.kind == "f" else "iub"):
                raise Invalid(f"{rule}, got numbers of type {dtype} for {name!r} in place of {like}.")

    def state_dict(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, Tensor]:
        """The weights by name, as in the state dict of the user's module."""
        return {name: torch.from_numpy(array) for name, array in self.arrays(x, module_buffers).items()}

    def arrays(self, x: Vector, buffers: ModuleBuffers | None) -> dict[str, np.ndarray]:
        """The inverse of `flattened`."""
        flat = {"x": x} | (buffers._asdict() if buffers else {})
        found: dict[str, np.ndarray] = {}
        for part, vector in flat.items():
            names = self._parts[part]
            sizes = [math.prod(self._layout[name][0]) for name in names]
            for name, piece in zip(names, torch.split(vector.cpu(), sizes), strict=True):
                shape, dtype = self._layout[name]
                found[name] = piece.numpy().reshape(shape).astype(dtype, copy=False)
        return {name: found[name] for name in self._layout}

    def sent(self, x: Vector) -> Vector:
        """The vector as clients receive it: rounded, if the initial weights have fewer bits, such as float16."""
        names = self._parts["x"]
        if all(self._layout[name][1].itemsize >= x.element_size() for name in names):
            return x
        return _flat(self.arrays(x, self._buffers), names)

    def init(self, seed: int) -> Vector:
        return self._x.clone()

    def init_module_buffers(self) -> ModuleBuffers | None:
        return self._buffers.clone() if self._buffers else None

    @property
    def can_evaluate(self) -> bool:
        return self._evaluate is not None

    def evaluate(self, x: Vector, module_buffers: ModuleBuffers | None) -> dict[str, float]:
        assert self._evaluate
        scores = self._evaluate(self.round(), array_record(self.arrays(x, module_buffers))) or {}
        numbers = isinstance(scores, Mapping | flwr().MetricRecord) and all(map(is_number, scores.values()))
        if not numbers:
            raise Invalid(f"`evaluate_fn` must return a MetricRecord of numbers, got {shortened(repr(scores), 80)}.")
        return {name: float(value) for name, value in scores.items()}

    def samples(self, client: int) -> int:
        if self._samples is None or len(self._samples) != self.clients:
            got = "none" if self._samples is None else len(self._samples)
            rule = f'weight_by="samples" needs the number of training rows of each of the {self.clients} clients'
            raise Invalid(f"{rule}, got {got}. Pass them: AsyncStrategy(method, samples=[...]).")
        count: int = _whole(self._samples[client])
        return count

    def train(self, job: Job) -> Trained:
        raise Invalid(WeightMessages.no_replay)


def _whole(value: Any) -> Any:
    """A whole number as an int, such as 3.0 or one of NumPy; any other value as it is, for the check that follows."""
    return int(value) if is_number(value) and math.isfinite(value) and value == int(value) else value


def _flat(arrays: Arrays, names: list[str], dtype: torch.dtype = torch.float32) -> Tensor:
    native = [np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("=")) for name in names]
    pieces = [torch.as_tensor(array).reshape(-1).to(dtype) for array in native]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=dtype)


class Returned(OwnLoop):
    """A training loop that has already run on a client; its result came with the reply."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained

    def train(self, job: Job) -> Trained:
        return self._trained


class WeightMessages:
    """The messages between a server and a ClientApp whose train function takes and returns weights."""

    kind = "train"
    no_replay = "only the clients' own ClientApp can do the jobs of this run again"
    no_reply = (
        "If jobs are shorter, the train function returns no Message, which Flower drops without an error: "
        "end it with `return Message(content=content, reply_to=msg)`."
    )

    def __init__(self, task: WeightsTask, method: Method) -> None:
        self._task, self._method, self._starts = task, method, WeakTensorKeyDictionary()
        self._identity = needs_identity(method)
        self.handshake = HANDSHAKE if self._identity else ""  # a stock ClientApp would answer with an error
        fix = "Call tg.flower.identify(app) in its ClientApp."
        self.no_answer = f"{self._identity} needs to know whose data it has. {fix}"
        sample_counts(task, method.weight_by)

    def unfit(self, facts: Mapping[str, Any]) -> str:
        """Why a node cannot take part; empty if it can."""
        if "partition-id" not in facts:
            return f"{self._identity} needs to know whose data it has. {GIVE_PARTITION}"
        clients, partitions = self._task.clients, facts.get("num-partitions", self._task.clients)
        if partitions == clients:
            return ""
        fix = f"Start it with num-partitions={clients}, or pass clients={partitions} to AsyncStrategy."
        return f"`num-partitions` must be the number of clients, {clients}, got {partitions}. {fix}"

    def content(self, job: Job, last: int) -> Any:
        """The message of a job, as Flower's strategies write it."""
        x = as_vector(job.x)
        if x not in self._starts:
            self._starts[x] = array_record(self._task.arrays(x, job.module_buffers))
        work = {"local-steps": job.steps, "local-epochs": job.epochs}
        config = {"server-round": job.round + 1} | {name: value for name, value in work.items() if value}
        return flwr().RecordDict({"arrays": self._starts[x], "config": flwr().ConfigRecord(self._task.config | config)})

    def update(self, job: Job, content: Any, worker: str) -> Update | str:
        """The update in a reply, or an error message."""
        records, failed = content.array_records, f"the reply of node {worker} to {job} cannot be used"
        squares = arrays_of(records.get("squares"))
        weights = [record for name, record in records.items() if name != "squares"]
        if len(weights) != 1:
            return f"{failed}: it must have one ArrayRecord with the trained weights, got {list(records) or 'none'}."
        metrics = {name: value for record in content.metric_records.values() for name, value in record.items()}
        loss = metrics.get("train_loss", metrics.get("loss", math.nan))
        steps = _whole(metrics.get("steps", job.steps or 0))
        if not is_number(loss):
            return f"{failed}: the training loss in its metrics must be a number, got {shortened(repr(loss), 80)}."
        if self._method.compensate and not squares:
            fix = 'Add {"squares": tg.flower.squares(moves)} to the reply, or leave out `compensate`.'
            return f"{failed}: delay compensation needs the squares of the client's moves. {fix}"
        try:
            check_integer("steps", steps, 0)
            x, buffers = self._task.flattened(arrays_of(weights[0]))
            total = self._task.squares(squares) if squares else None
            start = self._task.sent(as_vector(job.x))
            trained = Trained(x, float(loss), steps, total, buffers, start)
            loop = Returned(trained)
            update = with_fault(own_update(job, loop, self._method), job, loop, self._method)
        except Invalid as error:
            return f"{failed}: {error}"
        down = count_bytes(weights)  # the message had arrays of the same size
        return update._replace(down=down, up=count_bytes(records.values()), worker=worker)


def squares_record(squares: SquaredMoves) -> Any:
    """The sums of a client's squared moves, by the names of its parameters."""
    parameters: dict[str, nn.Parameter] = trainable(squares.module)
    sizes = [parameter.numel() for parameter in parameters.values()]
    pieces = zip(parameters.items(), torch.split(squares.total.cpu(), sizes), strict=True)
    return array_record({name: piece.view(parameter.shape).numpy() for (name, parameter), piece in pieces})
