"""Why the update of a job is not finite: its data, its loss, a gradient, or its steps.

A job carries all it depends on. So it is done once more where it was done, and what comes first that is not finite is
the cause. A cause is one text, "what is wrong: what to do", which travels with the update to the record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tardygrad.core.messages import Job, Update
from tardygrad.core.task import LocalWork, Task, gradient_of, ids_of, next_request

SMALLER_STEPS = "use a smaller local_lr, or clip the gradients"
MOST_NAMED = 3  # clients whose faults are written out


def fault_of(job: Job, task: Task, steps: LocalWork) -> str:
    """Find the first number of a job that is not finite, by doing its local steps again."""
    whose, number = name_of(job.client, task), 0
    request = next_request(steps)
    while not isinstance(request, Update):
        x, batch, _ = request
        first_at_start = number == job.round == 0
        number += 1
        if not x.isfinite().all():
            break
        if found := _in_data(batch, f"batch {number} of job {job.serial}"):
            what, values = found
            return f"the {what} of {whose} have {values}: fill or drop those rows"
        loss, g = gradient_of(task, request)
        for name, value in (("loss", torch.as_tensor(loss)), ("gradient", g)):
            if not value.isfinite().all():
                if not first_at_start and value.isnan().any():
                    why = "if no division by 0 and no log or root of a negative number makes it"
                    return f"the {name} of {whose} is NaN in step {number}, on finite data: {why}, {SMALLER_STEPS}"
                if not first_at_start:
                    return f"the {name} of {whose} overflows in step {number}: {SMALLER_STEPS}"
                why = "a division by 0, or a log or a root of 0"
                where = f"{_kind(value)} in the first step, at the initial model, on finite data"
                return f"the {name} of {whose} is {where}: look for {why} in the module and the loss"
        request = next_request(steps, (loss, g))
    return f"the local steps of {whose} overflow after step {max(number - 1, 1)}: {SMALLER_STEPS}"


def fault_of_loop(job: Job, task: Task) -> str:
    """What is known of a job that a training loop of the task's own has done."""
    fix = "look for NaN in its data, or use a smaller learning rate in its loop"
    return f"the training loop of {name_of(job.client, task)} returned NaN or infinity: {fix}"


def is_of_rates(fault: str) -> bool:
    """Whether smaller steps are the cure."""
    return fault.endswith(SMALLER_STEPS)


def name_of(client: int, task: Task | None) -> str:
    """How a client is called.

    >>> name_of(3, None)
    'client 3'
    """
    ids = ids_of(task) if task else None
    return f"client {ids[client] if ids else client}"


def written_out(faults: Collection[str]) -> str:
    """The faults of several clients in sentences, the first of them in full.

    >>> written_out(["the inputs of client 3 have NaN: fill or drop those rows"])
    'The inputs of client 3 have NaN: fill or drop those rows.'
    """
    shown = [f"{fault[:1].upper()}{fault[1:]}." for fault in list(faults)[:MOST_NAMED]]
    left = len(faults) - len(shown)
    if left:
        shown.append(f"{left} other client{'s' * (left > 1)} sent updates that are not finite.")
    return " ".join(shown)


def _in_data(batch: Any, where: str) -> tuple[str, str] | None:
    """Which part of a batch is not finite, and where."""
    data = batch.data if isinstance(batch, tuple) and hasattr(batch, "data") else batch
    for what, array in _arrays(data):
        bad = ~array.isfinite()
        if bad.any():
            first = bad.nonzero()[0].tolist()
            kind = _kind(array)
            if not first:
                return what, f"{kind} in {where}"
            rows = int(bad.reshape(len(bad), -1).any(1).sum())
            return what, f"{kind} in {rows} of the {len(bad)} rows of {where}, first at {first}"
    return None


def _arrays(value: Any, what: str = "inputs") -> Iterator[tuple[str, Tensor]]:
    """The arrays of floats in a batch, by what they are: inputs, targets, or the keys of a mapping."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            yield what, torch.tensor(value)
    elif isinstance(value, Tensor):
        if value.is_floating_point() and value.layout == torch.strided and not value.is_nested:
            yield what, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(item, f"values of {key!r}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value, 1):
            is_target = 1 < place == len(value) and isinstance(item, Tensor | np.ndarray)
            yield from _arrays(item, "targets" if is_target else what)


def _kind(value: Tensor) -> str:
    return "NaN" if value.isnan().any() else "infinity"
