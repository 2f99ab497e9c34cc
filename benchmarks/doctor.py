"""Does the doctor find planted problems, is it silent about healthy runs, and does its advice help?

For each case of doctor_cases.py and each seed: run the spec, examine the record, and compare the alarms (severe
findings and warnings) with what was planted. Then follow every piece of advice that has overrides, one at a time: run
the changed spec, and compare the time to the last score of the run. An advice is harmful if the changed run needs more
than 5 % longer, or does not get there. The seeds are not those that the doctor was developed with (below 530).

    python benchmarks/doctor.py [--seeds 530 531 532 533 534] [--only NAME] [--jobs 1] [--verbose]
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from doctor_cases import CASES, Case
from rich.console import Console
from rich.table import Table

import tardygrad as tg
from tardygrad.doctor.examine import examine
from tardygrad.doctor.finding import Finding
from tardygrad.doctor.try_change import TriedChange, try_change
from tardygrad.runs.history import read_history
from tardygrad.spec import spec


class Outcome(NamedTuple):
    """What the doctor made of one run."""

    number: int  # of the case
    seed: int
    alarms: list[Finding]
    trials: list[TriedChange]

    @property
    def case(self) -> Case:
        return CASES[self.number]

    @property
    def found(self) -> bool:
        """Whether the planted problem was found."""
        return any(finding.cause in self.case.causes for finding in self.alarms)

    @property
    def false(self) -> list[str]:
        """The alarms that are not about anything planted."""
        return [finding.cause for finding in self.alarms if finding.cause not in self.case.causes + self.case.also]


def record(case: Case, seed: int, path: Path) -> Path:
    """Run a case."""
    rng = np.random.default_rng([seed, sum(case.name.encode())])
    loaded = spec.parse(case.spec(rng, seed))
    built = loaded.build()
    with built.pool() as pool:
        run = tg.begin(built.method, built.task, pool, spec=loaded.resolved(), out=path, **loaded.run.settings())
        try:
            for _ in run.go():
                pass
        except (tg.Diverged, tg.Starved):
            pass
    if case.change:
        case.change(path)
    return path


def outcome(number: int, seed: int) -> Outcome:
    """Run a case, examine it, and follow the advice."""
    torch.set_num_threads(1)
    case = CASES[number]
    with tempfile.TemporaryDirectory() as folder:
        return _outcome(case, seed, Path(folder) / "run")


def _outcome(case: Case, seed: int, path: Path) -> Outcome:
    found = examine(record(case, seed, path)).findings
    trials = []
    for finding in found:
        if finding.overrides:
            trials.append(try_change(read_history(path), finding.overrides))
    alarms = [finding for finding in found if finding.severity != "note"]
    return Outcome(CASES.index(case), seed, alarms, trials)


def row(case: Case, outcomes: list[Outcome]) -> tuple[str, ...]:
    """The line of a case."""
    hits = sum(one.found for one in outcomes)
    false = Counter(cause for one in outcomes for cause in one.false)
    alarms = sum(len(one.alarms) for one in outcomes)
    trials = [trial for one in outcomes for trial in one.trials]
    faster = [trial.faster for trial in trials if trial.faster and trial.faster < math.inf]
    saved = sum(trial.goal.time == math.inf and not trial.worse for trial in trials)
    speed = f"{median(faster):.2g}x" if faster else f"{saved} recover" if saved else "–"
    return (
        case.name,
        ", ".join(case.causes) or "nothing",
        f"{hits / len(outcomes):.2f}" if case.causes else "–",
        f"{1 - false.total() / alarms:.2f}" if alarms else "–",
        ", ".join(f"{cause} {number}" for cause, number in false.items()) or "–",
        str(len(trials)),
        speed,
        str(sum(trial.worse for trial in trials)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[530, 531, 532, 533, 534])
    parser.add_argument("--only", help="run only the cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print the findings of every run")
    args = parser.parse_args()
    began, results = time.perf_counter(), list[Outcome]()
    numbers = [number for number, case in enumerate(CASES) if not args.only or args.only in case.name]
    columns = ("planted", "expected", "recall", "precision", "false alarms", "advice", "time to target", "harmful")
    table = Table(*columns, box=None, pad_edge=False)
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for one in pool.map(outcome, *zip(*((n, seed) for seed in args.seeds for n in numbers), strict=True)):
            results.append(one)
            if args.verbose:
                print(f"{time.perf_counter() - began:.0f} s  {one.case.name}, seed {one.seed}")
                for finding in one.alarms:
                    print(f"    {finding.severity} {finding.cause}: {finding.says} DO {finding.advice}")
                for trial in one.trials:
                    print(f"    tried {' '.join(trial.overrides)}: {trial}", flush=True)
    for number in numbers:
        table.add_row(*row(CASES[number], [one for one in results if one.number == number]))
    Console(width=150).print(table)
    planted = [one for one in results if one.case.causes]
    alarms, false = sum(len(one.alarms) for one in results), sum(len(one.false) for one in results)
    harmful = sum(any(trial.worse for trial in one.trials) for one in results)
    recall = sum(one.found for one in planted) / max(len(planted), 1)
    precision = 1 - false / max(alarms, 1)
    print(f"recall {recall:.3f} of {len(planted)} planted problems; precision {precision:.3f} of {alarms} alarms")
    quiet = sum(not one.alarms for one in results if not one.case.causes)
    print(f"healthy runs without an alarm: {quiet} of {len(results) - len(planted)}")
    advised = sum(bool(one.trials) for one in results)
    print(f"advice followed in {advised} of {len(results)} runs, harmful in {harmful}")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
