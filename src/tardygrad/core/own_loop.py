"""Local work by a training loop of the task's own, in place of the method's local steps."""

from __future__ import annotations

import math
from inspect import Parameter
from typing import Any, NamedTuple

from tardygrad.constructors import call_of, parameters
from tardygrad.core.messages import Job, ModuleBuffers, Update, Vector, as_vector
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.errors import Invalid

LOCAL_SETTINGS = {"local_clip", "local_lower", "norm", "optimizer", "options", "keep", "rho"}
"""Settings of local steps that a method's constructor may have."""


class Trained(NamedTuple):
    """What a training loop made of x_s."""

    x: Vector  # x_{i,K}
    loss: float = math.nan  # mean over its steps
    steps: int = 0
    squares: Vector | None = None  # Σ_k move_k², if the loop has summed them
    module_buffers: ModuleBuffers | None = None
    start: Vector | None = None  # x_s as the loop had it, such as rounded to bfloat16; None: as in the job


class OwnLoop(Task):
    """A task that trains by itself: the method's local steps do not apply, its server side does."""

    def train(self, job: Job) -> Trained:
        """Train from the job's x_s; a function of the job alone."""
        raise NotImplementedError

    def batches(self, job: Job) -> Any:
        raise Invalid(f"a {type(self).__name__} has no batches: its own loop reads them.")

    def gradient(self, x: Vector, batch: Any, module_buffers: ModuleBuffers | None) -> Any:
        raise Invalid(f"a {type(self).__name__} has no gradients: its own loop computes them.")


def check_local_work(task: Task, method: Method) -> None:
    """Raise `Invalid` unless either the task or the method makes the local steps."""
    if not isinstance(task, OwnLoop):
        if not method.has_local_steps:
            raise Invalid(f"{method.name} needs `local_lr` for this task, which has no training loop of its own.")
        if any(group.options for group in task.groups) and not method.inner.reads_groups:
            fix = "Name one in the method, for example optimizer='AdamW', or options={'weight_decay': 0.0} for SGD."
            raise Invalid(f"options of parameter groups need an optimizer, and {method.name} has none here. {fix}")
        return
    rule = "this task trains with its own loop, so the method must not make local steps"
    recipe = call_of(method)
    known = parameters(recipe.function) if recipe else {}
    if method.curvature:
        raise Invalid(f"{rule}; {method.name} needs them to estimate the curvature. Use clip2 with compensate=True.")
    if method.has_local_steps:
        needed = "local_lr" in known and known["local_lr"].default is Parameter.empty
        fix = f"{method.name} always makes local steps: use another method" if needed else "Leave out `local_lr`"
        raise Invalid(f"{rule}. {fix}.")
    if recipe:
        for name, value in recipe.arguments.items():
            if name in LOCAL_SETTINGS and value != known[name].default:
                raise Invalid(f"{rule}. Leave out `{name}`, which belongs in the loop.")


def own_update(job: Job, task: OwnLoop, method: Method) -> Update:
    """Do a job by the task's own loop."""
    start, trained = as_vector(job.x), task.train(job)
    delta, curvature = trained.x - (start if trained.start is None else trained.start), None  # δ_i ← x_{i,K} − x_s
    if method.compensate:
        curvature = trained.squares
        if curvature is None:
            fix = "Sum them with tg.SquaredMoves and return them, or leave out `compensate`."
            raise Invalid(f"`compensate` needs the squares of the local moves, and `train` returned none. {fix}")
    return Update(
        job.client, job.serial, job.round, delta, curvature, trained.module_buffers, trained.steps, trained.loss
    )
