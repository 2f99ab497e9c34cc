"""The tasks that only the experiments use: GLUE, and CIFAR-10 with TinyViT.

A spec names them as `module:function`. Plans and stored results have short names, which `runnable` translates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def runnable(task: Mapping[str, Any]) -> dict[str, Any]:
    """The table [task] of a plan or a stored result, as a spec takes it.

    >>> runnable({"kind": "glue", "name": "rte"})["kind"], runnable({"kind": "cifar10"})["kind"]
    ('experiments.tasks.glue:glue', 'cifar10')
    """
    if task["kind"] == "cifar10" and task.get("model") == "tinyvit":
        others = {key: value for key, value in task.items() if key != "model"}
        return {**others, "kind": "experiments.tasks.cifar10:cifar10"}
    return {**task, "kind": "experiments.tasks.glue:glue"} if task["kind"] == "glue" else dict(task)
