"""How much of the plan for the paper's regime is done, and how many CPU hours the rest takes."""

from __future__ import annotations

from pathlib import Path

from experiments.progress import Progress, with_total
from experiments.regime import Line, Regime, RegimeWorkload
from tardygrad.spec.spec import Spec
from tardygrad.sweeps.store import PlannedRun, Store, StoredResult

_UPDATES_PER_TAIL = 32  # a measurement takes 128 gradients, an update 4


class _Finished(Store):
    """A store that pretends to have every run, so that all runs of a plan can be listed and counted."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder)
        self.store = store

    def result(self, run: Spec | PlannedRun) -> StoredResult:
        return self.store.result(run) or StoredResult("finished", 0.0, 0.0, 0.0, [], 0.0, 0.0)


def progress(regime: Regime) -> list[Progress]:
    """The progress of each part and workload, and of everything in the last row.

    A run that several parts share counts only for the first.
    """
    whole = Regime(regime.plan, _Finished(regime.store), known_choices=regime.known_choices)
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in regime.plan.lines():
        groups.setdefault((line.workload, line.part), []).append(line)
    rows, counted, finished = [], set[Path](), set[Path]()
    for (name, part), lines in groups.items():
        workload = regime.plan.workloads[name]
        runs = [run for line in lines for run in whole.all_runs(line)]
        every = {path: run for run in runs if (path := whole.store.path(run)) not in counted}
        finished_runs = [run for line in lines for run in regime.all_runs(line) if regime.store.result(run)]
        done = {path: run for run in finished_runs if (path := regime.store.path(run)) not in finished}
        counted |= every.keys()
        finished |= done.keys()
        total, used = (sum(cpu_seconds(run, workload) for run in some.values()) for some in (every, done))
        rows.append(Progress(name, part, len(every), len(done), total, total - used))
    return with_total(rows)


def cpu_seconds(run: PlannedRun, workload: RegimeWorkload) -> float:
    """The CPU seconds that a run takes, by the measured times of its workload."""
    method, length = run.spec["method"], run.spec["run"]
    epochs = method.get("local_epochs", 1) * method.get("buffer", 1)  # 4 local steps are an epoch
    updates = length["rounds"] * epochs + _UPDATES_PER_TAIL * len(run.tails)
    evaluations = length["rounds"] / length["evaluate_every"]
    return float(updates * workload.seconds["update"] + evaluations * workload.seconds["evaluation"])
