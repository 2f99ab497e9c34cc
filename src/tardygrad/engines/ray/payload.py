"""What every worker's process loads: task and method, pickled. A task with a recipe is sent as the recipe.

The process then makes the task itself, so the task's data is read where the work is done and does not pass through the
driver. The vector comes from the server with every job; what is not in the vector must be the same as in the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tardygrad.constructors import Call, call_of, call_seeded, remember
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.same_task import check_same, facts
from tardygrad.engines.slowed import Slowness, slowness_of, with_slowness


class RemoteTask:
    """A task that is made anew where it is unpickled.

    Args:
        task: of the driver.
        recipe: that made it.
    """

    def __init__(self, task: Task, recipe: Call) -> None:
        self.recipe, self.facts, self.slowness = recipe, facts(task), slowness_of(task)

    def __reduce__(self) -> tuple[Callable[..., Task], tuple[Any, ...]]:
        return make_task, (self.recipe.function, self.recipe.arguments, self.facts, self.slowness)


def pickled(task: Task, method: Method, dumps: Callable[[Any], bytes]) -> bytes:
    """Task and method for `loads` in a worker's process."""
    recipe = call_of(task)
    return dumps((RemoteTask(task, recipe) if recipe else task, method))


def make_task(
    function: Callable[..., Task], arguments: dict[str, Any], expected: dict[str, int], slowness: Slowness | None
) -> Task:
    """Make a task by its recipe, and compare it with the driver's."""
    task: Task = remember(call_seeded(function, arguments), Call(function, arguments))
    check_same(task, expected)
    return with_slowness(task, slowness) if slowness else task
