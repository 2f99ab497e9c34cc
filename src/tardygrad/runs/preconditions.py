"""What must hold before a run begins: checked before its engine starts, which may take long."""

from __future__ import annotations

from tardygrad.core.method import Method
from tardygrad.core.own_loop import check_local_work
from tardygrad.core.task import CountsByOpening, MayLackTest, Task
from tardygrad.engines.contract import Pool, check_work
from tardygrad.errors import Invalid
from tardygrad.runs.evaluation import ClientEvaluations
from tardygrad.runs.settings import Settings


def check_run(method: Method, task: Task, pool: Pool, settings: Settings) -> None:
    """Raise `Invalid` unless method, task, pool and settings fit together."""
    check_work(pool, method, task)
    check_local_work(task, method)
    if settings["evaluate_every"] and isinstance(task, MayLackTest) and not task.can_evaluate:
        raise Invalid("an evaluation needs a test set, and the task has none. Give it one, or set evaluate_every=0.")
    if settings["until"] is not None and pool.deadline is None and pool.pending() is not None:
        rule = "`until` needs an engine that knows a `deadline` if its runs can be resumed"
        raise Invalid(f"{rule}, got {type(pool).__name__}. Set its attribute `deadline`, or use rounds.")
    ClientEvaluations(task, settings["evaluate_clients"], pool)
    by_opening = isinstance(task, CountsByOpening) and task.counts_by_opening
    if method.weight_by == "samples" and by_opening and not pool.opens_data:
        fix = "Give the task samples=[...], a number for each client."
        raise Invalid(f'weight_by="samples" cannot count rows: on this engine only workers open the data. {fix}')
