"""The checks by which `Server.admit` decides on an update: types, shapes, and whether its numbers are finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tardygrad.core.messages import ModuleBuffers, StateReference, Update, Vector, as_vector
from tardygrad.core.method import Method
from tardygrad.core.transforms import Step
from tardygrad.errors import is_number

LARGEST_NUMBER = 1e100  # that a record may contain
COUNT_LIMIT = 2**53  # counts in a record are below it

StateShape = dict[str, Tensor | None]
"""The expected entries of a client's state: None for a vector like x, else an example of the tensor."""


def expected_state(method: Method) -> StateShape:
    """The entries of a client's state after its first step, if the method keeps it."""
    if not method.keep:
        return {}
    x = torch.zeros(2)
    step = Step(1, (1,), x, x)
    state = {f"inner.{name}": v for name, v in method.inner.update(x, method.inner.init(x), step)[1].items()}
    if method.curvature:
        weigh = method.curvature.weigh
        state |= {f"curvature.{name}": v for name, v in weigh.update(x, weigh.init(x), step)[1].items()}
    return {name: None if v.shape == x.shape else v for name, v in state.items() if name != "inner.clipped"}


def has_valid_types(update: Update) -> bool:
    """Whether the non-tensor fields have the right types, and sizes that a record can have."""
    integers = (update.client, update.serial, update.round, update.steps)
    numbers, texts = (update.loss, update.clipped), (update.worker, update.node, update.fault)
    if not all(type(text) is str for text in texts):
        return False
    if not (all(type(n) is int for n in integers) and all(is_number(n) for n in numbers)):
        return False
    return 0 <= update.steps < COUNT_LIMIT and not any(LARGEST_NUMBER < abs(n) < math.inf for n in numbers)


def fits(update: Update, x: Vector, module_buffers: ModuleBuffers | None, method: Method, expected: StateShape) -> bool:
    """Whether an update has exactly the expected tensors, each with the right shape and type."""
    curvature = x if method.compensate else None
    if not (_like(update.delta, x) and _like(update.curvature, curvature) and _state_fits(update, x, method, expected)):
        return False
    theirs = update.module_buffers
    if theirs is None or module_buffers is None:
        return theirs is module_buffers
    return _like(theirs.floats, module_buffers.floats) and _like(theirs.ints, module_buffers.ints)


def _state_fits(update: Update, x: Vector, method: Method, expected: StateShape) -> bool:
    state = update.state
    if not method.keep or state is None:
        return state is None and not method.keep
    if isinstance(state, StateReference):
        return method.keep == "worker"
    if not isinstance(state, dict):
        return False
    without_steps = {name for name in expected if not name.startswith("inner.")}  # if the client has made no step
    if state.keys() != expected.keys() and (update.steps or state.keys() != without_steps):
        return False
    return all(_like(v, x if expected[name] is None else expected[name]) for name, v in state.items())


LARGEST_NORM = math.sqrt(torch.finfo(torch.float32).max)  # 1.8e19


def norm_of(v: Vector) -> float:
    """‖v‖, or infinity if that is above `LARGEST_NORM`."""
    return math.sqrt(torch.dot(v, v) if v.dim() == 1 else v.square().sum())  # a loop of the user's may return any shape


def finite(update: Update, norm: float | None = None) -> bool:
    """Whether all numbers of an update are finite, and also the sums that the server computes from them.

    ‖δ‖ and ‖A‖ must be at most `LARGEST_NORM`: then neither δ − A ⊙ drift nor a sum of such terms can overflow, unless
    the model itself has diverged.

    Args:
        norm: ‖δ‖, if it is known.
    """
    norms = [norm_of(as_vector(update.delta)) if norm is None else norm]
    norms += [] if update.curvature is None else [norm_of(update.curvature)]
    if not all(map(math.isfinite, norms)):
        return False
    others = [
        update.module_buffers.floats if update.module_buffers else None,
        *(update.state.values() if isinstance(update.state, dict) else ()),
    ]
    return all(v is None or _all_finite(v) for v in others)


def _like(a: object, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return (
        isinstance(a, Tensor)
        and (a.shape, a.dtype, a.device, a.layout) == (b.shape, b.dtype, b.device, b.layout)
        and not a.requires_grad
    )


def _all_finite(v: Tensor) -> bool:
    finite_norm = v.dim() == 1 and v.is_floating_point() and math.isfinite(torch.dot(v, v))  # faster
    return finite_norm or bool(torch.isfinite(v).all())  # the square of a finite number can overflow
