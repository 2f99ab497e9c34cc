"""The tasks that only the experiments use: GLUE, and CIFAR-10 with pretrained networks.

A spec names them as `module:function`. Plans and stored results have short names, which `runnable` translates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRETRAINED = ("tinyvit", "transformers")
"""The models of CIFAR-10 that are pretrained."""


def runnable(task: Mapping[str, Any]) -> dict[str, Any]:
    """The table [task] of a plan or a stored result, as a spec takes it.

    >>> runnable({"kind": "glue", "name": "rte"})["kind"], runnable({"kind": "cifar10"})["kind"]
    ('experiments.tasks.glue:glue', 'cifar10')
    """
    if task["kind"] == "cifar10" and task.get("model") in PRETRAINED:
        return {**task, "kind": "experiments.tasks.pretrained_image:cifar10"}
    return {**task, "kind": "experiments.tasks.glue:glue"} if task["kind"] == "glue" else dict(task)
